"""Text in, text out: the two kinds of models with tokenizers and search options.

Letters: S source time, L tokens of a translation.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from keras_seqconv.decoding.options import BeamOptions, SampleOptions
from keras_seqconv.support.arguments import check_integer
from keras_seqconv.tokenizers import replace_unknowns as replace_unknowns_in
from keras_seqconv.tokenizers.common import BOS_ID, check_one_vocabulary
from keras_seqconv.translation.text_model import (
    TextModel,
    UnknownTokens,
    check_lengths,
    check_seed,
    seeds_of,
)

# ASCII white space, what `tf.strings.strip` takes away in an export.
_BLANKS = " \t\n\v\f\r"


class Translation(NamedTuple):
    """One translation of a text, as `Translator.translate_n_best` returns it.

    Attributes:
        text: the translation.
        score: sum of the positional scores over the length penalty.
        tokens: tokens of `text`, without the end token.
        positional_scores: of each token and of the end, (L,) float32, as `Hypotheses`.
        attention: attention of each token and the end to the source, (L, S) float32,
            where S includes the source's end; None by default.
    """

    text: str
    score: float
    tokens: tuple[str, ...] = ()
    positional_scores: np.ndarray = np.zeros(0, "float32")
    attention: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class TranslationOptions:
    """Checked options of `Translator.translate_n_best`.

    The search also returns the attention that `replace_unknowns` needs.
    """

    search: BeamOptions | SampleOptions
    seed: int
    return_attention: bool
    replace_unknowns: bool
    alignment_dictionary: Mapping[str, str] | None


class Translator(TextModel):
    """Translates texts with an encoder-decoder model.

    The translation of a text depends neither on the other texts of a call nor on their
    order (scores to 1e-4, equal texts unless two hypotheses tie within 1e-4). Texts
    without a token or with ASCII white space only become "" without the model. Tokens
    without text (`unspellable_ids` of tokenizers with graphs) are never chosen. A
    source of more than `max_source_length` tokens is cut to its first
    `max_source_length - 1` tokens and the end token. A warning reports this if the
    limit is the model's, not the argument, and another one how many source tokens are
    unknown.

    Args:
        model: `EncoderDecoder`, `ConvS2S` or an `Ensemble` of them.
        source_tokenizer, target_tokenizer: tokenizers, see `keras_seqconv.tokenizers`.
            Both are None for a model of ids only, which can be saved, loaded, and used
            through `model`.
        search: options of `keras_seqconv.decoding.beam_search` that differ from its
            defaults.
        tokens_per_batch: source tokens of a batch, padding included, times beams.
            Larger batches are faster on large machines and take more memory.
        parallel_batches: batches that are decoded in parallel, each in its own thread
            and memory, with the same results. By default the number of cores, at most
            8, on a CPU; on JAX and with a GPU 1. As in `keras-seqconv translate`,
            two calls before all others make N batches faster:
            `tf.config.threading.set_intra_op_parallelism_threads(1)` and
            `keras_seqconv.keep_freed_memory(arenas=N)`.
        max_source_length: largest number of source tokens, including the end, at least
            2, for models trained on cut sources (articles to summarize). By default
            only the model's learned positions limit sources.
        languages: source and target, such as ("de", "en"), or None: saved with the
            model, and compared before it translates a corpus.

    Raises:
        ValueError: tokenizers and model differ in the size of the vocabulary or in
            special ids, two vocabularies meet one shared embedding, an option is not
            the search's, or weights are not finite.

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
        languages: tuple[str | None, str | None] | None = None,
    ):
        if (source_tokenizer is None) != (target_tokenizer is None):
            raise ValueError(
                "`source_tokenizer` and `target_tokenizer` must both be given or both "
                f"be None. Received: {source_tokenizer!r}, {target_tokenizer!r}"
            )
        tokenizers = {"source": source_tokenizer, "target": target_tokenizer}
        if source_tokenizer is None:
            tokenizers = {}
        super().__init__(model, tokenizers, search, tokens_per_batch, parallel_batches)
        if not model.has_source:
            raise ValueError(
                "`model` must have a source; language models go into LanguageGenerator."
                f" Received: {type(model).__name__}"
            )
        members = getattr(model, "models", [model])
        if tokenizers and any(
            getattr(member, "has_one_table", False) for member in members
        ):
            check_one_vocabulary(source_tokenizer, target_tokenizer)
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.source_language, self.target_language = languages or (None, None)
        limits = [model.max_source_length]
        if max_source_length is not None:
            limits.append(check_integer("max_source_length", max_source_length, 2))
        self.max_source_length = min(filter(None, limits), default=None)
        self.chosen_length = max_source_length

    def translate(
        self, texts: str | Iterable[str], num_beams: int | None = None, **options
    ) -> list[str]:
        """Returns the best translation of each text; see `translate_n_best`."""
        n_best = self.translate_n_best(texts, 1, num_beams, **options)
        return [best[0].text if best else "" for best in n_best]

    def translate_n_best(
        self, texts: Iterable[str], n_best: int, num_beams: int | None = None, **options
    ) -> list[list[Translation]]:
        """Returns the best translations of each text, best first.

        Args:
            texts: list of texts.
            n_best: number of translations, at most `num_beams`, or any number of draws.
                If the search finds fewer, a text gets fewer; a text without a token
                gets one translation, "" with score 0.
            num_beams: number of beams, by default that of this translator.
            sample (False): whether to draw the translations instead of searching, as
                `keras_seqconv.decoding.sample` does, with its options `temperature`,
                `top_k`, `top_p` ... instead of those of a beam search.
            seed (1): seed of the draws, at least 0. With one seed the draws for a text
                depend on its position in `texts` alone.
            **options: other options of `keras_seqconv.decoding.beam_search`, instead of
                the defaults of this translator; `return_attention` (False);
                `replace_unknowns` (False): whether to replace unknown tokens, see
                `keras_seqconv.tokenizers.replace_unknowns`;
                `alignment_dictionary`: source token -> its replacement then.

        Raises:
            ValueError: `texts` is no list of texts, or an option breaks its rule.
            TypeError: unknown option.
        """
        texts = self._texts("texts", texts)
        options = self.translation_options(n_best, num_beams, **options)
        results, cut = [[] for _ in texts], []
        unknown = UnknownTokens(self.source_tokenizer)
        for index, best, ids, was_cut in self.each_n_best(texts, options):
            results[index] = best
            unknown.count([ids], [texts[index]])
            if was_cut:
                cut.append(index)
        self._warn(unknown, cut, texts)
        return results

    def translation_options(
        self,
        n_best: int,
        num_beams: int | None = None,
        *,
        sample: bool = False,
        seed: int = 1,
        replace_unknowns: bool = False,
        alignment_dictionary: Mapping[str, str] | None = None,
        **search,
    ) -> TranslationOptions:
        """Returns the arguments of `translate_n_best`, checked, as one object."""
        self.require_tokenizers()
        if num_beams is not None:
            search["num_beams"] = num_beams
        check_integer("n_best", n_best, 1)
        check_seed(seed)
        if sample:
            options = self.search_options(search, SampleOptions, num_samples=n_best)
        else:
            options = self.search_options(search, num_hypotheses=None)
            if n_best > options.num_beams:
                raise ValueError(
                    "`n_best` must be at most `num_beams`. "
                    f"Received: n_best={n_best}, num_beams={options.num_beams}"
                )
            options = dataclasses.replace(options, num_hypotheses=n_best)
        attention = options.return_attention
        if replace_unknowns:
            options = dataclasses.replace(options, return_attention=True)
        return TranslationOptions(
            options, seed, attention, replace_unknowns, alignment_dictionary
        )

    def each_n_best(
        self, texts: list[str], options: TranslationOptions, first: int = 1
    ) -> Iterator[tuple[int, list[Translation], list[int], bool]]:
        """Yields the results of `translate_n_best` by text, the longest texts first.

        `first` is the number of the first text, for the draws of `SampleOptions`.

        Yields:
            The position of a text in `texts`, its translations, the ids of the text
            with their end, and whether the model's limit cut it. There is no warning.
        """
        sources, cut = self.source_ids(texts)
        lengths = [
            0 if len(ids) == 1 or not text.strip(_BLANKS) else len(ids)
            for ids, text in zip(sources, texts, strict=True)
        ]
        for index, length in enumerate(lengths):
            if not length:
                yield index, [Translation("", 0.0)], [self.model.end_id], False

        seeds = None
        if isinstance(options.search, SampleOptions):
            seeds = seeds_of(options.seed, range(first, first + len(texts)))
        search, widest = options.search, self.max_source_length
        for batch, hypotheses in self._search(
            search, "source_ids", sources, lengths, widest, seeds
        ):
            for row, index in enumerate(batch.indices):
                best = [*self._read(hypotheses, row, lengths[index])]
                if options.replace_unknowns:
                    words = self.source_tokenizer.split(texts[index])
                    words = words[: lengths[index] - 1]
                    best = [self._without_unknowns(x, words, options) for x in best]
                yield index, best, sources[index], index in cut

    def score(
        self, texts: Iterable[str], translations: Iterable[str], **options
    ) -> list[float]:
        """Scores given translations: log-probability over the length penalty.

        A translation of a search of one group, a temperature of 1 and no `unk_penalty`
        has the score of the search, if its text splits into the same tokens.

        Args:
            texts: sources, cut as in `translate`.
            translations: one translation for each source.
            **options: `length_penalty`, `length_penalty_kind`, `normalize`, instead of
                the defaults of this translator.

        Raises:
            ValueError: the lists differ in length, a translation has more tokens than
                the model has positions, or an option breaks its rule.
        """
        texts = self._texts("texts", texts)
        translations = self._texts("translations", translations)
        if len(texts) != len(translations):
            raise ValueError(
                "`texts` and `translations` must be of one length. "
                f"Received: {len(texts)} and {len(translations)}"
            )
        sources, cut = self.source_ids(texts)
        unknown = UnknownTokens(self.source_tokenizer).count(sources, texts)
        self._warn(unknown, cut, texts)
        targets = self.target_tokenizer.tokenize(translations)
        return self._scores("translations", targets, options, sources)

    def source_ids(self, texts: list[str]) -> tuple[list[list[int]], set[int]]:
        """The ids that the model reads of each text, and which texts its limit cut."""
        sources, limit = self.source_tokenizer.tokenize(texts), self.max_source_length
        cut = {index for index, ids in enumerate(sources) if limit and len(ids) > limit}
        for index in cut:
            sources[index] = [*sources[index][: limit - 1], self.model.end_id]
        return sources, cut if limit != self.chosen_length else set()

    def _warn(self, unknown, cut, texts):
        unknown.tell(stacklevel=4)
        if cut:
            warnings.warn(
                f"{len(cut)} of {len(texts)} texts, the first of them "
                f"texts[{min(cut)}], have more than the {self.max_source_length} "
                "tokens that the model takes and were cut",
                stacklevel=3,
            )

    def _read(self, hypotheses, row: int, source_length: int) -> Iterator[Translation]:
        """The translations in one row of hypotheses, for a source of length S."""
        attention = None
        for n, length in enumerate(hypotheses.lengths[row]):
            if length == 0:  # the search found fewer
                break
            ids = hypotheses.ids[row, n, :length]
            kept = ids != BOS_ID  # which has no token
            if hypotheses.attention is not None:
                attention = hypotheses.attention[row, n, :length, :source_length][kept]
            yield Translation(
                self.target_tokenizer.detokenize([ids])[0],
                float(hypotheses.scores[row, n]),
                tuple(self.target_tokenizer.to_tokens(ids)),
                hypotheses.positional_scores[row, n, :length][kept],
                attention,
            )

    def _without_unknowns(
        self, translation: Translation, words: list[str], options: TranslationOptions
    ) -> Translation:
        """The translation with words of the source in place of unknown tokens."""
        alignments, attention = options.alignment_dictionary, translation.attention
        tokens = replace_unknowns_in(translation.tokens, words, attention, alignments)
        if tokens != list(translation.tokens):
            text = self.target_tokenizer.join(tokens)
            translation = translation._replace(text=text, tokens=tuple(tokens))
        if options.return_attention:
            return translation
        return translation._replace(attention=None)


