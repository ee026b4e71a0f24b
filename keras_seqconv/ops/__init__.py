"""Depthwise convolutions and other ops with hand-written gradients."""

from keras_seqconv.ops.causal_conv import causal_conv1d as causal_conv1d
from keras_seqconv.ops.causal_conv import causal_conv1d_update as causal_conv1d_update
from keras_seqconv.ops.compilation import jit_scope as jit_scope
from keras_seqconv.ops.convolution import dynamic_conv as dynamic_conv
from keras_seqconv.ops.convolution import light_conv as light_conv
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals())
