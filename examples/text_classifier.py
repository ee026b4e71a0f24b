"""Classify text with dynamic convolutions in a Keras model.

Shows: `DynamicConv` and `GLU` between layers of `keras.layers`, and the mask of an
`Embedding` that reaches them, so that padding changes no answer.

    python examples/text_classifier.py                        # made-up reviews
    python examples/text_classifier.py --dataset imdb_reviews --epochs 3   # from TFDS

The first command takes less than a minute on two cores. Prints Keras' progress, some
answers, their change by padding (rounding errors), and the accuracy on new texts.

The made-up reviews depend on the order of words: "the food was not bad but the wine was
poor" is a bad review, and the same words in a different order may be a good one.
"""

import argparse
import random

import keras
import tensorflow as tf
from keras import layers

import keras_seqconv as ks


def made_up_reviews(number, seed):
    """Texts of one, three or five clauses, and whether most of them praise."""
    random.seed(seed)
    found = []
    for _ in range(number):
        clauses, praise = [], 0
        for _ in range(random.choice([1, 3, 5])):
            thing = random.choice(["food", "wine", "service", "room", "view", "bill"])
            good = random.random() < 0.5
            word = random.choice(
                ["good", "great", "fine"] if good else ["bad", "poor", "awful"]
            )
            no = random.choice(["", "not ", "not at all "])
            clauses.append(f"the {thing} was {no}{word}")
            praise += 1 if good == (no == "") else -1
        found.append((" but ".join(clauses), int(praise > 0)))
    texts, labels = zip(*found, strict=True)
    return tf.data.Dataset.from_tensor_slices((list(texts), list(labels)))


def read(options):
    """Datasets of (text, 0 or 1) to train on and to test with."""
    if options.dataset is None:
        return made_up_reviews(options.reviews, seed=1), made_up_reviews(1000, seed=2)
    import tensorflow_datasets as tfds

    return tfds.load(
        options.dataset,
        split=["train", "test"],
        data_dir=options.data_dir,
        as_supervised=True,
    )


def make_model(vocabulary_size, width=64):
    ids = keras.Input((None,), dtype="int64")
    x = layers.Embedding(vocabulary_size, width, mask_zero=True)(ids)
    for kernel_size in (3, 7, 15):
        y = layers.LayerNormalization()(x)
        y = layers.Dense(2 * width)(y)
        y = ks.layers.GLU()(y)
        y = ks.layers.DynamicConv(num_heads=4, kernel_size=kernel_size)(y)
        y = layers.Dense(width)(y)
        # `x + y` would lose the mask.
        x = layers.Add()([x, layers.Dropout(0.1)(y)])
    x = layers.GlobalAveragePooling1D()(x)  # over real words
    return keras.Model(ids, layers.Dense(1)(x))


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", help="of TFDS, with texts and labels 0 and 1")
    parser.add_argument("--data-dir", help="where tfds keeps its data")
    parser.add_argument("--reviews", type=int, default=8000, help="made up")
    parser.add_argument("--vocabulary-size", type=int, default=20_000)
    parser.add_argument("--max-words", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)

    train, test = read(options)
    words = layers.TextVectorization(options.vocabulary_size)
    words.adapt(train.map(lambda text, label: text).batch(256))

    def batches(texts):
        """Each padded to its own longest text; id 0 is padding."""
        return texts.batch(32).map(
            lambda text, label: (words(text)[:, : options.max_words], label)
        )

    model = make_model(words.vocabulary_size())
    model.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    model.fit(
        batches(train.shuffle(10_000, seed=1)),
        validation_data=batches(test),
        epochs=options.epochs,
        shuffle=False,  # shuffled above
        verbose=2,
    )

    some = [text.decode() for text, _ in test.take(3).as_numpy_iterator()]
    ids = words(some)[:, : options.max_words]
    answers = model(ids)
    for text, answer in zip(some, keras.ops.sigmoid(answers), strict=True):
        print(f"{float(answer[0]):.2f} {text[:100]}")
    padded = model(keras.ops.pad(ids, [(0, 0), (0, 50)]))
    change = float(keras.ops.max(keras.ops.abs(padded - answers)))
    print(f"50 more positions of padding change the answers by {change:.1e}")
    accuracy = model.evaluate(batches(test), verbose=0)[1]
    print(f"accuracy {100 * accuracy:.1f} %")
    return accuracy, change


if __name__ == "__main__":
    main()
