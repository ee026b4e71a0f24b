"""Optimizers of the recipes, and updates from sums over tokens."""

from keras_seqconv.optimizers.token_normalized import TokenNormalized as TokenNormalized
from keras_seqconv.optimizers.updates import NAG as NAG
from keras_seqconv.optimizers.updates import AdamW as AdamW
from keras_seqconv.optimizers.updates import Muon as Muon
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals())
