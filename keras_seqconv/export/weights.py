"""The weights of a model as plain variables."""

import keras

from keras_seqconv.decoding import Ensemble


def folded(model):
    """The model without weight normalisation; the one that is given stays as it is."""
    if isinstance(model, Ensemble):
        return Ensemble([folded(one) for one in model.models])
    if not hasattr(model, "fold") or model.get_config().get("folded"):
        return model
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    copy.fold()
    return copy


class StoredWeights:
    """Variables that hold the weights of a model and nothing of Keras.

    Args:
        model: a model of the package or an `Ensemble`.

    Attributes:
        variables: all variables, for an exported module to hold.
    """

    def __init__(self, model):
        import tensorflow as tf

        models = getattr(model, "models", [model])
        weights = {id(weight): weight for one in models for weight in one.weights}
        self._weights = list(weights.values())
        self.variables = [
            tf.Variable(weight.value, trainable=False, name=f"weight_{number}")
            for number, weight in enumerate(self._weights)
        ]

    @property
    def size(self) -> int:
        """Bytes of all variables."""
        return sum(
            variable.shape.num_elements() * variable.dtype.size
            for variable in self.variables
        )

    def scope(self) -> keras.StatelessScope:
        """In it the model computes with the stored numbers; for use in a graph."""
        import tensorflow as tf

        return keras.StatelessScope(
            state_mapping=[
                (weight, tf.convert_to_tensor(variable))
                for weight, variable in zip(self._weights, self.variables, strict=True)
            ]
        )
