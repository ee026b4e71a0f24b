"""Training by tokens: any split of an update into micro-batches gives its weights."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqconv import checkpoints
from keras_seqconv.callbacks import Checkpoints
from keras_seqconv.losses import LabelSmoothedCrossentropy
from keras_seqconv.metrics import Perplexity
from keras_seqconv.models import LanguageModel
from keras_seqconv.optimizers import NAG, AdamW, TokenNormalized
from keras_seqconv.schedules import InverseSquareRoot
from tests.backends import EAGERLY, UNCOMPILED, layer_gradients, to_numpy
from tests.cases import quick_and_slow
from tests.models.families import ONE, encoder_decoder, language_model

WORDS, START, PAD = 30, 2, 1
GRAPH = {"run_eagerly": False, "jit_compile": UNCOMPILED}
XLA = {"run_eagerly": False, "jit_compile": "auto"}
PLAIN = {"hidden_dim": 8, "intermediate_dim": 16, "dropout": 0.0, "seed": 1}


def small_model(**changes):
    """Of attention: convolutions would be compiled anew for each model."""
    keras.utils.set_random_seed(1)
    own = {"num_layers": 1, "mixer": "attention", "kernel_sizes": 3}
    own["share_embeddings"] = True
    return language_model(WORDS, **{**PLAIN, **own, **changes})


def translation_model():
    keras.utils.set_random_seed(1)
    return encoder_decoder((WORDS, WORDS), **PLAIN, **ONE, share_embeddings="all")


def adaptive_model():
    options = {"cutoffs": [10, 20], "factor": 2.0}
    return small_model(adaptive_softmax=options, share_embeddings=False)


def ragged_batch(rows=12, length=7, seed=0, empty=()):
    """Inputs and labels of many lengths; the rows `empty` are nothing but padding."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, WORDS, (rows, length)).astype("int32")
    for row, end in enumerate(rng.integers(1, length + 1, rows)):
        labels[row, end:] = PAD
    labels[list(empty)] = PAD
    target = np.concatenate([np.full((rows, 1), START), labels[:, :-1]], axis=1)
    target[list(empty)] = PAD
    return {"target_ids": target.astype("int32")}, labels


def weights(model):
    return [to_numpy(weight) for weight in model.trainable_variables]


def assert_same_weights(one, other, atol=1e-6):
    for first, second in zip(weights(one), weights(other), strict=True):
        np.testing.assert_allclose(first, second, atol=atol)


def nag(**settings):
    rate = InverseSquareRoot(0.2, 3, 0.01)
    return NAG(rate, momentum=0.9, weight_decay=1e-2, **settings)


