"""Layers for convolutional sequence models, and attention as their baseline."""

from keras_seqconv.layers.adaptive import AdaptiveInput as AdaptiveInput
from keras_seqconv.layers.adaptive import AdaptiveSoftmax as AdaptiveSoftmax
from keras_seqconv.layers.attention import MultiHeadAttention as MultiHeadAttention
from keras_seqconv.layers.conv_modules import GLU as GLU
from keras_seqconv.layers.conv_modules import DynamicConvModule as DynamicConvModule
from keras_seqconv.layers.conv_modules import LightConvModule as LightConvModule
from keras_seqconv.layers.conv_modules import QueryConvModule as QueryConvModule
from keras_seqconv.layers.conv_s2s import ConvS2SAttention as ConvS2SAttention
from keras_seqconv.layers.conv_s2s import ConvS2SBlock as ConvS2SBlock
from keras_seqconv.layers.conv_s2s import ScaledResidual as ScaledResidual
from keras_seqconv.layers.conv_s2s import ScaleGradient as ScaleGradient
from keras_seqconv.layers.convolution import DynamicConv as DynamicConv
from keras_seqconv.layers.convolution import LightConv as LightConv
from keras_seqconv.layers.embedding import PositionEncoding as PositionEncoding
from keras_seqconv.layers.embedding import TokenEmbedding as TokenEmbedding
from keras_seqconv.layers.feed_forward import FeedForward as FeedForward
from keras_seqconv.layers.feed_forward import Residual as Residual
from keras_seqconv.layers.short_conv import GatedShortConv as GatedShortConv
from keras_seqconv.layers.short_conv import ShortConv as ShortConv
from keras_seqconv.layers.weight_norm import ConvS2SInitializer as ConvS2SInitializer
from keras_seqconv.layers.weight_norm import WeightNormConv1D as WeightNormConv1D
from keras_seqconv.layers.weight_norm import WeightNormDense as WeightNormDense
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals(), "sequences")
