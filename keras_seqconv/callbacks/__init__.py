"""Callbacks for any `model.fit`: checkpoints, validation, schedules, reports.

Keras passes one dictionary of logs to the callbacks in the order of their list, so a
callback sees the results of earlier ones.

A callback with state has `get_state() -> dict` for JSON, and `set_state(dict)`;
`Checkpoints` and `fit_stream` use them. The callbacks draw no random numbers, and
validation does not change those of training, so a training is the same with and
without them.
"""

from keras_seqconv.callbacks.control import (
    EarlyStopping,
    FixedSchedule,
    GracefulStop,
    ReduceOnPlateau,
    StopAtLearningRate,
    StopOnNaN,
)
from keras_seqconv.callbacks.fitting import Checkpoints, fit_stream
from keras_seqconv.callbacks.reporting import (
    LogFile,
    Progress,
    Validate,
    ValidationBLEU,
)
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals())

__all__ = [
    "Checkpoints", "EarlyStopping", "FixedSchedule", "GracefulStop", "LogFile",
    "Progress", "ReduceOnPlateau", "StopAtLearningRate", "StopOnNaN", "Validate",
    "ValidationBLEU", "fit_stream",
]  # fmt: skip
