"""`keras-seqconv evaluate`: scores of translations, perplexity of models."""

import argparse
import io
import json
import os
import sys
import time
from dataclasses import fields
from itertools import chain, islice

import keras_seqconv as ks
from keras_seqconv.support import require
from keras_seqconv.support.arguments import check_choice
from keras_seqconv.support.files import check_output, iterate_lines, write_file
from keras_seqconv.support.schema import Options, option
from keras_seqconv_cli import add_flags, add_options, check_files, given, load_models
from keras_seqconv_cli.translate import (
    add_search_arguments,
    load_translator,
    search_options,
)

LOADS_KERAS = False
HELP = "translate and score, score given translations, or compare two systems"
DESCRIPTION = (
    "Score a model on --source and --reference or on a split of --dataset; score given "
    "--hypotheses, without a model; compute the perplexity of a language model on "
    "--text; compare two systems with --compare."
)


class _Flags(Options):
    source: str | None = option(None, "texts to translate, one a line", metavar="FILE")
    references: tuple[str, ...] = option(
        (),
        "reference translations; may be given several times: an empty line of a "
        "further file is no reference",
        flag="--reference",
        repeated=True,
        metavar="FILE",
    )
    hypotheses: str | None = option(
        None, "translations to score, without a model", metavar="FILE"
    )
    dataset: str | None = option(
        None, "corpus in place of the files, as of `train`", metavar="NAME"
    )
    split: str = option("test", "split of the data set", metavar="NAME")
    data_dir: str | None = option(None, "folder of TensorFlow Datasets", metavar="DIR")
    variant: str | None = option(
        None,
        "part of the names of files between split and language (default: that of the "
        "training, for its data set)",
        metavar="NAME",
    )
    tsv_header: bool | None = option(
        None,
        "whether line 1 of a .tsv file has names of columns (default: that of the "
        "training, for its data set)",
    )
    skip_bad_lines: bool = option(False, "leave out lines that are empty or not UTF-8")
    limit: int | None = option(None, "number of sentences to use, from the first", ge=1)
    metrics: str | None = option(
        None,
        "any of bleu, tokenized_bleu, compound_split_bleu, chrf, ter, rouge, exact, "
        "wer, cer, perplexity (default: those of the task of the model's preset, or "
        "bleu,chrf; exact,wer,cer where no reference has four words)",
        metavar="A,B",
    )
    tokenize: str | None = option(
        None, "tokenizer of sacreBLEU (default: its choice for the language)"
    )
    lowercase: bool = option(False, "compare in lower case")
    rouge_separator: str | None = option(
        None, "separator of the sentences of a summary, for ROUGE-L", metavar="TEXT"
    )
    compare: str | None = option(
        None,
        "translations of another system: paired bootstrap resampling",
        metavar="FILE",
    )
    samples: int | None = option(None, "samples of the bootstrap (default 1000)", ge=1)
    output_hypotheses: str | None = option(
        None, "file for the translations of the model", metavar="FILE"
    )
    text: str | None = option(
        None, "text to score with a language model", metavar="FILE"
    )
    json: bool = option(False, "print one JSON object")
    quiet: bool = option(False, "show no progress")


_BLOCKS = "By default 512 tokens or the model's limit, cut anywhere, without context."
# Option -> those without effect where it is not given.
_OF_BLOCKS = ("context_window", "tokens_per_sample", "break_mode")
_NEEDED = {
    "text": _OF_BLOCKS,
    "dataset": ("split", "data_dir", "variant", "tsv_header", "skip_bad_lines"),
    "compare": ("samples",),
}
_OF_MODEL = "tokens_per_batch", "parallel_batches", "dtype", "quantize", "runtime"
_OF_TRANSLATIONS = (
    "source", "references", "hypotheses", "dataset", "metrics", "compare", "tokenize",
    "lowercase", "rouge_separator",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="*", metavar="MODEL", help="model directories or runs")
    add_flags(parser, _Flags)
    blocks = parser.add_argument_group("blocks of --text", _BLOCKS)
    add_options(blocks, fields(ks.recipes.BlockOptions))
    add_search_arguments(parser)


