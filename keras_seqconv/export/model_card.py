"""`MODEL_CARD.md` of an export: description, signatures, limits."""

import dataclasses
import datetime
import platform
from pathlib import Path

import keras
import tensorflow as tf

from keras_seqconv.export.servable import NOT_FOUND, inputs_of
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

- A {source} is cut to its first {servable.max_source_length} tokens{end}; a text to \
score to {servable.max_target_length}; ids likewise. Nothing is refused for its length.
- {empty}
- Bytes that are not UTF-8 count as U+FFFD.{tokens}
- A hypothesis that was not found is the empty text, score {not_found}.
- A search takes at most {steps} steps of the decoder with {options.num_beams} beams \
for each text.
- Texts of a request are computed in chunks of at most {servable.tokens_per_batch} \
tokens, beams and padding counted (one long text may have more): its memory does not \
grow with the number of texts, apart from inputs and outputs.

## Versions

keras-seqconv {ours}, Keras {keras}, TensorFlow {tensorflow}, Python {python}; \
exported {today}. Runs on TensorFlow Serving 2.18 and later, on 2.12 with \
TF_ENABLE_ONEDNN_OPTS=0.

## Licence

The code is under the Apache License 2.0. What may be done with the weights also \
depends on the data that they were trained on: check its licence before you publish \
or sell translations or the model.
"""
_SHOWN = (
    "mixer", "hidden_dim", "embedding_dim", "num_layers", "num_encoder_layers",
    "num_decoder_layers", "num_heads", "share_embeddings", "dtype",
)  # fmt: skip


def model_card(path: Path, translator, servable, signatures: dict, run=None) -> str:
    """The text of the card for the version in `path`, as `saved_model` makes it."""
    options, translates = servable.options, servable.translates
    steps = f"{options.max_length + 1}"
    if options.max_length_ratio:
        steps = f"{options.max_length_ratio} S + {steps} (S tokens of the source)"
    tokenizers = translator.tokenizers
    tokens = " Tokens that no text comes of are never chosen."
    words = " Of a word of more than 1,000 characters only these are read."
    pairs = any(getattr(value, "bpe_codes", None) for value in tokenizers.values())
    return _CARD.format(
        path=path,
        servable=servable,
        options=options,
        model=_model(translator, servable.xla),
        scores=_scores(run, translator.trained),
        search=_search(options),
        signatures=_signatures(tokenizers, signatures),
        source="source" if translates else "prompt",
        end=", the end token as the last of them" if translates else "",
        empty="A text that is empty or only ASCII white space becomes the empty text "
        "with score 0."
        if translates
        else "An empty prompt is a prompt.",
        tokens=tokens * bool(options.suppressed_ids) + words * pairs,
        not_found=NOT_FOUND,
        steps=steps,
        ours=__version__,
        keras=keras.__version__,
        tensorflow=tf.__version__,
        python=platform.python_version(),
        today=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _model(translator, xla: bool) -> str:
    lines = []
    for model in getattr(translator.model, "models", [translator.model]):
        config = model.get_config()
        options = ", ".join(f"{key} {config[key]}" for key in _SHOWN if key in config)
        lines.append(
            f"- {type(model).__name__}, {model.count_params():,} parameters: {options}"
        )
    if language := getattr(translator, "source_language", None):
        lines.append(f"- translates from {language} to {translator.target_language}")
    lines += [
        f"- {side}: {tokenizer.kind}, {tokenizer.vocabulary_size:,} symbols"
        for side, tokenizer in translator.tokenizers.items()
    ]
    return "\n".join(lines + ["- search compiled by XLA"] * xla)


def _scores(run, trained: dict | None) -> str:
    if not trained:
        return "Nothing was recorded about the training of this model."
    lines = [f"- {key}: {value}" for key, value in trained.items()]
    if run is not None and (file := Path(run, "scores.json")).is_file():
        scores = read_json(file)
        with naming_file(file, "holds no scores"):
            lines.append(f"- {scores.pop('split')} split:")
            for name, score in scores.items():  # of a language model they are numbers
                line = score["line"] if isinstance(score, dict) else f"{name} = {score}"
                lines.append(f"  - `{line}`")
        lines.append(
            "\nThe scores are those of the run's own search, in float32, before the "
            "export."
        )
    return "\n".join(lines)


def _search(options) -> str:
    always = ("num_beams", "length_penalty", "max_length")
    lines = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name in always or value != field.default:
            shown = f"{len(value)} ids" if field.name == "suppressed_ids" else value
            lines.append(f"- {field.name}: {shown}")
    return "\n".join(lines)


def _signatures(tokenizers: dict, signatures: dict) -> str:
    def shown(tensors):
        described = []
        for name, tensor in tensors.items():
            sizes = ", ".join("?" if n is None else str(n) for n in tensor.shape)
            described.append(f"`{name}` {tensor.dtype.name} [{sizes}]")
        return ", ".join(described)

    lines = [
        f"| `{name}` | {shown(inputs_of(graph))} | {shown(graph.structured_outputs)} |"
        for name, graph in signatures.items()
    ]
    if not tokenizers:
        lines.append("\nThe model has no tokenizers: clients send and get ids.")
    # What stays outside of the graph.
    names = ("language", "normalize", "moses", "aggressive_dash_splits", "escape")
    lines += [
        f"\nText of the {side} must be tokenised: it is read and given as sacremoses "
        f"makes it of plain text "
        f"({', '.join(f'{name} {getattr(tokenizer, name)}' for name in names)}). Lower "
        "case and byte pairs are inside. `examples/serve_client.py --moses` does this "
        "for clients, with `--normalize` and `--no-dash-splits`."
        for side, tokenizer in tokenizers.items()
        if getattr(tokenizer, "needs_moses", False)
    ]
    return "\n".join(lines)
