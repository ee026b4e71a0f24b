"""Segmentations drawn at random for training, the same in every process.

sentencepiece 0.2.3 draws with a generator that differs from process to process whatever
its seed, so the two samplers here do it with NumPy's Philox. Both work word by word:
the pieces of our models never cross a blank. They remember what they found for a word.

Sources: BPE-dropout, Provilkov et al. 2020, algorithm 1, as sentencepiece reads it (a
pair that was skipped is not tried again until one of its sides changes); subword
regularization, Kudo 2018, section 3, with all segmentations.
"""

import dataclasses
import heapq
import math
import random
import re
from bisect import bisect
from collections.abc import Iterable, Mapping

import numpy as np

from keras_seqconv.arguments import is_number

BLANK = "\u2581"
# A word and the blank before it, in normalized text.
_WORDS = re.compile(f"{BLANK}[^{BLANK}]*|[^{BLANK}]+")
_REMEMBERED = 1 << 17  # words or draws of words; some 50 MB
_LONGEST_REMEMBERED = 21  # 3n decisions at most for n characters: 64 bits are enough
_TEXTS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How `SentencePieceTokenizer.tokenize` draws segmentations.

    Args:
        rate: 0 draws nothing: the best segmentation. With a BPE model, the probability
            that a merge is left out (BPE-dropout; 0.1 in its paper, 1 gives
            characters). With a unigram model, the temperature t of the probabilities
            p**(1/t) of segmentations; Kudo's alpha = 1/t was 0.2 to 0.5, t = 5 to 2.
        seed: integers >= 0, for example (seed, epoch, batch). Same seed, same texts in
            the same order: same ids, on every machine.

    Raises:
        ValueError: for a wrong value.
    """

    rate: float
    seed: tuple[int, ...] = (0,)

    def __post_init__(self):
        if not is_number(self.rate) or self.rate < 0:
            raise ValueError(
                f"`rate` must be a number >= 0. Received: rate={self.rate!r}"
            )
        if isinstance(self.seed, list):
            object.__setattr__(self, "seed", tuple(self.seed))
        if not isinstance(self.seed, tuple) or not all(
            isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in self.seed
        ):
            raise ValueError(
                f"`seed` must be a tuple of integers >= 0. Received: seed={self.seed!r}"
            )

    def generator(self) -> np.random.Generator:
        """A new generator of this seed."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self.seed)))


def check_no_sampling(sampling: Sampling | None, kind: str):
    """ValueError unless nothing is to be drawn: there is one way to cut the text."""
    if sampling is not None:
        raise ValueError(
            f"`sampling` must be None: a tokenizer of the kind {kind!r} cuts a text in "
            f"one way only. Received: sampling={sampling!r}"
        )


class PieceTable:
    """The pieces of a model that text can become, and what unknown characters become.

    Args:
        scores: piece -> (id, score), of ordinary pieces.
        byte_ids: ids of the 256 bytes, or None when the model has none.
        unk_id: id of runs of unknown characters in a model without bytes.
    """

    def __init__(
        self,
        scores: Mapping[str, tuple[int, float]],
        byte_ids: list[int] | None,
        unk_id: int,
    ):
        self.scores = scores
        self._byte_ids = byte_ids
        self._unk_id = unk_id

    def ids(self, symbols: Iterable[str]) -> tuple[int, ...]:
        """Ids of the symbols of a word."""
        ids = []
        for symbol in symbols:
            if symbol in self.scores:
                ids.append(self.scores[symbol][0])
            elif self._byte_ids is not None:
                ids.extend(self._byte_ids[byte] for byte in symbol.encode())
            elif not ids or ids[-1] != self._unk_id:
                ids.append(self._unk_id)
        return tuple(ids)


