"""Token losses of the recipes.

Letters: B batch, T target time, V vocabulary, N = B * T positions.
"""

import keras
from keras import ops

from keras_seqconv.ops.compilation import (
    compiled_by_xla,
    custom_gradient,
    padded_rows,
    run_formula,
)
from keras_seqconv.ops.fused import row_sums
from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    check_rate,
    check_shape,
    public_names,
)

__dir__ = public_names(globals())


def token_weights(labels, pad_id: int, sample_weight=None):
    """Weight of each label, (B, T) float32: 0 at padding.

    Args:
        labels: integers (B, T).
        pad_id: label of padding.
        sample_weight: numbers (B,), (B, T) or (B, T, 1), or None for 1.

    Raises:
        ValueError: `sample_weight` has another shape.
    """
    weights = ops.cast(ops.not_equal(labels, pad_id), "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, "float32")
    if len(sample_weight.shape) == 3 and sample_weight.shape[-1] == 1:
        sample_weight = ops.squeeze(sample_weight, axis=-1)
    if len(sample_weight.shape) == 1:
        sample_weight = ops.expand_dims(sample_weight, axis=1)
    check_shape("sample_weight", sample_weight, weights.shape, (1, None))
    return weights * sample_weight


@keras.saving.register_keras_serializable(package="keras_seqconv")
class LabelSmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of logits with smoothed labels.

        loss = - sum_v q(v) log softmax(logits)_v        for each token

    With rate e, kind "uniform" gives every word e / V and the label 1 - e more (Szegedy
    et al. 2016, Rethinking the Inception Architecture, section 7; `label_smoothing` of
    Keras; fairseq until 2021, so all recipes of 2018 and 2019). Kind "others" gives
    the label 1 - e and every other word e / (V - 1) (fairseq since then).

    The loss computes in float32 for logits of any dtype. The hand-written gradient
    keeps one tensor of the size of the logits, and neither one-hot labels nor
    log-probabilities are made.

    Args:
        label_smoothing: rate e, 0 <= e < 1.
        kind: "uniform" or "others".
        pad_id: label of padding, which has no loss; -1 for none.
        reduction: as in `keras.losses.Loss`; by default the mean over tokens.
        name, dtype: as in `keras.losses.Loss`; half precision means float32.

    A call with labels (B, T), logits (B, T, V) and token weights, broadcast to (B, T),
    returns a scalar in nats per token. `call` returns losses (B, T), 0 at padding.

    Example:

    ```python
    loss = keras_seqconv.losses.LabelSmoothedCrossentropy(0.1)
    logits = keras.random.normal((2, 3, 100))
    labels = keras.ops.array([[5, 6, 2], [7, 2, 1]])
    nats_per_token = loss(labels, logits)
    ```
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        kind: str = "uniform",
        pad_id: int = 1,
        reduction: str | None = "mean_with_sample_weight",
        name: str | None = None,
        dtype=None,
    ):
        super().__init__(name, reduction, dtype)
        # Keras casts labels to it, too.
        self._dtype = keras.backend.result_type(self._dtype, "float32")
        self.label_smoothing = check_rate("label_smoothing", label_smoothing)
        self.kind = check_choice("kind", kind, ("uniform", "others"))
        self.pad_id = check_integer("pad_id", pad_id, -1)

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true = ops.convert_to_tensor(y_true)
        weights = token_weights(y_true, self.pad_id, sample_weight)
        return super().__call__(y_true, y_pred, sample_weight=weights)

    def call(self, y_true, y_pred):
        return self.token_losses(y_true, y_pred)[0]

    def token_losses(self, labels, logits) -> tuple:
        """Loss, nll and success of labels (B, T) and logits (B, T, V).

        Returns:
            Three tensors (B, T): the smoothed loss, float32, the only one with a
            gradient; -log p(label), float32; whether no other word has a higher logit.
            0 and False at padding.
        """
        labels = ops.cast(labels, "int32")
        check_shape("labels", labels, tuple(logits.shape[:-1]))
        real = ops.not_equal(labels, self.pad_id)
        # A padding id of -1 is no index.
        indices = ops.where(real, labels, 0)
        size, rest = logits.shape[-1], self.label_smoothing
        # q of other words, and that of the label beyond it.
        base, extra = rest / size, 1 - rest
        if self.kind == "others":
            base = rest / max(size - 1, 1)
            extra = 1 - rest - base
        losses = _cross_entropy(indices, logits, extra, base)
        return tuple(ops.where(real, x, ops.zeros_like(x)) for x in losses)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "label_smoothing": self.label_smoothing,
            "kind": self.kind,
            "pad_id": self.pad_id,
        }


def _cross_entropy(labels, logits, extra, base) -> tuple:
    """With q = extra * one_hot(label) + base, which sums to 1:

    loss = logsumexp(x) - sum_v q(v) x(v),   d loss / d x = softmax(x) - q
    """
    number, shape = ops.size(labels), ops.shape(labels)
    labels = padded_rows(ops.reshape(labels, (-1,)))
    options = {"inside_xla": compiled_by_xla()}

    @custom_gradient
    def function(logits):
        # Keeps powers finite; the loss does not depend on it.
        highest = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
        highest = ops.cast(highest, "float32")
        # Kept for the gradient instead of the logits: exp is the slowest part.
        powers, total, plain = run_formula(
            _powers, _powers, logits, highest, rows=2, static=(bool(base),), **options
        )
        normalizer = (ops.log(total) + highest)[:, 0]
        chosen = ops.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        chosen = ops.cast(chosen, "float32")
        loss = normalizer - extra * chosen
        if base:
            loss -= base * plain[:, 0]

        def gradient(*upstream):
            return run_formula(
                _gradient_in_one_pass,
                _gradient_in_place,
                *(powers, total, labels, upstream[0]),
                rows=4,
                static=(extra, base, keras.backend.standardize_dtype(logits.dtype)),
                **options,
            )

        return (loss, normalizer - chosen, chosen - highest[:, 0]), gradient

    # Not -1: a graph of unknown sizes refuses other numbers of rows than of labels.
    rows = padded_rows(ops.reshape(logits, (number, logits.shape[-1])))
    if keras.backend.backend() == "jax":  # autodiff rounds a sum once
        rows = ops.cast(rows, "float32")
    loss, nll, margin = (
        ops.reshape(values[:number], shape) for values in function(rows)
    )
    return loss, ops.stop_gradient(nll), ops.stop_gradient(margin) >= 0


def _powers(logits, highest, with_sum):
    """exp(x - highest) (N, V), its sums (N, 1) and those of x."""
    logits = ops.cast(logits, "float32")
    powers = ops.exp(logits - highest)
    sums = row_sums(logits) if with_sum else ops.zeros_like(highest)
    return powers, row_sums(powers), sums


def _gradient_in_one_pass(powers, total, labels, upstream, extra, base, dtype):
    scale = upstream[:, None]
    slope = powers * (scale / total) - base * scale
    is_label = ops.arange(powers.shape[-1], dtype="int32") == labels[:, None]
    return ops.cast(slope - ops.where(is_label, extra * scale, 0.0), dtype)


def _gradient_in_place(powers, total, labels, upstream, extra, base, dtype):
    """The same for uncompiled graphs, where comparing labels would be one more pass."""
    scale = upstream[:, None]
    slope = powers * (scale / total)
    if base:
        slope -= base * scale
    rows = ops.arange(ops.size(labels), dtype="int32")
    indices = ops.stack([rows, labels], axis=-1)
    slope = ops.scatter_update(slope, indices, -extra * upstream, reduction="add")
    return ops.cast(slope, dtype)
