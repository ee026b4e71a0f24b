"""Callbacks for anybody's `model.fit`: checkpoints, validation, schedules, reports.

Keras hands one dictionary of logs to the callbacks in the order of their list, so the
order says who sees whose results. `ordered` sorts a list by these stages:

| stage | callbacks                                                                    |
|-------|------------------------------------------------------------------------------|
| 0     | GracefulStop, StopAtUpdate: this is the last batch                           |
| 1, 2  | Validate, then ValidationBLEU: put val_* into the logs                       |
| 3     | FixedSchedule, ReduceOnPlateau, EarlyStopping, StopOnNaN, and all of others' |
| 4     | StopAtLearningRate: after those that change the rate                         |
| 5     | LogFile, TensorBoard, Progress: tell what happened                           |
| 6     | Checkpoints: keeps the states of all others                                  |

A callback with state has `get_state() -> dict` that JSON can hold, and
`set_state(dict)`; `Checkpoints` and `resume` use them. None of these callbacks draws
random numbers, and validation leaves those of training alone, so that a training is
the same with and without them.
"""

from collections.abc import Iterable

from keras_seqconv.callbacks.checkpointing import Checkpoints as Checkpoints
from keras_seqconv.callbacks.checkpointing import resume as resume
from keras_seqconv.callbacks.learning_rates import FixedSchedule as FixedSchedule
from keras_seqconv.callbacks.learning_rates import ReduceOnPlateau as ReduceOnPlateau
from keras_seqconv.callbacks.reporting import LogFile as LogFile
from keras_seqconv.callbacks.reporting import Progress as Progress
from keras_seqconv.callbacks.stopping import EarlyStopping as EarlyStopping
from keras_seqconv.callbacks.stopping import GracefulStop as GracefulStop
from keras_seqconv.callbacks.stopping import StopAtLearningRate as StopAtLearningRate
from keras_seqconv.callbacks.stopping import StopAtUpdate as StopAtUpdate
from keras_seqconv.callbacks.stopping import StopOnNaN as StopOnNaN
from keras_seqconv.callbacks.tensorboard import TensorBoard as TensorBoard
from keras_seqconv.callbacks.validation import Validate as Validate
from keras_seqconv.callbacks.validation import ValidationBLEU as ValidationBLEU

_OTHERS = 3


def ordered(callbacks: Iterable) -> list:
    """The callbacks in an order in which each sees the results it needs.

    Those of one stage (see above) stay in their order. Each `Checkpoints` among them
    keeps the states of all the others from now on.
    """
    found = sorted(callbacks, key=lambda one: getattr(one, "stage", _OTHERS))
    for callback in found:
        if isinstance(callback, Checkpoints):
            callback.watch(found)
    return found