class MergeSampler:
    """BPE-dropout. Exact: what is remembered is what a row of decisions led to.

    Args:
        table: pieces with their scores; the best score is merged first.
        rate: probability that a merge is left out.
    """

    def __init__(self, table: PieceTable, rate: float):
        if rate > 1:
            raise ValueError(
                "`rate` of a BPE model is a probability, at most 1. "
                f"Received: rate={rate!r}"
            )
        self._table = table
        self._rate = rate
        self._found: dict[tuple[str, int], tuple[int, ...]] = {}

    def sample(
        self, texts: Iterable[str], generator: np.random.Generator
    ) -> list[list[int]]:
        """Ids of normalized texts."""
        rows = []
        for words_of_texts in _chunks(texts):
            count = sum(map(len, words_of_texts))
            skips = generator.random((count, 64), np.float32) < self._rate
            bits = np.packbits(skips, axis=1, bitorder="little").view("<u8")
            decisions = iter(bits[:, 0].tolist())
            for words in words_of_texts:
                rows.append(self._row(words, decisions, generator))
        return rows

    def _row(self, words, decisions, generator) -> list[int]:
        row = []
        for word, bits in zip(words, decisions, strict=False):
            if len(word) > _LONGEST_REMEMBERED:
                draw = random.Random(int(generator.integers(1 << 63))).random
                row.extend(self._segment(word, lambda draw=draw: draw() < self._rate))
                continue
            key = word, bits & ((1 << 3 * len(word)) - 1)
            ids = self._found.get(key)
            if ids is None:
                if len(self._found) >= _REMEMBERED:
                    self._found.clear()
                ids = self._found[key] = self._segment(word, _Bits(key[1]).next)
            row.extend(ids)
        return row

    def _segment(self, word: str, skip) -> tuple[int, ...]:
        """Merges the best pair again and again, but for those that `skip()` says."""
        scores = self._table.scores
        symbols: list[str] = list(word)
        # Of each symbol, the index of those beside it; merged ones become "".
        before, after = list(range(-1, len(word) - 1)), list(range(1, len(word) + 1))
        agenda: list[tuple[float, int, int, str]] = []

        def add(left, right):
            if left >= 0 and right < len(symbols):
                piece = symbols[left] + symbols[right]
                if piece in scores:
                    heapq.heappush(agenda, (-scores[piece][1], left, right, piece))

        for left in range(len(word) - 1):
            add(left, left + 1)
        while agenda:
            _, left, right, piece = heapq.heappop(agenda)
            if not symbols[left] or not symbols[right]:
                continue
            if symbols[left] + symbols[right] != piece or skip():
                continue
            symbols[left], symbols[right] = piece, ""
            after[left] = after[right]
            if after[right] < len(symbols):
                before[after[right]] = left
            add(before[left], left)
            add(left, after[left])
        return self._table.ids(filter(None, symbols))


class _Bits:
    def __init__(self, bits: int):
        self._bits = bits

    def next(self) -> bool:
        bit = self._bits & 1
        self._bits >>= 1
        return bool(bit)


class LatticeSampler:
    """Subword regularization: segmentations by their probability to the power 1/rate.

    Args:
        table: pieces with the logarithms of their probabilities.
        rate: the temperature.
    """

    _UNKNOWN_PENALTY = 10.0  # below the rarest piece, as in sentencepiece

    def __init__(self, table: PieceTable, rate: float):
        self._table = table
        self._rate = rate
        self._longest = max(map(len, table.scores), default=1)
        rarest = min((score for _, score in table.scores.values()), default=0.0)
        self._unknown = rarest - self._UNKNOWN_PENALTY
        self._found: dict[str, list] = {}

    def sample(
        self, texts: Iterable[str], generator: np.random.Generator
    ) -> list[list[int]]:
        """Ids of normalized texts."""
        rows = []
        for words_of_texts in _chunks(texts):
            count = sum(len(word) for words in words_of_texts for word in words)
            draws = iter(generator.random(count).tolist())
            rows.extend(self._row(words, draws) for words in words_of_texts)
        return rows

    def _row(self, words, draws) -> list[int]:
        row = []
        for word in words:
            lattice = self._found.get(word) or self._lattice(word)
            # One number for each character, so that words do not shift each other's.
            numbers = [next(draws) for _ in word]
            end, pieces = len(word), []
            while end:
                cumulative, starts = lattice[end]
                start = starts[bisect(cumulative, numbers[end - 1])]
                pieces.append(word[start:end])
                end = start
            row.extend(self._table.ids(reversed(pieces)))
        return row

    def _lattice(self, word: str) -> list:
        """For each end, of its pieces: cumulative probabilities, starts."""
        scores, sums, lattice = self._table.scores, [0.0], [None]
        for end in range(1, len(word) + 1):
            starts, logs = [], []
            for start in range(max(0, end - self._longest), end):
                found = scores.get(word[start:end])
                if found is not None or start == end - 1:
                    score = self._unknown if found is None else found[1]
                    starts.append(start)
                    logs.append(sums[start] + score / self._rate)
            best = max(logs)
            weights = [math.exp(value - best) for value in logs]
            total = sum(weights)
            sums.append(best + math.log(total))
            cumulative, reached = [], 0.0
            for weight in weights[:-1]:  # the last takes the rest
                reached += weight / total
                cumulative.append(reached)
            lattice.append((cumulative, starts))
        if len(word) <= 3 * _LONGEST_REMEMBERED:
            if len(self._found) >= _REMEMBERED // 4:
                self._found.clear()
            self._found[word] = lattice
        return lattice


def _chunks(texts: Iterable[str]):
    """The words of some texts at a time."""
    chunk = []
    for text in texts:
        chunk.append(_WORDS.findall(text))
        if len(chunk) == _TEXTS_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
