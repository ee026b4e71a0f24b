"""Perplexity of models. Letters: T positions, w positions of context."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from keras_seqconv.data.ids import blocks
from keras_seqconv.tokenizers import CharacterTokenizer


class TextPerplexity(NamedTuple):
    """Perplexity of a text under a model, by token and by word.

    Words are separated by white space, and each line has an end. Results per word are
    comparable between lossless tokenizers. Tokens of probability 0 (whole sentences,
    for translations) count in `infinite` only, as in fairseq.

    Attributes:
        tokens, words: number of scored tokens and words, with an end for each line.
        infinite: tokens of probability 0.
        nll, word_nll: nats per token, and per word as the sum of its pieces. Tokens of
            probability 0 are left out of `nll`. They make `word_nll` of a text
            infinite; of translations it leaves out their texts.
        bits, word_bits: nats divided by log 2, fairseq's loss (base 2).
        perplexity, word_perplexity: exp(nll), which is 2 to the power of bits.
        unit: kind of token: "token" or "character".
    """

    tokens: int
    words: int
    infinite: int
    nll: float
    bits: float
    perplexity: float
    word_nll: float
    word_bits: float
    word_perplexity: float
    unit: str = "token"

    @classmethod
    def of(
        cls, total: float, tokens: int, words: int, infinite: int, unit: str = "token"
    ) -> "TextPerplexity":
        """Makes the result from the nats of all scored tokens; ValueError for none."""
        if not tokens:
            raise ValueError(f"All {infinite:,} tokens have a probability of 0.")
        numbers = []
        for count in (tokens, words):
            nll = total / count
            numbers += [nll, nll / math.log(2), math.exp(min(nll, 700.0))]
        return cls(tokens, words, infinite, *numbers, unit)

    def for_json(self) -> dict:
        """The attributes; None in place of infinity, which JSON has not."""
        return {n: None if x == math.inf else x for n, x in self._asdict().items()}

    def lines(self) -> list[str]:
        """Lines to print: per token and per word, in nats and in bits."""
        return [
            f"{unit:9} nll {nll:.4f}, loss (base 2) {bits:.4f}, "
            f"perplexity {perplexity:.2f} ({count:,} {unit}s)"
            for unit, count, (nll, bits, perplexity) in (
                (self.unit, self.tokens, self[3:6]),
                ("word", self.words, self[6:9]),
            )
        ]


def translation_perplexity(
    translator, sources: Sequence[str], translations: Sequence[str]
) -> TextPerplexity:
    """Perplexity of given translations under a translation model.

    Args:
        translator: a `keras_seqconv.Translator`, which cuts long sources.
        sources, translations: lists of equal length, not empty.
    """
    if isinstance(sources, str) or isinstance(translations, str):
        raise ValueError(
            "`sources` and `translations` must be lists of texts. "
            f"Received: {sources!r:.50} and {translations!r:.50}"
        )
    if len(sources) != len(translations) or not sources:
        raise ValueError(
            "`sources` and `translations` must be of one length, at least 1. "
            f"Received: {len(sources)} and {len(translations)}"
        )
    log_probs = np.array(translator.score(sources, translations, normalize=False))
    targets = translator.target_tokenizer.tokenize(translations)
    tokens = np.array([*map(len, targets)])
    words = np.array([len(text.split()) + 1 for text in translations])
    finite = _finite(log_probs)
    return TextPerplexity.of(
        float(-log_probs[finite].sum(dtype="float64")),
        int(tokens[finite].sum()),
        int(words[finite].sum()),
        int(tokens[~finite].sum()),
    )


def text_perplexity(
    generator,
    lines: Iterable[str],
    *,
    context_window: int = 0,
    tokens_per_sample: int | None = None,
    break_mode: str = "none",
) -> TextPerplexity:
    """Perplexity of running text under a language model (fairseq's `eval-lm`).

    Args:
        generator: a `keras_seqconv.LanguageGenerator`, also of an ensemble; its
            `tokens_per_batch` bounds the positions in computation.
        lines: lines of the text, read once in parts; or a text, which is one line.
        context_window: w: positions before each block that are read and not scored. A
            large window gives every token much context, and costs time.
        tokens_per_sample: positions T of a block with its context; by default 512, or
            the limit of the model.
        break_mode: mode of cutting blocks, see `keras_seqconv.data.blocks`.

    Raises:
        ValueError: the text is empty, or an uncut line is longer than the positions of
            the model.
    """
    from keras import ops

    from keras_seqconv.decoding.graphs import run_cached
    from keras_seqconv.translation.text_model import batches_by_length, check_lengths

    if generator.tokenizer is None:
        raise ValueError("This model has no tokenizer.")
    if not generator.is_of_keras:
        raise ValueError(
            "`generator` must be a model of Keras: load it with the `runtime` keras."
        )
    model, limit = generator.model, generator.model.max_target_length
    filled = break_mode == "none" or context_window
    if filled and limit and (tokens_per_sample or 0) > limit:
        raise ValueError(
            f"`tokens_per_sample` must be at most the {limit} positions of the model. "
            f"Received: {tokens_per_sample}"
        )
    total = tokens = infinite = words = 0

    def ids():
        nonlocal words
        rest = iter([lines] if isinstance(lines, str) else lines)
        while part := list(itertools.islice(rest, 1000)):
            words += sum(len(text.split()) + 1 for text in part)
            yield from generator.tokenizer.tokenize_lines(part)

    rows = blocks(
        ids(),
        min(512, limit or 512) if tokens_per_sample is None else tokens_per_sample,
        break_mode=break_mode,
        context_window=context_window,
        end_id=model.end_id,
        pad_id=model.pad_id,
    )
    # The logits have 2 ** 26 elements at most.
    size = (1 << 26) // model.target_vocabulary_size
    size = min(generator.tokens_per_batch, max(1, size))
    # Rows of similar lengths together, some thousands at a time.
    parts = iter(lambda: list(itertools.islice(rows, 4096)), [])
    for number, part in enumerate(parts):
        inputs = [row["target_ids"].tolist() for row in part]
        labels = [row["labels"].tolist() for row in part]
        check_lengths("lines", inputs, limit, 4096 * number)
        for batch in batches_by_length([*map(len, inputs)], size, limit):
            targets = batch.padded(labels, model.pad_id)
            tensors = {
                "inputs": ops.convert_to_tensor(batch.padded(inputs, model.pad_id)),
                "labels": ops.convert_to_tensor(targets),
            }
            of_rows = run_cached(_log_probs, model, None, tensors)
            scored = targets != model.pad_id
            log_probs = ops.convert_to_numpy(of_rows)[scored]
            finite = _finite(log_probs)
            total -= float(log_probs[finite].sum(dtype="float64"))
            tokens += int(finite.sum())
            infinite += int((~finite).sum())
    characters = isinstance(generator.tokenizer, CharacterTokenizer)
    unit = "character" if characters else "token"
    found = TextPerplexity.of(total, tokens, words, infinite, unit)
    if infinite:  # in words that are not known here
        of_words = ("word_nll", "word_bits", "word_perplexity")
        found = found._replace(**dict.fromkeys(of_words, math.inf))
    return found


def _finite(log_probs: np.ndarray) -> np.ndarray:
    """Where they are above -infinity; ValueError for NaN."""
    if np.isnan(log_probs).any():
        raise ValueError("The model must give finite logits; it gives NaN.")
    return ~np.isneginf(log_probs)


def _log_probs(model, _, tensors):
    from keras import ops

    outputs = model({"target_ids": tensors["inputs"]})
    return ops.cast(model.log_prob(outputs, tensors["labels"]), "float32")
