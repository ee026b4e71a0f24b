"""AdamW equals Keras' own, NAG fairseq's, Muon its definition; sums of tokens."""

import keras
import numpy as np
import pytest

from keras_seqconv import models
from keras_seqconv.optimizers import NAG, AdamW, Muon, TokenNormalized
from tests.backends import EAGERLY, to_numpy

SETTINGS = [
    {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-8, "weight_decay": 1e-2,
     "global_clipnorm": 0.1, "gradient_accumulation_steps": 2},
    {"amsgrad": True},
]  # fmt: skip


class OneHot(keras.layers.Layer):
    """Ids to unit vectors: with a `Dense` behind it, an embedding of dense gradient."""

    def call(self, inputs):
        return keras.ops.one_hot(keras.ops.cast(inputs, "int32"), 20)


def model_with(optimizer, jit_compile=False, embedding=False):
    keras.utils.set_random_seed(1)
    start = keras.initializers.RandomNormal(seed=2)
    table = [OneHot(), keras.layers.Dense(32, use_bias=False, kernel_initializer=start)]
    if embedding:
        table = [keras.layers.Embedding(20, 32, embeddings_initializer=start)]
    layers = [*table, keras.layers.Dense(32, "tanh"), keras.layers.Dense(20)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    how = {"jit_compile": True} if jit_compile else EAGERLY
    model.compile(optimizer, loss, **how)
    return model


def trained(optimizer, steps=7, **options):
    rng = np.random.default_rng(0)
    model = model_with(optimizer, **options)
    for _ in range(steps):
        ids = rng.integers(0, 20, (6, 5))
        model.train_on_batch(ids, (ids + 1) % 20)
    return model


def assert_same_weights(ours, theirs, rtol=1e-4, atol=1e-6):
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), rtol=rtol, atol=atol)


@pytest.mark.parametrize("settings", SETTINGS)
def test_same_weights_as_keras(settings):
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 3, 0.7)
    ours = trained(AdamW(schedule, **settings))
    theirs = trained(keras.optimizers.AdamW(schedule, **settings))
    assert_same_weights(ours, theirs, rtol=2e-5)


