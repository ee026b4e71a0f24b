"""Replicas of TensorFlow share an update and end with the weights of one device.

JAX's devices and hosts: training/test_hosts.py.
"""

import pytest

from tests.processes import run_python

MIRRORED = """
import numpy as np
from keras_seqconv.losses import LabelSmoothedCrossentropy
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

def fit(model, batch_size=16):
    size = dict(batch_size=batch_size, epochs=3, shuffle=False, verbose=0)
    return model.fit(inputs, labels, **size).history

import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def assert_close(found, wanted, rtol=5e-6):
    for name in wanted:
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

compare(nag, 4)
compare(nag, 2, dtype="mixed_float16")
print("fine")
"""


@pytest.mark.tensorflow
@pytest.mark.slow
def test_two_replicas_and_micro_batches_equal_one_batch():
    assert run_python(MIRRORED).stdout == "fine\n"
