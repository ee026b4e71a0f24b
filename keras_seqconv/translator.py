"""A model with its tokenizers and search options: text in, text out.

Letters: S source time, L tokens of a translation.
"""

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from keras_seqconv import decoding, model_directory
from keras_seqconv.batches import (
    batches,
    check_lengths,
    check_parallel,
    check_tokenizer,
    default_parallel,
    is_blank,
    scores,
    search_defaults,
    search_options,
    side_by_side,
    spellable,
    texts_of,
    to_numpy,
)
from keras_seqconv.decoding.options import BeamOptions
from keras_seqconv.language_generator import LanguageGenerator
from keras_seqconv.model_directory import Contents
from keras_seqconv.support.arguments import check_integer, check_positive_integer
from keras_seqconv.tokenizers import replace_unknowns as replace_unknowns_in


class Translation(NamedTuple):
    """One translation of a text, as `Translator.translate_n_best` returns it.

    Attributes:
        text: the translation.
        score: sum of the positional scores over the length penalty.
        tokens: what `text` was joined from, without the end token.
        positional_scores: log-probability of each token and of the end, (L,) float32.
        attention: what the model looked at for each token and the end, (L, S) float32,
            S counting the source's end; None if not asked for.
    """

    text: str
    score: float
    tokens: tuple[str, ...] = ()
    positional_scores: np.ndarray = np.zeros(0, "float32")
    attention: np.ndarray | None = None