def check(options: argparse.Namespace) -> None:
    if options.metrics is not None:
        options.metrics = [name.strip() for name in options.metrics.split(",")]
    for name in options.metrics or ():
        check_choice("metrics", name, (*ks.evaluation.METRICS, "perplexity"))
    chosen = [name for name in options.metrics or () if name != "perplexity"]
    ks.evaluation.check_metrics(chosen, tokenize=options.tokenize)
    model, hypotheses, data = options.model, options.hypotheses, options.dataset
    perplexity = "perplexity" in (options.metrics or ())
    references = options.references
    files = [path for path in model if os.path.isfile(path)]
    mistakes = {
        f"{' '.join(files)} is a file, no MODEL: each of several references needs a "
        "`references` before it.": files and references,
        "Give a MODEL, or translations by `hypotheses`.": not (model or hypotheses),
        "Give a MODEL or `hypotheses`, not both (but for the metric perplexity).": (
            model and hypotheses and not perplexity
        ),
        "The metric perplexity needs a MODEL.": perplexity and not model,
        "`dataset` takes the place of `source` and `references`.": (
            data and (options.source or references)
        ),
        "`references` is missing: what should the translations be?": (
            not (data or references)
        ),
        "`source` is missing: what should the model translate?": (
            model and not (data or options.source)
        ),
    }
    if options.text:
        mistakes = {
            "`text` needs the directory of a language model.": not model,
            "`text` needs the `runtime` keras.": options.runtime == "onnx",
        }
    for mistake, made in mistakes.items():
        if made:
            raise ValueError(mistake)
    files = [options.source, hypotheses, options.compare, options.text, *references]
    check_files(*files)
    _check_options(options)
    if options.rouge_separator == "":
        raise ValueError("`rouge_separator` must not be empty.")
    _check_output(options.output_hypotheses, [*filter(None, files)])


def _check_options(options) -> None:
    """ValueError for options without effect."""
    rules, translation = {}, "needs a MODEL that translates"
    if not options.model or options.hypotheses or options.text:
        names = (*search_options(options), "parallel_batches", "output_hypotheses")
        rules |= dict.fromkeys(names, translation)
    if not options.model:
        rules |= dict.fromkeys(_OF_MODEL, translation)
    for needed, names in _NEEDED.items():
        if getattr(options, needed) is None:
            rules |= dict.fromkeys(names, f"needs `{needed}`")
    if options.text is not None:
        rules |= dict.fromkeys(_OF_TRANSLATIONS, "must not be given with `text`")
    defaults = {field.name: field.default for field in fields(_Flags)}
    defaults["runtime"] = "auto"
    for name, rule in rules.items():
        value = getattr(options, name)
        if value not in (None, [], defaults.get(name)):
            raise ValueError(f"`{name}` {rule}. Received: {value}")


def _check_output(output: str | None, inputs: list[str]) -> None:
    """ValueError for an output over an input, or that is no file."""
    if output is not None:
        check_output(output)
        if os.path.exists(output) and any(os.path.samefile(output, i) for i in inputs):
            raise ValueError(
                f"`output_hypotheses` must be no file that is read. Received: {output}"
            )


def run(options: argparse.Namespace) -> int:
    """Collects results for --json, and lines to print."""
    result, lines = {}, []
    measure = _translations if options.text is None else _language_model
    measure(options, result, lines)
    print(json.dumps(result, ensure_ascii=False) if options.json else "\n".join(lines))
    return 0


def _translations(options, result: dict, lines: list[str]) -> None:
    translator = None
    if options.model:
        translator = load_translator(options)
        for name in ("source_language", "target_language"):
            if getattr(options, name) is None:
                setattr(options, name, getattr(translator, name))
    trained = getattr(translator, "trained", None) or {}
    for name in ("variant", "tsv_header"):
        if getattr(options, name) is None and trained.get("dataset") == options.dataset:
            setattr(options, name, trained.get(name))
    sources, references, hypotheses, others = _texts(options)
    if translator is not None and sources is None:
        raise ValueError(f"{options.dataset} must have sources to translate.")
    language = options.target_language
    preset = ks.presets.PRESETS.get(str(trained.get("preset")))
    options.metrics = options.metrics or ks.evaluation.usual_metrics(
        language, references[0], preset and preset.task.metric
    )
    choices = {"tokenize": options.tokenize, "lowercase": options.lowercase}
    choices["target_language"] = language
    metrics = [name for name in options.metrics if name != "perplexity"]
    ks.evaluation.check_metrics(metrics, **choices)
    possible = ks.evaluation.COMPARABLE
    comparable = [name for name in metrics if name in possible]
    if others is not None:
        require("sacrebleu", "mt")
        if not comparable:
            raise ValueError(
                f"`compare` needs one of the `metrics` {', '.join(possible)}. "
                f"Received: {', '.join(options.metrics)}"
            )
    split = options.split if options.dataset else None
    result.update(split=split, sentences=len(references[0]))
    if hypotheses is None and (metrics or options.output_hypotheses):
        hypotheses = _translated(translator, sources, options, result, lines)
    separator = {"sentence_separator": options.rouge_separator}
    scores = ks.evaluation.scores(
        hypotheses, references, metrics, **choices, **separator
    )
    lines += [score.line for score in scores]
    result["scores"] = [
        {"name": score.name, "value": score.value, "signature": score.signature}
        for score in scores
    ]
    if "perplexity" in options.metrics:
        predicted = ks.evaluation.translation_perplexity(
            translator, sources, references[0]
        )
        _add_perplexity(predicted, result, lines)
    if others is not None:
        columns = hypotheses, others, references
        _compare(columns, comparable, choices, options, result, lines)
        if rest := [name for name in metrics if name not in comparable]:
            lines.append(f"  not compared: {', '.join(rest)}")
    if scores:
        headline = f"{scores[0].name} {scores[0].value:.1f}"
        lines.append(f"{split} {headline}" if split else headline)


