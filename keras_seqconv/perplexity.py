"""How well models predict given texts: of translations, and of running text.

Letters: B rows, T positions, w positions of context.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_seqconv.batches import batches, texts_of
from keras_seqconv.data.blocks import blocks
from keras_seqconv.decoding import graphs

# Inputs and labels of one row, as long as each other; padding where nothing is scored.
Row = tuple[Sequence[int], Sequence[int]]
# Rows that are sorted by length together.
_WINDOW = 4096
# Largest tensor of logits, in elements.
_LOGITS = 1 << 26


class Perplexity(NamedTuple):
    """How well a model predicted a text; natural logarithms where none is named.

    Attributes:
        total: negative log-probability of all that was scored, in nats.
        tokens: how many were scored, an end token for each line counted.
        words: words between white space of the same text, and an end for each line.
        infinite: tokens (of whole sentences, for translations) of probability 0, which
            are left out of the above, as fairseq does.
    """

    total: float
    tokens: int
    words: int
    infinite: int = 0

    @property
    def nll(self) -> float:
        """Nats of a token."""
        return self.total / self.tokens

    @property
    def perplexity(self) -> float:
        """Of a token: exp(nll), which is 2 to the power of bits."""
        return math.exp(min(self.nll, 700.0))

    @property
    def word_nll(self) -> float:
        """Nats of a word: those of its pieces summed."""
        return self.total / self.words

    @property
    def word_perplexity(self) -> float:
        """Of a word; comparable between tokenizers that lose nothing."""
        return math.exp(min(self.word_nll, 700.0))

    @property
    def bits(self) -> float:
        """Nats of a token over log 2, fairseq's loss (base 2)."""
        return self.nll / math.log(2)

    @property
    def word_bits(self) -> float:
        """Nats of a word over log 2."""
        return self.word_nll / math.log(2)

    def lines(self) -> list[str]:
        """What to print: per token and per word, in nats and in bits."""
        return [
            f"{what:<9} nll {nats:.4f}, loss (base 2) {bits:.4f}, "
            f"perplexity {perplexity:.2f} ({count:,} {what}s)"
            for what, nats, bits, perplexity, count in (
                ("token", self.nll, self.bits, self.perplexity, self.tokens),
                (
                    "word",
                    self.word_nll,
                    self.word_bits,
                    self.word_perplexity,
                    self.words,
                ),
            )
        ]


def translation_perplexity(
    translator, sources: Iterable[str], translations: Iterable[str]
) -> Perplexity:
    """Of given translations, each token predicted from the source and those before it.

    Args:
        translator: a `keras_seqconv.Translator`.
        sources: texts; long ones are cut as `Translator.translate` does.
        translations: as many texts.

    Raises:
        ValueError: the lists differ in length or are empty, or a translation has more
            tokens than the positions of the model.
    """
    sources = texts_of("sources", sources)
    translations = texts_of("translations", translations)
    if len(sources) != len(translations) or not sources:
        raise ValueError(
            "`sources` and `translations` must be of one length, at least 1. "
            f"Received: {len(sources)} and {len(translations)}"
        )
    found = np.array(translator.score(sources, translations, normalize=False))
    targets = translator.target_tokenizer.tokenize(translations)
    tokens = np.array([len(ids) for ids in targets])
    words = np.array([len(text.split()) + 1 for text in translations])
    finite = np.isfinite(found)
    return Perplexity(
        float(-found[finite].sum(dtype="float64")),
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
) -> Perplexity:
    """Of running text under a language model (fairseq's `eval-lm`).

    Args:
        generator: a `keras_seqconv.LanguageGenerator`.
        lines: the text; read once, a part at a time.
        context_window: w: positions in front of each block that are seen and not
            scored. A large window predicts all tokens from much, and costs time.
        tokens_per_sample: positions of a block, the context counted; by default 512,
            or what the model has.
        break_mode: "none", "complete", "complete_doc" or "sentence", see
            `keras_seqconv.data.blocks.blocks`: one stream, whole lines, whole lines of
            one document, each line alone.

    Raises:
        ValueError: the text is empty; for wrong options; for a line that is longer
            than the positions of the model, where lines are kept whole.
    """
    if generator.tokenizer is None:
        raise ValueError(
            "This model has no tokenizer: use `rows_perplexity` with rows of ids."
        )
    model, counted = generator.model, {"words": 0}
    documents = break_mode == "complete_doc"
    most = model.max_target_length
    length = tokens_per_sample or min(512, most or 512)

    def ids():
        for part in _parts(lines, 1000):
            # Empty lines divide documents; then they are not scored.
            scored = [text for text in part if text.strip() or not documents]
            counted["words"] += sum(len(text.split()) + 1 for text in scored)
            yield from generator.tokenizer.tokenize(part)

    found = blocks(
        ids(),
        length,
        break_mode=break_mode,
        context_window=context_window,
        end_id=model.end_id,
        pad_id=model.pad_id,
    )
    rows = ((row["target_ids"], row["labels"]) for row in found)
    if most is not None:
        rows = _checked_lengths(rows, most)
    found = rows_perplexity(model, rows, tokens_per_batch=generator.tokens_per_batch)
    return found._replace(words=counted["words"])


def rows_perplexity(
    model, rows: Iterable[Row], *, tokens_per_batch: int = 4096
) -> Perplexity:
    """Of rows of ids under a language model or an ensemble of such.

    Args:
        model: as of `LanguageGenerator`.
        rows: pairs (inputs, labels) of one length; the padding id as a label is not
            scored. They are read once, some thousands at a time.
        tokens_per_batch: positions that are computed at once, padding included.

    Returns:
        `Perplexity`, with words = tokens.

    Raises:
        ValueError: there is nothing to score.
    """
    total, tokens, infinite = 0.0, 0, 0
    size = min(tokens_per_batch, max(1, _LOGITS // model.target_vocabulary_size))
    for part in _parts(rows, _WINDOW):
        inputs = [list(row) for row, _ in part]
        labels = [list(row) for _, row in part]
        for batch in batches(
            [len(row) for row in inputs], size, model.max_target_length
        ):
            tensors = {
                "inputs": ops.convert_to_tensor(batch.padded(inputs, model.pad_id)),
                "labels": ops.convert_to_tensor(batch.padded(labels, model.pad_id)),
            }
            found = graphs.run(_log_probs, model, None, tensors)
            count = len(batch.indices)
            found = keras.ops.convert_to_numpy(found)[:count]
            scored = batch.padded(labels, model.pad_id)[:count] != model.pad_id
            finite = scored & np.isfinite(found)
            total -= float(found[finite].sum(dtype="float64"))
            tokens += int(finite.sum())
            infinite += int(scored.sum() - finite.sum())
    if not tokens:
        raise ValueError(
            "The text must hold a token that can be scored; it holds none."
        )
    return Perplexity(total, tokens, tokens, infinite)


def _log_probs(model, options, tensors):
    del options  # there are none
    outputs = model({"target_ids": tensors["inputs"]})
    return ops.cast(model.log_prob(outputs, tensors["labels"]), "float32")


def _parts(items: Iterable, size: int) -> Iterator[list]:
    items = iter(items)
    while part := list(itertools.islice(items, size)):
        yield part


def _checked_lengths(rows: Iterable[Row], most: int) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if len(row[0]) > most:
            raise ValueError(
                f"A row must have at most {most} tokens, the positions of the model "
                "(`tokens_per_sample` limits them where lines are not scored alone). "
                f"Received: row {number} with {len(row[0])}"
            )
        yield row
