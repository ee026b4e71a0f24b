"""`keras-seqconv translate`: files and streams of any size."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Literal

import keras_seqconv as ks
from keras_seqconv.support.files import check_output
from keras_seqconv.support.schema import Options, option
from keras_seqconv_cli import (
    Runtime,
    add_flags,
    add_options,
    check_files,
    given,
    load_models,
)

LOADS_KERAS = False
HELP = "translate a file or a stream with one or several models"
DESCRIPTION = (
    "Translate each line of a file or stream to one line of output. Several models "
    "decode as an ensemble, by the mean of their probabilities. The defaults of the "
    "search are the first model's."
)


class _Flags(Options):
    input: str = option("-", "text to translate; - for standard input", metavar="FILE")
    output: str = option("-", "translations; - for standard output", metavar="FILE")
    n_best: int = option(
        1, "translations of each line, at most --num-beams without --sample", ge=1
    )
    format: Literal["text", "tsv", "jsonl"] | None = option(
        None,
        "text: a line for each line; tsv: line number, score, text; jsonl: an object "
        "for each line, with tokens and their scores. Default: text, tsv with --n-best "
        "or --scores, jsonl with --attention",
    )
    alignment_dictionary: str | None = option(
        None,
        "lines 'source target': words of --replace-unknowns by source token",
        metavar="FILE",
    )
    on_error: Literal["raise", "replace"] = option(
        "raise",
        "input that is not UTF-8: raise ends with an error, replace writes U+FFFD",
    )
    window: int | None = option(
        None,
        "lines in memory, sorted by length (default 10000; 1 on a terminal)",
        ge=1,
    )
    scores: bool = option(False, "write scores")
    attention: bool = option(False, "write attention weights")
    replace_unknowns: bool = option(
        False, "replace an unknown token by the source token with the most attention"
    )
    resume: bool = option(False, "resume an interrupted run from OUTPUT.part")
    quiet: bool = option(False, "show no progress")


class _Sampling(Options):
    sample: bool = option(
        False,
        "draw from the model's distribution, with --temperature and these options",
    )
    seed: int | None = option(None, "seed of the draws of each line (default 1)")


class _Batches(Options):
    source_language: str | None = option(
        None, "language of the source (default: the model's)", metavar="xx"
    )
    target_language: str | None = option(
        None, "language of the target (default: the model's)", metavar="xx"
    )
    tokens_per_batch: int | None = option(
        None, "source tokens times beams of a batch (default 16384)", ge=1
    )
    parallel_batches: int | None = option(
        None,
        "batches that are decoded at the same time (default: on a CPU the number of "
        "cores, at most 8)",
        ge=1,
    )
    dtype: str | None = option(
        None, "dtype or dtype policy of the models in Keras, such as bfloat16"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models = "a model directory or a run"
    parser.add_argument("model", nargs="+", metavar="MODEL", help=models)
    add_flags(parser, _Flags)
    add_search_arguments(parser)
    group = parser.add_argument_group("sampling, in place of beam search")
    add_flags(group, _Sampling)
    add_options(group, own_fields(ks.decoding.SampleOptions))


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Languages, the options of the beam search, and of the batches."""
    add_flags(parser, _Batches)
    group = parser.add_argument_group("search")
    add_options(group, fields(ks.decoding.BeamOptions))
    add_flags(parser, Runtime)


def own_fields(cls) -> list:
    """The fields of `BeamOptions` or `SampleOptions` that only it has."""
    common = {field.name for field in fields(ks.decoding.SearchOptions)}
    return [field for field in fields(cls) if field.name not in common]


def search_options(options: argparse.Namespace) -> dict:
    """The options of the search that were given, by name."""
    draws = getattr(options, "sample", False)
    cls = ks.decoding.SampleOptions if draws else ks.decoding.BeamOptions
    return given(options, [f.name for f in fields(cls) if hasattr(options, f.name)])


def load_translator(options: argparse.Namespace):
    """The model directories of the options as one; ValueError for language models."""
    translator = load_models(options, *options.model)
    if not translator.model.has_source:
        raise ValueError(
            f"{options.model[0]} is a language model, which has no source to translate:"
            " `keras-seqconv evaluate --text` tells its perplexity, "
            "`keras-seqconv generate` writes with it."
        )
    for name, value in given(options, ("source_language", "target_language")).items():
        language = getattr(translator, name)
        if language not in (None, value):
            raise ValueError(
                f"`{name}` must be that of {options.model[0]}, {language}. "
                f"Received: {value}"
            )
    for name, value in given(options, ("tokens_per_batch", "parallel_batches")).items():
        setattr(translator, name, value)
    return translator


def check(options: argparse.Namespace) -> None:
    if options.alignment_dictionary is not None and not options.replace_unknowns:
        raise ValueError("`alignment_dictionary` needs `replace_unknowns`.")
    if options.input == "-" and sys.stdin is None:
        raise ValueError("standard input is closed: `input` must be given.")
    if options.format == "text" and options.scores:
        raise ValueError('`scores` needs the `format` "tsv" or "jsonl".')
    cls, rule, names = ks.decoding.SampleOptions, "needs `sample`", ["seed"]
    if options.sample:
        cls, names = ks.decoding.BeamOptions, []
        rule = "is of the beam search: not with `sample`"
    names += [field.name for field in own_fields(cls) if hasattr(options, field.name)]
    for name, value in given(options, names).items():
        raise ValueError(f"`{name}` {rule}. Received: {name}={value}")
    check_files(options.input, options.alignment_dictionary)
    if options.output != "-" and not Path(options.output).exists():
        check_output(options.output)


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.translation.translate_files import translate_file

    dictionary = options.alignment_dictionary
    if dictionary is not None:
        dictionary = ks.tokenizers.read_alignment_dictionary(dictionary)
    format = options.format
    if format is None:
        format = "tsv" if options.scores or options.n_best > 1 else "text"
        format = "jsonl" if options.attention else format
    typed = options.input == "-" and sys.stdin.isatty()
    window = options.window
    if window is None:
        window = 1 if typed else 10_000
    if window == 1 and options.parallel_batches is None:
        options.parallel_batches = 1  # a line alone has all cores
    if typed:
        print("Loading the model ...", end="\r", file=sys.stderr, flush=True)
    translator = load_translator(options)
    if typed:
        print("Ready: type a line; Ctrl-D ends.", file=sys.stderr)
    try:
        report = translate_file(
            translator,
            sys.stdin.buffer if options.input == "-" else options.input,
            sys.stdout.buffer if options.output == "-" else options.output,
            n_best=options.n_best,
            format=format,
            attention=options.attention,
            window=window,
            resume=options.resume,
            on_error=options.on_error,
            replace_unknowns=options.replace_unknowns,
            alignment_dictionary=dictionary,
            progress=None if options.quiet or typed else sys.stderr,
            sample=options.sample,
            **search_options(options),
            **given(options, ["seed"]),
        )
    except (KeyboardInterrupt, SystemExit):
        if options.output != "-":
            print("\n--resume goes on after the last window.", file=sys.stderr)
        raise
    if report.cut:
        print(
            f"warning: {report.cut:,} lines, the first of them line "
            f"{report.first_cut:,}, have more than the "
            f"{translator.max_source_length:,} tokens that are read, and were cut",
            file=sys.stderr,
        )
    return 0
