"""The quickstart: a causal DynamicConv model learns to count, character by character.

The corpus is made here: lines such as "197 198 199 200 201". Lines with some of the
numbers below 1000 as their start are kept from training; the model continues them one
character at a time through `step`, which computes each position once.
"""

import time

import keras
import numpy as np
from keras import ops

from keras_seqconv.layers import DynamicConvModule, FeedForward, Residual

ALPHABET = " 0123456789"
GIVEN = 3  # numbers of a line that the model is shown
WANTED = 3  # numbers that it has to write itself


def counting_lines(starts: np.ndarray) -> list[str]:
    """Lines of GIVEN + WANTED numbers that count up from each start."""
    return [
        " ".join(str(start + i) for i in range(GIVEN + WANTED)) + " "
        for start in starts
    ]


def encode(lines: list[str]) -> np.ndarray:
    """Ids (B, T) int32: 0 is padding, character i of the alphabet is i + 1."""
    ids = np.zeros((len(lines), max(map(len, lines))), "int32")
    for row, line in zip(ids, lines, strict=True):
        row[: len(line)] = [ALPHABET.index(character) + 1 for character in line]
    return ids


class CountingModel(keras.Model):
    """Characters (B, T) -> logits of the next character (B, T, 12)."""

    def __init__(self, hidden_dim: int = 64, kernel_sizes=(3, 7, 15)):
        super().__init__()
        self.embedding = keras.layers.Embedding(
            len(ALPHABET) + 1, hidden_dim, mask_zero=True
        )
        self.blocks = []
        for kernel_size in kernel_sizes:
            mixer = DynamicConvModule(4, kernel_size, padding="causal")
            self.blocks += [Residual(mixer), Residual(FeedForward(2 * hidden_dim))]
        self.logits = keras.layers.Dense(len(ALPHABET) + 1, dtype="float32")

    def call(self, ids, training=None):
        hidden = self.embedding(ids)
        for block in self.blocks:
            hidden = block(hidden, training=training)
        return self.logits(hidden)

    def get_initial_state(self, batch_size):
        return [block.get_initial_state(batch_size) for block in self.blocks]

    def step(self, ids, state):
        """Logits (B, n, 12) for n new characters, and the next state."""
        hidden, following = self.embedding(ids), []
        for block, before in zip(self.blocks, state, strict=True):
            hidden, after = block.step(hidden, before)
            following.append(after)
        return self.logits(hidden), following


def next_character_loss(ids, logits):
    """Mean cross-entropy over real characters; ids are the labels, 0 is padding."""
    losses = keras.losses.sparse_categorical_crossentropy(ids, logits, from_logits=True)
    real = ops.cast(ids != 0, losses.dtype)
    return ops.sum(losses * real) / ops.maximum(ops.sum(real), 1)


def continue_lines(model: CountingModel, prompts: list[str], length: int) -> list[str]:
    """The most probable continuation of each prompt by `length` characters.

    Prompts of equal length go through the model together.
    """
    written = dict.fromkeys(range(len(prompts)), "")
    for size in {len(prompt) for prompt in prompts}:
        rows = [i for i, prompt in enumerate(prompts) if len(prompt) == size]
        state = model.get_initial_state(len(rows))
        ids = ops.convert_to_tensor(encode([prompts[i] for i in rows]))
        for _ in range(length):
            logits, state = model.step(ids, state)
            ids = ops.argmax(logits[:, -1:, 1:], axis=-1) + 1  # never padding
            for i, character in zip(rows, ops.convert_to_numpy(ids)[:, 0], strict=True):
                written[i] += ALPHABET[int(character) - 1]
    return [written[i] for i in range(len(prompts))]


def main(epochs: int = 30) -> float:
    """Train, show what was learned; returns the share of right continuations."""
    keras.utils.set_random_seed(1)
    starts = np.random.default_rng(1).permutation(1000)
    unseen, seen = np.sort(starts[:100]), starts[100:]
    ids = encode(counting_lines(seen))
    model = CountingModel()
    model.compile(keras.optimizers.Adam(3e-3), next_character_loss)
    print(f"Training on {len(seen)} lines such as {counting_lines(seen[:1])[0]!r} ...")
    started = time.perf_counter()
    history = model.fit(
        ids[:, :-1], ids[:, 1:], batch_size=60, epochs=epochs, verbose=0
    )
    losses = history.history["loss"]
    print(
        f"{model.count_params():,} parameters, {epochs} epochs in "
        f"{time.perf_counter() - started:.0f} s, "
        f"loss {losses[0]:.2f} -> {losses[-1]:.2f}"
    )
    lines = counting_lines(unseen)
    split = [len(" ".join(line.split()[:GIVEN])) + 1 for line in lines]
    prompts = [line[:place] for line, place in zip(lines, split, strict=True)]
    answers = [line[place:] for line, place in zip(lines, split, strict=True)]
    longest = max(map(len, answers))
    written = continue_lines(model, prompts, longest)
    right = [
        text[: len(answer)] == answer
        for text, answer in zip(written, answers, strict=True)
    ]
    print("\nStarts that it never saw, continued step by step:")
    for i in range(0, len(lines), 12):
        mark = "right" if right[i] else f"wrong, expected {answers[i]}"
        print(f"  {prompts[i]}-> {written[i][: len(answers[i])]} ({mark})")
    print(f"{sum(right)} of {len(right)} unseen lines continued without an error.")
    return sum(right) / len(right)