class LanguageGenerator(TextModel):
    """Scores and continues texts with a language model.

    Tokens without text (`unspellable_ids` of tokenizers with graphs) are never
    chosen.

    Args:
        model: `LanguageModel`, `ConvLanguageModel` or an `Ensemble` of them.
        tokenizer: tokenizer, or None for a model of ids only.
        search, tokens_per_batch, parallel_batches: see `Translator`.

    Raises:
        ValueError: tokenizer and model differ in the size of the vocabulary or in
            special ids, an option is not the search's, or weights are not finite.
    """

    def __init__(
        self,
        model,
        tokenizer=None,
        search: Mapping | None = None,
        *,
        tokens_per_batch: int = 4096,
        parallel_batches: int | None = None,
    ):
        tokenizers = {} if tokenizer is None else {"text": tokenizer}
        super().__init__(model, tokenizers, search, tokens_per_batch, parallel_batches)
        if model.has_source:
            raise ValueError(
                "`model` must be a language model; others go into Translator. "
                f"Received: {type(model).__name__}"
            )
        self.tokenizer = tokenizer

    def score(self, texts: Iterable[str], **options) -> list[float]:
        """Scores each text: log-probability, end included, over the length penalty.

        With the default penalty this is the mean over tokens, and exp(-score) is the
        perplexity. The end is a line break where that is a token, as in training.
        `options` as in `Translator.score`.

        Raises:
            ValueError: a text has more tokens than the model has positions, or an
                option breaks its rule.
        """
        texts = self._texts("texts", texts)
        return self._scores("texts", self.tokenizer.tokenize_lines(texts), options)

    def generate(
        self, prompts: Iterable[str], num_beams: int | None = None, **search
    ) -> list[str]:
        """Finds the most probable texts that begin with the prompts, by beam search.

        Args:
            prompts: list of texts, which may be empty.
            num_beams, **search: see `Translator.translate_n_best`. `max_length` counts
                the tokens of the prompt.

        Returns:
            Texts with their prompts. A warning says how many tokens are unknown.

        Raises:
            ValueError: a prompt is longer than `max_length` or the positions of the
                model, or an option breaks its rule.
        """
        if num_beams is not None:
            search["num_beams"] = num_beams
        options = self.search_options(search, num_hypotheses=1)
        prefixes = self._prefixes(prompts, options)
        return self._continued(prefixes, options)

    def sample(
        self, prompts: Iterable[str], seed: int | None = None, **search
    ) -> list[str]:
        """Draws texts that begin with the prompts from the model's distribution.

        Args:
            prompts: see `generate`.
            seed: with one, the draws for a prompt depend on its position alone.
            **search: `temperature`, `top_k`, `top_p` and others, see
                `keras_seqconv.decoding.sample`, instead of the defaults of this
                generator. `max_length` counts the tokens of the prompt.

        Returns, Raises:
            see `generate`.
        """
        options = self.search_options(search, SampleOptions, num_samples=1)
        prefixes = self._prefixes(prompts, options)
        seeds = seeds_of(seed, range(1, len(prefixes) + 1))
        return self._continued(prefixes, options, seeds)

    def stream(self, prompt: str, seed: int | None = None, **search) -> Iterator[str]:
        """Draws the text of `sample` for one prompt, and yields it in pieces.

        In ONNX Runtime a piece comes with its token, and the memory does not grow with
        the text; a model of Keras returns the whole text. So does a tokenizer with
        Moses, which looks at all of it.

        Args:
            prompt, seed, **search: see `sample`.

        Raises:
            see `generate`.
        """
        options = self.search_options(search, SampleOptions, num_samples=1)
        if not isinstance(prompt, str):
            raise ValueError(f"`prompt` must be a str. Received: prompt={prompt!r}")
        prefixes, seeds = self._prefixes(prompt, options), seeds_of(seed, [1])
        if self.is_of_keras:
            return iter(self._continued(prefixes, options, seeds))
        ids = self.model.stream_ids(prefixes[0], seeds[0], options)
        return self.tokenizer.text_in_pieces(itertools.chain(prefixes[0], ids))

    def _prefixes(self, prompts, options) -> list[list[int]]:
        """Ids of the prompts; a warning says how many are unknown."""
        texts = self._texts("prompts", prompts)
        unknown = UnknownTokens(self.tokenizer)
        prefixes = [ids[:-1] for ids in unknown.tokenize(texts)]
        check_lengths("prompts", prefixes, self._most(options))
        unknown.tell(stacklevel=4)
        return prefixes

    def _most(self, options) -> int:
        """Largest number of tokens of a text."""
        limit = self.model.max_target_length
        return min(options.max_length, limit - 1 if limit else 10**6)

    def _continued(self, prefixes, options, seeds=None) -> list[str]:
        """The best text of each prompt, of those that the search finds."""
        # An empty prompt is a column of padding.
        lengths = [max(1, len(prefix)) for prefix in prefixes]
        results, widest = [""] * len(prefixes), max(1, self._most(options))
        for batch, hypotheses in self._search(
            options, "prefix_ids", prefixes, lengths, widest, seeds
        ):
            for row, index in enumerate(batch.indices):
                ids = hypotheses.ids[row, 0, : hypotheses.lengths[row, 0]]
                results[index] = self.tokenizer.detokenize([ids.tolist()])[0]
        return results
