"""Several models that decode as one."""

from keras import ops


class Ensemble:
    """Models whose probabilities are averaged: log p = log(mean over models of p).

    As in fairseq. The models may differ in architecture, not in their vocabulary. An
    ensemble has the methods of a model that a search needs, so it takes the place of a
    model in every function of `keras_seqconv.decoding`. Keep it and use it again: the
    compiled searches belong to it.

    Args:
        models: list of models of `keras_seqconv.models`, or of other objects with the
            same methods.

    Raises:
        ValueError: for no models, or when their vocabularies or special tokens differ.
    """

    def __init__(self, models):
        self.models = list(models)
        if not self.models:
            raise ValueError("`models` must not be empty. Received: models=[]")
        for name in (
            "pad_id", "start_id", "end_id", "unk_id", "target_vocabulary_size"
        ):  # fmt: skip
            values = [getattr(model, name) for model in self.models]
            if len(set(values)) > 1:
                raise ValueError(
                    f"All of `models` must have the same `{name}`. Received: {values}"
                )
            setattr(self, name, values[0])
        limits = [model.max_target_length for model in self.models]
        self.max_target_length = min(
            (limit for limit in limits if limit is not None), default=None
        )

    @property
    def variables(self) -> list:
        """The variables of all models, each once."""
        found = {}
        for model in self.models:
            for variable in getattr(model, "variables", []):
                found[id(variable)] = variable
        return list(found.values())

    def get_initial_state(self, *args, return_attention=False, **kwargs) -> dict:
        """The states of all models; the arguments are those of the models' method."""
        if return_attention:
            kwargs["return_attention"] = True
        states = [model.get_initial_state(*args, **kwargs) for model in self.models]
        state = {
            "common": [state.get("common", {}) for state in states],
            "shared": [state["shared"] for state in states],
            "beams": {"models": [state["beams"] for state in states]},
        }
        if return_attention:
            state["beams"]["attention"] = _mean_attention(state["beams"]["models"])
        return state

    def step(self, ids, state, temperature: float = 1.0):
        """-> log-probabilities (rows, V) float32, new state.

        Each model's logits are divided by the temperature, before the mean.
        """
        log_probs, shared, beams = [], [], []
        for model, common, own_shared, own_beams in zip(
            self.models,
            state["common"],
            state["shared"],
            state["beams"]["models"],
            strict=True,
        ):
            own = {"common": common, "shared": own_shared, "beams": own_beams}
            logits, own = model.step(ids, own)
            logits = ops.cast(logits, "float32") / temperature
            log_probs.append(ops.log_softmax(logits, axis=-1))
            shared.append(own["shared"])
            beams.append(own["beams"])
        after = {**state, "shared": shared, "beams": {"models": beams}}
        if "attention" in state["beams"]:
            after["beams"]["attention"] = _mean_attention(beams)
        return log_of_mean(log_probs), after

    def target_log_prob(self, inputs: dict, ids):
        """Log-probabilities (B, T) of ids (B, T), of which `inputs` are the inputs."""
        return log_of_mean(
            [target_log_prob(model, inputs, ids) for model in self.models]
        )


def target_log_prob(model, inputs: dict, ids):
    """Log-probabilities (B, T) that a model or an ensemble gives to ids (B, T)."""
    if isinstance(model, Ensemble):
        return model.target_log_prob(inputs, ids)
    return ops.cast(model.log_prob(model(inputs), ids), "float32")


def log_of_mean(log_probs: list):
    """log(mean(exp(log_probs))) of a list of tensors."""
    if len(log_probs) == 1:
        return log_probs[0]
    total = log_probs[0]
    for more in log_probs[1:]:
        total = ops.logaddexp(total, more)
    return total - ops.log(ops.cast(len(log_probs), total.dtype))


def _mean_attention(states: list):
    attention = [state["attention"] for state in states]
    return sum(ops.cast(one, "float32") for one in attention) / len(attention)