def test_repeated_ids_of_an_embedding_are_summed_first():
    """Keras would square the gradient of each occurrence on its own (TensorFlow)."""
    sparse = trained(AdamW(1e-2), embedding=True)
    assert_same_weights(sparse, trained(AdamW(1e-2)), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdamW(1e-2, weight_decay=0.0),
        lambda: NAG(0.1, 0.9, 0.01),
        lambda: Muon(1e-2, 0.9, weight_decay=0.01),
    ],
)
def test_compiled_and_saved(make, tmp_path):
    model = trained(make(), embedding=True)
    assert_same_weights(model, trained(make(), embedding=True, jit_compile=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(model.optimizer)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    ids = np.arange(20).reshape(4, 5)
    for each in (model, loaded):
        each.train_on_batch(ids, ids)
    assert_same_weights(model, loaded, rtol=1e-5, atol=1e-7)


# NAG ----------------------------------------------------------------------------------


class Table(keras.optimizers.schedules.LearningRateSchedule):
    """The rates of the first updates, one by one."""

    def __init__(self, rates):
        self.rates = rates

    def __call__(self, step):
        return keras.ops.take(np.array(self.rates, "float32"), step)


def nag_by_definition(rates, gradients, momentum, decay, weight):
    """fairseq's update in float64, after each step."""
    velocity, rate_before, found = 0.0, 0.0, []
    for rate, gradient in zip(rates, gradients, strict=True):
        correction = rate / rate_before if rate_before > 0 else 1.0
        weight *= 1 - rate * decay
        weight += momentum**2 * correction * velocity - (1 + momentum) * rate * gradient
        velocity = momentum * correction * velocity - rate * gradient
        rate_before = rate
        found.append(weight)
    return found


def nag(rates, gradients, momentum, decay=0.0, weight=0.0):
    variable = keras.Variable(np.array([weight], "float32"))
    optimizer = NAG(Table(rates), momentum, decay)
    found = []
    for gradient in gradients:
        optimizer.apply([keras.ops.full((1,), gradient, "float32")], [variable])
        found.append(float(to_numpy(variable)[0]))
    return found


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_nag_with_changing_rates(decay):
    golden = nag([0.1, 0.1, 0.05], [1, 1, 1], 0.9)
    np.testing.assert_allclose(golden, [-0.19, -0.461, -0.63295], rtol=1e-6)
    rng = np.random.default_rng(0)
    rates, gradients = rng.uniform(0.1, 0.5, 9), rng.normal(size=9)
    rates[[0, 4]] = 0  # forgets the velocity
    case = (rates, gradients, 0.99, decay, 2.0)
    np.testing.assert_allclose(nag(*case), nag_by_definition(*case), rtol=1e-5)


@pytest.mark.parametrize("make", [AdamW, NAG, Muon])
def test_decay_of_all_weights(make):
    """Embeddings, biases and normalization too, as in fairseq; none of them waits for
    a gradient other than zero."""
    shapes = {"embeddings": (5, 3), "bias": (3,), "gamma": (3,), "kernel": (32, 64)}
    variables = [
        keras.Variable(np.ones(shape), name=name) for name, shape in shapes.items()
    ]
    optimizer = make(0.5, weight_decay=0.1)
    optimizer.apply([keras.ops.zeros(shape) for shape in shapes.values()], variables)
    for variable in variables:
        np.testing.assert_allclose(to_numpy(variable), 0.95, rtol=1e-6)


# Muon ---------------------------------------------------------------------------------


def orthogonal(matrix):
    """The polynomial of Jordan et al. on each singular value, five times, float64."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s /= np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ v


@pytest.mark.parametrize(
    ("shape", "matrix"),
    (
        ((64, 32), (64, 32)),
        ((64, 4, 16), (64, 64)),  # a query of attention
        ((4, 16, 96), (64, 96)),  # its output
        ((3, 32, 64), (96, 64)),  # a convolution
    ),
)
@pytest.mark.parametrize(("dtype", "atol"), (("float32", 1e-5), ("bfloat16", 0.1)))
def test_muon_by_definition(shape, matrix, dtype, atol):
    rng, rate, momentum, decay = np.random.default_rng(0), 0.5, 0.9, 0.1
    weight, velocity = rng.normal(size=shape), np.zeros(shape)
    variable = keras.Variable(weight.astype("float32"), name="query_kernel")
    optimizer = Muon(rate, momentum, weight_decay=decay, compute_dtype=dtype)
    for scale in (1.0, 1e-6, 3.0):
        gradient = scale * rng.normal(size=shape)
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")], [variable])
        velocity = momentum * velocity + gradient
        step = orthogonal((gradient + momentum * velocity).reshape(matrix))
        step *= 0.2 * max(matrix) ** 0.5
        weight = weight * (1 - rate * decay) - rate * step.reshape(shape)
        np.testing.assert_allclose(to_numpy(variable), weight, rtol=0, atol=atol)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_muon_of_sums_over_micro_batches(precision):
    """As one batch, also with scaled losses; a decay that is set later is of all."""
    rng, weights = np.random.default_rng(0), []
    parts = rng.normal(size=(3, 2, 32, 64)).astype("float32")
    for steps in (1, 2):
        kernel = keras.Variable(np.ones((32, 64), "float32"), name="kernel")
        bias = keras.Variable(np.ones(64, "float32"), name="bias")
        optimizer = Muon(0.1, compute_dtype=precision)
        if precision == "float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer = TokenNormalized(optimizer, steps)
        optimizer.weight_decay = 0.5
        for update in parts:
            for part in update if steps == 2 else [update.sum(axis=0)]:
                scale = float(optimizer.scale_loss(keras.ops.ones(())))
                gradients = [scale * part, np.zeros(64)]
                apply_sums(optimizer, [kernel, bias], gradients, 6 // steps)
        np.testing.assert_allclose(to_numpy(bias), (1 - 0.1 * 0.5) ** 3, rtol=1e-5)
        weights.append(to_numpy(kernel))
    np.testing.assert_allclose(*weights, atol=1e-6 if precision == "float32" else 1e-2)
    assert np.abs(weights[0] - 0.95**3).mean() > 0.01


@pytest.mark.parametrize(
    ("name", "shape", "is_matrix"),
    (
        ("kernel", (1024, 4096), True),  # the widest of the presets
        ("kernel", (3, 2048, 4096), True),
        ("query_kernel", (1024, 16, 64), True),
        ("kernel", (32, 256), True),
        ("kernel", (31, 64), False),
        ("kernel", (32, 257), False),
        ("kernel", (1024, 32768), False),  # a vocabulary
        ("kernel", (1024, 31), False),  # taps of each channel
        ("embeddings", (64, 64), False),
        ("query_bias", (64, 64), False),
        ("kernel", (64,), False),
    ),
)
def test_matrices_of_muon(name, shape, is_matrix):
    optimizer = Muon()
    variable = keras.Variable(np.zeros(shape, "float16"), name=name, dtype="float16")
    optimizer.build([variable])
    assert len(optimizer.variables) == (3 if is_matrix else 4)  # with step and rate


def test_wrong_arguments_of_muon():
    with pytest.raises(ValueError, match="`compute_dtype` must be one of .*'int8'"):
        Muon(compute_dtype="int8")
    with pytest.raises(ValueError, match="`momentum` must be .*1.0"):
        Muon(momentum=1.0)


def test_muon_updates_matrices_and_adam_the_rest():
    """Attention and convolutions too; no embeddings, outputs, kernels of taps."""
    model = models.EncoderDecoder(
        50, 600, hidden_dim=64, intermediate_dim=128, num_heads=4, num_encoder_layers=1,
        num_decoder_layers=1, share_embeddings="none", mixer="light_conv",
    )  # fmt: skip
    conv = models.ConvS2S(
        50, 600, embedding_dim=64, output_dim=64,
        convolutions={"encoder": [(64, 3)], "decoder": [(64, 3)]},
    )  # fmt: skip
    names = {True: set(), False: set()}
    for variables in (model.trainable_variables, conv.trainable_variables):
        optimizer = Muon()
        optimizer.build(variables)
        for variable, velocity in zip(variables, optimizer._velocities, strict=True):
            names[velocity is None].add("/".join(variable.path.split("/")[-2:]))
    assert {"output_dense/kernel", "source_embedding/embeddings"} <= names[False]
    for end in ("query_kernel", "output_kernel", "input_projection/kernel"):
        assert any(path.endswith(end) for path in names[True]), end
    assert "convolution/kernel" in names[True] & names[False]  # ConvS2S, LightConv


# TokenNormalized ----------------------------------------------------------------------


def apply_sums(optimizer, variables, gradients, tokens):
    """On both backends."""
    gradients = [keras.ops.convert_to_tensor(one, "float32") for one in gradients]
    if keras.backend.backend() != "jax":
        optimizer.apply_sums(gradients, tokens, variables)
        return
    optimizer.build(variables)
    old = (variables, optimizer.variables)
    weights, state = ([variable.value for variable in group] for group in old)
    values = optimizer.stateless_apply_sums(state, gradients, tokens, weights)
    for group, new in zip(old, values, strict=True):
        for variable, value in zip(group, new, strict=True):
            variable.assign(value)


def test_sums_are_divided_by_all_tokens_and_clipped():
    variables = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros(1))]
    optimizer = TokenNormalized(keras.optimizers.SGD(1.0, global_clipnorm=0.5), 3)
    for gradients, tokens in [
        ([[6.0, 0.0], [2.0]], 7),
        ([[0.0, 0.0], [0.0]], 0),
        ([[0.0, 8.0], [-2.0]], 3),
    ]:
        assert not np.any(to_numpy(variables[0]))
        assert int(to_numpy(optimizer.iterations)) == 0
        apply_sums(optimizer, variables, gradients, tokens)
    np.testing.assert_allclose(variables[0], [-0.3, -0.4], atol=1e-6)
    np.testing.assert_allclose(variables[1], [0.0], atol=1e-6)
    np.testing.assert_allclose(optimizer.last_gradient_norm, 1.0, rtol=1e-6)
    assert float(to_numpy(optimizer.last_learning_rate)) == 1
    assert int(to_numpy(optimizer.iterations)) == 1
    for _ in range(3):  # nothing is left over of the first update
        apply_sums(optimizer, variables, [[0.0, 0.0], [1.0]], 10)
    np.testing.assert_allclose(variables[0], [-0.3, -0.4], atol=1e-6)
    np.testing.assert_allclose(variables[1], [-0.1], atol=1e-6)


def test_gradients_belong_to_the_variables_of_the_call():
    variables = [keras.Variable(np.zeros(2)), keras.Variable(np.zeros(2))]
    optimizer = TokenNormalized(keras.optimizers.SGD(1.0))
    optimizer.build(variables)
    gradients = [keras.ops.ones(2), 5 * keras.ops.ones(2)]
    if keras.backend.backend() == "jax":
        with pytest.raises(ValueError, match="On JAX `stateless_apply_sums` takes"):
            optimizer.apply_sums(gradients, 1, variables)
        return
    optimizer.apply_sums(gradients, 1, variables[::-1])
    np.testing.assert_allclose(variables, [[-5, -5], [-1, -1]])
    for count in (1, 3):
        with pytest.raises(ValueError, match="must be of 2 variables. Received: "):
            optimizer.apply_sums([keras.ops.ones(2)] * count, 1, variables)
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply_sums(gradients[:1], 1, [keras.Variable(np.zeros(2))])


@pytest.mark.tensorflow
def test_weights_on_which_the_loss_does_not_depend():
    variables = [keras.Variable(np.ones(2)), keras.Variable(np.ones(1))]
    optimizer = TokenNormalized(keras.optimizers.SGD(1.0, weight_decay=0.5), 2)
    for _ in range(2):
        optimizer.apply_sums([keras.ops.ones(2), None], 2, variables)
    np.testing.assert_allclose(variables[0], [0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(variables[1], [0.5])


@pytest.mark.parametrize("steps", [1, 2])
def test_update_without_tokens_changes_nothing(steps):
    variable = keras.Variable(np.ones(2))
    optimizer = TokenNormalized(AdamW(0.1, weight_decay=0.1), steps)
    for _ in range(steps):
        apply_sums(optimizer, [variable], [[1.0, 2.0]], 1 / steps)
    before = [to_numpy(one) for one in (variable, *optimizer.variables)]
    assert np.all(before[0] < 1)  # one token is enough
    for _ in range(steps):
        apply_sums(optimizer, [variable], [[0.0, 0.0]], 0)
    for one, old in zip((variable, *optimizer.variables), before, strict=True):
        np.testing.assert_array_equal(to_numpy(one), old)


@pytest.mark.parametrize("steps", [1, 2])
def test_infinite_gradients_skip_the_update(steps):
    variable = keras.Variable(np.ones(2))
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))
    optimizer = TokenNormalized(scaled, steps)
    optimizer.build([variable])
    scale = float(to_numpy(optimizer.scale_loss(keras.ops.ones(()))))
    assert scale == 2.0 ** (15 - 12)  # of a sum over some 2^12 tokens
    for _ in range(steps - 1):
        apply_sums(optimizer, [variable], [[5.0, 5.0]], 4)
    apply_sums(optimizer, [variable], [[np.inf, 1.0]], 4)
    np.testing.assert_array_equal(variable, np.ones(2))
    assert int(to_numpy(optimizer.iterations)) == 0
    again = float(to_numpy(optimizer.scale_loss(keras.ops.ones(()))))
    assert again == scale / 2
    for _ in range(steps):
        apply_sums(optimizer, [variable], [[2 * again, 4 * again]], 4)
    np.testing.assert_allclose(variable, [0.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(optimizer.last_gradient_norm, 1.25**0.5, rtol=1e-6)


def test_config_learning_rate_and_variables():
    inner = keras.optimizers.LossScaleOptimizer(NAG(0.25))
    optimizer = TokenNormalized(inner, gradient_accumulation_steps=3)
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(optimizer)
    )
    assert again.get_config() == optimizer.get_config()
    assert type(again.inner_optimizer) is NAG and again.accumulation_steps == 3
    optimizer.learning_rate = 0.5
    assert float(to_numpy(inner.inner_optimizer.learning_rate)) == 0.5
    variable = keras.Variable(np.ones((2, 3)))
    single = TokenNormalized(keras.optimizers.SGD(0.1))
    single.build([variable])
    assert not any(one.shape == variable.shape for one in single.variables)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (lambda o: setattr(o, "weight_decay", 0.0), 0.1),
        (lambda o: o.exclude_from_weight_decay(var_names=["v"]), 0.1),
        (lambda o: setattr(o, "clipnorm", 0.5), 0.1 * 0.5 + 0.1 * 0.5),
        (lambda o: setattr(o, "global_clipnorm", 0.5), 0.1 * 0.5 + 0.1 * 0.5),
        (lambda o: None, 0.1 + 0.1 * 0.5),
    ],
)
def test_settings_reach_the_optimizer_inside(change, step):
    """SGD with a decay of 0.5 and a rate of 0.1 on the weight 1 and the gradient 1."""
    optimizer = TokenNormalized(keras.optimizers.SGD(0.1, weight_decay=0.5))
    variable = keras.Variable(1.0, name="v")
    assert optimizer.weight_decay == 0.5 and optimizer.clipnorm is None
    change(optimizer)
    apply_sums(optimizer, [variable], [1.0], 1)
    np.testing.assert_allclose(to_numpy(variable), 1 - step, rtol=1e-4)


def test_optimizers_that_accumulate_are_refused():
    with pytest.raises(ValueError, match="must not accumulate gradients itself"):
        TokenNormalized(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
