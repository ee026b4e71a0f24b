"""Language models with their tokenizers and search options."""

import os
from collections.abc import Iterable, Mapping

import keras

from keras_seqconv import decoding, model_directory
from keras_seqconv.decoding.options import SampleOptions
from keras_seqconv.model_directory import Contents
from keras_seqconv.text_model import TextModel, check_lengths, texts_of


class LanguageGenerator(TextModel):
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
        if any(hasattr(member, "source_embedder") for member in models):
            raise ValueError(
                "`model` must be a language model; others go into Translator. "
                f"Received: {type(model).__name__}"
            )
        super().__init__(model, search, tokens_per_batch, parallel_batches)
        self.tokenizer = tokenizer
        if tokenizer is not None:
            self._check_tokenizer("tokenizer", tokenizer, model.target_vocabulary_size)

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
        self._needs_tokenizers()
        targets = self.tokenizer.tokenize(texts)
        check_lengths("texts", targets, self.model.max_target_length)
        return self._scores(None, targets, options)

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
        options = self.search_options(search, num_hypotheses=1)

        def run(prefix):
            return decoding.beam_search_hypotheses(
                self.model, prefix_ids=prefix, **options
            )

        return self._continued(
            prompts, run, options, options["num_beams"], self._parallel()
        )

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
        search |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        options = self.search_options(search, SampleOptions, num_samples=1)
        # One for all batches, or each would draw the same numbers.
        generator = keras.random.SeedGenerator(seed)

        def run(prefix):
            return decoding.sample_hypotheses(
                self.model, prefix_ids=prefix, seed=generator, **options
            )

        return self._continued(prompts, run, options, 1, 1)

    def save(self, directory: str | os.PathLike, overwrite: bool = False) -> None:
        """Writes model, tokenizer and search options; see `Translator.save`."""
        contents = Contents(self.model, None, self.tokenizer, self.search)
        model_directory.write(directory, contents, overwrite)

    @classmethod
    def _of_contents(cls, contents):
        for name in ("source_tokenizer", "max_source_length"):
            if getattr(contents, name) is not None:
                raise ValueError(f"a language model has no `{name}`")
        return cls(contents.model, contents.target_tokenizer, contents.search)

    @property
    def tokenizers(self) -> dict:
        """That of "text"; empty in a model of ids only."""
        return {} if self.tokenizer is None else {"text": self.tokenizer}

    def _continued(self, prompts, run, options, num_beams, parallel):
        """The best text of each prompt, of those that `run` finds for ids (B, T)."""
        self._needs_tokenizers()
        prompts = texts_of("prompts", prompts)
        prefixes = [ids[:-1] for ids in self.tokenizer.tokenize(prompts)]
        most = options["max_length"]
        if self.model.max_target_length is not None:
            most = min(most, self.model.max_target_length - 1)
        check_lengths("prompts", prefixes, most)
        results = [""] * len(prompts)
        # An empty prompt is a column of padding.
        lengths = [max(1, len(prefix)) for prefix in prefixes]
        for batch, hypotheses in self._searched(
            run, prefixes, lengths, num_beams, max(1, most), parallel
        ):
            ids = [
                hypotheses.ids[place, 0, : hypotheses.lengths[place, 0]].tolist()
                for place in range(len(batch.indices))
            ]
            texts = self.tokenizer.detokenize(ids)
            for index, text in zip(batch.indices, texts, strict=True):
                results[index] = text
        return results
