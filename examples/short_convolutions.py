"""Train a Mamba-like language model, stream it, and ignore padding.

Shows: `ShortConv` with a mask and with steps, in a block with a linear recurrence, and
that neither padding nor the split into steps changes a result.

    python examples/short_convolutions.py [--updates 300]

Takes less than two minutes on two cores. It trains on the text of Python's module
`typing`. Prints the loss, text that the model writes token by token,
and two differences that are rounding errors.
"""

import argparse
import inspect
import typing

import keras
import numpy as np
from keras import layers, ops

import keras_seqconv as ks


def recurrence(decay, values):
    """h[t] = decay[t] h[t - 1] + values[t], for up to 256 positions, by doubling."""
    for shift in 2 ** np.arange(8):
        before = [(0, 0), (shift, 0), (0, 0)]
        values = values + decay * ops.pad(values, before)[:, :-shift]
        decay = decay * ops.pad(decay, before)[:, :-shift]
    return values


class MambaLikeBlock(layers.Layer):
    """x + W (h * silu(gate)) with h[t] = a[t] h[t - 1] + (1 - a[t]) v[t].

    v = silu(conv(W x)), a = sigmoid(W v). In Mamba (Gu and Dao 2023) h is a matrix.
    """

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.norm = layers.RMSNormalization()
        self.projection = layers.Dense(2 * width, use_bias=False)
        self.convolution = ks.layers.ShortConv(4, activation="silu")
        self.decay = layers.Dense(width, activation="sigmoid", bias_initializer="ones")
        self.output_map = layers.Dense(width, use_bias=False)

    def call(self, x, mask=None):
        values, gate = ops.split(self.projection(self.norm(x)), 2, axis=-1)
        values = self.convolution(values, mask=mask)
        if mask is not None:  # the recurrence starts after the padding
            values = ops.where(mask[..., None], values, 0.0)
        decay = self.decay(values)
        hidden = recurrence(decay, (1 - decay) * values)
        return x + self.output_map(hidden * ops.silu(gate))

    def get_initial_state(self, batch_size):
        convolution = self.convolution.get_initial_state(batch_size)
        return convolution, ops.zeros((batch_size, 1, self.width))

    def step(self, x, state):
        """One position (B, 1, C), from the state of all positions before."""
        convolution, hidden = state
        values, gate = ops.split(self.projection(self.norm(x)), 2, axis=-1)
        values, convolution = self.convolution.step(values, convolution)
        decay = self.decay(values)
        hidden = decay * hidden + (1 - decay) * values
        return x + self.output_map(hidden * ops.silu(gate)), (convolution, hidden)


def write(embedding, blocks, head, prompt, count, rng):
    """`count` tokens after a prompt; the work for each does not depend on the past."""
    states = [block.get_initial_state(1) for block in blocks]
    ids, logits = list(prompt), []
    while len(ids) < len(prompt) + count:
        x = embedding(np.array([[ids[len(logits)]]]))
        for number, block in enumerate(blocks):
            x, states[number] = block.step(x, states[number])
        logits.append(np.array(head(x))[0, 0])
        if len(logits) == len(ids):
            odds = np.exp((logits[-1] - logits[-1].max()) / 0.7)
            ids.append(int(rng.choice(len(odds), p=odds / odds.sum())))
    return ids, np.array(logits)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=300)
    options = parser.parse_args(arguments)
    length = 128
    data = np.frombuffer(inspect.getsource(typing).encode(), "uint8")
    rng = np.random.default_rng(1)
    keras.utils.set_random_seed(1)
    embedding, head = layers.Embedding(256, 96), layers.Dense(256)
    blocks = [MambaLikeBlock(96) for _ in range(3)]
    inputs, mask = keras.Input((None,)), keras.Input((None,), dtype="bool")
    x = embedding(inputs)
    for block in blocks:
        x = block(x, mask=mask)
    model = keras.Model([inputs, mask], head(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss=loss)
    starts = rng.integers(0, len(data) - length, options.updates * 16)
    rows = data[starts[:, None] + np.arange(length + 1)].astype("int32")
    real = np.ones((len(rows), length), bool)
    model.fit([rows[:, :-1], real], rows[:, 1:], batch_size=16)
    ids, streamed = write(embedding, blocks, head, data[:16], 120, rng)
    print("Written in steps:", bytes(ids).decode(errors="replace"), sep="\n")
    sentence = np.array([ids[:-1]])
    real = np.ones_like(sentence, bool)
    whole = np.array(model([sentence, real]))[0]
    print(f"Steps against the whole pass: {np.abs(streamed - whole).max():.1e}")
    padded = np.pad(sentence, [(0, 0), (9, 5)], constant_values=7)
    real = np.pad(real, [(0, 0), (9, 5)])
    batched = np.array(model([padded, real]))[0, 9:-5]
    print(f"Alone against in a padded batch: {np.abs(batched - whole).max():.1e}")
    return streamed, whole, batched


if __name__ == "__main__":
    main()
