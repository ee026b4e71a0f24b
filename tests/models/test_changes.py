"""Models that Keras has changed since their constructor: quantized, LoRA, frozen."""

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import decoding
from tests.backends import EAGERLY, to_numpy
from tests.cases import quick_and_slow
from tests.models import families
from tests.models.families import SOURCES, inputs_of, logits_of, make, randomize


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("dynamic_conv", "int8"),
        pytest.param("lm_mixed", "int4", marks=pytest.mark.slow),
    ],
)
def test_quantized(name, mode, tmp_path):
    """Near the model before, in full passes, steps, searches and files."""
    model = randomize(make(name))
    inputs = inputs_of(model)
    before = logits_of(model, inputs)
    model.quantize(mode)
    full = logits_of(model, inputs)
    distance = np.abs(full - before).max() / np.abs(before).max()
    assert 1e-4 < distance < (0.5 if mode == "int4" else 0.2)
    families.check_steps(model, splits=((1, 3),))
    if hasattr(model, "encode"):
        ids, scores = decoding.beam_search(model, SOURCES, num_beams=2, max_length=5)
        expected = decoding.score(model, SOURCES, ids).scores
        np.testing.assert_allclose(to_numpy(scores), to_numpy(expected), rtol=1e-4)
    model.save(tmp_path / "model.keras")
    owner = ks.Translator if hasattr(model, "encode") else ks.LanguageGenerator
    owner(model).save(tmp_path / "model")
    for again in (
        keras.saving.load_model(tmp_path / "model.keras"),
        ks.load(tmp_path / "model").model,
    ):
        assert again.get_config() == model.get_config()
        np.testing.assert_allclose(logits_of(again, inputs), full, atol=1e-6)


# --- Fine-tuning ---

LABELS = np.array([[5, 6, 7, 2], [21, 0, 2, 1], [9, 2, 1, 1]], "int32")


def small_model(**options):
    """Without compiled convolutions, of which each model would compile its own."""
    options = {**families.ONE, "mixer": "attention", "dropout": 0.0, **options}
    return families.encoder_decoder(**options)


def freeze_encoder(model):
    for block in model.encoder_blocks:
        block.mixer.trainable = block.feed_forward.trainable = False


def unfreeze_decoder(model):
    for layer in model.layers:
        layer.trainable = False
    for block in model.decoder_blocks:
        block.mixer.trainable = True


def freeze(model):
    model.trainable = False


def add_lora(model):
    layers = model._flatten_layers(include_self=False)
    for layer in layers:
        layer.trainable = False
    for layer in layers:
        if isinstance(layer, keras.layers.Dense):
            layer.trainable = True
            layer.enable_lora(2)


def arrays(model):
    return [to_numpy(weight).copy() for weight in model.weights]


def fit(model, **options):
    model.fit(inputs_of(model), LABELS, verbose=0, shuffle=False, **options)