def _texts(options) -> tuple:
    """Sources, references, hypotheses, those to compare; None for what is not given."""
    from keras_seqconv.evaluation.error_rates import check_references

    columns, limit = {}, options.limit
    files = [options.hypotheses, options.source, *options.references, options.compare]
    for file in filter(None, files):
        columns[file] = list(islice(iterate_lines(file), limit))
        if not columns[file]:
            raise ValueError(f"{file} must hold a line at least; it is empty.")
    sources = columns.get(options.source)
    references = check_references([columns[file] for file in options.references])
    if options.dataset is not None:
        corpus = ks.data.open_corpus(
            options.dataset,
            source_language=options.source_language,
            target_language=options.target_language,
            data_dir=options.data_dir,
            variant=options.variant,
            on_error="skip" if options.skip_bad_lines else "raise",
            tsv_header=options.tsv_header,
        )
        options.target_language = corpus.target_language
        references = [[*corpus.texts(options.split, "target", limit)]]
        columns[f"{options.split} of {options.dataset}"] = references[0]
        if corpus.source_language is not None:
            sources = [*corpus.texts(options.split, "source", limit)]
    (first, texts), *others = columns.items()
    for name, lines in others:
        if len(lines) != len(texts):
            raise ValueError(
                f"{first} and {name} must have as many lines. "
                f"Received: {len(texts):,} and {len(lines):,}"
            )
    hypotheses, others = map(columns.get, (options.hypotheses, options.compare))
    return sources, references, hypotheses, others


def _translated(translator, sources, options, result, lines) -> list[str]:
    from keras_seqconv.translation.translate_files import translate_file

    output, start = io.BytesIO(), time.monotonic()
    report = translate_file(
        translator,
        io.BytesIO("".join(f"{source}\n" for source in sources).encode()),
        output,
        progress=None if options.quiet else sys.stderr,
        **search_options(options),
    )
    seconds = time.monotonic() - start
    if options.output_hypotheses is not None:
        write_file(options.output_hypotheses, output.getvalue())
    speeds = report.lines / seconds, report.tokens / seconds
    result["seconds"] = seconds
    result["sentences_per_second"], result["tokens_per_second"] = speeds
    lines.append(
        f"translated {report.lines:,} sentences, {report.tokens:,} tokens in "
        f"{seconds:.1f} s: {speeds[0]:.1f} sentences/s, {speeds[1]:,.0f} tokens/s"
    )
    if report.cut:
        lines.append(f"{report.cut:,} sources were longer than the model takes: cut")
    return output.getvalue().decode().split("\n")[:-1]


def _compare(columns, metrics, choices, options, result, lines) -> None:
    number = options.samples or 1000
    result["comparisons"] = []
    lines.append(
        f"sacreBLEU's paired bootstrap, {number:,} samples, against {options.compare}:"
    )
    for metric in metrics:
        pair = ks.evaluation.paired_bootstrap(
            *columns, metric, num_samples=number, **choices
        )
        result["comparisons"].append(pair._asdict())
        lines.append(
            f"  {metric}: {pair.score:.2f} ({pair.mean:.2f} ± {pair.half_width:.2f})"
            f" against {pair.other_score:.2f} ({pair.other_mean:.2f} ± "
            f"{pair.other_half_width:.2f}), p = {pair.p_value:.4f}"
        )


def _language_model(options, result: dict, lines: list[str]) -> None:
    asked, options.runtime = options.runtime, "keras"
    options.parallel_batches = 1  # which has all cores
    generator = load_models(options, *options.model)
    if generator.model.has_source:
        raise ValueError(
            f"`text` is for language models; {options.model[0]} translates: give "
            "`source` and `references`."
        )
    if options.tokens_per_batch is not None:
        generator.tokens_per_batch = options.tokens_per_batch
    lines_of_text = islice(iterate_lines(options.text), options.limit)
    first = [*islice(lines_of_text, 1)]
    if not first:
        raise ValueError(f"{options.text} must hold a line at least; it is empty.")
    start = time.monotonic()
    perplexity = ks.evaluation.text_perplexity(
        generator,
        chain(first, lines_of_text),
        **given(options, _OF_BLOCKS),
    )
    seconds = time.monotonic() - start
    if asked == "auto":
        reason = "its models score all tokens of a text at once"
        print(f"Keras was used, not ONNX Runtime: {reason}", file=sys.stderr)
    result.update(seconds=seconds, tokens_per_second=perplexity.tokens / seconds)
    lines.append(
        f"evaluated {perplexity.tokens:,} tokens in {seconds:.1f} s "
        f"({perplexity.tokens / seconds:,.0f} tokens/s)"
    )
    _add_perplexity(perplexity, result, lines)
    lines.append(f"perplexity {perplexity.perplexity:.2f}")


def _add_perplexity(perplexity, result, lines) -> None:
    result["perplexity"] = perplexity.for_json()
    lines += perplexity.lines()
    if perplexity.infinite:
        lines.append(f"{perplexity.infinite:,} tokens of probability 0 were left out")
