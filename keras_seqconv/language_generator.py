"""A language model with its tokenizer and search options."""

import dataclasses
import os
from collections.abc import Iterable, Mapping

import keras

from keras_seqconv import decoding, model_directory
from keras_seqconv.batches import (
    batches,
    check_lengths,
    check_parallel,
    check_tokenizer,
    default_parallel,
    scores,
    search_defaults,
    search_options,
    side_by_side,
    spellable,
    texts_of,
    to_numpy,
)
from keras_seqconv.decoding.options import BeamOptions, SampleOptions
from keras_seqconv.model_directory import Contents
from keras_seqconv.support.arguments import check_positive_integer


class LanguageGenerator:
    """Scores and continues texts with a language model.

    Tokens that are no text (`unspellable_ids` of tokenizers that run in graphs) are
    never chosen.

    Args:
        model: `LanguageModel`, `ConvLanguageModel` or an `Ensemble` of such.
        tokenizer: text to ids and back, or None for a model of ids only.
        search, tokens_per_batch, parallel_batches: see `Translator`. Samples are drawn
            one batch after the other, or a seed would not say what is drawn.

    Raises:
        ValueError: tokenizer and model differ in the size of the vocabulary or in
            special ids, or for options that are not the search's.

    Example:

    ```python
    from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
    tokenizer = DictionaryTokenizer(Dictionary([("ein", 9), ("Hund", 3)]))
    model = keras_seqconv.models.ConvLanguageModel(
        6, embedding_dim=8, convolutions="[(8, 3)] * 2"
    )
    generator = keras_seqconv.LanguageGenerator(model, tokenizer)
    scores = generator.score(["ein Hund"])  # [log-probability of a token]
    texts = generator.sample(["ein"], seed=1, max_length=5)
    ```
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
        models = getattr(model, "models", [model])
        if any(hasattr(one, "source_embedder") for one in models):
            raise ValueError(
                "`model` must be a language model; others go into Translator. "
                f"Received: {type(model).__name__}"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.search = search_defaults(BeamOptions, search)
        self.tokens_per_batch = check_positive_integer(
            "tokens_per_batch", tokens_per_batch
        )
        self.parallel_batches = check_parallel(parallel_batches)
        if tokenizer is not None:
            check_tokenizer("tokenizer", tokenizer, model, model.target_vocabulary_size)

    def __repr__(self) -> str:
        return (
            f"<LanguageGenerator: {type(self.model).__name__}, "
            f"{self.model.count_params():,} parameters>"
        )

    def score(self, texts: Iterable[str], **options) -> list[float]:
        """Log-probability of each text, its end included, over the length penalty.

        With the default penalty that is the mean of a token, and exp(-score) the
        perplexity.

        Args:
            texts: any number of texts.
            **options: see `Translator.score`.

        Raises:
            ValueError: a text has more tokens than the positions of the model; for a
                wrong option.
        """
        texts = texts_of("texts", texts)
        self._needs_tokenizer()
        targets = self.tokenizer.tokenize(texts)
        check_lengths("texts", targets, self.model.max_target_length)
        return scores(self, None, targets, options)

    def generate(
        self, prompts: Iterable[str], num_beams: int | None = None, **search
    ) -> list[str]:
        """The most likely texts that begin with the prompts, by beam search.

        Args:
            prompts: any number of texts, also empty ones.
            num_beams, **search: see `Translator.translate`. `max_length` counts the
                tokens of the prompt.

        Returns:
            Whole texts, the prompts included.

        Raises:
            ValueError: a prompt is longer than `max_length` or the positions of the
                model; for a wrong option.
        """
        if num_beams is not None:
            search["num_beams"] = num_beams
        options = search_options(BeamOptions, self.search, search, num_hypotheses=1)
        self._needs_tokenizer()
        options = spellable(options, self.tokenizer)

        def run(prefix):
            return decoding.beam_search_hypotheses(
                self.model, prefix_ids=prefix, **options
            )

        parallel = self.parallel_batches or default_parallel()
        return self._generate(prompts, options, options["num_beams"], run, parallel)

    def sample(
        self,
        prompts: Iterable[str],
        seed: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        **search,
    ) -> list[str]:
        """Texts that begin with the prompts, drawn from the model's distribution.

        Args:
            prompts, **search: see `generate`.
            seed, temperature, top_k, top_p: see `keras_seqconv.decoding.sample`. With
                a seed, the same prompts in the same order give the same texts.

        Returns, Raises:
            see `generate`.
        """
        names = {field.name for field in dataclasses.fields(SampleOptions)}
        defaults = {name: self.search[name] for name in self.search if name in names}
        search |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        options = search_options(SampleOptions, defaults, search, num_samples=1)
        self._needs_tokenizer()
        options = spellable(options, self.tokenizer)
        # One for all batches, or each would draw the same numbers.
        generator = keras.random.SeedGenerator(seed)

        def run(prefix):
            return decoding.sample_hypotheses(
                self.model, prefix_ids=prefix, seed=generator, **options
            )

        return self._generate(prompts, options, 1, run, 1)

    def save(self, directory: str | os.PathLike, overwrite: bool = False) -> None:
        """Writes model, tokenizer and search options; see `Translator.save`."""
        contents = Contents(self.model, None, self.tokenizer, self.search)
        model_directory.write(directory, contents, overwrite)

    @classmethod
    def load(cls, directory: str | os.PathLike, dtype=None) -> "LanguageGenerator":
        """Reads what `save` wrote; see `keras_seqconv.load`."""
        return cls.from_contents(model_directory.read(directory, dtype), directory)

    @classmethod
    def from_contents(cls, contents: Contents, directory) -> "LanguageGenerator":
        """Of what was read from `directory`, which errors name."""
        model, source_tokenizer, tokenizer, search, longest, _ = contents
        try:
            for name, value in (
                ("source_tokenizer", source_tokenizer),
                ("max_source_length", longest),
            ):
                if value is not None:
                    raise ValueError(f"a language model has no `{name}`")
            return cls(model, tokenizer, search)
        except (TypeError, ValueError) as error:
            raise model_directory.wrong(directory, error) from error

    def _needs_tokenizer(self):
        if self.tokenizer is None:
            raise ValueError(
                "This model has no tokenizer: use keras_seqconv.decoding with its "
                "`model`, or make a LanguageGenerator with a tokenizer."
            )

    def _generate(self, prompts, options, num_beams, run, parallel):
        prompts = texts_of("prompts", prompts)
        prefixes = [ids[:-1] for ids in self.tokenizer.tokenize(prompts)]
        most = options["max_length"]
        if self.model.max_target_length is not None:
            most = min(most, self.model.max_target_length - 1)
        check_lengths("prompts", prefixes, most)
        results = [""] * len(prompts)
        # An empty prompt is a column of padding.
        lengths = [max(1, len(prefix)) for prefix in prefixes]
        rows = self.tokens_per_batch // num_beams

        def search_of(batch):
            return to_numpy(run(batch.padded(prefixes, self.model.pad_id)))

        parts = batches(lengths, rows, max(1, most), parallel)
        for batch, found in side_by_side(search_of, parts, parallel):
            ids = [
                found.ids[place, 0, : found.lengths[place, 0]].tolist()
                for place in range(len(batch.indices))
            ]
            for index, text in zip(
                batch.indices, self.tokenizer.detokenize(ids), strict=True
            ):
                results[index] = text
        return results