@pytest.mark.parametrize("change", quick_and_slow([add_lora], [unfreeze_decoder]))
def test_what_is_trained_after_compile_is_what_keras_trains(change):
    """By Keras' own training of the same graph, which makes a mean of the losses."""
    ours, theirs = small_model(seed=1), small_model(seed=1)
    graph = keras.Model(theirs.inputs, theirs.outputs)

    def mean(labels, logits):
        total = theirs.negative_log_likelihood(logits, labels)
        return total / keras.ops.sum(keras.ops.cast(labels != families.PAD, "float32"))

    for model, loss in ((ours, None), (graph, mean)):
        # Keras' own squares the gradient of each occurrence of an id on TensorFlow.
        optimizer = ks.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-3)
        model.compile(optimizer, loss, **EAGERLY)
    change(ours), change(theirs)
    theirs.set_weights(ours.get_weights())
    before = arrays(ours)
    fit(ours, epochs=2)
    graph.fit(inputs_of(theirs), LABELS, epochs=2, verbose=0, shuffle=False)
    for weight, old in zip(ours.weights, before, strict=True):
        moved = np.any(to_numpy(weight) != old)
        assert moved == weight.trainable or weight.name == "key_bias", weight.path
    for one, other in zip(arrays(ours), arrays(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize("change", quick_and_slow([freeze_encoder], [add_lora]))
def test_going_on_after_a_change(change, tmp_path):
    """From a file of Keras' and from a checkpoint, as if nothing had happened.

    But that Keras' file has LoRA in the kernels, and so its matrices begin anew.
    """

    def compiled_model():
        model = small_model(seed=1)
        optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
        model.compile(optimizer, **EAGERLY)
        change(model)
        return model

    model, resumed = compiled_model(), compiled_model()
    fit(model, epochs=2, callbacks=[ks.callbacks.Checkpoints(tmp_path)])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_config() == model.get_config()
    latest = ks.checkpoints.latest(tmp_path)
    assert ks.checkpoints.restore(latest, resumed)["update"] == 2
    outputs = [logits_of(each, inputs_of(model)) for each in (model, loaded)]
    np.testing.assert_allclose(*outputs, atol=1e-6)
    for each in (model, loaded, resumed):
        fit(each)
        assert int(to_numpy(each.optimizer.iterations)) == 3
    for each in (resumed,) if change is add_lora else (resumed, loaded):
        for one, other in zip(arrays(model), arrays(each), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "steps"), quick_and_slow([("float32", 1)], [("mixed_float16", 2)])
)
def test_changes_between_two_fits(policy, steps):
    """Freezing counts at once, also with the optimizer of before; no decay either."""
    model = small_model(dtype=policy)
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    options = dict(gradient_accumulation_steps=steps, **EAGERLY)
    model.compile(optimizer, **options)
    fit(model, epochs=steps)
    freeze_encoder(model)
    for compiles in (False, True):
        if compiles:
            model.compile(optimizer, **options)
        before = arrays(model)
        fit(model, epochs=steps)
        for weight, old in zip(model.weights, before, strict=True):
            moved = np.any(to_numpy(weight) != old)
            assert moved == weight.trainable or weight.name == "key_bias", weight.path
    assert int(to_numpy(model.optimizer.iterations)) == 3
    add_lora(model)
    with pytest.raises(ValueError, match="`compile` again, with a new optimizer"):
        fit(model)
    model.trainable = False
    with pytest.raises(ValueError, match="no trainable variables"):
        fit(model)


def test_what_is_frozen_between_two_fits_goes_on_from_a_file(tmp_path):
    model = small_model(seed=1)
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
    model.compile(optimizer, gradient_accumulation_steps=2, **EAGERLY)
    fit(model, epochs=2)
    freeze_encoder(model)
    fit(model, epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        fit(each, epochs=2)
        assert int(to_numpy(each.optimizer.iterations)) == 3
    for one, other in zip(arrays(model), arrays(loaded), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_moving_averages_leave_frozen_weights_alone():
    model = small_model(seed=1)
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer, **EAGERLY)
    fit(model)
    variables = model.trainable_variables
    freeze_encoder(model)
    before = [to_numpy(variable).copy() for variable in variables]
    fit(model, epochs=2)
    averages = optimizer._model_variables_moving_average
    for variable, old, average in zip(variables, before, averages, strict=True):
        expected = average if variable.trainable else old
        np.testing.assert_array_equal(to_numpy(variable), to_numpy(expected))
        if not variable.trainable:  # for callbacks that swap them
            np.testing.assert_allclose(to_numpy(average), old, atol=1e-6)


@pytest.mark.parametrize("change", [freeze_encoder, freeze, add_lora])
def test_what_was_frozen_in_a_file_can_be_trained_again(change, tmp_path):
    model = small_model()
    total = len(model.trainable_variables)
    change(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
    for layer in loaded._flatten_layers():
        if layer.weights:
            assert layer.trainable == bool(layer.trainable_variables)
    for layer in loaded.layers:
        layer.trainable = True
    loaded.trainable = True
    assert len(loaded.trainable_variables) >= total


def test_what_is_not_quantized():
    with pytest.raises(ValueError, match="`quantize` needs layers.*a ConvS2S"):
        families.conv_s2s().quantize("int8")
