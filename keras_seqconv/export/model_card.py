"""`MODEL_CARD.md` of an export: what it is, what it can, what it costs."""

import dataclasses
import datetime
import json
import platform
from pathlib import Path

from keras_seqconv.export.servable import NOT_FOUND
from keras_seqconv.export.signatures import inputs_of
from keras_seqconv.version import __version__

_LICENSE = (
    "The code is under the Apache License 2.0. What may be done with the weights also "
    "depends on the data that they were trained on: check its licence before you "
    "publish or sell translations or the model."
)


def model_card(name: str, version: int, owner, servable, signatures, run=None) -> str:
    """The text of the card.

    Args:
        name, version: of the model, as clients call it.
        owner: the `Translator` or `LanguageGenerator`.
        servable: `servable.Servable`.
        signatures: graphs by name.
        run: work folder of the training run, or None.
    """
    sections = [
        f"# {name}, version {version}",
        _model(owner, servable),
        "## Data and scores\n\n" + _scores(Path(run) if run is not None else None),
        "## Search\n\n" + _search(servable.options),
        "## Signatures\n\n" + _signatures(owner, signatures),
        "## What a request costs\n\n" + _costs(owner, servable),
        "## Versions\n\n" + _versions(),
        "## Licence\n\n" + _LICENSE,
    ]
    return "\n\n".join(sections) + "\n"


def _model(owner, servable) -> str:
    models = getattr(owner.model, "models", [owner.model])
    lines = []
    for model in models:
        config = model.get_config()
        shown = ("mixer", "hidden_dim", "embedding_dim", "num_layers",
                 "num_encoder_layers", "num_decoder_layers", "num_heads",
                 "share_embeddings", "dtype")  # fmt: skip
        options = ", ".join(f"{key} {config[key]}" for key in shown if key in config)
        lines.append(
            f"- {type(model).__name__}, {model.count_params():,} parameters: {options}"
        )
    if language := getattr(owner, "source_language", None):
        lines.append(f"- translates from {language} to {owner.target_language}")
    lines += [
        f"- {side}: {tokenizer.kind}, {tokenizer.vocabulary_size:,} symbols"
        for side, tokenizer in _tokenizers(owner)
    ]
    if servable.xla:
        lines.append("- search compiled by XLA")
    return "## Model\n\n" + "\n".join(lines)


def _scores(run: Path | None) -> str:
    if run is None or not (run / "run.json").is_file():
        return "Nothing was recorded about the training of this model."
    record = json.loads((run / "run.json").read_text("utf-8"))
    options = record.get("options", {})
    lines = [f"- {key}: {options[key]}" for key in ("preset", "dataset")]
    if (run / "scores.json").is_file():
        scores = json.loads((run / "scores.json").read_text("utf-8"))
        lines.append(f"- {scores['split']} split, {scores['sentences']:,} sentences:")
        lines += [
            f"  - `{value['line']}`"
            for value in scores.values()
            if isinstance(value, dict) and "line" in value
        ]
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
    return "\n".join(lines) + "\n\nFixed at export: clients cannot change them."


def _signatures(owner, signatures) -> str:
    lines = ["| signature | inputs | outputs |", "|---|---|---|"]
    for name, function in signatures.items():
        inputs = _tensors(inputs_of(function))
        outputs = _tensors(function.structured_outputs)
        lines.append(f"| `{name}` | {inputs} | {outputs} |")
    if "serving_default" not in signatures:
        lines.append("\nThe model has no tokenizers: clients send and get ids.")
    lines += [_moses(*pair) for pair in _tokenizers(owner)]
    return "\n".join(filter(None, lines))


def _moses(side: str, tokenizer) -> str:
    """What stays outside of the graph."""
    if not getattr(tokenizer, "needs_moses", False):
        return ""
    shown = ("language", "normalize", "moses", "aggressive_dash_splits", "escape")
    options = ", ".join(f"{name} {getattr(tokenizer, name)}" for name in shown)
    return (
        f"\nText of the {side} must be tokenised: it is read and given as sacremoses "
        f"makes it of plain text ({options}). Lower case and byte pairs are inside. "
        "`examples/serve_client.py --moses` does this for clients, with `--normalize` "
        "and `--no-dash-splits`."
    )


def _tokenizers(owner):
    """(side, tokenizer) of those that there are."""
    names = {"source": "source_tokenizer", "target": "target_tokenizer",
             "text": "tokenizer"}  # fmt: skip
    found = [(side, getattr(owner, name, None)) for side, name in names.items()]
    return [(side, tokenizer) for side, tokenizer in found if tokenizer is not None]


def _tensors(tensors: dict) -> str:
    def shown(name, tensor):
        sizes = ", ".join("?" if size is None else str(size) for size in tensor.shape)
        return f"`{name}` {tensor.dtype.name} [{sizes}]"

    return ", ".join(shown(name, tensor) for name, tensor in tensors.items())


def _costs(owner, servable) -> str:
    search = servable.options
    sources = hasattr(owner, "source_tokenizer")
    what = "source" if sources else "prompt"
    steps = search.max_length + 1
    longest = f"{steps}"
    if search.max_length_ratio:
        longest = f"{search.max_length_ratio} S + {steps} (S tokens of the source)"
    rows = max(1, servable.tokens_per_batch // search.num_beams // 16)
    vocabulary = owner.model.target_vocabulary_size
    logits = rows * search.num_beams * vocabulary * 4 / 1e6
    return "\n".join(
        [
            f"- A {what} is cut to its first {servable.max_source_length} tokens"
            + (", the end token as the last of them" if sources else "")
            + f"; a text to score to {servable.max_target_length}; ids likewise. "
            "Nothing is refused for its length.",
            "- A text that is empty or only ASCII white space becomes the empty text "
            "with score 0."
            if sources
            else "- An empty prompt is a prompt.",
            "- Bytes that are not UTF-8 count as U+FFFD."
            + " Tokens that no text comes of are never chosen."
            * bool(search.suppressed_ids)
            + " Of a word of more than 1,000 characters only these are read."
            * any(getattr(one, "bpe_codes", None) for _, one in _tokenizers(owner)),
            f"- A hypothesis that was not found is the empty text, score {NOT_FOUND}.",
            f"- A search takes at most {longest} steps of the decoder with "
            f"{search.num_beams} beams for each text.",
            "- Texts of a request are computed in chunks of at most "
            f"{servable.tokens_per_batch} tokens, beams and padding counted (one long "
            "text may have more): its memory does not grow with the number of texts, "
            "apart from inputs and outputs. The largest tensor, the logits of a step, "
            f"has at most about {logits:.0f} MB when texts have 16 tokens or more.",
            f"- Weights: {servable.size / 1e6:.1f} MB on the disk and in memory.",
        ]
    )


def _versions() -> str:
    import keras
    import tensorflow as tf

    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        f"keras-seqconv {__version__}, Keras {keras.__version__}, TensorFlow "
        f"{tf.__version__}, Python {platform.python_version()}; exported {today}. Runs "
        "on TensorFlow Serving 2.18 and later, on 2.12 with TF_ENABLE_ONEDNN_OPTS=0."
    )
