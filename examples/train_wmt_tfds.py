"""Train a translation model on a TFDS corpus and score its BLEU, in Python.

Shows: a corpus by name, a joint SentencePiece vocabulary, ids on disk, batches of few
shapes, a preset's model, the loss and schedule of the Transformer papers, a training
that resumes after an interruption, the mean of the last checkpoints, a model directory,
BLEU.
`keras-seqconv train` does the same in one line; here each step can be changed.

    python examples/train_wmt_tfds.py --dataset wmt14_translate/de-en \
        --preset dynamic_conv_wmt_en_de --vocabulary-size 32768 --accumulation 8 \
        --tokens-per-batch 4096 --max-shapes 16 \
        --learning-rate 1e-3 --warmup 10000 --max-updates 30000 \
        --updates-per-epoch 1000 --workdir runs/wmt        # for a GPU
    python examples/train_wmt_tfds.py                    # the embedded corpus

The second command takes some minutes on two cores. Both print progress, some
translations of the test split, and its BLEU with sacreBLEU's signature. The same
command resumes from the last checkpoint.
"""

import argparse
from pathlib import Path

import keras_seqconv as ks


def train_tokenizer(corpus, vocabulary_size, folder):
    if folder.exists():
        return ks.tokenizers.load_tokenizer(folder)
    tokenizer, _ = ks.tokenizers.train_tokenizers(
        "sentencepiece_bpe",
        corpus.texts("train", "source"),
        corpus.texts("train", "target"),
        vocabulary_size=vocabulary_size,
    )
    tokenizer.save(folder)
    return tokenizer


def write_ids(corpus, split, tokenizer, folder):
    if folder.exists():
        return ks.data.IdStore.open(folder)
    rows = ks.data.encode(
        corpus.blocks(split), tokenizer, tokenizer, max_length=175, max_ratio=1.5
    )
    return ks.data.IdStore.write(folder, rows)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="phrases")
    parser.add_argument("--data-dir", help="where tfds keeps its data")
    parser.add_argument("--workdir", type=Path, default=Path("runs/train_wmt_tfds"))
    parser.add_argument("--preset", default="dynamic_conv_phrases")
    parser.add_argument("--vocabulary-size", type=int, default=1000)
    parser.add_argument("--tokens-per-batch", type=int, default=2048)
    parser.add_argument("--max-shapes", type=int, default=6)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--max-updates", type=int, default=600)
    parser.add_argument("--updates-per-epoch", type=int, default=50)
    parser.add_argument("--average", type=int, default=5, help="last checkpoints")
    parser.add_argument("--test-sentences", type=int, default=1000)
    options = parser.parse_args(arguments)
    ks.keep_freed_memory()  # much faster on a CPU of Linux
    workdir = options.workdir
    workdir.mkdir(parents=True, exist_ok=True)

    # Text to batches.
    corpus = ks.data.open_corpus(options.dataset, data_dir=options.data_dir)
    tokenizer = train_tokenizer(corpus, options.vocabulary_size, workdir / "tokenizer")
    train_ids = write_ids(corpus, "train", tokenizer, workdir / "train")
    validation_ids = write_ids(corpus, "validation", tokenizer, workdir / "validation")
    # Each shape of a batch is compiled once: few shapes for a short training.
    shapes = {"max_shapes": options.max_shapes}
    stream = ks.data.BatchStream(train_ids, options.tokens_per_batch, **shapes)
    validation = ks.data.BatchStream(validation_ids, options.tokens_per_batch, **shapes)

    # Model, loss and optimizer.
    model = ks.models.from_preset(
        options.preset,
        source_vocabulary_size=tokenizer.vocabulary_size,
        target_vocabulary_size=tokenizer.vocabulary_size,
    )
    schedule = ks.schedules.InverseSquareRoot(options.learning_rate, options.warmup)
    model.compile(
        ks.optimizers.AdamW(schedule, beta_2=0.98, epsilon=1e-8, weight_decay=0.0),
        ks.losses.LabelSmoothedCrossentropy(0.1),
        gradient_accumulation_steps=options.accumulation,
    )

    # `fit_stream` is `model.fit` that can start in the middle of an epoch.
    checkpoints = workdir / "checkpoints"
    ks.fit_stream(
        model,
        stream,
        max_updates=options.max_updates,
        updates_per_epoch=options.updates_per_epoch,
        directory=checkpoints,
        callbacks=[
            ks.callbacks.Validate(validation),
            ks.callbacks.StopOnNaN(),
            ks.callbacks.Progress(options.max_updates),
            ks.callbacks.Checkpoints(checkpoints, keep_last=options.average),
        ],
    )

    # The mean of the last checkpoints, with tokenizers and search options, as a folder.
    last = ks.checkpoints.select(checkpoints, "last_epochs", options.average)
    ks.checkpoints.average(last, model)
    translator = ks.Translator(
        model, tokenizer, tokenizer, search={"num_beams": 4, "max_length": 100}
    )
    translator.save(workdir / "model", overwrite=True)

    # BLEU of the loaded model.
    translator = ks.load(workdir / "model")
    sources, references = (
        list(corpus.texts("test", side, options.test_sentences))
        for side in ("source", "target")
    )
    translations = translator.translate(sources)
    for source, translation in list(zip(sources, translations, strict=True))[:5]:
        print(f"{source}\n  {translation}")
    (score,) = ks.evaluation.scores(translations, references, ["bleu"])
    print(score.line)
    return score.value


if __name__ == "__main__":
    main()