def train(model, steps=1, data=None, updates=3, **options):
    """Updates of one batch, cut into `steps` micro-batches."""
    inputs, labels = data or ragged_batch()
    defaults = dict(
        optimizer=nag(global_clipnorm=0.5), **EAGERLY,
        loss=LabelSmoothedCrossentropy(0.1), gradient_accumulation_steps=steps,
    )  # fmt: skip
    model.compile(**{**defaults, **options})
    size = dict(batch_size=len(labels) // steps, epochs=updates)
    return model.fit(inputs, labels, **size, shuffle=False, verbose=0).history


@pytest.mark.parametrize(
    ("make", "steps", "options"),
    quick_and_slow(
        [(small_model, 4, GRAPH)],
        [
            (adaptive_model, 3, {"loss": None}),
            (translation_model, 4, GRAPH),
            (small_model, 2, {"steps_per_execution": 2, **XLA}),
        ],
    ),
)
def test_micro_batches_equal_one_batch(make, steps, options):
    """However they run."""
    one, many = make(), make()
    inputs, labels = ragged_batch()
    if make is translation_model:
        inputs["source_ids"] = inputs["target_ids"][:, ::-1]
    loss = {"loss": None} if make is adaptive_model else {}
    history = train(one, data=(inputs, labels), **loss)
    other = train(many, steps, (inputs, labels), **options)
    other_way = options.keys() - {"loss"}
    assert_same_weights(one, many, atol=5e-6 if other_way else 1e-6)
    assert int(to_numpy(many.optimizer.iterations)) == 3
    assert history["loss"][-1] < history["loss"][0]
    rates = [0.01, 0.01 + 0.19 / 3, 0.01 + 2 * 0.19 / 3]
    np.testing.assert_allclose(history["learning_rate"], rates, rtol=1e-6)
    names = {"loss", "nll", "perplexity", "tokens", "learning_rate", "gradient_norm"}
    assert set(history) == names | ({"accuracy"} if one.has_logits else set())
    for name in history:
        limit = 2e-5 if other_way else 2e-6
        np.testing.assert_allclose(history[name], other[name], limit, err_msg=name)
    if make is adaptive_model:
        assert history["nll"] == history["loss"]
        one.compile("sgd", **EAGERLY)
        found = one.evaluate(inputs, labels, verbose=0, return_dict=True)
        total = to_numpy(one.negative_log_likelihood(one(inputs), labels))
        np.testing.assert_allclose(found["loss"], total / found["tokens"], rtol=1e-5)


def test_logs_are_means_over_the_tokens_of_an_epoch():
    inputs, labels = ragged_batch()
    model = small_model()
    loss = LabelSmoothedCrossentropy(0.1, "others")
    model.compile(nag(), loss, **EAGERLY)
    found = model.evaluate(inputs, labels, batch_size=5, verbose=0, return_dict=True)
    logits = to_numpy(model(inputs)).astype("float64")
    real = labels != PAD
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    nll = -np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0][real].mean()
    right = (logits.argmax(axis=-1) == labels)[real].mean()
    wanted = {
        "loss": to_numpy(loss.call(labels, logits))[real].mean(), "nll": nll,
        "perplexity": np.exp(nll), "accuracy": right, "tokens": real.sum(),
    }  # fmt: skip
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("make", [adaptive_model, small_model])
def test_padding_of_nan_reaches_neither_sum_nor_gradient(make):
    model = make()
    inputs, labels = ragged_batch()
    outputs = to_numpy(model(inputs)).copy()
    wanted = to_numpy(model.negative_log_likelihood(outputs, labels))
    outputs[labels == PAD] = np.nan
    found = to_numpy(model.negative_log_likelihood(outputs, labels))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    if make is adaptive_model:
        softmax, real = model.adaptive_softmax, labels != PAD
        for call in (
            lambda: model.negative_log_likelihood(outputs, labels),
            lambda: softmax.loss(outputs, labels, real),
        ):
            np.testing.assert_allclose(to_numpy(call()), wanted, rtol=1e-6)
            for value in layer_gradients(softmax, call):
                assert np.isfinite(to_numpy(ops.convert_to_tensor(value))).all()


@pytest.mark.parametrize("make", quick_and_slow([adaptive_model], [small_model]))
def test_validation_has_no_dropout(make):
    rates = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.5)
    if make is adaptive_model:
        softmax = {"cutoffs": [10, 20], "factor": 2.0, "dropout": 0.5}
        rates |= dict(adaptive_softmax=softmax, share_embeddings=False)
    inputs, labels = ragged_batch()
    model = small_model(**rates)
    model.compile(nag(), **EAGERLY)
    found = [model.evaluate(inputs, labels, verbose=0) for _ in range(2)]
    assert found[0] == found[1]
    total = model.negative_log_likelihood(model(inputs, training=False), labels)
    loss = float(to_numpy(total)) / (labels != PAD).sum()
    np.testing.assert_allclose(found[0][0], loss, rtol=1e-5)


@pytest.mark.parametrize("kind", quick_and_slow(["keras"], ["tokens"]))
def test_losses_of_ones_own(kind):
    one, other = small_model(), small_model()
    train(one, loss=None)
    loss = {
        "keras": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "tokens": lambda y, x: -other.log_prob(x, y),
    }[kind]
    train(other, loss=loss)
    assert_same_weights(one, other)


