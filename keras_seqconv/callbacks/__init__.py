"""Callbacks for any `model.fit`: checkpoints, validation, schedules, reports.

Keras hands one dictionary of logs to the callbacks in the order of their list, so the
order says who sees whose results; `ordered` sorts a list.

A callback with state has `get_state() -> dict` that JSON can hold, and
`set_state(dict)`; `Checkpoints` and `resume` use them. None of these callbacks draws
random numbers, and validation leaves those of training alone, so that a training is
the same with and without them.
"""

from collections.abc import Iterable

from keras_seqconv.callbacks.checkpointing import Checkpoints as Checkpoints
from keras_seqconv.callbacks.checkpointing import resume as resume
from keras_seqconv.callbacks.control import EarlyStopping as EarlyStopping
from keras_seqconv.callbacks.control import FixedSchedule as FixedSchedule
from keras_seqconv.callbacks.control import GracefulStop as GracefulStop
from keras_seqconv.callbacks.control import ReduceOnPlateau as ReduceOnPlateau
from keras_seqconv.callbacks.control import StopAtLearningRate as StopAtLearningRate
from keras_seqconv.callbacks.control import StopAtUpdate as StopAtUpdate
from keras_seqconv.callbacks.control import StopOnNaN as StopOnNaN
from keras_seqconv.callbacks.reporting import LogFile as LogFile
from keras_seqconv.callbacks.reporting import Progress as Progress
from keras_seqconv.callbacks.reporting import Reports, Validation
from keras_seqconv.callbacks.reporting import TensorBoard as TensorBoard
from keras_seqconv.callbacks.reporting import Validate as Validate
from keras_seqconv.callbacks.reporting import ValidationBLEU as ValidationBLEU

# Places of classes; all others, also those of other packages, are at 0.
_PLACES = {
    StopAtUpdate: -2, Validation: -1, StopAtLearningRate: 1, Reports: 2, Checkpoints: 3,
}  # fmt: skip


def ordered(callbacks: Iterable) -> list:
    """Sort callbacks so that each sees the results it needs.

    First `StopAtUpdate`, whose last update is validated; `Validate` and
    `ValidationBLEU`, which put val_* into the logs; then, in their order, those that
    look at results or stop for other reasons, and all of others' classes; then
    `StopAtLearningRate`, after those that change the rate; `LogFile`, `TensorBoard` and
    `Progress`, which tell what happened; and `Checkpoints`, which from now on keep the
    states of all the others.
    """
    callbacks = sorted(
        callbacks,
        key=lambda one: sum(_PLACES[kind] for kind in _PLACES if isinstance(one, kind)),
    )
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.others = [other for other in callbacks if other is not callback]
    return callbacks
