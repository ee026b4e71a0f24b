"""Every family of models learns to copy sequences, with `fit` on our batches."""

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from tests.cases import few_on_jax
from tests.models.families import ONE, conv_s2s, encoder_decoder

WORDS, UPDATES = 12, 500
SMALL = dict(vocabularies=(4 + WORDS, 4 + WORDS), dropout=0.0, seed=1)
WIDE = dict(hidden_dim=32, intermediate_dim=64, num_heads=4)
CONVOLUTIONS = dict(embedding_dim=32, output_dim=32, convolutions="[(32, 3)] * 2")
FAMILIES = ("dynamic_conv", "conv_s2s")


def model_of(family: str):
    if family == "conv_s2s":
        return conv_s2s(**SMALL, **CONVOLUTIONS, max_length=16)
    return encoder_decoder(**SMALL, **ONE, **WIDE, mixer=family)


def sequences(number: int, seed: int) -> ks.data.IdStore:
    """Sequences of 2 to 8 ids as their own targets; 2 is the end."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        ids = [*generator.integers(4, 4 + WORDS, size=generator.integers(2, 9)), 2]
        rows.append({"source_ids": ids, "target_ids": ids})
    return ks.data.IdStore.from_rows(rows)


def share_copied(model, stream) -> float:
    """Sequences that greedy search copies from the first to the end token."""
    right = total = 0
    for inputs, labels in stream.once():
        ids, _ = ks.decoding.greedy(model, inputs["source_ids"], max_length=12)
        ids, labels = map(keras.ops.convert_to_numpy, (ids, labels))
        real = labels[:, 0] != model.pad_id
        same = (ids[:, : labels.shape[1]] == labels).all(axis=1)
        right, total = right + (same & real).sum(), total + real.sum()
    return right / total


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.parametrize("family", few_on_jax(["dynamic_conv"], FAMILIES))
def test_copies_unseen_sequences(family):
    stream = ks.data.BatchStream(sequences(4000, seed=1), 640, max_shapes=2)
    unseen = ks.data.BatchStream(sequences(500, seed=2), 4500, max_shapes=1)
    model = model_of(family)
    rate = ks.schedules.WarmupCosine(5e-3, warmup_steps=50, period=UPDATES - 50)
    model.compile(
        ks.optimizers.AdamW(rate, beta_2=0.98, global_clipnorm=1.0),
        ks.losses.LabelSmoothedCrossentropy(0.0),
    )
    steps = dict(steps_per_epoch=UPDATES // 5, epochs=5)
    history = model.fit(stream.dataset(), **steps, shuffle=False, verbose=0)
    assert history.history["accuracy"][-1] > 0.99
    assert share_copied(model, unseen) >= 0.99
