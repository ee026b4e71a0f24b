"""Metrics of sequence models: tokens have equal weights, padding none.

Letters: B batch, T target time, V vocabulary.
"""

import keras
from keras import ops

from keras_seqconv.losses import LabelSmoothedCrossentropy, token_weights
from keras_seqconv.support.arguments import check_boolean, check_integer, public_names

__dir__ = public_names(globals())


@keras.saving.register_keras_serializable(package="keras_seqconv")
class TokenMetrics(keras.metrics.Metric):
    """Loss, nll, perplexity, accuracy and token count since the last reset.

        nll = - sum log p(label) / tokens,   perplexity = exp(nll)

    Each sum over tokens has two float32 parts, so that it is exact for an epoch of a
    billion tokens. `SequenceModel.fit` reports all results. The `compile(metrics=...)`
    of other models needs metrics of one number: `Perplexity` and `TokenAccuracy`.

    Args:
        pad_id: label of padding.
        has_accuracy: whether `accuracy` is among the results.
        name: name of the metric.
        dtype: as in `keras.metrics.Metric`.

    Results, by name: `loss` and `nll` in nats per token; `perplexity`, at most
    exp(88); `accuracy`, the share of tokens with no logit above that of the label (a
    tie counts as right); `tokens`, a float32. All are 0 before the first token.
    """

    def __init__(
        self,
        pad_id: int = 1,
        has_accuracy: bool = True,
        name: str = "tokens",
        dtype=None,
    ):
        super().__init__(dtype, name)
        self.pad_id = check_integer("pad_id", pad_id, -1)
        self.has_accuracy = check_boolean("has_accuracy", has_accuracy)
        # Sums of loss, nll, correct and tokens, and the rounding error of each.
        self.totals = self.add_variable(
            (2, 4), initializer="zeros", dtype="float32", name="totals"
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds labels (B, T) with logits (B, T, V); `sample_weight` as in a loss."""
        labels = ops.cast(y_true, "int32")
        weights = token_weights(labels, self.pad_id, sample_weight)
        plain = LabelSmoothedCrossentropy(0.0, pad_id=self.pad_id)
        _, *of_tokens = plain.token_losses(labels, ops.convert_to_tensor(y_pred))
        nll, right = (ops.sum(weights * ops.cast(x, "float32")) for x in of_tokens)
        self.add(ops.stack([nll, nll, right, ops.sum(weights)]))

    def add(self, sums):
        """Adds sums over tokens of loss, nll and correct, and their number: (4,)."""
        total, error = self.totals[0], self.totals[1]
        sums = ops.cast(sums, "float32")
        # Knuth's exact sum: total + sums = new + rounding error.
        new = total + sums
        share = new - total
        error = error + ((total - (new - share)) + (sums - share))
        self.totals.assign(ops.stack([new, error]))

    def result(self):
        return self.results_of(self.totals)

    def results_of(self, totals) -> dict:
        """Returns the results for a state (2, 4), perhaps a sum over replicas."""
        sums = totals[0] + totals[1]
        tokens = sums[3]
        loss, nll, correct = ops.unstack(ops.divide_no_nan(sums[:3], tokens))
        power = ops.exp(ops.minimum(nll, 88.0))  # that of more is no float32
        perplexity = ops.where(tokens > 0, power, 0.0)
        results = {"loss": loss, "nll": nll, "perplexity": perplexity}
        if self.has_accuracy:
            results["accuracy"] = correct
        return {**results, "tokens": tokens}

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "pad_id": self.pad_id,
            "has_accuracy": self.has_accuracy,
        }


class _OneNumber(TokenMetrics):
    """One of the results, which is also the name of the metric."""

    result_name: str

    def __init__(self, pad_id: int = 1, name: str | None = None, dtype=None):
        super().__init__(pad_id, name=name or self.result_name, dtype=dtype)

    def result(self):
        return super().result()[self.result_name]

    def get_config(self) -> dict:
        config = super().get_config()
        del config["has_accuracy"]
        return config


@keras.saving.register_keras_serializable(package="keras_seqconv")
class Perplexity(_OneNumber):
    """Perplexity: exp of the mean of -log p(label); see `TokenMetrics`."""

    result_name = "perplexity"


@keras.saving.register_keras_serializable(package="keras_seqconv")
class TokenAccuracy(_OneNumber):
    """Share of tokens whose label has the highest logit; see `TokenMetrics`."""

    result_name = "accuracy"
