"""`keras-seqconv translate`: files and streams of any size."""

import argparse
import sys
from collections.abc import Iterable

from keras_seqconv_cli import add_flags, check_files, given, names_of

HELP = "translate a file or a stream with one or several models"
DESCRIPTION = (
    "Translate every line of a file or stream; one line out for each line in. Several "
    "models decode as one (their probabilities are averaged). Search options are those "
    "of the first model directory where they are not given here."
)
_FLAGS = {
    "--input FILE": "default: standard input (-)",
    "--output FILE": "default: standard output (-)",
    "--n-best N": "translations of each line, at most --num-beams without --sample "
    "(default 1)",
    "--format text|tsv|jsonl": "text: a line for each line; tsv: line number, score, "
    "text; jsonl: an object for each line, with tokens and their scores. Default: "
    "text, tsv with --n-best or --scores, jsonl with --attention",
    "--alignment-dictionary FILE": "lines 'source target': what --replace-unknowns "
    "writes for a source token",
    "--on-error raise|replace": "where the input is no UTF-8: end (default), or "
    "replace what is wrong",
    "--window N": "lines that are sorted by length and kept in memory at once "
    "(default 10000; 1 when you type them)",
    "--scores": "write the scores too",
    "--attention": "write the attention too",
    "--replace-unknowns": "put the source token with the most attention for each "
    "unknown token",
    "--resume": "go on with OUTPUT.part, which a run that broke off has left",
    "--quiet": "show no progress",
}
_SHARDS = {
    "--num-shards N": "how many of them: each translates every N-th line into "
    "OUTPUT.I-of-N",
    "--shard I": "which of them this is, from 0",
    "--merge": "put the files of all shards together instead, and remove them",
}
_DRAWS = {
    "--sample": "draw from the model's distribution, by --temperature and these "
    "options",
    "--top-k N": "of the N likeliest tokens",
    "--top-p X": "of the likeliest of this probability",
    "--seed I": "with the same seed a line has the same draws (default 1)",
}
# Names are those of keras_seqconv.decoding.beam_search.
SEARCH = {
    "--num-beams N": "hypotheses that are kept in each step",
    "--length-penalty X": "exponent of the length that scores are divided by",
    "--length-penalty-kind power|gnmt": "L**X or ((5 + L) / 6)**X",
    "--max-length N": "most tokens of a translation",
    "--max-length-ratio X": "tokens that each token of the source adds to that",
    "--min-length I": "fewest tokens of a translation",
    "--unk-penalty X": "taken from the log-probability of unknown tokens",
    "--temperature X": "divides the logits",
    "--no-repeat-ngram-size I": "no n-gram of this size occurs twice",
    "--num-groups N": "groups of a diverse beam search",
    "--diversity-strength X": "how much groups avoid each other's tokens",
    "--stopping first|optimal": "first is fairseq's",
}
_BATCHES = {
    "--tokens-per-batch N": "source tokens times beams of a batch (default 16384)",
    "--parallel-batches N": "batches decoded at the same time, each by its part of "
    "the cores and in its own memory (default: on a CPU the number of cores, at most "
    "8)",
    "--dtype NAME": "dtype or policy of the models, such as bfloat16",
}
# What goes without, and what only with --sample.
OF_BEAMS = ("num_beams", "num_groups", "diversity_strength", "stopping")
OF_SAMPLES = ("top_k", "top_p", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models = "a model directory or a run"
    parser.add_argument("model", nargs="+", metavar="MODEL", help=models)
    add_flags(parser, _FLAGS)
    parser.set_defaults(input="-", output="-", n_best=1, on_error="raise")
    add_shard_arguments(parser)
    add_search_arguments(parser)
    title = "draws, instead of a beam search"
    add_flags(parser.add_argument_group(title), _DRAWS)


def add_shard_arguments(parser: argparse.ArgumentParser) -> None:
    title = "one file, several processes or hosts"
    add_flags(parser.add_argument_group(title), _SHARDS)
    parser.set_defaults(num_shards=1)


def check_shards(options: argparse.Namespace, output: str | None, name: str) -> None:
    many = options.num_shards > 1
    mistakes = {
        "`shard` needs `num_shards` above 1.": options.shard is not None and not many,
        "`merge` needs `num_shards` above 1.": options.merge and not many,
        "`num_shards` needs `shard`, or `merge`, and not both.": (
            many and options.merge == (options.shard is not None)
        ),
        f"`num_shards` needs `{name}`, a file.": many and output in (None, "-"),
    }
    for mistake, made in mistakes.items():
        if made:
            raise ValueError(mistake)


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Languages, the options of the beam search, and of the batches."""
    for side, way in (("source", "from"), ("target", "into")):
        text = f"what is translated {way} (default: as the model was trained)"
        parser.add_argument(f"--{side}-language", metavar="xx", help=text)
    group = parser.add_argument_group("search")
    add_flags(group, SEARCH)
    group.add_argument(
        "--not-normalized",
        dest="normalize",
        action="store_false",
        default=None,
        help="do not divide scores by the length",
    )
    never = {"nargs": "+", "metavar": "ID", "help": "never chosen"}
    group.add_argument("--suppressed-ids", type=int, **never)
    add_flags(group, _BATCHES)
    text = "quantize the `Dense` layers of the models first, by Keras"
    group.add_argument("--quantize", choices=("int8",), help=text)


def search_options(options: argparse.Namespace, more: Iterable[str] = ()) -> dict:
    """What was given of the search, and of `more` options, by name."""
    names = [*names_of(SEARCH), "normalize", "suppressed_ids", *more]
    return given(options, names)


def load_translator(options: argparse.Namespace):
    """The model directories of the options as one; ValueError for language models."""
    from keras_seqconv.devices import share_cores
    from keras_seqconv.translation import load_ensemble
    from keras_seqconv.translation.text_model import default_parallel

    parallel = options.parallel_batches or default_parallel()
    # Before TensorFlow starts, which loading a model does.
    share_cores(parallel)
    translator = load_ensemble(options.model, options.dtype)
    if hasattr(translator, "tokenizer"):
        raise ValueError(
            f"{options.model[0]} is a language model, which has no source to translate:"
            " `keras-seqconv evaluate --text` tells its perplexity, "
            "`keras-seqconv generate` writes with it."
        )
    if options.quantize is not None:
        for model in getattr(translator.model, "models", [translator.model]):
            model.quantize(options.quantize)
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
    check_shards(options, options.output, "output")
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
    from keras_seqconv.translation.translate_files import merge_shards, translate_file

    dictionary = options.alignment_dictionary
    if dictionary is not None:
        dictionary = read_alignment_dictionary(dictionary)
    format = options.format
    if format is None:
        format = "tsv" if options.scores or options.n_best > 1 else "text"
        format = "jsonl" if options.attention else format
    if options.merge:
        merge_shards(options.output, options.num_shards, format)
        return 0
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
            shard=(options.shard or 0, options.num_shards),
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
