"""Translating files and streams of any size: window by window, to be resumed.

    window of lines -> sorted by length -> translated -> in their order -> written

Letters: L tokens of a translation, S source time.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from keras_seqconv.fingerprints import model_fingerprint, tokenizer_fingerprint
from keras_seqconv.support.arguments import check_choice, check_positive_integer
from keras_seqconv.support.files import (
    atomic_file,
    locked,
    naming,
    read_json,
    write_json,
)
from keras_seqconv.support.lines import LineReader, open_lines
from keras_seqconv.support.progress import Progress, clock
from keras_seqconv.translator import Translation, Translator
from keras_seqconv.version import __version__

FORMATS = ("text", "tsv", "jsonl")
# Lines of similar length between two signs of progress.
_CHUNK = 1024
# What some programs take for the end of a line, besides "\n".
_BREAKS = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")


@dataclasses.dataclass
class Report:
    """What `translate_file` did.

    Attributes:
        lines: of the input.
        resumed: how many of them an earlier run had translated.
        tokens: of the best translations of this run, their ends counted.
        seconds: of this run.
        cut: lines of this run that were longer than the model can take.
        first_cut: the number of the first of them, from 1, or None.
    """

    lines: int = 0
    resumed: int = 0
    tokens: int = 0
    seconds: float = 0.0
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
    replace_unknowns: bool = False,
    alignment_dictionary: Mapping[str, str] | None = None,
    progress: TextIO | None = None,
    **search,
) -> Report:
    r"""Translates every line of a file or stream, in order.

    A line ends with "\n" alone; a "\r" before it and a byte order mark at the start are
    dropped. Empty lines stay empty. Translations hold no line breaks and, in "tsv", no
    tabs: there are blanks instead. Output formats, UTF-8:

    | format  | content                                                               |
    |---------|-----------------------------------------------------------------------|
    | "text"  | one line for each line of the input                                   |
    | "tsv"   | number of the input line from 1, score, text; `n_best` lines for each |
    |         | (fewer where the search found fewer), best first                      |
    | "jsonl" | an object for each line: `line`, `source`, `translations`: a list of  |
    |         | `text`, `score`, `tokens`, `positional_scores`; with `attention` also |
    |         | `attention` (L rows of S numbers) and, beside `source`, `source_tokens`|

    An output file is written as `OUTPUT.part` and gets its name when it is complete.
    A run that broke off in any way goes on behind the last whole window of it with
    `resume`, and ends with the same file, if model, settings and the input are those
    that `OUTPUT.part.json` tells of; that an input that is no file is the same, is left
    to the caller. Streams and devices are written to directly.

    Args:
        translator: with tokenizers.
        input: a file (compressed ones, too) or a binary stream.
        output: a file (`.gz`: compressed at the end) that is made or replaced, or a
            binary stream.
        n_best: translations of each line; more than one needs "tsv" or "jsonl".
        format: see above.
        attention: write it; needs "jsonl".
        window: lines that are read, sorted by length and kept in memory at once.
            Larger is faster, and later with the first line.
        resume: go on with what an earlier run left, if there is something.
        on_error: what to do where the input is not UTF-8: "raise", or "replace" what is
            wrong by U+FFFD.
        replace_unknowns, alignment_dictionary, **search: see
            `Translator.translate_n_best`.
        progress: a stream for lines done, speed and time left, such as `sys.stderr`.

    Raises:
        ValueError: for wrong options; a line that is not UTF-8 or has more than 16 MiB,
            named by its number; an earlier run that differs; one that broke off when
            `resume` was not asked for; or one that writes the same output now.
        OSError: a file cannot be read or written.

    Example:

    ```python
    import io
    from keras_seqconv.translate_files import translate_file
    from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer
    tokenizer = DictionaryTokenizer(Dictionary([("ein", 9), ("Hund", 3)]))
    model = keras_seqconv.models.EncoderDecoder(
        6, 6, hidden_dim=8, intermediate_dim=8, num_heads=2,
        num_encoder_layers=1, num_decoder_layers=1,
    )
    translator = keras_seqconv.Translator(model, tokenizer, tokenizer)
    output = io.BytesIO()
    report = translate_file(
        translator, io.BytesIO(b"ein Hund\n\nHund\n"), output, max_length=5
    )
    assert report.lines == output.getvalue().count(b"\n") == 3
    ```
    """
    _check_options(translator, n_best, format, attention, search)
    check_positive_integer("window", window)
    check_choice("on_error", on_error, ("raise", "replace"))
    options = {
        "replace_unknowns": replace_unknowns,
        "alignment_dictionary": alignment_dictionary,
        **search,
    }
    if attention:
        options["return_attention"] = True
    if isinstance(input, io.TextIOBase):
        raise ValueError("`input` must be a binary stream, such as sys.stdin.buffer.")
    state = _state(input)
    layout = {"n_best": n_best, "format": format, "window": window}
    settings = {"input": state, "on_error": on_error, **layout, **options}
    with contextlib.ExitStack() as stack:
        if hasattr(input, "read"):
            lines = LineReader(input, on_error=on_error)
        else:
            lines = stack.enter_context(open_lines(input, on_error))
            named = not hasattr(output, "write")
            if named and os.path.exists(output) and os.path.samefile(input, output):
                raise ValueError(
                    f"`output` must not be the `input`. Received: {output} for both"
                )
        write, done = stack.enter_context(
            _opened(output, resume, lambda: _all_settings(translator, settings))
        )
        for _ in islice(lines, done):
            pass
        if done and progress is not None:
            print(f"resuming after {done:,} lines", file=progress, flush=True)
        packed = str(input).endswith((".gz", ".bz2", ".xz"))
        size = state["size"] if state and not packed else None
        run = _Run(translator, n_best, options, lines, size, progress)
        while texts := list(islice(lines, window)):
            first, results = lines.count - len(texts) + 1, run.translated(texts)
            content = "".join(
                _record(format, first + place, text, best, translator)
                for place, (text, best) in enumerate(zip(texts, results, strict=True))
            )
            write(content.encode())
        return run.end()


class _Run:
    """Translates windows of lines, counts and tells of it."""

    def __init__(self, translator, n_best, options, lines, size, stream):
        self.translator, self.n_best, self.options = translator, n_best, options
        self.lines, self.size = lines, size
        self.report = Report(lines.count, lines.count)
        self.bytes = self.first_byte = lines.bytes
        self.progress = Progress(stream)

    def translated(self, texts: list[str]) -> list[list[Translation]]:
        report, translator = self.report, self.translator
        results: list = [None] * len(texts)
        first, most = self.lines.count - len(texts) + 1, translator.max_source_length
        # The longest first: what takes too much memory fails at once.
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        for start in range(0, len(order), _CHUNK):
            places = order[start : start + _CHUNK]
            chunk = [texts[place] for place in places]
            with warnings.catch_warnings():
                # It names the place among these texts, which says nothing to a reader;
                # the report names lines of the file.
                warnings.filterwarnings("ignore", message=".*were cut$")
                found = translator.translate_n_best(chunk, self.n_best, **self.options)
            for place, best in zip(places, found, strict=True):
                results[place] = best
                report.tokens += len(best[0].positional_scores) if best else 0
            rows = [] if most is None else translator.source_tokenizer.tokenize(chunk)
            for place, ids in zip(places, rows, strict=False):
                if len(ids) > most:
                    report.cut += 1
                    number = first + place
                    report.first_cut = min(number, report.first_cut or number)
            report.lines += len(chunk)
            self.bytes += sum(len(text.encode()) + 1 for text in chunk)
            self.progress.update(self._status)
        return results

    def end(self) -> Report:
        self.bytes = self.lines.bytes
        self.progress.end(self._status)
        self.report.seconds = self.progress.seconds
        return self.report

    def _status(self) -> str:
        seconds, report = self.progress.seconds, self.report
        parts = [
            f"{report.lines:,} lines",
            f"{(report.lines - report.resumed) / seconds:.1f} sentences/s",
            f"{report.tokens / seconds:,.0f} tokens/s",
        ]
        done = self.bytes - self.first_byte
        if self.size and done:
            left = seconds * max(0, self.size - self.bytes) / done
            parts += [f"{100 * self.bytes / self.size:.0f} %", f"{clock(left)} left"]
        return ", ".join(parts)


def _check_options(translator, n_best, format, attention, search) -> None:
    if not isinstance(translator, Translator):
        raise ValueError(
            "`translator` must be a Translator; a language model has no source to "
            "translate: see LanguageGenerator.generate. "
            f"Received: {type(translator).__name__}"
        )
    check_choice("format", format, FORMATS)
    check_positive_integer("n_best", n_best)
    beams = search.get("num_beams") or translator.search["num_beams"]
    if isinstance(beams, int) and n_best > beams:
        rule = "`n_best` must be at most `num_beams`"
        raise ValueError(f"{rule}. Received: n_best={n_best}, num_beams={beams}")
    for name, needed, known in (
        ("`n_best` above 1", n_best > 1, FORMATS[1:]),
        ("`attention`", attention, FORMATS[2:]),
    ):
        if needed and format not in known:
            known = " or ".join(f'"{other}"' for other in known)
            raise ValueError(f"{name} needs the `format` {known}. Received: {format!r}")


# --- Lines of the output ---


def _record(format, number, source, found, translator) -> str:
    texts = [best.text.translate(_BREAKS) for best in found]
    if format == "text":
        return f"{texts[0] if texts else ''}\n"
    if format == "tsv":
        return "".join(
            f"{number}\t{best.score:.6f}\t{text.replace(chr(9), ' ')}\n"
            for best, text in zip(found, texts, strict=True)
        )
    record = {"line": number, "source": source}
    if found and found[0].attention is not None:
        tokens = translator.source_tokenizer.split(source)
        record["source_tokens"] = [*tokens[: found[0].attention.shape[1] - 1], "</s>"]
    record["translations"] = translations = []
    for best in found:
        translation = {
            "text": best.text,
            "score": round(best.score, 6),
            "tokens": list(best.tokens),
            "positional_scores": _rounded(best.positional_scores),
        }
        if best.attention is not None:
            translation["attention"] = [*map(_rounded, best.attention)]
        translations.append(translation)
    return json.dumps(record, ensure_ascii=False) + "\n"


def _rounded(values) -> list[float]:
    return [round(float(value), 6) for value in values]


# --- Files ---


def _state(input) -> dict | None:
    """By what an input that is a file is known again; None for a stream."""
    try:
        status = os.stat(input.fileno() if hasattr(input, "read") else input)
    except (AttributeError, io.UnsupportedOperation):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return {"size": status.st_size, "modified": status.st_mtime_ns}


def _all_settings(translator, settings) -> dict:
    """All that the output depends on, as JSON has it."""
    dictionary = json.dumps(settings["alignment_dictionary"])  # may be long
    return {
        "package": __version__,
        "model": model_fingerprint(translator.model),
        "source tokenizer": tokenizer_fingerprint(translator.source_tokenizer),
        "target tokenizer": tokenizer_fingerprint(translator.target_tokenizer),
        **json.loads(json.dumps({**translator.search, **settings})),
        "alignment_dictionary": hashlib.sha256(dictionary.encode()).hexdigest(),
    }


@contextlib.contextmanager
def _opened(output, resume: bool, settings: Callable) -> Iterator[tuple[Callable, int]]:
    """What writes to the output, and how many lines are translated already."""
    if hasattr(output, "write"):
        if resume:
            raise ValueError("`resume` needs an `output` that is a file.")
        yield partial(_write, output), 0
        return
    path = Path(os.path.realpath(output))
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be a file. It is a folder.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} does not exist.")
    if path.exists() and not path.is_file():
        # A device or a pipe, which must not be replaced.
        if resume:
            raise ValueError(
                f"`resume` needs an `output` that is a file; {path} is none."
            )
        with open(path, "wb", buffering=0) as stream:
            yield partial(_write, stream), 0
        return
    part = path.with_name(f"{path.name}.part")
    taken = f"{part} is being written by another process: choose another file."
    with locked(path.with_name(f".{path.name}.lock"), taken):
        yield from _part(path, part, resume, settings())


def _part(path: Path, part: Path, resume: bool, settings: dict) -> Iterator:
    """As `_opened`, of a file that is complete when it gets its name."""
    note = path.with_name(f"{part.name}.json")
    done, size = _earlier(part, note, resume, settings)
    with open(part, "ab", buffering=0) as stream:
        try:
            stream.truncate(size)  # before the note, which vouches for what is there
            write_json(note, settings)
            yield partial(_write, stream, sync=True), done
        except BaseException:
            if not _whole_windows(part, settings)[0]:  # nothing to go on with
                part.unlink()
                note.unlink(missing_ok=True)
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
    note.unlink()


def _earlier(part, note, resume, settings) -> tuple[int, int]:
    """Lines of the input that an earlier run has translated, and bytes of these."""
    if not (note.exists() and part.exists() and part.stat().st_size):
        return 0, 0
    if not resume:
        raise ValueError(
            f"{part} holds lines of a run that broke off: `resume` goes on with it; "
            "remove it to start anew."
        )
    known = read_json(note)
    names = sorted(
        name for name in {*known, *settings} if known.get(name) != settings.get(name)
    )
    if names:
        raise ValueError(
            "The run to `resume` must have the same input and settings; those of "
            f"{part} differ in: {', '.join(names)}. Use them, or remove it."
        )
    return _whole_windows(part, settings)


def _whole_windows(part: Path, settings: dict) -> tuple[int, int]:
    """Lines of the input in the windows that `part` has all of, and their bytes.

    Windows, so that the rest is computed in the batches it would have been in.
    """
    ends, position, number, rows = {0: 0}, 0, 0, 0
    with open(part, "rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                break
            position += len(line)
            last, number = number, number + 1
            if settings["format"] == "tsv":
                number = int(line.partition(b"\t")[0])
            rows = rows + 1 if number == last else 1
            if number % settings["window"] == 0:
                ends[number] = position
    if settings["format"] == "tsv" and rows < settings["n_best"]:
        number -= 1  # perhaps more of its rows were to come
    done = max(end for end in ends if end <= number or not end)
    return done, ends[done]


def _write(stream: BinaryIO, content: bytes, sync: bool = False) -> None:
    with naming(str(getattr(stream, "name", "the output"))):
        while content:  # a file without a buffer may take a part of it
            written = stream.write(content)
            content = b"" if written is None else content[written:]
        stream.flush()
        if sync:
            os.fsync(stream.fileno())
