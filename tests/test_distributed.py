"""Replicas and processes share an update and end with the weights of one device."""

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest

from tests.processes import ROOT

# The same model, data and recipe in all processes.
COMMON = """
import contextlib, sys
import keras, numpy as np
from keras_seqconv.losses import LabelSmoothedCrossentropy
from keras_seqconv.optimizers import AdamW
from keras_seqconv.schedules import InverseSquareRoot
from tests.models import test_token_training as tokens

inputs, labels = tokens.ragged_batch(16, empty=(5,))

def make(optimizer, steps, **changes):
    model = tokens.small_model(**changes)
    loss = LabelSmoothedCrossentropy(0.1)
    model.compile(optimizer, loss, gradient_accumulation_steps=steps)
    return model

def nag():
    return tokens.nag(global_clipnorm=0.5)

def adam():
    rate = InverseSquareRoot(0.01, 3, 1e-4)
    return AdamW(rate, beta_2=0.98, epsilon=1e-3, weight_decay=1e-2)

def fit(model, batch_size=16):
    size = dict(batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
    return model.fit(inputs, labels, **size).history
"""


def start(code, *arguments, **environment):
    code = COMMON + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, text=True,
        env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def output_of(process, timeout=280):
    try:
        out, error = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, error[-3000:]
    return out


MIRRORED = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def assert_close(found, wanted, rtol=5e-6):
    for name in set(wanted) - {"val_seconds"}:
        np.testing.assert_allclose(found[name], wanted[name], rtol, err_msg=name)

def compare(make_optimizer, steps, **changes):
    rtol, atol = (1e-2, 1e-3) if changes else (5e-6, 1e-6)
    one = make(make_optimizer(), 1, **changes)
    history = fit(one)
    with strategy.scope():
        two = make(make_optimizer(), steps, **changes)
    assert_close(fit(two, batch_size=16 // steps), history, rtol)
    tokens.assert_same_weights(one, two, atol)
    assert int(two.optimizer.iterations.numpy()) == 3
    scores = [model.evaluate(inputs, labels, batch_size=4, verbose=0, return_dict=True)
              for model in (two, one)]
    assert_close(*scores, rtol)

def compare_streams():
    from keras_seqconv import fit_stream
    from keras_seqconv.callbacks import Validate
    from keras_seqconv.data import BatchStream, IdStore

    rng = np.random.default_rng(0)

    def stream(count, tokens):
        rows = [{"target_ids": rng.integers(4, 30, rng.integers(1, 9))}
                for _ in range(count)]
        return BatchStream(IdStore.from_rows(rows), tokens, num_replicas=2)

    training, validation = stream(70, 40), stream(9, 12)
    found = []
    for scope in (contextlib.nullcontext, strategy.scope):
        with scope():
            model = make(adam(), 2)
        history = fit_stream(model, training, max_epochs=3,
                             callbacks=[Validate(validation)]).history
        found.append((model, history))
    (one, history), (two, other) = found
    tokens.assert_same_weights(one, two)
    assert_close(other, history)
    assert "val_nll" in history

for case in sys.argv[1:]:
    {
        "streams": compare_streams,
        "nag": lambda: compare(nag, 4),
        "adam": lambda: compare(adam, 1),
        "adam, micro-batches": lambda: compare(adam, 2),
        "keras": lambda: compare(lambda: keras.optimizers.SGD(0.5), 2),
        "float16": lambda: compare(nag, 2, dtype="mixed_float16"),
    }[case]()
print("fine")
"""


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [["nag", "streams"], ["adam", "adam, micro-batches", "keras", "float16"]],
)
def test_two_replicas_and_micro_batches_equal_one_batch(cases):
    assert "fine" in output_of(start(MIRRORED, *cases))


PROCESS = """
import json, jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
index, address, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
keras.distribution.initialize(f"{address},{address}", 2, index)
devices = keras.distribution.list_devices()
assert len(devices) == 2
keras.distribution.set_distribution(
    keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
)
import tensorflow as tf
found = {}
for steps in (1, 2):
    model = make(nag(), steps)
    size = 16 // steps  # rows of a micro-batch, of which each process has half
    rows = np.arange(16).reshape(steps, 2, size // 2)[:, index].reshape(-1)
    part = {name: ids[rows] for name, ids in inputs.items()}
    data = tf.data.Dataset.from_tensor_slices((part, labels[rows])).batch(size // 2)
    history = model.fit(data, epochs=3, verbose=0, shuffle=False).history
    found[steps] = [history["tokens"], history["gradient_norm"]]
    np.savez(f"{folder}/{index}-{steps}.npz", *tokens.weights(model))
print("found", json.dumps(found))
"""

ALONE = """
import json
found = {}
for steps in (1, 2):
    model = make(nag(), steps)
    history = fit(model, batch_size=16 // steps)
    found[steps] = [history["tokens"], history["gradient_norm"]]
    for index in range(2):
        saved = np.load(f"{sys.argv[1]}/{index}-{steps}.npz")
        for one, name in zip(tokens.weights(model), saved.files, strict=True):
            np.testing.assert_allclose(one, saved[name], atol=1e-6)
print("found", json.dumps(found))
"""


@pytest.mark.slow
def test_two_jax_processes_equal_one(tmp_path):
    pytest.importorskip("jax")
    pytest.importorskip("tensorflow")
    with socket.socket() as one:
        one.bind(("localhost", 0))
        address = f"localhost:{one.getsockname()[1]}"
    processes = [
        start(PROCESS, index, address, tmp_path, KERAS_BACKEND="jax")
        for index in range(2)
    ]
    outputs = [output_of(process) for process in processes]
    outputs.append(output_of(start(ALONE, tmp_path, KERAS_BACKEND="jax")))
    found = [json.loads(out.split("found")[1]) for out in outputs]
    for other in found[1:]:
        for steps, (tokens, norms) in found[0].items():
            assert other[steps][0] == tokens
            assert other[steps][1] == pytest.approx(norms, rel=1e-5)