def test_losses_that_layers_add_count_once_per_update():
    models = [small_model(), small_model()]
    for model in models:
        dense = next(x for x in model._flatten_layers() if hasattr(x, "kernel"))
        dense.kernel.regularizer = keras.regularizers.L2(0.1)
    plain = small_model()
    history = train(models[0])
    train(models[1], steps=4)
    assert_same_weights(*models)
    assert history["loss"][0] > train(plain)["loss"][0] + 1e-3


def test_sample_weight_and_further_metrics():
    """A sentence of weight 2 counts like two of it."""
    inputs, labels = ragged_batch(4)
    one, other = small_model(), small_model()
    for model in (one, other):
        metrics = [keras.metrics.SparseCategoricalAccuracy("all")]
        model.compile(nag(), metrics=metrics, **EAGERLY)
    weight = np.array([2.0, 1, 0, 1], "float32")
    rows = [0, 0, 1, 3]
    first = one.train_on_batch(inputs, labels, weight, return_dict=True)
    repeated = {name: ids[rows] for name, ids in inputs.items()}
    second = other.train_on_batch(repeated, labels[rows], return_dict=True)
    assert_same_weights(one, other)
    np.testing.assert_allclose(first["loss"], second["loss"], rtol=1e-6)
    assert first["tokens"] == second["tokens"] and "all" in first


def test_a_model_with_another_padding_id_counts_word_1():
    model = small_model(special_ids={"pad": 0})
    inputs, labels = ragged_batch()
    labels = np.where(labels == PAD, 0, np.where(labels > 25, 1, labels))
    model.compile("sgd", LabelSmoothedCrossentropy(pad_id=0), **EAGERLY)
    found = model.evaluate(inputs, labels, verbose=0, return_dict=True)
    log_probs = to_numpy(model.log_prob(model(inputs), labels))
    assert found["tokens"] == np.sum(labels > 0) > np.sum(labels > 1)
    np.testing.assert_allclose(found["nll"], -log_probs[labels > 0].mean(), rtol=1e-5)


def test_loss_scaling(tmp_path):
    """A skipped update has a checkpoint: its norm is infinite, and the model is not."""
    model = small_model(dtype="mixed_float16")
    history = train(model, steps=2, updates=4, optimizer=AdamW(1e-2))
    assert history["loss"][-1] < history["loss"][0]
    assert int(to_numpy(model.optimizer.iterations)) == 4  # none was skipped
    assert isinstance(model.optimizer.optimizer, keras.optimizers.LossScaleOptimizer)
    writer = Checkpoints(tmp_path)
    writer.set_model(model)
    writer.on_train_begin()
    model.optimizer.iterations.assign_add(1)
    model.optimizer.last_gradient_norm.assign(np.inf)
    writer.on_train_end()
    assert [path.name for path in checkpoints.find(tmp_path)] == ["update-00000005.npz"]


@pytest.mark.parametrize("dtype", quick_and_slow(["mixed_float16"], ["float32"]))
def test_callbacks_find_averaged_weights(dtype):
    """Keras' `SwapEMAWeights`, which looks for the optimizer that has them."""
    model = small_model(dtype=dtype)
    inputs, labels = ragged_batch()
    model.compile(AdamW(1e-2, use_ema=True, ema_momentum=0.5), **EAGERLY)
    trained, seen = [], []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            trained.append([weight.copy() for weight in weights(self.model)])

        def on_test_batch_end(self, batch, logs=None):
            seen.extend(weight.copy() for weight in weights(self.model))

    callbacks = [keras.callbacks.SwapEMAWeights(), Record()]
    options = dict(validation_data=(inputs, labels), callbacks=callbacks, verbose=0)
    model.fit(inputs, labels, batch_size=4, validation_batch_size=12, **options)
    for found, first, second, third in zip(seen, *trained, strict=True):
        mean = (first + second) / 4 + third / 2  # begins with the first update's
        np.testing.assert_allclose(found, mean, atol=1e-6)


