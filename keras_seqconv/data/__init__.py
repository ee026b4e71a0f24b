"""Data pipeline: from a corpus to batches of few fixed shapes.

In the order of the data: `corpora` yields blocks of texts (TFDS, folders of files, the
embedded `phrases`), `ids` tokenizes them and keeps the ids on disk (`blocks`: lines of
text to blocks for language models), `batches` makes endless batches of the ids from any
position.
"""

from keras_seqconv.data.batches import BatchStream as BatchStream
from keras_seqconv.data.corpora import Corpus as Corpus
from keras_seqconv.data.corpora import open_corpus as open_corpus
from keras_seqconv.data.ids import IdStore as IdStore
from keras_seqconv.data.ids import blocks as blocks
from keras_seqconv.data.ids import encode as encode
from keras_seqconv.support.arguments import public_names

__dir__ = public_names(globals())
