"""Callbacks for any `model.fit`: checkpoints, validation, schedules, reports.

Keras passes one dictionary of logs to the callbacks in the order of their list, so a
callback sees the results of earlier ones; `ordered` sorts a list.

A callback with state has `get_state() -> dict` for JSON, and `set_state(dict)`;
`Checkpoints` and `resume` use them. The callbacks draw no random numbers, and
validation does not change those of training, so a training is the same with and
without them.
"""

from keras_seqconv.callbacks.control import (
    EarlyStopping,
    FixedSchedule,
    GracefulStop,
    ReduceOnPlateau,
    StopAtLearningRate,
    StopAtUpdate,
    StopOnNaN,
)
from keras_seqconv.callbacks.fitting import Checkpoints, fit_stream, ordered, resume
from keras_seqconv.callbacks.reporting import (
    LogFile,
    Progress,
    TensorBoard,
    Validate,
    ValidationBLEU,
)
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals())

__all__ = [
    "Checkpoints", "EarlyStopping", "FixedSchedule", "GracefulStop", "LogFile",
    "Progress", "ReduceOnPlateau", "StopAtLearningRate", "StopAtUpdate", "StopOnNaN",
    "TensorBoard", "Validate", "ValidationBLEU", "fit_stream", "ordered", "resume",
]  # fmt: skip
