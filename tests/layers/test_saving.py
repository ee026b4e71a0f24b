"""Every layer in one model: in a fresh process, exported without XLA, padded."""

import re

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import layers
from keras_seqconv.models import EncoderDecoder
from tests.backends import UNCOMPILED, to_numpy
from tests.cases import quick_and_slow
from tests.export.stock_ops import not_stock
from tests.layers.values import assert_close, random
from tests.processes import run_python

TENSORFLOW = keras.backend.backend() == "tensorflow"
EXPORTED = {name for name in vars(layers) if name[0].isupper()}


def every_layer(width: int = 8) -> keras.Model:
    """A functional model of ids (B, T) that goes through every public layer."""
    used = set()

    def add(name, *arguments, **options):
        used.add(name)
        return getattr(layers, name)(*arguments, **options)

    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, width, mask_zero=True)(ids)
    x = add("PositionEncoding", "sinusoidal")(x)
    x = add("PositionEncoding", "learned", max_length=20)(x)
    for mixer in (
        add("LightConv", 4, 5, weight_dropout=0.1),
        add("DynamicConv", 4, 5, "causal", use_kernel_bias=True),
        add("ShortConv", 3, residual=True),
        add("GatedShortConv"),
        add("LightConvModule", 2, 4),
        add("DynamicConvModule", 2, 4, "causal", weight_dropout=0.1),
        add("QueryConvModule", 2, 3, gate="gau", permute_channels=True, seed=1),
        add("MultiHeadAttention", 2, use_causal_mask=True),
        add("FeedForward", 16),
    ):
        x = add("Residual", mixer, dropout=0.1)(x)
    memory = add("ScaleGradient", 0.5)(x)
    x = add("Residual", layers.MultiHeadAttention(2), normalize_first=True)(
        x, value=memory
    )
    tokens = add("TokenEmbedding", 11, width, use_bias=True)(ids)
    rare = add("AdaptiveInput", 11, width, cutoffs=(4, 8), factor=2.0)(ids)
    embedded = keras.layers.Add()([tokens, rare])
    skip = x
    x = add("WeightNormConv1D", 2 * width, 3, padding="causal")(x)
    x = add("GLU")(x)
    x = add("ConvS2SAttention")(x, embedded, memory, memory)
    x = add("ScaledResidual")(x, skip)
    x = add("ConvS2SBlock", 6, 4)(x)
    initializer = add("ConvS2SInitializer", dropout=0.1)
    x = add("WeightNormDense", 5, kernel_initializer=initializer)(x)
    x = add("AdaptiveSoftmax", 11, cutoffs=(4, 8), factor=2.0, adaptive_input=None)(x)
    assert used == EXPORTED, f"not in the model: {EXPORTED - used}"
    return keras.Model(ids, x)


IDS = np.array([[3, 4, 5, 6, 7, 8, 9], [2, 3, 4, 0, 0, 0, 0]], "int32")


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.parametrize(
    "how",
    quick_and_slow(
        [{"run_eagerly": True} if TENSORFLOW else {"jit_compile": True}],
        [{"jit_compile": UNCOMPILED}],
    ),
)
def test_training_moves_every_weight(how):
    """With NaN where the mask hides it."""
    keras.utils.set_random_seed(1)
    model = every_layer()
    embedding, *weights = model.trainable_weights
    embedding.assign(np.where(np.arange(11)[:, None] == 0, np.nan, embedding))
    before = [to_numpy(weight) for weight in weights]
    model.compile(keras.optimizers.Adam(0.01), "mse", **how)
    with ks.ops.jit_scope(not TENSORFLOW):
        history = model.fit(IDS, random(*IDS.shape, 5), epochs=1, verbose=0).history
    assert np.isfinite(history["loss"][0])
    for weight, old in zip(weights, before, strict=True):
        moved = np.abs(to_numpy(weight) - old).max()
        # A softmax does not depend on the bias of the keys. Others act in `log_prob`,
        # and in `reverse=True`.
        still = re.search(
            "key_bias|adaptive_softmax|token_embedding.*/bias", weight.path
        )
        assert np.isfinite(moved) and (moved > 1e-4 or still), weight.path


