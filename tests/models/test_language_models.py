"""LanguageModel and ConvLanguageModel: what sets them apart, adaptive outputs."""

import numpy as np
import pytest
from keras import ops

from keras_seqconv.models import from_preset
from tests.backends import to_numpy
from tests.models.families import CONFIGS, language_model


@pytest.mark.tensorflow
def test_training_with_an_adaptive_softmax_never_makes_all_logits():
    """No tensor of the training graph has V numbers, or V numbers per position.

    But for the weights: with V = 5000 no cluster is as wide as 3000.
    """
    import tensorflow as tf

    factory, options = CONFIGS["conv_lm_adaptive"]
    cutoffs = {"cutoffs": [1000, 2500], "factor": 2.0}
    model = factory(**{**options, "adaptive_softmax": cutoffs}, size=5000)

    @tf.function(autograph=False)
    def step(ids, labels):
        with tf.GradientTape() as tape:
            features = model({"target_ids": ids}, training=True)
            loss = model.negative_log_likelihood(features, labels, training=True)
            loss -= ops.sum(model.log_prob(features, labels))
        return loss, tape.gradient(loss, model.trainable_variables)

    ids = tf.constant(np.random.default_rng(0).integers(3, 5000, (2, 50)), tf.int32)
    concrete = step.get_concrete_function(ids, ids)

    def widths_in(graph):
        for operation in graph.get_operations():
            shapes = [tensor.shape for tensor in operation.outputs]
            yield from (shape[-1] for shape in shapes if (shape.rank or 0) > 1)
        for function in graph._functions.values():
            yield from widths_in(function.graph) if hasattr(function, "graph") else ()

    widths = {*widths_in(concrete.graph)}
    # The head with a word per tail, and both tails, in loops, were looked at.
    assert {1002, 1500, 2500} <= widths and 5000 not in widths
    # Nor in what ran: an operation on (100, 2500) and more would take as many bytes.
    loss, gradients = step(ids, ids)
    assert np.isfinite(loss) and all(gradient is not None for gradient in gradients)


def test_positions_by_the_arguments_of_their_layer():
    paper = language_model(9, positions={"layout": "paper", "max_length": 3})
    assert paper.target_embedder.position.layout == "paper"
    assert paper.max_target_length is None  # sinusoids have no limit
    assert paper({"target_ids": np.full((1, 5), 4)}).shape == (1, 5, 9)
    with pytest.raises(ValueError, match="no attention to a source"):
        paper.attention_weights({"target_ids": np.array([[4]])})


def test_numbers_of_numpy_and_seeds_of_any_size():
    model = from_preset(
        "light_conv_lm_characters", vocabulary_size=9, num_layers=np.int64(2),
        hidden_dim=8, intermediate_dim=8, num_heads=2, seed=2**32 - 1,
    )  # fmt: skip
    assert len(model.decoder_blocks) == 2
    assert np.isfinite(
        to_numpy(model({"target_ids": np.full((1, 3), 4)}, training=True))
    ).all()
