"""Every op with a derivative of its own under every transformation of JAX."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from keras_seqconv.losses import LabelSmoothedCrossentropy
from keras_seqconv.ops import causal_conv1d, dynamic_conv, fused, light_conv
from tests.processes import run_python

B, T, C, H, K, V = 4, 5, 6, 2, 3, 7


def convolution(inputs, kernel):
    """Both ops by their definition."""
    kernel = jnp.broadcast_to(kernel, (*inputs.shape[:2], H, K))
    kernel = jnp.repeat(kernel, C // H, axis=2)
    padded = jnp.pad(inputs, [(0, 0), (K - 1, 0), (0, 0)])
    return sum(kernel[..., j] * padded[:, j : j + T] for j in range(K))


def add_and_norm(inputs, branch, gamma, beta):
    options = {"rate": 0.4, "seed": (3, 5), "epsilon": 1e-5}
    return fused.add_and_norm(inputs, branch, gamma, beta, **options)


def normalized_sum(inputs, branch, gamma, beta):
    rows = branch.reshape(-1, C)
    factor = fused._keep_factor(jnp.array([[3, 5]], "uint32"), rows, 0.4)
    rows = inputs + branch * factor.reshape(branch.shape)
    rows = rows - rows.mean(-1, keepdims=True)
    return rows / jnp.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def chosen(hidden):
    """Labels, an order of the rows, and how many of them count."""
    labels, number = jnp.argmax(hidden, axis=-1).astype("int32"), hidden.shape[0]
    return labels, jnp.arange(number, dtype="int32")[::-1], jnp.int32(number - 1)


def log_prob_of_rows(hidden, table):
    labels, order, count = chosen(hidden)
    return fused.log_prob_of_rows(hidden, table, labels, order, jnp.int32(1), count)


def log_softmax(hidden, table):
    labels, _, count = chosen(hidden)
    values = jax.nn.log_softmax(hidden @ table.T)
    values = jnp.take_along_axis(values, labels[:, None], axis=-1)[:, 0]
    return jnp.where(jnp.arange(hidden.shape[0]) < count, values, 0.0)


LABELS = np.array([1, 4, 2, 0, 6])


def smoothed(logits):
    labels = jnp.broadcast_to(LABELS, logits.shape[:2])
    return LabelSmoothedCrossentropy(0.1).call(labels, logits)


def smoothed_by_definition(logits):
    wanted = 0.9 * jax.nn.one_hot(LABELS, V) + 0.1 / V
    losses = -(wanted * jax.nn.log_softmax(logits)).sum(-1)
    return jnp.where(LABELS == 1, 0.0, losses)


# The op, its definition, shapes of arguments divided among devices, and of the others.
RULES = {
    "light_conv": (
        lambda *tensors: light_conv(*tensors, "causal"),
        convolution, [(B, T, C)], [(H, K)],
    ),
    "dynamic_conv": (
        lambda *tensors: dynamic_conv(*tensors, "causal"),
        convolution, [(B, T, C), (B, T, H, K)], [],
    ),
    "causal_conv1d": (
        lambda inputs, residual, kernel, bias: causal_conv1d(
            inputs, kernel, bias, residual=residual, activation="silu"
        ),
        lambda inputs, residual, kernel, bias: residual + jax.nn.silu(
            convolution(inputs, kernel) + bias
        ),
        [(B, T, C), (B, T, C)], [(H, K), (C,)],
    ),
    "add_and_norm": (
        add_and_norm, normalized_sum, [(B, T, C), (B, T, C)], [(C,), (C,)],
    ),
    "log_prob_of_rows": (log_prob_of_rows, log_softmax, [(12, C)], [(V, C)]),
    "loss": (smoothed, smoothed_by_definition, [(B, T, V)], []),
}  # fmt: skip


def objective(function):
    return lambda *tensors: jnp.sum(jnp.sin(function(*tensors)))


def gradient(function, number):
    return jax.grad(objective(function), tuple(range(number)))


def scanned(function):
    def total(*tensors):
        def step(carried, factor):
            moved = [factor * tensor for tensor in tensors]
            return carried + objective(function)(*moved), factor

        return jax.lax.scan(step, 0.0, jnp.arange(1.0, 4.0))[0]

    return total


def shard_map(function, divided, others, inside):
    """Gradients of what two devices compute, taken by each (`inside`) or of all."""
    parts = PartitionSpec("devices"), PartitionSpec()
    specs = (*[parts[0]] * divided, *[parts[1]] * others)
    options = {"mesh": Mesh(np.array(jax.devices()[:2]), ("devices",))}
    number = len(specs)
    if inside:
        function = gradient(function, number)
        return jax.shard_map(function, in_specs=specs, out_specs=specs, **options)
    function = jax.shard_map(function, in_specs=specs, out_specs=parts[0], **options)
    return gradient(function, number)


# transform(function, divided, others)(*tensors), or (*tensors, *tangents).
TRANSFORMS = {
    "jit": lambda f, *_: f,
    "vmap": lambda f, *_: lambda *t: jax.vmap(f)(*[jnp.stack([x, -x]) for x in t]),
    "grad": lambda f, *n: gradient(f, sum(n)),
    "grad of vmap": lambda f, *n: (
        lambda *t: gradient(jax.vmap(f), sum(n))(*[jnp.stack([x, -x]) for x in t])
    ),
    "vmap of grad": lambda f, *n: (
        lambda *t: jax.vmap(gradient(f, sum(n)))(*[jnp.stack([x, -x]) for x in t])
    ),
    "jvp": lambda f, *_: lambda *t: jax.jvp(f, t, tuple(map(jnp.cos, t))),
    "jvp of vmap": lambda f, *_: (
        lambda *t: jax.jvp(
            jax.vmap(f), *[[jnp.stack([x, s * x]) for x in t] for s in (-1, 2)]
        )
    ),
    "jvp of grad": lambda f, *n: (
        lambda *t: jax.jvp(gradient(f, sum(n)), t, tuple(map(jnp.cos, t)))
    ),
    "jvp of jvp": lambda f, *_: (
        lambda *t: jax.jvp(
            lambda *s: jax.jvp(f, s, tuple(map(jnp.sin, s)))[1],
            t,
            tuple(map(jnp.cos, t)),
        )
    ),
    "grad of jvp": lambda f, *n: gradient(
        lambda *s: jax.jvp(f, s, tuple(map(jnp.sin, s)))[1], sum(n)
    ),
    "linearize": lambda f, *_: lambda *t: jax.linearize(f, *t)[1](*map(jnp.cos, t)),
    "checkpoint": lambda f, *n: gradient(jax.checkpoint(f), sum(n)),
    "scan": lambda f, *_: scanned(f),
    "grad of scan": lambda f, *n: gradient(scanned(f), sum(n)),
    "shard_map": lambda f, *n: shard_map(f, *n, inside=False),
    "grad in shard_map": lambda f, *n: shard_map(f, *n, inside=True),
}


# JAX goes backward through no loop of unknown length; this tangent has one.
FORWARD_ONLY = [("log_prob_of_rows", "grad of jvp")]


@pytest.mark.parametrize(
    ("rule", "transform"),
    [pair for pair in product(RULES, TRANSFORMS) if pair not in FORWARD_ONLY],
)
def test_equals_the_definition(rule, transform, monkeypatch):
    monkeypatch.setattr(fused, "FEWEST_ROWS", 2)
    monkeypatch.setattr(fused, "MOST_ROWS", 2)  # several blocks
    op, definition, divided, others = RULES[rule]
    rng = np.random.default_rng(0)
    tensors = [
        jnp.asarray(rng.normal(size=shape), "float32") for shape in divided + others
    ]
    found, wanted = (
        jax.jit(TRANSFORMS[transform](function, len(divided), len(others)))(*tensors)
        for function in (op, definition)
    )
    for got, value in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.jax
def test_on_two_devices():
    code = """
    import sys, jax, pytest
    assert len(jax.devices()) == 2
    options = ["-p", "no:cacheprovider", "-k", "shard_map"]
    sys.exit(pytest.main([sys.argv[1], *options]))
    """
    flags = "--xla_force_host_platform_device_count=2"
    run_python(code, __file__, XLA_FLAGS=flags)
