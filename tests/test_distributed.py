"""Replicas of TensorFlow share an update and end with the weights of one device.

JAX's devices and hosts: training/test_hosts.py.
"""

import pytest

from tests.processes import run_python

MIRRORED = """
import contextlib
import keras, numpy as np
from keras_seqconv.losses import LabelSmoothedCrossentropy
from keras_seqconv.optimizers import AdamW
from keras_seqconv.schedules import InverseSquareRoot
from tests.models import test_token_training as tokens

inputs, labels = tokens.ragged_batch(16, empty=(5,))

def make(optimizer, steps, **changes):
    model = tokens.small_model(**changes)
    loss = LabelSmoothedCrossentropy(0.1)
    options = dict(gradient_accumulation_steps=steps, jit_compile=False)
    model.compile(optimizer, loss, **options)
    return model

def nag():
    return tokens.nag(global_clipnorm=0.5)

def adam():
    rate = InverseSquareRoot(0.01, 3, 1e-4)
    return AdamW(rate, beta_2=0.98, epsilon=1e-3, weight_decay=1e-2)

def fit(model, batch_size=16):
    size = dict(batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
    return model.fit(inputs, labels, **size).history

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

compare_streams()
compare(nag, 4)
compare(nag, 2, dtype="mixed_float16")
print("fine")
"""


@pytest.mark.tensorflow
@pytest.mark.slow
def test_two_replicas_and_micro_batches_equal_one_batch():
    assert run_python(MIRRORED).stdout == "fine\n"
