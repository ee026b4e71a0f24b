"""Models of convolutional sequence learning, and the Transformer as their baseline."""

from keras_seqconv.models.conv_s2s import ConvS2S as ConvS2S
from keras_seqconv.models.encoder_decoder import EncoderDecoder as EncoderDecoder
