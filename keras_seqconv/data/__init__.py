"""From a corpus to batches of few fixed shapes.

In the order of the data: `sources` (TFDS, folders of files, the embedded `phrases`),
`steps` (tokenize, filter, and the rest of a `tf.data` pipeline of one's own), `blocks`
(lines to blocks for language models), `store` (ids on disk), `plan` (which rows make
which batch), `stream` (endless batches from any position).
"""

from keras_seqconv.data import steps as steps
from keras_seqconv.data.blocks import to_blocks as to_blocks
from keras_seqconv.data.files import from_files as from_files
from keras_seqconv.data.files import from_lines as from_lines
from keras_seqconv.data.rows import plain_errors as plain_errors
from keras_seqconv.data.sources import Corpus as Corpus
from keras_seqconv.data.sources import open_corpus as open_corpus
from keras_seqconv.data.store import IdStore as IdStore
from keras_seqconv.data.stream import BatchStream as BatchStream
