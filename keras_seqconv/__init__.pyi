# The public names. `__init__.py` imports each at its first use.

from keras_seqconv import callbacks as callbacks
from keras_seqconv import checkpoints as checkpoints
from keras_seqconv import convert as convert
from keras_seqconv import data as data
from keras_seqconv import decoding as decoding
from keras_seqconv import evaluation as evaluation
from keras_seqconv import export as export
from keras_seqconv import layers as layers
from keras_seqconv import losses as losses
from keras_seqconv import metrics as metrics
from keras_seqconv import models as models
from keras_seqconv import ops as ops
from keras_seqconv import optimizers as optimizers
from keras_seqconv import presets as presets
from keras_seqconv import schedules as schedules
from keras_seqconv import tokenizers as tokenizers
from keras_seqconv import training as training
from keras_seqconv.callbacks import fit_stream as fit_stream
from keras_seqconv.devices import keep_freed_memory as keep_freed_memory
from keras_seqconv.evaluation import demo as demo
from keras_seqconv.evaluation import inspection as inspection
from keras_seqconv.evaluation import plots as plots
from keras_seqconv.translation import load as load
from keras_seqconv.translation.translator import LanguageGenerator as LanguageGenerator
from keras_seqconv.translation.translator import Translator as Translator
from keras_seqconv.version import __version__ as __version__
