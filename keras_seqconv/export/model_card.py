"""`MODEL_CARD.md` of an export: description, signatures, limits."""

import dataclasses
import datetime
import platform
from collections.abc import Iterator
from pathlib import Path

import keras
import tensorflow as tf

from keras_seqconv.export.servable import NOT_FOUND
from keras_seqconv.export.signatures import inputs_of
from keras_seqconv.support.files import naming_file, read_json
from keras_seqconv.version import __version__

_CARD = """\
# {path.parent.name}, version {path.name}

## Model

{model}

## Data and scores

{scores}

## Search

{search}

Fixed at export: clients cannot change them.

## Signatures

| signature | inputs | outputs |
|---|---|---|
{signatures}

## Limits

- A source or prompt is cut to its first {servable.max_source_length} tokens, with the \
end token of a source as the last of them; a text to score to \
{servable.max_target_length} tokens. Nothing is refused for its length.
- A source that is empty or only ASCII white space becomes the empty text with score \
0. An empty prompt is a prompt.
- Bytes that are not UTF-8 count as U+FFFD. Byte pairs read the first 1,000 characters \
of a word.
- A hypothesis that was not found is the empty text, score {not_found}.
- A search takes at most {steps} steps of the decoder with {options.num_beams} beams \
for each text.
- Texts of a request are computed in chunks of at most {servable.tokens_per_batch} \
tokens, beams and padding counted (one long text may have more).

## Versions

keras-seqconv {ours}, Keras {keras}, TensorFlow {tensorflow}, Python {python}; \
exported {today}. Runs on TensorFlow Serving 2.18 and later, on 2.12 with \
TF_ENABLE_ONEDNN_OPTS=0.

## Licence

The code is under the Apache License 2.0. What may be done with the weights also \
depends on the data that they were trained on: check its licence before you publish \
or sell translations or the model.
"""
_MODEL_OPTIONS = (
    "mixer", "hidden_dim", "embedding_dim", "num_layers", "num_encoder_layers",
    "num_decoder_layers", "num_heads", "share_embeddings", "dtype",
)  # fmt: skip
_MOSES_OPTIONS = "language", "normalize", "moses", "aggressive_dash_splits", "escape"


def model_card(path: Path, translator, servable, signatures: dict, run=None) -> str:
    """The text of the card for the version in `path`, as `saved_model` makes it."""
    options = servable.options
    steps = f"{options.max_length + 1}"
    if options.max_length_ratio:
        steps = f"{options.max_length_ratio} S + {steps} (S tokens of the source)"
    return _CARD.format(
        path=path,
        servable=servable,
        options=options,
        model="\n".join(_model_lines(translator, servable.xla)),
        scores="\n".join(_score_lines(run, translator.trained)),
        search="\n".join(_search_lines(options)),
        signatures="\n".join(_signature_lines(translator.tokenizers, signatures)),
        not_found=NOT_FOUND,
        steps=steps,
        ours=__version__,
        keras=keras.__version__,
        tensorflow=tf.__version__,
        python=platform.python_version(),
        today=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _model_lines(translator, xla: bool) -> Iterator[str]:
    for model in getattr(translator.model, "models", [translator.model]):
        config = model.get_config()
        options = [f"{key} {config[key]}" for key in _MODEL_OPTIONS if key in config]
        count = f"{model.count_params():,} parameters"
        yield f"- {type(model).__name__}, {count}: {', '.join(options)}"
    if language := getattr(translator, "source_language", None):
        yield f"- translates from {language} to {translator.target_language}"
    for side, tokenizer in translator.tokenizers.items():
        yield f"- {side}: {tokenizer.kind}, {tokenizer.vocabulary_size:,} symbols"
    if xla:
        yield "- search compiled by XLA"


def _score_lines(run, trained: dict | None) -> Iterator[str]:
    if not trained:
        yield "Nothing was recorded about the training of this model."
        return
    for key, value in trained.items():
        yield f"- {key}: {value}"
    if run is not None and (file := Path(run, "scores.json")).is_file():
        scores = read_json(file)
        with naming_file(file, "holds no scores"):
            yield f"- {scores.pop('split')} split, by the run's own search:"
            for name, score in scores.items():  # of a language model they are numbers
                line = score["line"] if isinstance(score, dict) else f"{name} = {score}"
                yield f"  - `{line}`"


def _search_lines(options) -> Iterator[str]:
    for name, value in dataclasses.asdict(options).items():
        shown = f"{len(value)} ids" if name == "suppressed_ids" else value
        yield f"- {name}: {shown}"


def _signature_lines(tokenizers: dict, signatures: dict) -> Iterator[str]:
    for name, graph in signatures.items():
        inputs, outputs = map(_shown, (inputs_of(graph), graph.structured_outputs))
        yield f"| `{name}` | {inputs} | {outputs} |"
    if not tokenizers:
        yield "\nThe model has no tokenizers: clients send and get ids."
    for side, tokenizer in tokenizers.items():
        if getattr(tokenizer, "needs_moses", False):
            options = [f"{name} {getattr(tokenizer, name)}" for name in _MOSES_OPTIONS]
            yield (
                f"\nText of the {side} must be tokenised: it is read and given as "
                f"sacremoses makes it of plain text ({', '.join(options)}). Lower case "
                "and byte pairs are inside. `examples/serve_client.py --moses` does "
                "this for clients, with `--normalize` and `--no-dash-splits`."
            )


def _shown(tensors: dict) -> str:
    described = []
    for name, tensor in tensors.items():
        sizes = ", ".join("?" if n is None else str(n) for n in tensor.shape)
        described.append(f"`{name}` {tensor.dtype.name} [{sizes}]")
    return ", ".join(described)
