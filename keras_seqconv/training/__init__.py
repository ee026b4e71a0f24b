"""Training runs: from a corpus and a preset to a scored model directory.

In the order of the work: `keras_seqconv.training_options` (the user's options),
`recipe` (model, optimizer and loss from them), `run` (the folder, and the start),
`text` (tokenizers and stores of ids), `train` (the fit), `finish` (the average, the
model directory and the scores).
"""

from keras_seqconv.training.finish import average_run
from keras_seqconv.training.train import Result, train
from keras_seqconv.training_options import TrainingOptions

__all__ = ["Result", "TrainingOptions", "average_run", "train"]
