"""Text in, text out: translation models with tokenizers and search options.

Letters: S source time, L tokens of a translation.
"""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_seqconv import decoding, model_directory
from keras_seqconv.fingerprints import tokenizer_fingerprint
from keras_seqconv.language_generator import LanguageGenerator
from keras_seqconv.model_directory import Contents
from keras_seqconv.support.arguments import check_integer, check_positive_integer
from keras_seqconv.text_model import TextModel, check_lengths, texts_of
from keras_seqconv.tokenizers import replace_unknowns as replace_unknowns_in

# ASCII white space, what `tf.strings.strip` takes away in an export.
_BLANKS = " \t\n\v\f\r"


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


class Translator(TextModel):
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
        if not all(hasattr(member, "source_embedder") for member in models):
            raise ValueError(
                "`model` must have a source; language models go into LanguageGenerator."
                f" Received: {type(model).__name__}"
            )
        if (source_tokenizer is None) != (target_tokenizer is None):
            raise ValueError(
                "`source_tokenizer` and `target_tokenizer` must both be given or both "
                f"be None. Received: {source_tokenizer!r}, {target_tokenizer!r}"
            )
        super().__init__(model, search, tokens_per_batch, parallel_batches)
        self.source_language, self.target_language = languages
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        embedders = [member.source_embedder for member in models]
        limits = [each.max_length for each in embedders if each.max_length is not None]
        if max_source_length is not None:
            limits.append(check_integer("max_source_length", max_source_length, 2))
        self.max_source_length = min(limits, default=None)
        self._chosen_length = max_source_length
        if source_tokenizer is not None:
            for embedder in embedders:
                size = embedder.tokens.vocabulary_size
                self._check_tokenizer("source_tokenizer", source_tokenizer, size)
            size = model.target_vocabulary_size
            self._check_tokenizer("target_tokenizer", target_tokenizer, size)

    def __repr__(self) -> str:
        languages = filter(None, (self.source_language, self.target_language))
        return (
            f"<Translator {' → '.join(languages) or '(languages unknown)'}: "
            f"{type(self.model).__name__}, {self.model.count_params():,} parameters, "
            f"{', '.join(f'{name} {value}' for name, value in self.search.items())}>"
        )

    def translate(
        self, texts: str | Iterable[str], num_beams: int | None = None, **options
    ) -> list[str]:
        """The best translation of each text, in their order.

        Args:
            texts: any number of texts; one text is a list of one.
            num_beams, **options: see `translate_n_best`.

        Raises:
            ValueError, TypeError: see `translate_n_best`.
        """
        n_best = self.translate_n_best(texts, 1, num_beams, **options)
        return [best[0].text if best else "" for best in n_best]

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
            texts: any number of texts; one text is a list of one.
            n: at most `num_beams`. A text gets fewer where the search found fewer; one
                without a token gets one translation, "" with score 0.
            num_beams: instead of the default of this translator.
            replace_unknowns: put the source token with the most attention for each
                unknown token; see `keras_seqconv.tokenizers.replace_unknowns`.
            alignment_dictionary: source token -> what to write for it then.
            **search: other options of `keras_seqconv.decoding.beam_search`, instead of
                the defaults of this translator, and `return_attention` (False).

        Raises:
            ValueError: `texts` is no list of texts; for a wrong option.
            TypeError: for an unknown option.
        """
        texts = texts_of("texts", texts)
        self._needs_tokenizers()
        if num_beams is not None:
            search["num_beams"] = num_beams
        check_positive_integer("n", n)
        options = self.search_options(search, num_hypotheses=None)
        if n > options["num_beams"]:
            raise ValueError(
                "`n` must be at most `num_beams`. "
                f"Received: n={n}, num_beams={options['num_beams']}"
            )
        options["num_hypotheses"] = n
        attention = options["return_attention"]
        options["return_attention"] = attention or replace_unknowns
        results = [[Translation("", 0.0)] for _ in texts]
        sources = self._sources(texts)
        lengths = [
            0 if len(ids) == 1 or not text.strip(_BLANKS) else len(ids)
            for ids, text in zip(sources, texts, strict=True)
        ]

        def run(source_ids):
            return decoding.beam_search_hypotheses(self.model, source_ids, **options)

        for batch, hypotheses in self._searched(
            run, sources, lengths, options["num_beams"], self.max_source_length,
            self._parallel(),
        ):  # fmt: skip
            for place, index in enumerate(batch.indices):
                results[index] = self._read(hypotheses, place, lengths[index])
        for text, row in zip(texts, results, strict=True):
            for rank, best in enumerate(row):
                if replace_unknowns and best.tokens:
                    best = self._without_unknowns(best, text, alignment_dictionary)
                row[rank] = best if attention else best._replace(attention=None)
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
        return self._scores(sources, targets, options)

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
    def _of_contents(cls, contents):
        *parts, longest, languages = contents
        return cls(*parts, max_source_length=longest, languages=languages)

    @property
    def tokenizers(self) -> dict:
        """By side, "source" and "target"; empty in a model of ids only."""
        if self.source_tokenizer is None:
            return {}
        return {"source": self.source_tokenizer, "target": self.target_tokenizer}

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

    def _read(self, hypotheses, place: int, length: int) -> list[Translation]:
        """The translations in one row of hypotheses, for a source of length S."""
        count = int((hypotheses.lengths[place] > 0).sum())
        rows = [
            hypotheses.ids[place, n, : hypotheses.lengths[place, n]].tolist()
            for n in range(count)
        ]
        texts = self.target_tokenizer.detokenize(rows)
        return [
            Translation(
                texts[n],
                float(hypotheses.scores[place, n]),
                tuple(self.target_tokenizer.to_tokens(ids)),
                hypotheses.positional_scores[place, n, : len(ids)],
                None
                if hypotheses.attention is None
                else hypotheses.attention[place, n, : len(ids), :length],
            )
            for n, ids in enumerate(rows)
        ]

    def _without_unknowns(self, best: Translation, text: str, alignments):
        words = self.source_tokenizer.split(text)[: best.attention.shape[1] - 1]
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
    return cls._of(contents, directory)


def load_ensemble(
    directories: Sequence[str | os.PathLike], dtype=None
) -> Translator | LanguageGenerator:
    """Reads model directories; several decode as one, see `decoding.Ensemble`.

    Args:
        directories: one or more. Search options are those of the first.
        dtype: see `load`.

    Raises:
        ValueError: there are none, or they do not have the same languages, tokenizers
            and kind of model; names the directories.
        FileNotFoundError, ImportError: see `load`.
    """
    directories = list(directories)
    if not directories:
        raise ValueError("`directories` must name a model directory. Received: none")
    members = [load(directory, dtype) for directory in directories]
    first = members[0]
    if len(members) == 1:
        return first

    def same(rule: str, values: list, shown: list) -> None:
        if any(value != values[0] for value in values):
            received = zip(directories, shown, strict=True)
            raise ValueError(
                f"{rule}. Received: "
                + ", ".join(f"{directory} {value}" for directory, value in received)
            )

    kinds = [f"({type(member).__name__})" for member in members]
    same("All models must translate, or all be language models", kinds, kinds)
    translates = isinstance(first, Translator)
    sides = ("source_tokenizer", "target_tokenizer") if translates else ("tokenizer",)
    for side in sides:
        prints = [tokenizer_fingerprint(getattr(member, side)) for member in members]
        rule = f"The models must have the same {side.replace('_', ' ')}"
        same(rule, prints, [f"({digest[:8]})" for digest in prints])
    more = {}
    if translates:
        pairs = [(m.source_language, m.target_language) for m in members]
        known = [pair for pair in pairs if pair != (None, None)] or [(None, None)]
        same(
            "The models must translate between the same languages",
            [known[0] if pair == (None, None) else pair for pair in pairs],
            [f"from {source} to {target}" for source, target in pairs],
        )
        more["languages"] = known[0]
    model = decoding.Ensemble([member.model for member in members])
    tokenizers = (getattr(first, side) for side in sides)
    return type(first)(model, *tokenizers, first.search, **more)
