"""How well models predict given texts: of translations, and of running text.

Letters: T positions, w positions of context.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_seqconv.data.ids import blocks
from keras_seqconv.decoding import graphs
from keras_seqconv.text_model import batches, texts_of

# Rows that are sorted by length together; lines that are tokenized together.
_WINDOW, _LINES = 4096, 1000
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
    def bits(self) -> float:
        """Nats of a token over log 2, fairseq's loss (base 2)."""
        return self.nll / math.log(2)

    @property
    def word_nll(self) -> float:
        """Nats of a word: those of its pieces summed."""
        return self.total / self.words

    @property
    def word_perplexity(self) -> float:
        """Of a word; comparable between tokenizers that lose nothing."""
        return math.exp(min(self.word_nll, 700.0))

    @property
    def word_bits(self) -> float:
        """Nats of a word over log 2."""
        return self.word_nll / math.log(2)

    def lines(self) -> list[str]:
        """What to print: per token and per word, in nats and in bits."""
        return [
            f"token     nll {self.nll:.4f}, loss (base 2) {self.bits:.4f}, "
            f"perplexity {self.perplexity:.2f} ({self.tokens:,} tokens)",
            f"word      nll {self.word_nll:.4f}, loss (base 2) {self.word_bits:.4f}, "
            f"perplexity {self.word_perplexity:.2f} ({self.words:,} words)",
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
    log_probs = np.array(translator.score(sources, translations, normalize=False))
    targets = translator.target_tokenizer.tokenize(translations)
    tokens = np.array([len(ids) for ids in targets])
    words = np.array([len(text.split()) + 1 for text in translations])
    finite = np.isfinite(log_probs)
    return Perplexity(
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
            `keras_seqconv.data.blocks`: one stream, whole lines, whole lines of
            one document, each line alone.

    Raises:
        ValueError: the text is empty; for wrong options; for a line that is longer
            than the positions of the model, where lines are kept whole.
    """
    if generator.tokenizer is None:
        raise ValueError(
            "This model has no tokenizer: use `rows_perplexity` with rows of ids."
        )
    model, words = generator.model, 0

    def ids():
        nonlocal words
        rest = iter(lines)
        while part := list(islice(rest, _LINES)):
            # Empty lines that divide documents are not scored.
            words += sum(
                len(text.split()) + 1
                for text in part
                if text.strip() or break_mode != "complete_doc"
            )
            yield from generator.tokenizer.tokenize(part)

    rows = blocks(
        ids(),
        tokens_per_sample or min(512, model.max_target_length or 512),
        break_mode=break_mode,
        context_window=context_window,
        end_id=model.end_id,
        pad_id=model.pad_id,
    )
    rows = ((row["target_ids"], row["labels"]) for row in rows)
    found = rows_perplexity(model, rows, tokens_per_batch=generator.tokens_per_batch)
    return found._replace(words=words)


def rows_perplexity(
    model,
    rows: Iterable[tuple[Sequence[int], Sequence[int]]],
    *,
    tokens_per_batch: int = 4096,
) -> Perplexity:
    """Of rows of ids under a language model or an ensemble of such.

    Args:
        model: as of `LanguageGenerator`.
        rows: pairs (inputs, labels) of one length T; the padding id as a label is not
            scored. They are read once, some thousands at a time.
        tokens_per_batch: positions that are computed at once, padding included.

    Returns:
        `Perplexity`, with words = tokens.

    Raises:
        ValueError: there is nothing to score; a row is longer than the positions of
            the model.
    """
    total, tokens, infinite, read = 0.0, 0, 0, 0
    most = model.max_target_length
    size = min(tokens_per_batch, max(1, _LOGITS // model.target_vocabulary_size))
    rows = iter(rows)
    while part := list(islice(rows, _WINDOW)):
        inputs, labels = ([*map(list, column)] for column in zip(*part, strict=True))
        lengths = [*map(len, inputs)]
        if most is not None and max(lengths) > most:
            place = next(n for n, length in enumerate(lengths) if length > most)
            raise ValueError(
                f"A row must have at most {most} tokens, the positions of the model "
                "(`tokens_per_sample` limits them where lines are not scored alone). "
                f"Received: row {read + place + 1} with {lengths[place]}"
            )
        read += len(part)
        for batch in batches(lengths, size, most):
            targets = batch.padded(labels, model.pad_id)
            tensors = {
                "inputs": ops.convert_to_tensor(batch.padded(inputs, model.pad_id)),
                "labels": ops.convert_to_tensor(targets),
            }
            found = graphs.run(_log_probs, model, None, tensors)
            count = len(batch.indices)  # further rows are padding
            log_probs = ops.convert_to_numpy(found)[:count]
            scored = targets[:count] != model.pad_id
            finite = scored & np.isfinite(log_probs)
            total -= float(log_probs[finite].sum(dtype="float64"))
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