@pytest.mark.tensorflow
@pytest.mark.slow
def test_every_layer_is_exported_for_a_server_without_xla(tmp_path):
    import tensorflow as tf

    model = every_layer()
    expected = model.predict(IDS, verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    tf.saved_model.save(model, tmp_path / "saved")
    for folder in (tmp_path / "exported", tmp_path / "saved"):
        # Its value would be the variable's name.
        named = {"attribute debug_name of VarHandleOp"}
        assert {*not_stock(folder)} <= named
        signatures = tf.saved_model.load(folder).signatures
        serve = signatures["serve" if "serve" in signatures else "serving_default"]
        for ids, wanted in ((IDS, expected), (IDS[1:, :3], expected[1:, :3])):
            (outputs,) = serve(tf.constant(ids)).values()
            np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_quantized_layers_in_a_fresh_process(tmp_path):
    model = every_layer()
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "expected.npy", model.predict(IDS, verbose=0))
    code = f"""
    import keras, numpy as np
    import keras_seqconv
    model = keras.saving.load_model("model.keras")
    outputs = model.predict(np.array({IDS.tolist()}), verbose=0)
    np.testing.assert_allclose(outputs, np.load("expected.npy"), atol=1e-5)
    """
    run_python(code, folder=tmp_path)


def test_frozen_layers_stay_frozen_in_files_and_copies(tmp_path):
    inputs = keras.Input((None, 8))
    frozen = layers.Residual(layers.DynamicConvModule(2, 3))
    model = keras.Model(inputs, keras.layers.Dense(3)(frozen(inputs)))
    frozen.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    new = layers.DynamicConvModule(2, 3, trainable=False)
    made = keras.Model(inputs, keras.layers.Dense(3)(new(inputs)))
    for one in (model, loaded, keras.models.clone_model(model), made):
        assert [v.shape for v in one.trainable_variables] == [(8, 3), (3,)]
    loaded.layers[1].trainable = True
    assert len(loaded.trainable_variables) == 9


def test_padding_ids_reach_no_logits():
    """Whatever stands in the row of the padding, also NaN."""
    model = EncoderDecoder(
        *(9, 9), hidden_dim=8, intermediate_dim=8, num_heads=2, mixer="query_conv",
        num_encoder_layers=2, num_decoder_layers=1, kernel_sizes=70,
    )  # fmt: skip
    inputs = {
        "source_ids": np.array([[5, 6, 2, 1, 1], [1, 1, 5, 6, 2]]),
        "target_ids": np.array([[2, 7, 1], [2, 7, 8]]),
    }
    expected = to_numpy(model(inputs))
    for embedder in (model.source_embedder, model.target_embedder):
        table = embedder.tokens.embeddings
        table.assign(np.where(np.arange(9)[:, None] == 1, np.nan, to_numpy(table)))
    assert_close(model(inputs)[:, :2], expected[:, :2])
    state = model.get_initial_state(inputs["source_ids"], max_length=3)
    logits, _ = model.step(inputs["target_ids"][:, :2], state)
    assert_close(logits, expected[:, 1])


WEIGHTS_ONLY = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize(
    "how",
    quick_and_slow(
        [{"config": WEIGHTS_ONLY}],
        [{"mode": "int8"}, {"mode": "int4"}, {"mode": "float8"}],
    ),
)
def test_quantized_layers_in_files_and_copies(how, tmp_path):
    """As quantized in the copy as in the original, after a second save too."""
    inputs = keras.Input((None, 8))
    x = layers.Residual(layers.QueryConvModule(2, 3), dropout=0.1)(inputs)
    x = layers.FeedForward(16, name="position_wise")(x)
    model = keras.Model(inputs, layers.DynamicConv(2, 3)(x))
    values = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    exact = to_numpy(model(values))
    model.quantize(**how)
    expected = to_numpy(model(values))
    assert np.abs(expected - exact).max() > 1e-5
    model.save(tmp_path / "model.keras")
    for _ in range(2):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(to_numpy(loaded(values)), expected)
        loaded.save(tmp_path / "model.keras")
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(to_numpy(copy(values)), expected)
