"""Callbacks for any `model.fit`: checkpoints, validation, schedules, reports.

Keras passes one dictionary of logs to the callbacks in the order of their list, so a
callback sees the results of earlier ones; `ordered` sorts a list.

A callback with state has `get_state() -> dict` for JSON, and `set_state(dict)`;
`Checkpoints` and `resume` use them. The callbacks draw no random numbers, and
validation does not change those of training, so a training is the same with and
without them.
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
    `ValidationBLEU`, which put val_* into the logs; then, in their order, callbacks
    that use results or stop for other reasons, and all other classes; then
    `StopAtLearningRate`, after callbacks that change the rate; `LogFile`, `TensorBoard`
    and `Progress`, which report; and `Checkpoints`, which from then on keeps the states
    of all others.
    """
    callbacks = sorted(
        callbacks,
        key=lambda one: sum(_PLACES[kind] for kind in _PLACES if isinstance(one, kind)),
    )
    for callback in callbacks:
        if isinstance(callback, Checkpoints):
            callback.others = [other for other in callbacks if other is not callback]
    return callbacks
