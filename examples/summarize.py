"""Summaries of news: CNN/DailyMail through TFDS, scored by ROUGE.

Shows: a corpus of two texts that are no languages, sources cut to a number of tokens, a
search without repeated trigrams and with a minimum length, and ROUGE.

    python examples/summarize.py --dataset cnn_dailymail \
        --preset dynamic_conv_cnn_dailymail --vocabulary-size 30000 \
        --learning-rate 1e-3 --warmup 4000 --max-updates 30000 \
        --tokens-per-batch 3584 --accumulation 16          # for a GPU
    python examples/summarize.py --dataset FOLDER    # with train.article and
                          # train.highlights, validation.article, test.article, ...

TFDS downloads the data. Papers report ROUGE-L of sentences. Here a summary is one
line, so ROUGE-L is that of the whole text, which is lower. Prints progress,
some summaries with their references, and ROUGE-1, -2 and -L.
Training on CNN/DailyMail needs a GPU; for a FOLDER of a few short texts, as in the
tests, two cores are enough.
"""

import argparse

import keras_seqconv as ks


def make_stream(corpus, split, tokenizer, options):
    """Batches of a split, its sources cut."""
    rows = ks.data.encode(
        corpus.blocks(split),
        tokenizer,
        tokenizer,
        truncate_source=options.max_source,
        max_length=options.max_source,
    )
    store = ks.data.IdStore.write(f"{options.workdir}/{split}", rows)
    return ks.data.BatchStream(store, options.tokens_per_batch)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default="cnn_dailymail")
    parser.add_argument("--data-dir", help="where tfds keeps its data")
    parser.add_argument("--workdir", default="runs/summarize")
    parser.add_argument("--preset", default="dynamic_conv_phrases")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--max-source", type=int, default=400, help="tokens")
    parser.add_argument("--tokens-per-batch", type=int, default=4096)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--max-updates", type=int, default=1000)
    parser.add_argument("--min-length", type=int, default=55, help="of summaries")
    parser.add_argument("--max-length", type=int, default=140)
    parser.add_argument("--test-articles", type=int, default=500)
    options = parser.parse_args(arguments)
    ks.keep_freed_memory()  # much faster on a CPU of Linux

    corpus = ks.data.open_corpus(
        options.dataset,
        source_language="article",
        target_language="highlights",
        data_dir=options.data_dir,
        on_error="skip",  # some articles are empty
    )
    tokenizer, _ = ks.tokenizers.train_tokenizers(
        "sentencepiece_bpe",
        corpus.texts("train", "source"),
        corpus.texts("train", "target"),
        vocabulary_size=options.vocabulary_size,
    )
    stream = make_stream(corpus, "train", tokenizer, options)
    validation = make_stream(corpus, "validation", tokenizer, options)

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
    ks.fit_stream(
        model,
        stream,
        max_updates=options.max_updates,
        callbacks=[
            ks.callbacks.Validate(validation),
            ks.callbacks.Progress(options.max_updates),
        ],
    )

    summarizer = ks.Translator(
        model,
        tokenizer,
        tokenizer,
        search={
            "num_beams": 4,
            "length_penalty": 2.0,
            "min_length": options.min_length,
            "max_length": options.max_length,
            "no_repeat_ngram_size": 3,
        },
    )
    articles, references = (
        list(corpus.texts("test", side, options.test_articles))
        for side in ("source", "target")
    )
    # Cut as in training.
    ids = tokenizer.tokenize(articles)
    articles = tokenizer.detokenize([one[: options.max_source - 1] for one in ids])
    summaries = summarizer.translate(articles)
    for summary, reference in list(zip(summaries, references, strict=True))[:3]:
        print(f"{summary}\n  reference: {reference}")
    scores = ks.evaluation.scores(summaries, references, ["rouge"])
    for score in scores:
        print(score.line)
    return [score.value for score in scores]


if __name__ == "__main__":
    main()
