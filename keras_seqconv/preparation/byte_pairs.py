"""Byte pairs of words: applied and counted, and the files of counts."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer


class Pieces(dict):
    """Byte pairs of each word that was asked for, joined with blanks.

    Much faster than `subword-nmt apply-bpe`, and the same: the pieces of a word do not
    depend on the words beside it.

    Args:
        codes: the text of a codes file.
    """

    def __init__(self, codes: str):
        super().__init__()
        self._split = DictionaryTokenizer(Dictionary(), bpe_codes=codes).split

    def __missing__(self, word: str) -> str:
        pieces = self[word] = " ".join(self._split(word))
        return pieces

    def join(self, tokens: str) -> str:
        """A line of words as a line of pieces."""
        return " ".join(map(self.__getitem__, tokens.split()))

    def counts(self, words: Counter) -> Counter:
        """Occurrences of each piece in words."""
        found = Counter()
        for word, count in words.items():
            for piece in self[word].split():
                found[piece] += count
        return found


def write_counts(path: Path, words: Counter):
    """Lines `word count`. Words hold no blanks."""
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{word} {count}\n" for word, count in words.items())


def read_counts(path: Path) -> dict[str, int]:
    """What `write_counts` wrote."""
    pairs = (line.rpartition(" ") for line in read_lines(path))
    return {word: int(count) for word, _, count in pairs}


def read_lines(path: Path) -> Iterator[str]:
    """Lines without their LF; nothing else ends a line."""
    with open(path, encoding="utf-8", newline="\n") as stream:
        for line in stream:
            yield line.removesuffix("\n")
