"""The model of a run, with and without its tokenizers."""

from keras_seqconv.language_generator import LanguageGenerator
from keras_seqconv.models.named import from_preset
from keras_seqconv.training.run import Run
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translator import Translator

_RATES = ("dropout", "attention_dropout", "weight_dropout")


def make_model(options: TrainingOptions, source_tokenizer, target_tokenizer):
    """The preset's model with fresh weights, with the changes of the options.

    Args:
        options: of the run.
        source_tokenizer: None for a language model.
        target_tokenizer: says how large the vocabulary is.
    """
    size = target_tokenizer.vocabulary_size
    if source_tokenizer is None:
        sizes = {"vocabulary_size": size}
    else:
        sizes = {
            "source_vocabulary_size": source_tokenizer.vocabulary_size,
            "target_vocabulary_size": size,
        }
    rates = {
        name: getattr(options, name)
        for name in _RATES
        if getattr(options, name) is not None
    }
    arguments = {"seed": options.seed, **rates, **options.architecture}
    return from_preset(options.preset, **sizes, **arguments)


def translator_of(
    run: Run, recipe: dict, model, source_tokenizer, target_tokenizer
) -> Translator | LanguageGenerator:
    """The model with its tokenizers, the recipe's search, and the run's languages."""
    if source_tokenizer is None:
        return LanguageGenerator(model, target_tokenizer)
    return Translator(
        model,
        source_tokenizer,
        target_tokenizer,
        recipe["search"],
        max_source_length=run.options.truncate_source,
        languages=run.languages,
    )
