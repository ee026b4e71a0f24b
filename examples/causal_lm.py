"""Train, score and sample a language model with an adaptive softmax.

Shows: blocks of lines, `model.fit`, a softmax that computes rare words only where they
occur, perplexity with a context window, and two ways of sampling: a custom loop around
`model.step`, and `decoding.sample`.

    python examples/causal_lm.py                              # the embedded corpus
    python examples/causal_lm.py --dataset data/wikitext-103  # a folder with train.en,
                                                              # valid.en and test.en

The first command takes about a minute on two cores. Prints Keras' progress, the
perplexity per word of the test split, and sampled sentences.
"""

import argparse

import keras

import keras_seqconv as ks


def make_stream(corpus, split, tokenizer, block, tokens_per_batch):
    """Batches of blocks of the text, which run across the lines."""
    rows = ks.data.blocks(
        (
            ids
            for text in corpus.texts(split, "target")
            for ids in tokenizer.tokenize([text])
        ),
        block,
    )
    return ks.data.BatchStream(ks.data.IdStore.from_rows(rows), tokens_per_batch)


def sample_by_hand(model, tokenizer, number, length, temperature=1.0):
    """What `decoding.sample` does, step by step."""
    ids = keras.ops.full((number, 1), model.start_id, dtype="int32")
    state = model.get_initial_state(number, max_length=length)
    for _ in range(length):
        # The model sees only the last ids: the state holds the past.
        logits, state = model.step(ids[:, -1:], state)
        following = keras.random.categorical(logits / temperature, 1)
        ids = keras.ops.concatenate([ids, following], axis=1)
    # Each row up to its first end token.
    return tokenizer.detokenize(keras.ops.convert_to_numpy(ids[:, 1:]).tolist())


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="phrases")
    parser.add_argument("--data-dir", help="where tfds keeps its data")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--block", type=int, default=128, help="tokens of a block")
    parser.add_argument("--tokens-per-batch", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    options = parser.parse_args(arguments)
    ks.keep_freed_memory()  # much faster on a CPU of Linux
    keras.utils.set_random_seed(1)

    # An adaptive softmax needs ids sorted by frequency, as this tokenizer's are.
    corpus = ks.data.open_corpus(options.dataset, data_dir=options.data_dir)
    tokenizer = ks.tokenizers.WordTokenizer.train(corpus.texts("train", "target"))
    size = tokenizer.vocabulary_size
    train, validation = (
        make_stream(corpus, split, tokenizer, options.block, options.tokens_per_batch)
        for split in ("train", "validation")
    )

    # The most frequent tenth of the words has the full width, rarer words have less.
    model = ks.models.LanguageModel(
        size,
        hidden_dim=options.width,
        intermediate_dim=2 * options.width,
        num_layers=options.layers,
        num_heads=4,
        kernel_sizes=[3, 7, *[15] * (options.layers - 2)],
        adaptive_softmax={"cutoffs": [size // 10, size // 2]},
        adaptive_input={"cutoffs": [size // 10, size // 2]},
        tie_adaptive_weights=True,
    )
    # Without a loss, the model uses its own, -log p, and makes no logits.
    model.compile(ks.optimizers.AdamW(options.learning_rate, global_clipnorm=1.0))
    model.fit(
        train.dataset(),
        steps_per_epoch=train.batches_per_epoch(),
        epochs=options.epochs,
        validation_data=validation.once(),
        shuffle=False,  # the stream shuffles
        verbose=2,
    )

    generator = ks.LanguageGenerator(model, tokenizer)
    half = options.block // 2
    found = ks.evaluation.text_perplexity(
        generator,
        corpus.texts("test", "target"),
        tokens_per_sample=options.block,
        context_window=half,
    )
    print("\n".join(found.lines()))

    print("\nBy hand:")
    for text in sample_by_hand(model, tokenizer, 3, length=20, temperature=0.7):
        print(f"  {text}")
    print("By decoding.sample, the most likely first:")
    ids, _ = ks.decoding.sample(
        model, batch_size=1, num_samples=3, temperature=0.7, max_length=20, seed=1
    )
    for text in tokenizer.detokenize(keras.ops.convert_to_numpy(ids[0]).tolist()):
        print(f"  {text}")
    return found.word_perplexity


if __name__ == "__main__":
    main()
