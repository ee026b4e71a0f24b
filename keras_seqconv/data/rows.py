"""Rows of text: checked, counted, and made a `tf.data.Dataset`.

A corpus has one column (text for a language model: target) or two (source, target).
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from keras_seqconv.data.background import guarded_generator
from keras_seqconv.support.arguments import check_choice
from keras_seqconv.support.extras import require

# What is wrong with a row, as a key of `counts` -> in words.
PROBLEMS = {
    "empty": "has no text",
    "invalid_utf8": "is not valid UTF-8",
    "nul": "holds a NUL character",
}
# An attribute of a dataset of single rows: the same rows still in batches. The steps of
# keras_seqconv.data.steps start from these.
BATCHES = "_keras_seqconv_batches"
# The last errors raised while tf.data was reading: `plain_errors` looks them up.
_RAISED = collections.deque(maxlen=32)


@dataclasses.dataclass
class Chunk:
    """Some rows in a row.

    Attributes:
        columns: for each column, the UTF-8 texts of the rows.
        where: (column, row in the chunk) -> where that text is from, in words.
    """

    columns: list[list[bytes]]
    where: Callable[[int, int], str]


class Rules:
    """What happens to the rows that cannot be used, and how many there were.

    Args:
        on_error: "raise" a ValueError at the first one, or "skip" and count them.
        keep_empty: whether a row without text is a row like others.
    """

    def __init__(self, on_error: str, keep_empty: bool = False):
        check_choice("on_error", on_error, ("raise", "skip"))
        self.on_error = on_error
        self.keep_empty = keep_empty

    def apply(self, chunk: Chunk, counts: collections.Counter) -> list[list[bytes]]:
        """The columns of the good rows; `counts` goes up."""
        bad = set()
        for column, texts in enumerate(chunk.columns):
            if self._all_good(texts):
                continue
            for row, text in enumerate(texts):
                problem = self._problem(text)
                if problem is None or row in bad:
                    continue
                if self.on_error == "raise":
                    raise ValueError(
                        f"{chunk.where(column, row)} {PROBLEMS[problem]}. Correct it, "
                        "or leave out such rows (`on_error`='skip')."
                    )
                bad.add(row)
                counts[problem] += 1
        columns = chunk.columns
        if bad:
            columns = [
                [text for row, text in enumerate(texts) if row not in bad]
                for texts in columns
            ]
        counts["kept"] += len(columns[0])
        return columns

    def _all_good(self, texts: list[bytes]) -> bool:
        # All at once: some fifty times as fast as text by text.
        joined = b"\n".join(texts)
        if b"\0" in joined:
            return False
        try:
            text = joined.decode()
        except UnicodeDecodeError:
            return False
        return self.keep_empty or all(map(str.strip, text.split("\n")))

    def _problem(self, text: bytes) -> str | None:
        try:
            decoded = text.decode()
        except UnicodeDecodeError:
            return "invalid_utf8"
        if "\0" in decoded:
            return "nul"
        return None if self.keep_empty or decoded.strip() else "empty"


def describe(counts: collections.Counter) -> str:
    """The skips in words: "3 empty, 1 invalid_utf8", or "none"."""
    skips = [f"{n:,} {key}" for key, n in sorted(counts.items()) if key != "kept" and n]
    return ", ".join(skips) or "none"


def to_dataset(
    passes: Callable[[collections.Counter], Iterator[list[list[bytes]]]],
    names: tuple[str, ...],
    counts: collections.Counter | None,
    what: str,
):
    """A dataset of {name: scalar string} from a function that reads a corpus once.

    Args:
        passes: takes a counter, yields the columns of good rows, chunk by chunk.
        names: of the columns.
        counts: becomes the counter of a pass when the pass is complete.
        what: the corpus in words, for the error when there are no rows.
    """
    tf = require("tensorflow", "mt")

    @guarded_generator
    def rows():
        own = collections.Counter()
        emitted = 0
        try:
            for columns in passes(own):
                if not columns[0]:
                    continue
                emitted += len(columns[0])
                yield {
                    name: np.array(texts, dtype=object)
                    for name, texts in zip(names, columns, strict=True)
                }
            if not emitted:
                raise ValueError(
                    f"{what} must hold at least one row of text. Rows left out: "
                    f"{describe(own)}"
                )
        except Exception as error:
            _RAISED.append(error)
            raise
        if counts is not None:
            counts.clear()
            counts.update(own)

    signature = {name: tf.TensorSpec([None], tf.string) for name in names}
    batches = tf.data.Dataset.from_generator(rows, output_signature=signature)
    single = batches.unbatch()
    setattr(single, BATCHES, batches)
    return single


@contextlib.contextmanager
def plain_errors():
    """Inside, reading a corpus through tf.data raises the error that explains it.

    tf.data wraps whatever Python raises into an InvalidArgumentError whose text is
    mostly a traceback; here the ValueError or OSError of the source comes out instead.

    Example:

    ```py
    with plain_errors():
        for pair in open_corpus("my-corpus").split("train"):
            ...
    ```
    """
    tf = require("tensorflow", "mt")
    try:
        yield
    except tf.errors.OpError as error:
        for known in reversed(_RAISED):
            if str(known) in error.message:
                raise known from None
        raise
