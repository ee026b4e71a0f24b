"""Several models as one, by the mean of their probabilities."""

import functools
import math

from keras_seqconv.decoding import array_ops as ops

_COMMON = (
    "has_source", "pad_id", "start_id", "end_id", "unk_id",
    "source_vocabulary_size", "target_vocabulary_size",
)  # fmt: skip


class Ensemble:
    """Averages the probabilities of models: log p = log(mean over models of p).

    As in fairseq. The models may differ in architecture, not in their vocabulary. An
    ensemble replaces a model in every function of `keras_seqconv.decoding`. Reuse an
    ensemble, because it caches its compiled searches.

    Args:
        models: list of models of `keras_seqconv.models`, or of objects with the same
            methods.

    Raises:
        ValueError: no models, no model, or different vocabularies or special tokens.
    """

    def __init__(self, models):
        self.models = list(models)
        if not self.models:
            raise ValueError("`models` must not be empty. Received: models=[]")
        for model in self.models:
            if not hasattr(model, "step"):
                raise ValueError(
                    "`models` must be models, such as the `model` of a Translator. "
                    f"Received: {type(model).__name__}"
                )
        for name in _COMMON:
            values = [getattr(model, name, None) for model in self.models]
            if len(set(values)) > 1:
                raise ValueError(
                    f"All of `models` must have the same `{name}`. Received: {values}"
                )
            setattr(self, name, values[0])
        for name in ("max_source_length", "max_target_length"):
            limits = {getattr(model, name, None) for model in self.models}
            setattr(self, name, min(limits - {None}, default=None))

    @property
    def variables(self) -> list:
        """The variables of all models, each once."""
        of_all = (v for model in self.models for v in getattr(model, "variables", []))
        return list({id(variable): variable for variable in of_all}.values())

    def get_initial_state(self, *args, **kwargs) -> dict:
        """The states of all models; the arguments are those of the models' method."""
        return _joined([m.get_initial_state(*args, **kwargs) for m in self.models])

    def step(self, ids, state, temperature: float = 1.0):
        """Returns log-probabilities (rows, V) float32, and the next state.

        The temperature divides each model's logits before the mean.
        """
        log_probs, after = [], []
        states = state["common"], state["shared"], state["beams"]["models"]
        for model, common, shared, beams in zip(self.models, *states, strict=True):
            member_state = {"common": common, "shared": shared, "beams": beams}
            logits, member_state = model.step(ids, member_state)
            logits = ops.cast(logits, "float32") / temperature
            log_probs.append(ops.log_softmax(logits, axis=-1))
            after.append(member_state)
        return _log_of_mean(log_probs), _joined(after)

    def __call__(self, inputs) -> list:
        """The outputs of all models."""
        return [model(inputs) for model in self.models]

    def log_prob(self, outputs: list, ids):
        """Log-probabilities (B, T) of ids (B, T), given the outputs of a call."""
        return _log_of_mean(
            [
                ops.cast(model.log_prob(output, ids), "float32")
                for model, output in zip(self.models, outputs, strict=True)
            ]
        )


def _joined(states: list) -> dict:
    """A state of the models' states, with the mean of their attention, if any."""
    beams = {"models": [state["beams"] for state in states]}
    if "attention" in states[0]["beams"]:
        attention = [
            ops.cast(beam_state["attention"], "float32")
            for beam_state in beams["models"]
        ]
        beams["attention"] = sum(attention) / len(attention)
    return {
        "common": [state.get("common", {}) for state in states],
        "shared": [state["shared"] for state in states],
        "beams": beams,
    }


def _log_of_mean(log_probs: list):
    """log(mean(exp(log_probs))) of a list of tensors."""
    total = functools.reduce(ops.logaddexp, log_probs)
    return total - math.log(len(log_probs))
