"""Training runs: a corpus and a preset in, a trained model directory out.

In the order of the work: `keras_seqconv.training_options` (what the user says),
`recipe` (what that means for model, optimizer, loss and callbacks), `run` (the folder),
`text` (tokenizers and stores of ids), `train` (the fit), `finish` (average, save,
score).
"""

from keras_seqconv.training.train import Result as Result
from keras_seqconv.training.train import train as train
from keras_seqconv.training_options import TrainingOptions as TrainingOptions
