"""The signatures of an export: what a server offers, text in and out if it can.

| signature          | inputs -> outputs                                              |
|--------------------|----------------------------------------------------------------|
| `serving_default`  | text (N,) -> translation (N,), score (N,)                      |
| `translate_n_best` | text (N,) -> translation (N, n), score (N, n)                  |
| `translate_ids`    | source_ids (N, S), lengths (N,) -> ids (N, n, L), scores (N, n)|
| `score`            | text (N,), translation (N,) -> score (N,)                      |
| `score_ids`        | source_ids, lengths, target_ids, target_lengths -> score (N,)  |
| `encode`           | text (N,) -> outputs (N, S, C), lengths (N,)                   |

Of language models: `serving_default` and `generate` (text -> generation, score),
`generate_ids` (prefix_ids, lengths -> ids, scores), `score` (text -> score),
`score_ids` (target_ids, target_lengths -> score).

Without tokenizers those of texts are missing. Texts are tf.string, scores float32, ids
and lengths int32. No name ends in `_bytes`, which a server would code in base64.
"""

import inspect
from collections.abc import Callable

from keras_seqconv.export.servable import Servable


def make_signatures(translator, servable: Servable) -> dict:
    """Graphs of open shapes by name, the default one first.

    Args:
        translator: the `Translator` or `LanguageGenerator`, for its tokenizers.
        servable: what computes on ids.
    """
    # One graph for all signatures that search.
    search = _graph(servable.search)
    make = _of_translations if servable.translates else _of_texts
    functions = make(translator, servable, search)
    # Of one function under two names there is one graph.
    graphs = {
        function: _graph(function) for function in dict.fromkeys(functions.values())
    }
    return {name: graphs[function] for name, function in functions.items()}


def inputs_of(function) -> dict:
    """The inputs of a signature by name, as `tf.TensorSpec`."""
    return {spec.name: spec for spec in function.structured_input_signature[0]}


def _of_translations(translator, servable, search) -> dict[str, Callable]:
    import tensorflow as tf

    source, target = translator.source_tokenizer, translator.target_tokenizer

    def translate_ids(source_ids, lengths):
        ids, scores = search(source_ids, lengths)
        return {"ids": ids, "scores": scores}

    def score_ids(source_ids, lengths, target_ids, target_lengths):
        return {
            "score": servable.score(target_ids, target_lengths, source_ids, lengths)
        }

    of_ids = {"translate_ids": translate_ids, "score_ids": score_ids}
    if source is None:
        return of_ids

    def tokens(text):
        return _tokens(source, text, servable.max_source_length)

    def searched(text):
        ids, lengths = tokens(text)
        blank = tf.strings.length(tf.strings.strip(text)) == 0
        # Nothing is to be translated where there is nothing but an end token.
        return search(ids, tf.where(blank | (lengths == 1), 0, lengths))

    def translate(text):
        ids, scores = searched(text)
        return {
            "translation": _texts(target, ids[:, :1])[:, 0], "score": scores[:, 0]
        }  # fmt: skip

    def translate_n_best(text):
        ids, scores = searched(text)
        return {"translation": _texts(target, ids), "score": scores}

    def score(text, translation):
        targets = _tokens(target, translation, servable.max_target_length)
        return score_ids(*tokens(text), *targets)

    def encode(text):
        outputs, lengths = servable.encode(*tokens(text))
        return {"outputs": outputs, "lengths": lengths}

    of_texts = {
        "serving_default": translate, "translate_n_best": translate_n_best,
        "score": score,
    }  # fmt: skip
    if hasattr(servable.model, "encode"):
        of_texts["encode"] = encode
    return of_texts | of_ids


def _of_texts(translator, servable, search) -> dict[str, Callable]:
    tokenizer = translator.tokenizer

    def generate_ids(prefix_ids, lengths):
        ids, scores = search(prefix_ids, lengths)
        return {"ids": ids, "scores": scores}

    def score_ids(target_ids, target_lengths):
        return {"score": servable.score(target_ids, target_lengths)}

    of_ids = {"generate_ids": generate_ids, "score_ids": score_ids}
    if tokenizer is None:
        return of_ids

    def generate(text):
        ids, lengths = _tokens(tokenizer, text, servable.max_source_length)
        # A prompt has no end token.
        ids, scores = search(ids, lengths - 1)
        return {
            "generation": _texts(tokenizer, ids[:, :1])[:, 0], "score": scores[:, 0]
        }  # fmt: skip

    def score(text):
        return score_ids(*_tokens(tokenizer, text, servable.max_target_length))

    of_texts = {"serving_default": generate, "generate": generate, "score": score}
    return of_texts | of_ids


def _tokens(tokenizer, texts, most: int):
    """Ids (N, S) and lengths (N,); of longer rows than `most` a little more."""
    import tensorflow as tf

    rows = tokenizer.tokenize_tensor(texts)
    lengths = tf.cast(rows.row_lengths(), tf.int32)
    return rows[:, : most + 1].to_tensor(tokenizer.pad_id), lengths


def _texts(tokenizer, ids):
    """Texts (N, n) of ids (N, n, L)."""
    import tensorflow as tf

    rows, count, longest = tf.unstack(tf.shape(ids))
    flat = tf.reshape(ids, tf.stack([rows * count, longest]))
    texts = tokenizer.detokenize_tensor(flat)
    return tf.reshape(texts, tf.stack([rows, count]))


def _graph(function):
    """A graph with open shapes, made now; the names of arguments tell their shapes."""
    import tensorflow as tf

    specs = []
    for name in inspect.signature(function).parameters:
        shape = [None, None] if name.endswith("ids") else [None]
        texts = name in ("text", "translation")
        specs.append(tf.TensorSpec(shape, tf.string if texts else tf.int32, name))
    traced = tf.function(function, autograph=False)
    return traced.get_concrete_function(*specs)
