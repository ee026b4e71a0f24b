"""Signatures of an exported model, as graphs of TensorFlow.

| signature          | inputs -> outputs                                              |
|--------------------|----------------------------------------------------------------|
| `serving_default`  | text (N,) -> translation (N,), score (N,)                      |
| `translate_n_best` | text (N,) -> translation (N, n), score (N, n)                  |
| `translate_ids`    | source_ids (N, S), lengths (N,) -> ids (N, n, L), scores (N, n)|
| `score`            | text (N,), translation (N,) -> score (N,)                      |
| `score_ids`        | source_ids, lengths, target_ids, target_lengths -> score (N,)  |
| `encode`           | text (N,) -> outputs (N, S, C), lengths (N,)                   |
| `count_tokens`     | text (N,) -> tokens (N,), unknown (N,) of them                 |

Language models have `serving_default` (text -> the most probable generation, score),
`generate` (prompt (N,), length, temperature, seed and top_k, scalars -> generation,
score: drawn as by `LanguageGenerator.sample`), `generate_ids` (prefix_ids, lengths ->
ids, scores), `score` (text -> score), `score_ids` (target_ids, target_lengths ->
score), `count_tokens`.

Without tokenizers, those of texts are missing. Texts are tf.string, scores float32,
ids and lengths int32. No name ends in `_bytes`, which a server would code in base64.

Letters: N sentences of a request, S source time, T target time, n hypotheses, L tokens
of the longest, C channels.
"""

import tensorflow as tf

from keras_seqconv.export.servable import Servable

# Signature -> method of `Servable` and inputs; whether the model translates -> these.
_OF_IDS = {
    True: {
        "translate_ids": ("search", "source_ids", "lengths"),
        "score_ids": ("score", "target_ids", "target_lengths", "source_ids", "lengths"),
    },
    False: {
        "generate_ids": ("search", "prefix_ids", "lengths"),
        "score_ids": ("score", "target_ids", "target_lengths"),
    },
}
# Signature -> method of `_OfTexts` and inputs.
_OF_TEXTS = {
    True: {
        "serving_default": ("best", "text"),
        "count_tokens": ("count_tokens", "text"),
        "translate_n_best": ("n_best", "text"),
        "score": ("score_texts", "translation", "text"),
        "encode": ("encode", "text"),
    },
    False: {
        "serving_default": ("best", "text"),
        "count_tokens": ("count_tokens", "text"),
        "generate": ("generate", "prompt", "length", "temperature", "seed", "top_k"),
        "score": ("score_texts", "text"),
    },
}
_INPUTS = {
    **dict.fromkeys(("text", "translation", "prompt"), ([None], tf.string)),
    **dict.fromkeys(("source_ids", "target_ids", "prefix_ids"), ([None] * 2, tf.int32)),
    **dict.fromkeys(("lengths", "target_lengths"), ([None], tf.int32)),
    **dict.fromkeys(("length", "seed", "top_k"), ([], tf.int32)),
    "temperature": ([], tf.float32),
}


def make_signatures(translator, servable: Servable) -> dict:
    """Graphs of open shapes by name, the default one first."""
    of_ids = {
        name: _graph(getattr(servable, method), *inputs)
        for name, (method, *inputs) in _OF_IDS[servable.translates].items()
    }
    if not translator.tokenizers:
        return of_ids
    texts = _OfTexts(servable, [*translator.tokenizers.values()], *of_ids.values())
    of_texts = {
        name: _graph(getattr(texts, method), *inputs)
        for name, (method, *inputs) in _OF_TEXTS[servable.translates].items()
        if name != "encode" or hasattr(servable.model, "encode")  # not of an ensemble
    }
    return of_texts | of_ids


class _OfTexts:
    """Computations on texts; they call the graphs `search` and `score` of ids."""

    def __init__(self, servable: Servable, tokenizers: list, search, score):
        self.servable, self.search, self.score = servable, search, score
        self.reader, self.writer = tokenizers[0], tokenizers[-1]
        self.output = "translation" if servable.translates else "generation"

    def best(self, text):
        return {name: value[:, 0] for name, value in self.n_best(text, 1).items()}

    def n_best(self, text, count=None):
        ids, lengths = self._sources(text)
        if self.servable.translates:
            blank = tf.strings.length(tf.strings.strip(text)) == 0
            # A source of an end token alone has no translation.
            lengths = tf.where(blank | (lengths == 1), 0, lengths)
        else:  # a prompt has no end token
            lengths = lengths - 1
        hypotheses = self.search(ids, lengths)
        ids, scores = hypotheses["ids"][:, :count], hypotheses["scores"][:, :count]
        rows, count, longest = tf.unstack(tf.shape(ids))
        flat = tf.reshape(ids, tf.stack([rows * count, longest]))
        texts = self.writer.detokenize_tensor(flat)
        texts = tf.reshape(texts, tf.stack([rows, count]))
        return {self.output: texts, "score": scores}

    def generate(self, prompt, length, temperature, seed, top_k):
        ids, lengths = self._sources(prompt)
        drawn = self.servable.sample(ids, lengths - 1, length, temperature, seed, top_k)
        texts = self.writer.detokenize_tensor(drawn["ids"])
        return {self.output: texts, "score": drawn["scores"]}

    def score_texts(self, target, *sources):
        tokenize = self.writer.tokenize_tensor
        if not sources:
            tokenize = self.writer.tokenize_lines_tensor
        inputs = self._padded(tokenize(target), self.servable.max_target_length)
        for text in sources:
            inputs += self._sources(text)
        return self.score(*inputs)

    def encode(self, text):
        return self.servable.encode(*self._sources(text))

    def count_tokens(self, text):
        """Numbers of tokens without the end, also of those beyond the limit."""
        rows = self.reader.tokenize_tensor(text)
        unknown = tf.cast(rows == self.reader.unk_id, tf.int32)
        counts = tf.cast(rows.row_lengths() - 1, tf.int32)
        return {"tokens": counts, "unknown": tf.reduce_sum(unknown, axis=1)}

    def _sources(self, text):
        rows = self.reader.tokenize_tensor(text)
        return self._padded(rows, self.servable.max_source_length)

    def _padded(self, rows, longest: int):
        """Ids (N, S) and lengths (N,); one id beyond the limit is left."""
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        return rows[:, : longest + 1].to_tensor(self.reader.pad_id), lengths


def _graph(function, *names: str):
    """A graph with open shapes, made now, of the inputs of these names."""
    specs = [tf.TensorSpec(*_INPUTS[name], name) for name in names]

    # Without what the function has defaults for.
    def checked(*inputs):
        # A server compares no shapes: this names the input and its shape.
        pairs = zip(inputs, specs, strict=True)
        return function(*(tf.ensure_shape(x, spec.shape) for x, spec in pairs))

    traced = tf.function(checked, autograph=False)
    return traced.get_concrete_function(*specs)


def inputs_of(function) -> dict:
    """The inputs of a signature by name, as `tf.TensorSpec`."""
    return {spec.name: spec for spec in function.structured_input_signature[0]}
