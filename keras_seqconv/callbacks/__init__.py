"""Callbacks for any `model.fit`: checkpoints, validation, schedules, reports.

Keras passes one dictionary of logs to the callbacks in the order of their list, so a
callback sees the results of earlier ones.

A callback with state has `get_state() -> dict` for JSON, and `set_state(dict)`;
`Checkpoints` and `fit_stream` use them. The callbacks draw no random numbers, and
validation does not change those of training, so a training is the same with and
without them.
"""

from keras_seqconv.callbacks.control import EarlyStopping as EarlyStopping
from keras_seqconv.callbacks.control import FixedSchedule as FixedSchedule
from keras_seqconv.callbacks.control import GracefulStop as GracefulStop
from keras_seqconv.callbacks.control import ReduceOnPlateau as ReduceOnPlateau
from keras_seqconv.callbacks.control import StopAtLearningRate as StopAtLearningRate
from keras_seqconv.callbacks.control import StopOnNaN as StopOnNaN
from keras_seqconv.callbacks.fitting import Checkpoints as Checkpoints
from keras_seqconv.callbacks.fitting import fit_stream as fit_stream
from keras_seqconv.callbacks.reporting import LogFile as LogFile
from keras_seqconv.callbacks.reporting import Progress as Progress
from keras_seqconv.callbacks.reporting import Validate as Validate
from keras_seqconv.callbacks.reporting import ValidationBLEU as ValidationBLEU
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals())
