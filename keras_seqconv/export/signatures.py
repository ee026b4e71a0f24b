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

from typing import NamedTuple

from keras_seqconv import ops
from keras_seqconv.export.computations import Computations
from keras_seqconv.export.settings import Settings
from keras_seqconv.export.weights import StoredWeights, folded


class Exported(NamedTuple):
    """What is to be saved.

    Attributes:
        module: `tf.Module` that holds all variables and tables.
        signatures: functions by name, the default one first.
        size: bytes of the weights.
    """

    module: object
    signatures: dict
    size: int


def make(owner, settings: Settings) -> Exported:
    """The module and its signatures for a `Translator` or `LanguageGenerator`."""
    # No op may choose XLA for itself: a stock server has none.
    with ops.jit_scope(False):
        return _made(owner, settings)


def _made(owner, settings: Settings) -> Exported:
    import tensorflow as tf

    model = folded(owner.model)
    weights = StoredWeights(model)
    module = tf.Module(name="keras_seqconv")
    module.weights = weights.variables
    computations = Computations(model, settings, weights)
    cls = _Translation if computations.translates else _Generation
    functions = cls(owner, settings, computations)
    signatures = functions.of_ids()
    if None not in functions.tokenizers:
        signatures = {**functions.of_texts(), **signatures}
        module.tables = [
            table for one in functions.tokenizers for table in one.trackables
        ]
    return Exported(module, signatures, weights.size)


def inputs_of(function) -> dict:
    """The inputs of a signature by name, as `tf.TensorSpec`."""
    return {spec.name: spec for spec in function.structured_input_signature[0]}


class _Functions:
    """What the signatures of both kinds of models share."""

    def __init__(self, owner, settings, computations):
        self.settings = settings
        self.computations = computations
        self.model = computations.model
        self.tokenizers = self._tokenizers_of(owner)
        # One graph for all signatures that search.
        self.search = _graph(self._search, _matrix("ids"), _vector("lengths"))

    def _search(self, ids, lengths):
        return self.computations.search(
            ids, lengths, self.settings.search.num_hypotheses
        )

    def _tokens(self, tokenizer, texts, most: int, with_end: bool = True):
        """Ids (N, S) and lengths (N,); of longer rows than `most` a little more."""
        import tensorflow as tf

        rows = tokenizer.tokenize_tensor(texts)
        lengths = tf.cast(rows.row_lengths(), tf.int32) - (0 if with_end else 1)
        return rows[:, : most + 1].to_tensor(self.model.pad_id), lengths

    def _texts(self, ids):
        """Texts (N, n) of ids (N, n, L)."""
        import tensorflow as tf

        rows, count, longest = tf.unstack(tf.shape(ids))
        texts = self.tokenizers[-1].detokenize_tensor(
            tf.reshape(ids, tf.stack([rows * count, longest]))
        )
        return tf.reshape(texts, tf.stack([rows, count]))


class _Translation(_Functions):
    @staticmethod
    def _tokenizers_of(owner):
        return owner.source_tokenizer, owner.target_tokenizer

    def of_ids(self) -> dict:
        lengths, targets = _vector("lengths"), _vector("target_lengths")
        return {
            "translate_ids": _graph(
                self.translate_ids, _matrix("source_ids"), lengths
            ),
            "score_ids": _graph(
                self.score_ids, _matrix("source_ids"), lengths,
                _matrix("target_ids"), targets,
            ),
        }  # fmt: skip

    def of_texts(self) -> dict:
        text, translation = _strings("text"), _strings("translation")
        functions = {
            "serving_default": _graph(self.translate, text),
            "translate_n_best": _graph(self.translate_n_best, text),
            "score": _graph(self.score, text, translation),
        }
        if hasattr(self.model, "encode"):
            functions["encode"] = _graph(self.encode, text)
        return functions

    def translate(self, text):
        ids, scores = self.search(*self._sources(text))
        return {"translation": self._texts(ids[:, :1])[:, 0], "score": scores[:, 0]}

    def translate_n_best(self, text):
        ids, scores = self.search(*self._sources(text))
        return {"translation": self._texts(ids), "score": scores}

    def translate_ids(self, source_ids, lengths):
        ids, scores = self.search(source_ids, lengths)
        return {"ids": ids, "scores": scores}

    def score(self, text, translation):
        sources, lengths = self._all_tokens(text)
        targets, target_lengths = self._tokens(
            self.tokenizers[1], translation, self.settings.max_target_length
        )
        return self.score_ids(sources, lengths, targets, target_lengths)

    def score_ids(self, source_ids, lengths, target_ids, target_lengths):
        return {
            "score": self.computations.score(
                target_ids, target_lengths, source_ids, lengths
            )
        }

    def encode(self, text):
        outputs, lengths = self.computations.encode(*self._all_tokens(text))
        return {"outputs": outputs, "lengths": lengths}

    def _all_tokens(self, text):
        most = self.settings.max_source_length
        return self._tokens(self.tokenizers[0], text, most)

    def _sources(self, text):
        """Ids and lengths; length 0 where there is nothing to translate."""
        import tensorflow as tf

        ids, lengths = self._all_tokens(text)
        blank = (tf.strings.length(tf.strings.strip(text)) == 0) | (lengths == 1)
        return ids, tf.where(blank, 0, lengths)


class _Generation(_Functions):
    @staticmethod
    def _tokenizers_of(owner):
        return (owner.tokenizer,)

    def of_ids(self) -> dict:
        targets = _matrix("target_ids"), _vector("target_lengths")
        return {
            "generate_ids": _graph(
                self.generate_ids, _matrix("prefix_ids"), _vector("lengths")
            ),
            "score_ids": _graph(self.score_ids, *targets),
        }

    def of_texts(self) -> dict:
        generate = _graph(self.generate, _strings("text"))
        return {
            "serving_default": generate,
            "generate": generate,
            "score": _graph(self.score, _strings("text")),
        }

    def generate(self, text):
        most = self.settings.max_source_length
        prefix = self._tokens(self.tokenizers[0], text, most, with_end=False)
        ids, scores = self.search(*prefix)
        return {"generation": self._texts(ids[:, :1])[:, 0], "score": scores[:, 0]}

    def generate_ids(self, prefix_ids, lengths):
        ids, scores = self.search(prefix_ids, lengths)
        return {"ids": ids, "scores": scores}

    def score(self, text):
        most = self.settings.max_target_length
        return self.score_ids(*self._tokens(self.tokenizers[0], text, most))

    def score_ids(self, target_ids, target_lengths):
        return {"score": self.computations.score(target_ids, target_lengths)}


def _graph(function, *specs):
    """A graph with open shapes, made now."""
    import tensorflow as tf

    traced = tf.function(function, autograph=False)
    return traced.get_concrete_function(*specs)


def _strings(name):
    import tensorflow as tf

    return tf.TensorSpec([None], tf.string, name)


def _matrix(name):
    import tensorflow as tf

    return tf.TensorSpec([None, None], tf.int32, name)


def _vector(name):
    import tensorflow as tf

    return tf.TensorSpec([None], tf.int32, name)