def test_saved_model_goes_on(tmp_path):
    """From the midst of an update, with its policy."""
    model = small_model(dtype="mixed_bfloat16")
    train(model, steps=2, optimizer=AdamW(InverseSquareRoot(1e-2, 3), epsilon=1e-3))
    inputs, labels = ragged_batch(6)
    model.train_on_batch(inputs, labels)  # half of an update
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.dtype_policy.name == "mixed_bfloat16"
    old, new = model.optimizer, loaded.optimizer
    assert type(new) is TokenNormalized and new.get_config() == old.get_config()
    for one, other in zip(old.variables, new.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
    for each in (model, loaded):
        each.train_on_batch(inputs, labels)
    assert int(to_numpy(new.iterations)) == 4
    assert_same_weights(model, loaded)
    assert not LanguageModel.from_config(model.get_config()).compiled


@pytest.mark.parametrize("steps", [None, 2])
def test_a_model_that_is_saved_before_its_training(steps, tmp_path):
    model, (inputs, labels) = small_model(), ragged_batch()
    model.compile("adam", gradient_accumulation_steps=steps, **EAGERLY)
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.fit(inputs, labels, batch_size=6, shuffle=False, verbose=0)
    assert_same_weights(model, loaded)
    loaded.save_weights(tmp_path / "trained.weights.h5")
    other, others = small_model(), 2 if steps is None else None
    other.compile("adam", gradient_accumulation_steps=others, **EAGERLY)
    other.train_on_batch(inputs, labels)
    with pytest.warns(UserWarning, match="state of the optimizer was not loaded"):
        other.load_weights(tmp_path / "trained.weights.h5")
    assert_same_weights(model, other)


def test_validation_has_the_losses_of_layers():
    model, (inputs, labels) = small_model(), ragged_batch()
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.Dense):
            layer.activity_regularizer = keras.regularizers.L2(1.0)
    model.compile(keras.optimizers.SGD(0.0), **EAGERLY)
    data = dict(validation_data=(inputs, labels), batch_size=12, verbose=0)
    history = model.fit(inputs, labels, **data).history
    assert history["val_loss"][0] > 2 * history["val_nll"][0]
    assert history["val_loss"][0] == pytest.approx(history["loss"][0], rel=1e-5)


def test_wrong_arguments():
    model, own_ids = small_model(), small_model(special_ids={"pad": 0})
    inputs, labels = ragged_batch()
    model.compile("sgd")
    summed = small_model()
    summed.compile("sgd", loss=lambda y, x: ops.sum(x), run_eagerly=True)
    with pytest.raises(TypeError, match="loss_weights"):
        model.compile("sgd", loss_weights=[2.0])
    for make, words in [
        (lambda: adaptive_model().compile("sgd", LabelSmoothedCrossentropy()),
         "`loss` must be None for a model with an adaptive softmax"),
        (lambda: adaptive_model().compile("sgd", metrics=[Perplexity()]),
         "`metrics` must not need logits for a model with an adaptive softmax"),
        (lambda: own_ids.compile("sgd", LabelSmoothedCrossentropy()),
         "`loss` must have the `pad_id` of the model, 0. Received: pad_id=1 of Label"),
        (lambda: own_ids.compile("sgd", metrics=["mse", [Perplexity()]]),
         "`metrics` must have the `pad_id` of the model, 0. Received: pad_id=1"),
        (lambda: model.compile(TokenNormalized("sgd", 2),
                               gradient_accumulation_steps=3),
         "`gradient_accumulation_steps` must be left out"),
        (lambda: train(small_model(), loss=lambda y, x: ops.sum(x, axis=(1, 2))),
         "one number for each token"),
        (lambda: summed.train_on_batch(inputs, labels, np.ones(len(labels))),
         "which takes no `sample_weight`"),
        (lambda: model.fit(inputs, labels, class_weight={5: 2.0}),
         "give `sample_weight`.*class_weight={5: 2.0}"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            make()
