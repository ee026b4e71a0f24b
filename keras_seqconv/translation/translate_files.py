"""Translate files and streams of any size, window by window, resumably."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np

from keras_seqconv.support import ProgressLine, clock
from keras_seqconv.support.arguments import check_choice, check_integer
from keras_seqconv.support.files import (
    atomic_file,
    check_output,
    iterate_lines,
    locked,
    naming,
    naming_file,
    read_json,
    remove_parts,
    write_json,
)
from keras_seqconv.translation.model_directory import tokenizer_fingerprint
from keras_seqconv.translation.text_model import UnknownTokens
from keras_seqconv.translation.translator import (
    Translation,
    TranslationOptions,
    Translator,
)
from keras_seqconv.version import __version__

# Ends of lines, besides "\n", and of texts to some programs; corpora refuse the last.
BREAKS = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0"), " ")

# Ends of lines to some readers that JSON has unescaped inside of texts.
_ESCAPED = {number: f"\\u{number:04x}" for number in (0x85, 0x2028, 0x2029)}


@dataclasses.dataclass
class Report:
    """Result of `translate_file`.

    Attributes:
        lines: number of input lines.
        resumed: number of lines that an earlier run translated.
        tokens: tokens of this run's best translations, with end tokens.
        cut: number of lines of this run that the model's limit cut.
        first_cut: number of the first cut line, from 1, or None.
    """

    lines: int = 0
    resumed: int = 0
    tokens: int = 0
    cut: int = 0
    first_cut: int | None = None


def translate_file(
    translator: Translator,
    input: str | os.PathLike | BinaryIO,
    output: str | os.PathLike | BinaryIO,
    *,
    n_best: int = 1,
    format: str = "text",
    attention: bool = False,
    window: int = 10_000,
    resume: bool = False,
    on_error: str = "raise",
    progress: TextIO | None = None,
    **options,
) -> Report:
    r"""Translates every line of a file or stream, in order.

    A line ends with "\n" alone; a "\r" before it and a byte order mark at the start are
    dropped. Empty lines stay empty. A warning at the end says how many source tokens
    were unknown. Translations hold no line breaks and, in "tsv", no
    tabs: there are blanks instead. Output formats, UTF-8 (L tokens, S source time):

    | format  | content                                                               |
    |---------|-----------------------------------------------------------------------|
    | "text"  | one line for each line of the input                                   |
    | "tsv"   | number of the input line from 1, score, text; `n_best` lines for each |
    |         | (fewer where the search found fewer), best first                      |
    | "jsonl" | an object for each line: `line`, `source`, `translations`: a list of  |
    |         | `text`, `score`, `tokens`, `positional_scores`; with `attention` also |
    |         | `attention` (L rows of S numbers) and, beside `source`, `source_tokens`|

    An output file is written as `OUTPUT.part` and gets its name when it is complete.
    With `resume`, an interrupted run continues after its last window and ends with the
    same file, if model, settings and input equal those in `OUTPUT.part.json`. The
    caller must pass the same input again if it is no file. Streams and devices are
    written directly.

    Args:
        translator: translator with tokenizers.
        input: file, also compressed, or binary stream.
        output: file to make or replace (`.gz`: compressed at the end), or binary
            stream.
        n_best: translations of each line; more than one needs "tsv" or "jsonl".
        format: see above.
        attention: whether to write the attention; needs "jsonl".
        window: lines in memory, sorted by length. A larger window has a higher
            throughput and a later first line.
        resume: whether to continue an earlier run, if there is one.
        on_error: "raise" for input that is not UTF-8, or "replace" invalid bytes by
            U+FFFD.
        progress: stream for number of lines, speed and time left, or None.
        **options: options of `Translator.translate_n_best`. With `sample`, the draws
            of a line depend on `seed` and the line's number.

    Raises:
        ValueError: an option breaks its rule; a line, named by its number, is not UTF-8
            or has more than 16 MiB; an earlier run differs, or is incomplete without
            `resume`; or another run writes the same output.
        OSError: a file cannot be read or written.
    """
    check_choice("format", format, ("text", "tsv", "jsonl"))
    check_choice("on_error", on_error, ("raise", "replace"))
    check_integer("window", window, 1)
    if n_best > 1 and format == "text":
        raise ValueError('`n_best` above 1 needs the `format` "tsv" or "jsonl".')
    if attention and format != "jsonl":
        raise ValueError('`attention` needs the `format` "jsonl".')
    files = not (hasattr(input, "read") or hasattr(output, "write"))
    if files and os.path.exists(output) and os.path.samefile(input, output):
        raise ValueError(f"`output` must not be the `input`. Received: {output}")
    options = translator.translation_options(
        n_best, return_attention=attention, **options
    )
    state, lines = _state(input), iterate_lines(input, on_error)
    settings = {"format": format, "window": window, "input": state}
    settings = functools.partial(
        _settings, translator, options, on_error=on_error, **settings
    )
    with _opened(output, resume, settings) as (write, done):
        packed = str(input).endswith((".gz", ".bz2", ".xz"))
        size = state["size"] if state and not packed else None
        run = _Run(translator, options, format, Report(done, done), progress, size)
        run.first_byte = run.position = sum(map(_bytes, islice(lines, done)))
        if done and progress is not None:
            print(f"resuming after {done:,} lines", file=progress, flush=True)
        while texts := list(islice(lines, window)):
            records = run.records(texts)
            write("".join(records).encode(), run.report.lines)
        run.position = size  # also where lines end with two bytes
        run.shown.end(run.status)
        run.unknown.tell(stacklevel=3)
        return run.report


class _Run:
    """Translates windows of lines, and counts what is done.

    `position` is the byte of the input after the last line that was translated, and
    `first_byte` the one at the start; `size` is None where it is unknown.
    """

    def __init__(self, translator, options, format, report, progress, size):
        self.translator, self.options, self.format = translator, options, format
        self.report, self.shown, self.size = report, ProgressLine(progress), size
        self.unknown = UnknownTokens(translator.source_tokenizer)
        self.first_byte = self.position = 0

    def records(self, texts: list[str]) -> list[str]:
        """The lines of the output for the next lines of the input."""
        records, report = [""] * len(texts), self.report
        first = 1 + report.lines
        for index, n_best, ids, cut in self.translator.each_n_best(
            texts, self.options, first
        ):
            text, number = texts[index], first + index
            attention = self.options.return_attention
            records[index] = _record(
                self.format, number, text, n_best, self.translator, attention
            )
            report.lines += 1
            report.tokens += len(n_best[0].positional_scores) if n_best else 0
            if cut:
                report.cut += 1
                report.first_cut = min(number, report.first_cut or number)
            self.unknown.count([ids], [text])
            self.position += _bytes(text)
            self.shown.update(self.status)
        return records

    def status(self) -> str:
        """The line of progress."""
        report, seconds = self.report, self.shown.seconds
        parts = [
            f"{report.lines:,} lines",
            f"{(report.lines - report.resumed) / seconds:.1f} sentences/s",
            f"{report.tokens / seconds:,.0f} tokens/s",
        ]
        if self.size and self.position > self.first_byte:
            done = self.position - self.first_byte
            left = seconds * max(0, self.size - self.position) / done
            share = 100 * min(self.position, self.size) / self.size
            parts += [f"{share:.0f} %", f"{clock(left)} left"]
        return ", ".join(parts)


def _bytes(line: str) -> int:
    """Bytes of a line of the input; U+FFFD is one byte that was not UTF-8."""
    return len(line.encode()) - 2 * line.count("\ufffd") + 1


def _record(
    format, number, source, n_best: list[Translation], translator, attention: bool
) -> str:
    """The translations of a line as lines of the output."""
    texts = [best.text.translate(BREAKS) for best in n_best]
    if format == "text":
        return f"{texts[0] if texts else ''}\n"
    if format == "tsv":
        return "".join(
            f"{number}\t{best.score:.6f}\t{text.replace(chr(9), ' ')}\n"
            for best, text in zip(n_best, texts, strict=True)
        )
    record = {"line": number, "source": source}
    if attention:  # of a text without a token there is none
        best, tokens = n_best and n_best[0].attention, []
        if best is not None and len(best):
            tokens = translator.source_tokenizer.split(source)[: best.shape[1] - 1]
        record["source_tokens"] = [*tokens, "</s>"]
    record["translations"] = translations = []
    for best in n_best:
        translation = {
            "text": best.text,
            "score": round(best.score, 6),
            "tokens": best.tokens,
            "positional_scores": _rounded(best.positional_scores),
        }
        if attention:
            rows = () if best.attention is None else best.attention
            translation["attention"] = [*map(_rounded, rows)]
        translations.append(translation)
    return json.dumps(record, ensure_ascii=False).translate(_ESCAPED) + "\n"


def _rounded(values) -> list[float]:
    return [round(float(value), 6) for value in values]


# --- Files ---


def _state(input) -> dict | None:
    """Size and time by which a file is recognized; None for a stream."""
    with contextlib.suppress(AttributeError, io.UnsupportedOperation):
        status = os.stat(input.fileno() if hasattr(input, "read") else input)
        if stat.S_ISREG(status.st_mode):
            return {"size": status.st_size, "modified": status.st_mtime_ns}
    return None


def _settings(translator: Translator, options: TranslationOptions, **settings) -> dict:
    """Everything that the output depends on, as JSON has it."""
    model, of_keras = translator.model, translator.is_of_keras
    options = dataclasses.asdict(options)
    dictionary = json.dumps(options["alignment_dictionary"])  # may be long
    settings = {
        "package": __version__,
        "model": _model_digest(model) if of_keras else model.digest,
        "runtime": "keras" if of_keras else "onnx",
        "source tokenizer": tokenizer_fingerprint(translator.source_tokenizer),
        "max_source_length": translator.max_source_length,
        "target tokenizer": tokenizer_fingerprint(translator.target_tokenizer),
        **options.pop("search"),
        **options,
        "alignment_dictionary": hashlib.sha256(dictionary.encode()).hexdigest(),
        **settings,
    }
    return json.loads(json.dumps(settings))


def _model_digest(model) -> str:
    """SHA-256 of the configuration and the weights of a model of Keras."""
    model_hash = hashlib.sha256()
    for member in getattr(model, "models", [model]):
        arguments = {**member.get_config(), "name": None}
        model_hash.update(json.dumps(arguments, sort_keys=True).encode())
        for weight in member.weights:
            array = np.asarray(weight)
            model_hash.update(
                f"{array.shape} {array.dtype}\n".encode() + array.tobytes()
            )
    return model_hash.hexdigest()


@contextlib.contextmanager
def _opened(
    output, resume: bool, settings: Callable[[], dict]
) -> Iterator[tuple[Callable, int]]:
    """A function that writes a window (bytes, lines so far), and lines done before."""
    is_stream = hasattr(output, "write")
    if not is_stream and (os.path.isfile(output) or not os.path.exists(output)):
        check_output(output)
        path = Path(os.path.realpath(output))
        with _resumable(path, resume, settings) as opened:
            yield opened
        return
    if resume:
        raise ValueError("`resume` needs an `output` that is a file.")
    with contextlib.ExitStack() as stack:
        if not is_stream:  # a device or a pipe, which must not be replaced
            output = stack.enter_context(open(output, "wb", 0))
        yield lambda content, lines: _write(output, content), 0


@contextlib.contextmanager
def _resumable(path: Path, resume: bool, settings: Callable) -> Iterator[tuple]:
    """Writes `PATH.part`, which becomes `path`, and notes its state in `.part.json`."""
    part, note = (path.with_name(path.name + end) for end in (".part", ".part.json"))
    taken = f"{part} is being written by another process: choose another file."
    with locked(path.with_name(f".{path.name}.lock"), taken):
        remove_parts(path.parent, rf"{re.escape(path.name)}(\.part\.json)?")
        settings = settings()
        done, size = _earlier(part, note, resume, settings)
        with open(part, "ab", buffering=0) as stream:
            stream.truncate(size)

            def write(content: bytes, lines: int):
                _write(stream, content)
                os.fsync(stream.fileno())
                position = {"lines": lines, "bytes": os.stat(part).st_size}
                write_json(note, {**position, "settings": settings})

            try:
                yield write, done
            except BaseException:
                if not note.exists():  # nothing to go on with
                    part.unlink()
                raise
        if path.suffix == ".gz":
            with (
                open(part, "rb") as plain,
                atomic_file(path) as new,
                gzip.open(new, "wb") as packed,
            ):
                shutil.copyfileobj(plain, packed)
            part.unlink()
        else:
            os.replace(part, path)
        note.unlink(missing_ok=True)


def _earlier(part, note, resume, settings) -> tuple[int, int]:
    """Lines of the input that an earlier run has translated, and bytes of these."""
    lines = size = 0
    if note.exists() and part.exists():
        state = read_json(note, lines=int, bytes=int, settings=dict)
        with naming_file(note, "is damaged: remove it to start anew"):
            lines, size, before = state["lines"], state["bytes"], state["settings"]
    if size <= 0 or os.stat(part).st_size < size:
        note.unlink(missing_ok=True)
        return 0, 0
    if not resume:
        raise ValueError(
            f"{part} holds lines of a run that broke off: `resume` goes on with it; "
            "remove it to start anew."
        )
    names = sorted(
        name for name in {*before, *settings} if before.get(name) != settings.get(name)
    )
    if names:
        raise ValueError(
            "The run to `resume` must have the same input and settings; those of "
            f"{part} differ in: {', '.join(names)}. Use them, or remove it."
        )
    return lines, size


def _write(stream: BinaryIO, content: bytes) -> None:
    with naming(str(getattr(stream, "name", "the output"))):
        while content:  # a file without a buffer may take a part of it
            written = stream.write(content)
            if written is None and isinstance(stream, io.RawIOBase):
                raise BlockingIOError("must block until there is space for a write")
            content = b"" if written is None else content[written:]
        stream.flush()