class Translator:
    """Translates texts with an encoder-decoder model.

    The translation of a text depends neither on the other texts of a call nor on their
    order (scores to 1e-4, the same text unless two hypotheses tie within that).
    Texts without a token or of ASCII white space only, such as "" and "  ", become ""
    without asking the model. Tokens that are no text (`unspellable_ids` of tokenizers
    that run in graphs) are never chosen.
    A source of more than `max_source_length` tokens is cut: its first
    `max_source_length - 1` tokens and the end token are translated. A warning says so,
    unless it is the argument that sets this limit, not the model.

    Args:
        model: `EncoderDecoder`, `ConvS2S` or an `Ensemble` of such.
        source_tokenizer: text to ids, see `keras_seqconv.tokenizers`.
        target_tokenizer: ids to text. Both are None for a model of ids only, which can
            be saved and loaded, and used through `model`.
        search: options of `keras_seqconv.decoding.beam_search` that differ from its
            defaults.
        tokens_per_batch: source tokens, padding included, times beams that are decoded
            in one batch. Larger is faster on large machines and takes more memory.
        parallel_batches: batches that are decoded at the same time, each in a thread.
            None: with TensorFlow on a CPU as many as there are cores, at most 8;
            otherwise 1. Few texts are dealt out to all of them, 8 to each at least.
            Each takes its own memory; the results are the same. It is faster still if
            operations do not share cores and batches do not share a heap, which
            `keras-seqconv translate` sees to: first of all, for N batches,
            `tf.config.threading.set_intra_op_parallelism_threads(1)` and
            `keras_seqconv.keep_freed_memory(arenas=N)`.
        max_source_length: tokens of a source that are read, its end counted, at least
            2; for a model that was trained on cut sources (articles to summarise).
            Learned positions of the model are a limit as well. None: no other.
        languages: source and target, such as ("de", "en"), None where unknown: kept
            with the model, and compared before it translates a corpus.

    Raises:
        ValueError: tokenizers and model differ in the size of the vocabulary or in
            special ids, or for options that are not the search's.

    Example:

    ```python
    from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
    tokenizer = DictionaryTokenizer(Dictionary([("ein", 9), ("Hund", 3)]))
    model = keras_seqconv.models.EncoderDecoder(
        6, 6, hidden_dim=8, intermediate_dim=8, num_heads=2,
        num_encoder_layers=1, num_decoder_layers=1,
    )
    translator = keras_seqconv.Translator(
        model, tokenizer, tokenizer, search={"num_beams": 2, "max_length": 5}
    )
    texts = translator.translate(["ein Hund", "Hund"])  # two texts
    best = translator.translate_n_best(["ein Hund"], 2)  # best[0][0].score
    ```
    """

    def __init__(
        self,
        model,
        source_tokenizer=None,
        target_tokenizer=None,
        search: Mapping | None = None,
        *,
        tokens_per_batch: int = 16384,
        parallel_batches: int | None = None,
        max_source_length: int | None = None,
        languages: tuple[str | None, str | None] = (None, None),
    ):
        models = getattr(model, "models", [model])
        if not all(hasattr(one, "source_embedder") for one in models):
            raise ValueError(
                "`model` must have a source; language models go into LanguageGenerator."
                f" Received: {type(model).__name__}"
            )
        if (source_tokenizer is None) != (target_tokenizer is None):
            raise ValueError(
                "`source_tokenizer` and `target_tokenizer` must both be given or both "
                f"be None. Received: {source_tokenizer!r}, {target_tokenizer!r}"
            )
        self.model = model
        self.source_language, self.target_language = languages
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.search = search_defaults(BeamOptions, search)
        self.tokens_per_batch = check_positive_integer(
            "tokens_per_batch", tokens_per_batch
        )
        self.parallel_batches = check_parallel(parallel_batches)
        embedders = [one.source_embedder for one in models]
        limits = [one.max_length for one in embedders if one.max_length is not None]
        if max_source_length is not None:
            limits.append(check_integer("max_source_length", max_source_length, 2))
        self.max_source_length = min(limits, default=None)
        self._chosen_length = max_source_length
        if source_tokenizer is not None:
            for embedder in embedders:
                size = embedder.tokens.vocabulary_size
                check_tokenizer("source_tokenizer", source_tokenizer, model, size)
            size = model.target_vocabulary_size
            check_tokenizer("target_tokenizer", target_tokenizer, model, size)

    def __repr__(self) -> str:
        languages = filter(None, (self.source_language, self.target_language))
        return (
            f"<Translator {' → '.join(languages) or '(languages unknown)'}: "
            f"{type(self.model).__name__}, {self.model.count_params():,} parameters, "
            f"{', '.join(f'{name} {value}' for name, value in self.search.items())}>"
        )

    def translate(
        self,
        texts: str | Iterable[str],
        num_beams: int | None = None,
        *,
        replace_unknowns: bool = False,
        alignment_dictionary: Mapping[str, str] | None = None,
        **search,
    ) -> list[str]:
        """The best translation of each text, in their order.

        Args:
            texts: any number of texts; one text is a list of one.
            num_beams: instead of the default of this translator.
            replace_unknowns: put the source token with the most attention for each
                unknown token; see `keras_seqconv.tokenizers.replace_unknowns`.
            alignment_dictionary: source token -> what to write for it then.
            **search: other options of `keras_seqconv.decoding.beam_search`, instead of
                the defaults of this translator.

        Raises:
            ValueError: `texts` is no list of texts; for a wrong option.
            TypeError: for an unknown option.
        """
        found = self.translate_n_best(
            texts,
            1,
            num_beams,
            replace_unknowns=replace_unknowns,
            alignment_dictionary=alignment_dictionary,
            **search,
        )
        return [best[0].text if best else "" for best in found]

    def translate_n_best(
        self,
        texts: Iterable[str],
        n: int,
        num_beams: int | None = None,
        *,
        replace_unknowns: bool = False,
        alignment_dictionary: Mapping[str, str] | None = None,
        **search,
    ) -> list[list[Translation]]:
        """The n best translations of each text, best first.

        Args:
            texts, num_beams, replace_unknowns, alignment_dictionary: see `translate`.
            n: at most `num_beams`. A text gets fewer where the search found fewer; one
                without a token gets one translation, "" with score 0.
            **search: as of `translate`, and `return_attention` (False).

        Raises:
            ValueError, TypeError: see `translate`.
        """
        texts = texts_of("texts", texts)
        self._needs_tokenizers()
        if num_beams is not None:
            search["num_beams"] = num_beams
        check_positive_integer("n", n)
        options = search_options(BeamOptions, self.search, search, num_hypotheses=None)
        if n > options["num_beams"]:
            raise ValueError(
                "`n` must be at most `num_beams`. "
                f"Received: n={n}, num_beams={options['num_beams']}"
            )
        options = spellable(options, self.target_tokenizer)
        options["num_hypotheses"] = n
        wanted = options["return_attention"]
        if replace_unknowns:
            options["return_attention"] = True
        results = [[Translation("", 0.0)] for _ in texts]
        sources = self._sources(texts)
        lengths = [
            0 if len(ids) == 1 or is_blank(text) else len(ids)
            for ids, text in zip(sources, texts, strict=True)
        ]

        def search_of(batch):
            source_ids = batch.padded(sources, self.model.pad_id)
            return to_numpy(
                decoding.beam_search_hypotheses(self.model, source_ids, **options)
            )

        rows = self.tokens_per_batch // options["num_beams"]
        parallel = self.parallel_batches or default_parallel()
        parts = batches(lengths, rows, self.max_source_length, parallel)
        for batch, found in side_by_side(search_of, parts, parallel):
            for place, index in enumerate(batch.indices):
                length = lengths[index]
                results[index] = self._read(found, place, length)
                if replace_unknowns:
                    words = self.source_tokenizer.split(texts[index])[: length - 1]
                    results[index] = [
                        self._without_unknowns(best, words, alignment_dictionary)
                        for best in results[index]
                    ]
        if not wanted:
            results = [[best._replace(attention=None) for best in r] for r in results]
        return results

    def score(
        self, texts: Iterable[str], translations: Iterable[str], **options
    ) -> list[float]:
        """Scores of given translations: log-probability over the length penalty.

        A translation that the search found has the score it was found with, if its
        text splits into the tokens that it was joined from.

        Args:
            texts: sources, cut as in `translate`.
            translations: one for each of them.
            **options: `length_penalty`, `length_penalty_kind`, `normalize`, instead of
                the defaults of this translator.

        Raises:
            ValueError: the lists differ in length; a translation has more tokens than
                the positions of the model; for a wrong option.
        """
        texts = texts_of("texts", texts)
        translations = texts_of("translations", translations)
        if len(texts) != len(translations):
            raise ValueError(
                "`texts` and `translations` must be of one length. "
                f"Received: {len(texts)} and {len(translations)}"
            )
        self._needs_tokenizers()
        sources = self._sources(texts)
        targets = self.target_tokenizer.tokenize(translations)
        check_lengths("translations", targets, self.model.max_target_length)
        return scores(self, sources, targets, options)

    def save(self, directory: str | os.PathLike, overwrite: bool = False) -> None:
        """Writes model, tokenizers and search options; see `model_directory`.

        Args:
            directory: must be empty or not exist. It appears complete or not at all.
            overwrite: replace a folder that holds a saved model and nothing else.
        """
        model_directory.write(
            directory,
            Contents(
                self.model,
                self.source_tokenizer,
                self.target_tokenizer,
                self.search,
                self._chosen_length,
                (self.source_language, self.target_language),
            ),
            overwrite,
        )

    @classmethod
    def load(cls, directory: str | os.PathLike, dtype=None) -> "Translator":
        """Reads what `save` wrote; see `keras_seqconv.load`."""
        return cls.from_contents(model_directory.read(directory, dtype), directory)

    @classmethod
    def from_contents(cls, contents: Contents, directory) -> "Translator":
        """Of what was read from `directory`, which errors name."""
        try:
            *parts, longest, languages = contents
            return cls(*parts, max_source_length=longest, languages=languages)
        except (TypeError, ValueError) as error:
            raise model_directory.wrong(directory, error) from error

    def _needs_tokenizers(self):
        if self.source_tokenizer is None:
            raise ValueError(
                "This model has no tokenizers: use keras_seqconv.decoding.beam_search("
                "translator.model, ids), or make a Translator with tokenizers."
            )

    def _sources(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text with the end id, cut to what the model can take."""
        sources = self.source_tokenizer.tokenize(texts)
        most = self.max_source_length
        if most is None:
            return sources
        long = [index for index, ids in enumerate(sources) if len(ids) > most]
        for index in long:
            sources[index] = [*sources[index][: most - 1], self.model.end_id]
        if long and most != self._chosen_length:
            warnings.warn(
                f"{len(long)} of {len(texts)} texts, the first of them number "
                f"{long[0]}, have more than the {most} tokens that the model takes and "
                "were cut",
                stacklevel=4,
            )
        return sources

    def _read(self, found, place: int, length: int) -> list[Translation]:
        """The translations in one row of what was found, for a source of length S."""
        count = int((found.lengths[place] > 0).sum())
        rows = [
            found.ids[place, n, : found.lengths[place, n]].tolist()
            for n in range(count)
        ]
        texts = self.target_tokenizer.detokenize(rows)
        return [
            Translation(
                texts[n],
                float(found.scores[place, n]),
                tuple(self.target_tokenizer.to_tokens(ids)),
                found.positional_scores[place, n, : len(ids)],
                None
                if found.attention is None
                else found.attention[place, n, : len(ids), :length],
            )
            for n, ids in enumerate(rows)
        ]

    def _without_unknowns(self, best: Translation, words, alignments) -> Translation:
        tokens = replace_unknowns_in(best.tokens, words, best.attention, alignments)
        if tokens == list(best.tokens):
            return best
        text = self.target_tokenizer.join(tokens)
        return best._replace(text=text, tokens=tuple(tokens))


def load(directory: str | os.PathLike, dtype=None) -> Translator | LanguageGenerator:
    """Reads a model directory: model, tokenizers, search options.

    Safe to do to directories of strangers: they hold JSON, arrays and text, and nothing
    of them is executed. What was saved on one Keras backend loads on the others.

    Args:
        directory: what `Translator.save`, training or `keras-seqconv convert-fairseq`
            wrote.
        dtype: dtype or policy of the model; by default the one it was saved with.

    Returns:
        A `Translator`, or for language models a `LanguageGenerator`.

    Raises:
        FileNotFoundError: the folder or one of its files is missing.
        ValueError: names the file and what is wrong with it.
        ImportError: a tokenizer needs a package that is not installed.
    """
    contents = model_directory.read(directory, dtype)
    translates = hasattr(contents.model, "source_embedder")
    cls = Translator if translates else LanguageGenerator
    return cls.from_contents(contents, directory)
