"""`keras-seqconv evaluate`: scores of translations, perplexity of models."""

import argparse
import json
import sys
import time

from keras_seqconv_cli import check_files, check_models

HELP = "translate and score, score given translations, or compare two systems"
DESCRIPTION = (
    "Scores of a model on --source and --reference or on a split of --dataset; scores "
    "of given --hypotheses, without a model; the perplexity of a language model on "
    "--text; with --compare, whether one system is better than another."
)
_METRICS = (
    "bleu", "chrf", "ter", "tokenized_bleu", "compound_split_bleu", "torchtext_bleu",
    "rouge", "perplexity",
)  # fmt: skip
_COMPARED = ("bleu", "chrf", "ter", "tokenized_bleu", "compound_split_bleu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from keras_seqconv_cli.translate import add_language_arguments, add_search_arguments

    parser.set_defaults(positional=("model",))
    add = parser.add_argument
    add("model", nargs="*", metavar="MODEL", help="model directories or runs")
    add("--source", metavar="FILE", help="what to translate, a line for each sentence")
    add(
        "--reference", metavar="FILE", action="append", default=[],
        help="how it should be translated; may be given several times",
    )  # fmt: skip
    add("--hypotheses", metavar="FILE", help="translations to score, without a model")
    add(
        "--dataset", metavar="NAME",
        help="instead of the files: a corpus by name or folder, as of `train`",
    )  # fmt: skip
    add("--split", default="test", help="of the dataset (default test)")
    add_language_arguments(parser)
    add("--data-dir", metavar="DIR", help="of TensorFlow Datasets")
    add("--limit", type=int, metavar="N", help="use the first N sentences only")
    add(
        "--metrics", default=None, metavar="A,B",
        help=f"any of {', '.join(_METRICS)} (default bleu,chrf)",
    )  # fmt: skip
    add("--tokenize", default="13a", help="tokenizer of sacreBLEU's bleu (default 13a)")
    add("--lowercase", action="store_true", help="compare in lower case")
    add(
        "--rouge-separator", metavar="TEXT",
        help="what stands between the sentences of summaries, for ROUGE-L",
    )  # fmt: skip
    add(
        "--compare", metavar="FILE",
        help="translations of another system: paired bootstrap resampling",
    )  # fmt: skip
    add("--samples", type=int, default=1000, metavar="N", help="of that (default 1000)")
    add("--seed", type=int, default=12345, help="of these samples (default 12345)")
    add("--output-hypotheses", metavar="FILE", help="write what the model translated")
    add("--text", metavar="FILE", help="a language model: the text to predict")
    add(
        "--context-window", type=int, default=0, metavar="N",
        help="positions before each block that are seen and not scored (default 0)",
    )  # fmt: skip
    add("--tokens-per-sample", type=int, metavar="N", help="of a block (default 512)")
    add(
        "--break-mode", default="none",
        choices=("none", "complete", "complete_doc", "sentence", "eos"),
        help="how --text is cut into blocks (default none: anywhere)",
    )  # fmt: skip
    add("--json", action="store_true", help="print one JSON object instead")
    add("--quiet", action="store_true", help="show no progress")
    add_search_arguments(parser)


def check(options: argparse.Namespace) -> None:
    _check(options, _metrics(options))
    check_models(*options.model)
    files = (options.source, options.hypotheses, options.compare, options.text)
    check_files(*files, *options.reference)


def run(options: argparse.Namespace) -> int:
    metrics = _metrics(options)
    if options.text is not None:
        return _language_model(options)
    translator = _translator(options)
    for name in ("source_language", "target_language"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(translator, name, None))
    split = options.split if options.dataset else None
    sources, references = _texts(options)
    result: dict = {"split": split, "sentences": len(references[0])}
    lines: list[str] = []
    if options.hypotheses is not None:
        hypotheses = _read(options.hypotheses, options)
    else:
        hypotheses = _translated(translator, sources, options, result, lines)
    from keras_seqconv.evaluation import scores

    _check_lengths(options, sources, hypotheses, references)
    named = [name for name in metrics if name not in ("perplexity", "rouge")]
    found = scores(
        hypotheses,
        references,
        named,
        tokenize=options.tokenize,
        lowercase=options.lowercase,
    )
    if "rouge" in metrics:
        from keras_seqconv.evaluation import rouge

        separator = options.rouge_separator
        found += rouge(hypotheses, references, sentence_separator=separator)
    lines += [score.line for score in found]
    result["scores"] = [
        {"name": one.name, "value": one.value, "signature": one.signature}
        for one in found
    ]
    if "perplexity" in metrics:
        from keras_seqconv.perplexity import translation_perplexity

        predicted = translation_perplexity(translator, sources, references[0])
        _add_perplexity(predicted, result, lines)
    if options.compare is not None:
        _compare(options, metrics, hypotheses, references, result, lines)
    if found:
        main = f"{found[0].name} {found[0].value:.1f}"
        lines.append(f"{split} {main}" if split else main)
    _print(options, result, lines)
    return 0


# --- What was asked for ---


def _metrics(options) -> list[str]:
    if options.metrics is None:
        return ["bleu", "chrf"]
    names = [name.strip() for name in options.metrics.split(",")]
    for name in names:
        if name not in _METRICS:
            raise ValueError(
                f"`metrics` must be of {', '.join(_METRICS)}, with commas between them."
                f" Received: {name!r}"
            )
    return list(dict.fromkeys(names))


def _check(options, metrics) -> None:
    """ValueError where the arguments do not belong together."""
    if options.text is not None:
        if not options.model:
            raise ValueError("`text` needs the directory of a language model.")
        return
    if not options.model and options.hypotheses is None:
        raise ValueError("Give a MODEL, or translations by `hypotheses`.")
    if options.model and options.hypotheses is not None and "perplexity" not in metrics:
        raise ValueError(
            "Give a MODEL or `hypotheses`, not both (but for the metric perplexity)."
        )
    if "perplexity" in metrics and not options.model:
        raise ValueError("The metric perplexity needs a MODEL.")
    if options.dataset is not None:
        if options.source or options.reference:
            raise ValueError("`dataset` takes the place of `source` and `reference`.")
        return
    if not options.reference:
        raise ValueError("`reference` is missing: what should the translations be?")
    if options.source is None and options.model:
        raise ValueError("`source` is missing: what should the model translate?")


def _texts(options) -> tuple[list[str] | None, list[list[str]]]:
    """Sources, None if there are none, and a list for each reference."""
    if options.dataset is None:
        references = [_read(file, options) for file in options.reference]
        sources = None
        if options.source is not None:
            sources = _read(options.source, options)
        return sources, references
    from keras_seqconv.data.sources import open_corpus

    corpus = open_corpus(
        options.dataset,
        source_language=options.source_language,
        target_language=options.target_language,
        data_dir=options.data_dir,
    )
    split, most = options.split, options.limit
    references = [*corpus.texts(split, "target", most)]
    if corpus.source_language is None:
        return None, [references]
    return [*corpus.texts(split, "source", most)], [references]


def _read(file, options) -> list[str]:
    from keras_seqconv.file_translation import read_lines

    lines = read_lines(file)
    if not lines:
        raise ValueError(f"{file} must hold a line at least; it is empty.")
    return lines[: options.limit] if options.limit is not None else lines


def _check_lengths(options, sources, hypotheses, references) -> None:
    """ValueError that names the files and how many lines they have."""
    first = options.hypotheses or options.source or options.dataset
    others = list(zip(options.reference, references, strict=False))
    if options.hypotheses and options.source:
        others.append((options.source, sources))
    if options.dataset:
        others = [(f"{options.split} of {options.dataset}", references[0])]
    for name, texts in others:
        if len(texts) != len(hypotheses):
            raise ValueError(
                f"{first} and {name} must have as many lines. "
                f"Received: {len(hypotheses):,} and {len(texts):,}"
            )


def _translator(options):
    if not options.model:
        return None
    from keras_seqconv_cli.translate import load_translator

    return load_translator(options)


# --- What is measured ---


def _translated(translator, sources, options, result, lines) -> list[str]:
    import io

    from keras_seqconv.file_translation import translate_file
    from keras_seqconv_cli.translate import search_options

    if sources is None:
        raise ValueError(f"{options.dataset} must have sources to translate.")
    # Before the work is done, not after it.
    if len(options.reference):
        for file in options.reference:
            count = len(_read(file, options))
            if count != len(sources):
                raise ValueError(
                    f"{options.source} and {file} must have as many lines. "
                    f"Received: {len(sources):,} and {count:,}"
                )
    output, start = io.BytesIO(), time.monotonic()
    # A line break inside a text of a corpus would make two lines of it.
    text = "\n".join(source.replace("\n", " ") for source in sources) + "\n"
    report = translate_file(
        translator,
        io.BytesIO(text.encode()),
        output,
        progress=None if options.quiet else sys.stderr,
        **search_options(options),
    )
    seconds = time.monotonic() - start
    content = output.getvalue()
    if options.output_hypotheses is not None:
        from keras_seqconv.support.files import write_file

        write_file(options.output_hypotheses, content)
    result["seconds"] = seconds
    result["sentences_per_second"] = report.lines / seconds
    result["tokens_per_second"] = report.tokens / seconds
    lines.append(
        f"translated {report.lines:,} sentences, {report.tokens:,} tokens in "
        f"{seconds:.1f} s: {report.lines / seconds:.1f} sentences/s, "
        f"{report.tokens / seconds:,.0f} tokens/s"
    )
    if report.cut:
        lines.append(f"{report.cut:,} sources were longer than the model takes: cut")
    return content.decode().split("\n")[:-1]


def _compare(options, metrics, hypotheses, references, result, lines) -> None:
    from keras_seqconv.bootstrap import paired_bootstrap

    others = _read(options.compare, options)
    if len(others) != len(hypotheses):
        raise ValueError(
            f"{options.compare} must have as many lines as there are sentences. "
            f"Received: {len(others):,} and {len(hypotheses):,}"
        )
    result["comparisons"] = []
    lines.append(
        f"paired bootstrap, {options.samples:,} samples, seed {options.seed}, against "
        f"{options.compare}:"
    )
    for metric in (name for name in metrics if name in _COMPARED):
        found = paired_bootstrap(
            hypotheses,
            others,
            references,
            metric,
            num_samples=options.samples,
            seed=options.seed,
            tokenize=options.tokenize,
            lowercase=options.lowercase,
        )
        result["comparisons"].append(found._asdict())
        low, high = found.difference_interval
        lines.append(
            f"  {metric}: {found.score:.2f} [{found.interval[0]:.2f}, "
            f"{found.interval[1]:.2f}] against {found.other_score:.2f} "
            f"[{found.other_interval[0]:.2f}, {found.other_interval[1]:.2f}], "
            f"difference {found.difference:+.2f} [{low:+.2f}, {high:+.2f}], better in "
            f"{100 * found.better:.1f} % of the samples, p = {found.p_value:.4f}"
        )


def _language_model(options) -> int:
    import itertools

    from keras_seqconv.ensembles import load_ensemble
    from keras_seqconv.file_translation import iterate_lines
    from keras_seqconv.perplexity import text_perplexity

    generator = load_ensemble(options.model, options.dtype)
    if not hasattr(generator, "tokenizer"):
        raise ValueError(
            f"`text` is for language models; {options.model[0]} translates: give "
            "`source` and `reference`."
        )
    if options.tokens_per_batch is not None:
        generator.tokens_per_batch = options.tokens_per_batch
    start = time.monotonic()
    found = text_perplexity(
        generator,
        itertools.islice(iterate_lines(options.text), options.limit),
        context_window=options.context_window,
        tokens_per_sample=options.tokens_per_sample,
        break_mode=options.break_mode,
    )
    seconds = time.monotonic() - start
    result: dict = {"seconds": seconds, "tokens_per_second": found.tokens / seconds}
    lines = [
        f"evaluated {found.tokens:,} tokens in {seconds:.1f} s "
        f"({found.tokens / seconds:,.0f} tokens/s)"
    ]
    _add_perplexity(found, result, lines)
    lines.append(f"perplexity {found.perplexity:.2f}")
    _print(options, result, lines)
    return 0


def _add_perplexity(found, result, lines) -> None:
    names = (
        "tokens", "words", "infinite", "nll", "bits", "perplexity", "word_nll",
        "word_bits", "word_perplexity",
    )  # fmt: skip
    result["perplexity"] = {name: getattr(found, name) for name in names}
    lines += found.lines()
    if found.infinite:
        lines.append(f"{found.infinite:,} tokens of probability 0 were left out")


def _print(options, result, lines) -> None:
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        print("\n".join(lines))
