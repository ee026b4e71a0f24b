"""`keras-seqconv translate`: files and streams of any size."""

import argparse
import sys
from collections.abc import Iterable

from keras_seqconv_cli import (
    add_flags,
    add_runtime,
    check_files,
    given,
    load_models,
    names_of,
)

LOADS_KERAS = False
HELP = "translate a file or a stream with one or several models"
DESCRIPTION = (
    "Translate each line of a file or stream to one line of output. Several models "
    "decode as an ensemble, by the mean of their probabilities. The defaults of the "
    "search are the first model's."
)
_FLAGS = {
    "--input FILE": "default: standard input (-)",
    "--output FILE": "default: standard output (-)",
    "--n-best N": "translations of each line, at most --num-beams without --sample "
    "(default 1)",
    "--format text|tsv|jsonl": "text: a line for each line; tsv: line number, score, "
    "text; jsonl: an object for each line, with tokens and their scores. Default: "
    "text, tsv with --n-best or --scores, jsonl with --attention",
    "--alignment-dictionary FILE": "lines 'source target': words of --replace-unknowns "
    "by source token",
    "--on-error raise|replace": "input that is not UTF-8: raise (default) ends with an "
    "error, replace writes U+FFFD",
    "--window N": "lines in memory, sorted by length (default 10000; 1 on a terminal)",
    "--scores": "write scores",
    "--attention": "write attention weights",
    "--replace-unknowns": "replace an unknown token by the source token with the most "
    "attention",
    "--resume": "resume an interrupted run from OUTPUT.part",
    "--quiet": "show no progress",
}
_DRAWS = {
    "--sample": "draw from the model's distribution, with --temperature and these "
    "options",
    "--top-k N": "draw from the N most probable tokens",
    "--top-p X": "draw from the most probable tokens with this total probability",
    "--seed I": "seed of the draws of each line (default 1)",
}
# Names are those of keras_seqconv.decoding.beam_search.
SEARCH = {
    "--num-beams N": "beams of the search",
    "--length-penalty X": "exponent of the length that divides a score",
    "--length-penalty-kind power|gnmt": "score / L**X, or score / ((5 + L) / 6)**X",
    "--max-length N": "most tokens of a translation",
    "--max-length-ratio X": "added to --max-length for each source token",
    "--min-length I": "fewest tokens of a translation",
    "--unk-penalty X": "subtracted from the log-probability of unknown tokens",
    "--temperature X": "divisor of the logits",
    "--no-repeat-ngram-size I": "size of n-grams that occur at most once",
    "--num-groups N": "groups of diverse beam search",
    "--diversity-strength X": "penalty of a token that another group has chosen",
    "--stopping first|optimal": "first: as fairseq; optimal: when no better hypothesis "
    "is possible",
}
_BATCHES = {
    "--tokens-per-batch N": "source tokens times beams of a batch (default 16384)",
    "--parallel-batches N": "batches that are decoded at the same time (default: on a "
    "CPU the number of cores, at most 8)",
    "--dtype NAME": "dtype or dtype policy of the models in Keras, such as bfloat16",
}
# What goes without, and what only with --sample.
OF_BEAMS = ("num_beams", "num_groups", "diversity_strength", "stopping")
OF_SAMPLES = ("top_k", "top_p", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models = "a model directory or a run"
    parser.add_argument("model", nargs="+", metavar="MODEL", help=models)
    add_flags(parser, _FLAGS)
    parser.set_defaults(input="-", output="-", n_best=1, on_error="raise")
    add_search_arguments(parser)
    title = "sampling, in place of beam search"
    add_flags(parser.add_argument_group(title), _DRAWS)


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Languages, the options of the beam search, and of the batches."""
    for side in ("source", "target"):
        text = f"language of the {side} (default: the model's)"
        parser.add_argument(f"--{side}-language", metavar="xx", help=text)
    group = parser.add_argument_group("search")
    add_flags(group, SEARCH)
    group.add_argument(
        "--not-normalized",
        dest="normalize",
        action="store_false",
        default=None,
        help="scores are sums, without division by the length",
    )
    never = {"nargs": "+", "metavar": "ID", "help": "tokens that are never chosen"}
    group.add_argument("--suppressed-ids", type=int, **never)
    add_flags(group, _BATCHES)
    add_runtime(group)


def search_options(options: argparse.Namespace, more: Iterable[str] = ()) -> dict:
    """Options of the search, and `more`, that were given, by name."""
    names = [*names_of(SEARCH), "normalize", "suppressed_ids", *more]
    return given(options, names)


def load_translator(options: argparse.Namespace):
    """The model directories of the options as one; ValueError for language models."""
    translator = load_models(options, *options.model)
    if not translator.translates:
        raise ValueError(
            f"{options.model[0]} is a language model, which has no source to translate:"
            " `keras-seqconv evaluate --text` tells its perplexity, "
            "`keras-seqconv generate` writes with it."
        )
    for name, value in given(options, ("source_language", "target_language")).items():
        known = getattr(translator, name)
        if known not in (None, value):
            raise ValueError(
                f"`{name}` must be that of {options.model[0]}, {known}. "
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
    names, rule = OF_SAMPLES, "needs `sample`"
    if options.sample:
        names, rule = OF_BEAMS, "is of the beam search: not with `sample`"
    for name, value in given(options, names).items():
        raise ValueError(f"`{name}` {rule}. Received: {name}={value}")
    check_files(options.input, options.alignment_dictionary)


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.tokenizers import read_alignment_dictionary
    from keras_seqconv.translation.translate_files import translate_file

    dictionary = options.alignment_dictionary
    if dictionary is not None:
        dictionary = read_alignment_dictionary(dictionary)
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
            **search_options(options, OF_SAMPLES),
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
