"""Train with a custom loop of `tf.GradientTape` and a custom `tf.data` pipeline.

Shows: a tokenizer in the graph of a pipeline that batches by length, updates of
several micro-batches in which every target token has the same weight
(`TokenNormalized.apply_sums`), the package's loss as a sum, a validation loss, and
checkpoints from which the loop resumes at the right batch.

    python examples/custom_training_loop.py

The model learns to reverse sequences in less than a minute on two cores. Prints the
training loss, the loss on new sequences, and the share of these that the model reverses
without a mistake. An interrupted program resumes from the last checkpoint.
(`ks.data.BatchStream` has less padding, and resumes without reading earlier batches.)

On JAX a step is a function of all values: `TokenNormalized.stateless_apply_sums`.
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf

import keras_seqconv as ks


def reversals(number, words, seed):
    """Texts of 3 to 12 words, and the same backwards."""
    generator = np.random.default_rng(seed)
    rows = [
        [
            f"w{word}"
            for word in generator.integers(words, size=generator.integers(3, 13))
        ]
        for _ in range(number)
    ]
    return [" ".join(row) for row in rows], [" ".join(row[::-1]) for row in rows]


def pipeline(texts, tokenizer, tokens_per_batch, seed=None):
    """Batches ((source_ids, target_ids), labels); with a seed shuffled and endless."""
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    if seed is not None:
        dataset = dataset.shuffle(len(texts[0]), seed=seed).repeat()

    def encode(sources, targets):
        ids = [tokenizer.tokenize_tensor(side) for side in (sources, targets)]
        starts = tf.fill([tf.shape(targets)[0], 1], tokenizer.start_id)
        return ids[0], tf.concat([starts, ids[1][:, :-1]], axis=1), ids[1]

    def plain(*row):  # a ragged row is a vector
        return tuple(tf.identity(ids) for ids in row)

    widths = (6, 9, 13)  # with the end id; each shape of batches is compiled once
    dataset = dataset.batch(256).map(encode).unbatch().map(plain)
    dataset = dataset.bucket_by_sequence_length(
        lambda source, target, labels: tf.size(source),
        bucket_boundaries=[width + 1 for width in widths],
        bucket_batch_sizes=[
            tokens_per_batch // width for width in (*widths, widths[-1])
        ],
        pad_to_bucket_boundary=True,
        padding_values=tokenizer.pad_id,
    )

    def inputs_and_labels(source, target, labels):
        return {"source_ids": source, "target_ids": target}, labels

    return dataset.map(inputs_and_labels)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--tokens-per-batch", type=int, default=1024)
    parser.add_argument("--report-every", type=int, default=100, help="updates")
    parser.add_argument("--workdir", type=Path, default=Path("runs/custom_loop"))
    options = parser.parse_args(arguments)
    ks.keep_freed_memory()  # much faster on a CPU of Linux

    texts = reversals(20_000, options.words, seed=1)
    tokenizer = ks.tokenizers.WordTokenizer.train(texts[0])
    train = pipeline(texts, tokenizer, options.tokens_per_batch, seed=1)
    unseen = reversals(200, options.words, seed=2)
    test = pipeline(unseen, tokenizer, options.tokens_per_batch)
    model = ks.models.EncoderDecoder(
        tokenizer.vocabulary_size,
        tokenizer.vocabulary_size,
        hidden_dim=64,
        intermediate_dim=128,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        kernel_sizes=[3, 7],
        seed=1,
    )
    schedule = ks.schedules.InverseSquareRoot(5e-3, warmup_steps=100)
    optimizer = ks.optimizers.TokenNormalized(
        ks.optimizers.AdamW(schedule, beta_2=0.98, global_clipnorm=1.0),
        gradient_accumulation_steps=options.micro_batches,
    )
    optimizer.build(model.trainable_variables)
    model.optimizer = optimizer  # checkpoints hold the model and its optimizer
    loss = ks.losses.LabelSmoothedCrossentropy(0.1, reduction="sum")
    plain_loss = ks.losses.LabelSmoothedCrossentropy(0.0, reduction="sum")

    def count(labels):
        return tf.math.count_nonzero(labels != model.pad_id, dtype="float32")

    @tf.function(input_signature=train.element_spec)
    def train_step(inputs, labels):
        """A micro-batch; the last one of an update changes the weights."""
        with tf.GradientTape() as tape:
            total = loss(labels, model(inputs, training=True))
            objective = optimizer.scale_loss(total)
        gradients = tape.gradient(objective, model.trainable_variables)
        optimizer.apply_sums(gradients, count(labels))
        return total, count(labels)

    @tf.function(input_signature=test.element_spec)
    def test_step(inputs, labels):
        return plain_loss(labels, model(inputs)), count(labels)

    # Resume from the last checkpoint.
    position = 0  # batches since the start
    latest = ks.checkpoints.latest(options.workdir)
    if latest is not None:
        position = ks.checkpoints.restore(latest, model)["position"]
        print(f"Going on after {latest}")

    losses, tokens = 0.0, 0.0
    last = options.updates * options.micro_batches
    for inputs, labels in train.skip(position).take(max(0, last - position)):
        found = train_step(inputs, labels)
        losses, tokens = losses + found[0], tokens + found[1]
        position += 1
        if position % (options.report_every * options.micro_batches) == 0:
            update = int(optimizer.iterations)
            print(
                f"update {update}: loss {losses / tokens:.3f}, "
                f"learning rate {optimizer.last_learning_rate.numpy():.1e}, "
                f"gradient norm {optimizer.last_gradient_norm.numpy():.2f}"
            )
            losses, tokens = 0.0, 0.0
            state = {"update": update, "position": position}
            path = ks.checkpoints.path_of(options.workdir, update)
            ks.checkpoints.save(path, model, state)

    sums = np.sum([test_step(*batch) for batch in test], axis=0)
    print(f"test loss {sums[0] / sums[1]:.4f} nats per token")
    right = 0
    for inputs, labels in test:
        ids, _ = ks.decoding.greedy(model, inputs["source_ids"], max_length=20)
        same = tf.reduce_all(ids[:, : labels.shape[1]] == labels, axis=1)
        right += int(tf.math.count_nonzero(same & (labels[:, 0] != model.pad_id)))
    print(f"{right} of {len(unseen[0])} sequences reversed without a mistake")
    return right / len(unseen[0])


if __name__ == "__main__":
    main()
