"""Models of convolutional sequence learning, and the Transformer as their baseline."""

from keras_seqconv.models.conv_s2s import ConvS2S as ConvS2S
from keras_seqconv.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from keras_seqconv.models.language_models import ConvLanguageModel as ConvLanguageModel
from keras_seqconv.models.language_models import LanguageModel as LanguageModel
from keras_seqconv.models.of_presets import from_preset as from_preset
from keras_seqconv.models.of_presets import list_presets as list_presets
from keras_seqconv.models.sequence_model import SequenceModel as SequenceModel
from keras_seqconv.models.stacks import MIXERS as MIXERS
