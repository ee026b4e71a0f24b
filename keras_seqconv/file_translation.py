"""Translating files and streams of any size: in bounded memory, to be resumed.

    window of lines -> sorted by length -> translated -> in their order -> written

Letters: L tokens of a translation, S source time.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import BinaryIO, NamedTuple, TextIO

from keras_seqconv.fingerprints import model_fingerprint, tokenizer_fingerprint
from keras_seqconv.support.arguments import check_choice, check_positive_integer
from keras_seqconv.support.files import locked, naming, remove_parts, write_file
from keras_seqconv.translator import Translation, Translator
from keras_seqconv.version import __version__

FORMATS = ("text", "tsv", "jsonl")
# A line with more bytes is no sentence: perhaps the file is no text.
_LONGEST_LINE = 1 << 24
# A window also ends after so many bytes.
_WINDOW_BYTES = 1 << 25
# Lines of similar length between two signs of progress.
_CHUNK = 1024
# What some programs take for the end of a line, besides "\n".
_BREAKS = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")


class Report(NamedTuple):
    """What `translate_file` did.

    Attributes:
        lines: of the input.
        resumed: how many of them an earlier run had translated.
        tokens: of the best translations of this run, their ends counted.
        seconds: of this run.
        cut: lines of this run that were longer than the model can take.
        first_cut: the number of the first of them, from 1, or None.
    """

    lines: int
    resumed: int
    tokens: int
    seconds: float
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
    After each window `OUTPUT.part.json` notes how far it is. A run that broke off in
    any way goes on from there with `resume`, if the model, the settings and the lines
    read so far are the same; it ends with the same file. Streams and devices are
    written to directly.

    Args:
        translator: with tokenizers.
        input: a file (`.gz`: compressed) or a binary stream.
        output: a file (`.gz`: compressed) that is made or replaced, or a binary stream.
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
    from keras_seqconv.file_translation import translate_file
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
    if attention:
        search = {**search, "return_attention": True}
    options = {
        "n_best": n_best,
        "replace_unknowns": replace_unknowns,
        "alignment_dictionary": alignment_dictionary,
        **search,
    }
    with contextlib.ExitStack() as stack:
        lines = _Lines(*stack.enter_context(_opened(input)), on_error)
        target = _Stream(output)
        if not hasattr(output, "write"):
            _check_not_input(input, output)
            settings = {"format": format, "window": window, "on_error": on_error}
            target = _target(
                output, resume, lambda: _settings(translator, settings | options)
            )
        elif resume:
            raise ValueError("`resume` needs an `output` that is a file.")
        stack.enter_context(target)
        run = _Run(translator, options, format, lines, _Progress(progress, lines.size))
        return run.all(target, window)


class _Run:
    """One pass over an input. A plain record with the loop over windows."""

    def __init__(self, translator, options, format, lines, progress):
        self.translator = translator
        self.options = dict(options)
        self.n_best = self.options.pop("n_best")
        self.format = format
        self.lines = lines
        self.progress = progress
        self.tokens = self.cut = 0
        self.first_cut = None

    def all(self, target, window: int) -> Report:
        start = monotonic()
        resumed = target.lines
        self.lines.skip(resumed, target.digest)
        self.progress.start(resumed, self.lines.bytes)
        while True:
            first = self.lines.count + 1
            texts, sizes = self.lines.window(window)
            if not texts:
                break
            results = self._translated(texts, sizes, first)
            content = "".join(
                _written(self.format, first + place, text, best, self.translator)
                for place, (text, best) in enumerate(zip(texts, results, strict=True))
            )
            target.write(content.encode(), self.lines)
        self.progress.end()
        target.finish()
        seconds = monotonic() - start
        return Report(
            self.lines.count, resumed, self.tokens, seconds, self.cut, self.first_cut
        )

    def _translated(self, texts, sizes, first) -> list[list[Translation]]:
        results: list = [None] * len(texts)
        # The longest first: what takes too much memory fails at once.
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        for start in range(0, len(order), _CHUNK):
            places = order[start : start + _CHUNK]
            found = self._translate([texts[place] for place in places])
            for place, best in zip(places, found, strict=True):
                results[place] = best
            self._note_cut([(first + place, texts[place]) for place in places])
            tokens = sum(len(best[0].positional_scores) for best in found if best)
            self.tokens += tokens
            self.progress.add(len(places), tokens, sum(sizes[p] for p in places))
        return results

    def _translate(self, texts):
        with warnings.catch_warnings():
            # It names the place among these texts, which says nothing to a reader;
            # the report names lines of the file.
            warnings.filterwarnings("ignore", message=".*were cut$")
            return self.translator.translate_n_best(texts, self.n_best, **self.options)

    def _note_cut(self, numbered):
        most = self.translator.max_source_length
        if most is None:
            return
        ids = self.translator.source_tokenizer.tokenize([text for _, text in numbered])
        for (number, _), row in zip(numbered, ids, strict=True):
            if len(row) > most:
                self.cut += 1
                self.first_cut = min(number, self.first_cut or number)


def _check_options(translator, n_best, format, attention, search):
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
        raise ValueError(
            "`n_best` must be at most `num_beams`. "
            f"Received: n_best={n_best}, num_beams={beams}"
        )
    if n_best > 1 and format == "text":
        raise ValueError(
            '`n_best` above 1 needs the `format` "tsv" or "jsonl". '
            f"Received: n_best={n_best}, format='text'"
        )
    if attention and format != "jsonl":
        raise ValueError(
            f'`attention` needs the `format` "jsonl". Received: format={format!r}'
        )


def _settings(translator, settings) -> dict:
    """All that the output depends on, besides the input."""
    return {
        "package": __version__,
        "model": model_fingerprint(translator.model),
        "source tokenizer": tokenizer_fingerprint(translator.source_tokenizer),
        "target tokenizer": tokenizer_fingerprint(translator.target_tokenizer),
        # As JSON has them. Of the dictionary, which may be long, a digest.
        **json.loads(json.dumps({**translator.search, **settings})),
        "alignment_dictionary": hashlib.sha256(
            json.dumps(settings["alignment_dictionary"]).encode()
        ).hexdigest(),
    }


# --- Input ---


@contextlib.contextmanager
def _opened(input) -> Iterator[tuple]:
    """A binary stream, its name, its size in bytes where that is known."""
    if hasattr(input, "read"):
        if isinstance(input, io.TextIOBase):
            raise ValueError(
                "`input` must be a binary stream, such as sys.stdin.buffer."
            )
        yield input, "the input", None
        return
    path = Path(input)
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be a file. It is a folder.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as stream:
            yield stream, str(path), None
        return
    with open(path, "rb") as stream:
        size = path.stat().st_size if path.is_file() else None
        yield stream, str(path), size


class _Lines:
    """The lines of a stream, counted, with a digest of all bytes so far."""

    def __init__(self, stream, name, size, on_error):
        self.stream = stream
        self.name = name
        self.size = size
        self.on_error = on_error
        self.count = 0
        self.bytes = 0
        self.digest = hashlib.sha256()

    def _raw(self) -> bytes:
        try:
            line = self.stream.readline(_LONGEST_LINE + 1)
        except (EOFError, zlib.error) as error:
            raise ValueError(
                f"{self.name} is damaged or cut off after line {self.count} ({error})"
            ) from error
        if len(line) > _LONGEST_LINE:
            raise ValueError(
                f"Each line of {self.name} must have at most {_LONGEST_LINE:,} bytes; "
                f"line {self.count + 1} has more. Is it a text?"
            )
        if line:
            self.count += 1
            self.bytes += len(line)
            self.digest.update(line)
        return line

    def skip(self, count: int, digest: str) -> None:
        """Passes lines that an earlier run has translated; ValueError if it did not."""
        while self.count < count and self._raw():
            pass
        if count and (self.count < count or self.digest.hexdigest() != digest):
            raise ValueError(
                f"The first {count:,} lines of {self.name} must be those of the run to "
                "`resume`, and are not: use its input, or remove its .part file."
            )

    def window(self, most: int) -> tuple[list[str], list[int]]:
        """The next lines as texts, and their sizes in bytes; none at the end."""
        texts, sizes, start = [], [], self.bytes
        while len(texts) < most and self.bytes - start < _WINDOW_BYTES:
            line = self._raw()
            if not line:
                break
            texts.append(self._text(line))
            sizes.append(len(line))
        return texts, sizes

    def _text(self, line: bytes) -> str:
        if self.count == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            if self.on_error == "replace":
                return line.decode(errors="replace")
            raise ValueError(
                f"{self.name} must be UTF-8; line {self.count} has the byte "
                f"0x{line[error.start]:02x} at position {error.start + 1} "
                '(`on_error` "replace" goes on).'
            ) from None


# --- Output ---


def _written(format, number, source, found, translator) -> str:
    if format == "text":
        return f"{_in_line(found[0].text) if found else ''}\n"
    if format == "tsv":
        return "".join(
            f"{number}\t{best.score:.6f}\t{_in_line(best.text).replace(chr(9), ' ')}\n"
            for best in found
        )
    record = {"line": number, "source": source}
    if any(best.attention is not None for best in found):
        width = found[0].attention.shape[1]
        tokens = translator.source_tokenizer.split(source)[: width - 1]
        record["source_tokens"] = [*tokens, "</s>"]
    record["translations"] = [_record(best) for best in found]
    return json.dumps(record, ensure_ascii=False) + "\n"


def _in_line(text: str) -> str:
    return text.translate(_BREAKS)


def _record(best: Translation) -> dict:
    record = {
        "text": best.text,
        "score": round(best.score, 6),
        "tokens": list(best.tokens),
        "positional_scores": _rounded(best.positional_scores),
    }
    if best.attention is not None:
        record["attention"] = [_rounded(row) for row in best.attention]
    return record


def _rounded(values) -> list[float]:
    return [round(float(value), 6) for value in values]


def _check_not_input(input, output):
    named = not hasattr(input, "read")
    if named and os.path.exists(output) and os.path.samefile(input, output):
        raise ValueError(
            f"`output` must not be the `input`. Received: {output} for both"
        )


def _target(output, resume: bool, settings):
    """What writes to a path; `settings` is called where they are needed."""
    path = Path(os.path.realpath(output))
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be a file. It is a folder.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} does not exist.")
    if not path.exists() or path.is_file():
        return _Part(path, resume, settings())
    if resume:
        raise ValueError(f"`resume` needs an `output` that is a file; {path} is none.")
    # A device or a pipe, which must not be replaced.
    return _Stream(open(path, "wb"), owned=True)  # noqa: SIM115


class _Stream:
    """Writes to a stream as it comes."""

    lines, digest = 0, ""

    def __init__(self, stream, owned: bool = False):
        self.stream = stream
        self.owned = owned
        self.name = str(getattr(stream, "name", "the output"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.owned:
            with naming(self.name):
                self.stream.close()

    def write(self, content: bytes, lines: _Lines) -> None:
        with naming(self.name):
            self.stream.write(content)
            self.stream.flush()

    def finish(self) -> None:
        pass


class _Part:
    """Writes to `path.part`, with a note beside it of how far that is.

    The note is replaced after the content has reached the disk; what a killed run wrote
    behind the noted size is cut off.
    """

    def __init__(self, path: Path, resume: bool, settings: dict):
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        self.note = path.with_name(f"{path.name}.part.json")
        self.compressed = path.suffix == ".gz"
        self.resume = resume
        self.state = {"settings": settings, "lines": 0, "bytes": 0, "input_sha256": ""}

    @property
    def lines(self) -> int:
        """Lines of the input that are translated already."""
        return self.state["lines"]

    @property
    def digest(self) -> str:
        """Of these lines."""
        return self.state["input_sha256"]

    def _earlier(self) -> dict | None:
        """The state of an earlier run that got somewhere."""
        if not (self.note.exists() and self.part.stat().st_size):
            return None
        try:
            state = json.loads(self.note.read_bytes())
            lines, size = state["lines"], state["bytes"]
            known = set(state) == set(self.state) and self.part.stat().st_size >= size
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise ValueError(
                f"{self.note} and {self.part} do not fit each other; remove them to "
                "start anew."
            )
        return state if lines else None

    def _check_same(self, earlier: dict, settings: dict):
        names = sorted(
            name
            for name in {*earlier, *settings}
            if earlier.get(name) != settings.get(name)
        )
        if names:
            raise ValueError(
                "The run to `resume` must have the same settings; those of "
                f"{self.part} differ in: {', '.join(names)}. Use them, or remove it."
            )

    def __enter__(self):
        taken = f"{self.part} is being written by another process: choose another file."
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(f"{self.part}.lock", taken))
            self.stream = stack.enter_context(open(self.part, "ab"))
            remove_parts(self.part.parent, re.escape(self.note.name))
            self._go_on(self._earlier())
            self.stream.truncate(self.state["bytes"])
            self._held = stack.pop_all()
        return self

    def _go_on(self, earlier: dict | None):
        if earlier is not None and not self.resume:
            raise ValueError(
                f"{self.part} holds {earlier['lines']:,} translated lines of a run "
                "that broke off: `resume` goes on with it; remove it to start anew."
            )
        if earlier is not None:
            self._check_same(earlier["settings"], self.state["settings"])
            self.state = earlier

    def __exit__(self, *_):
        if not self.lines:  # nothing to go on with
            self.part.unlink(missing_ok=True)
            self.note.unlink(missing_ok=True)
        with self._held, naming(self.part):
            self.stream.close()

    def write(self, content: bytes, lines: _Lines) -> None:
        self._append(content)
        self.state = {
            **self.state,
            "lines": lines.count,
            "bytes": self.stream.tell(),
            "input_sha256": lines.digest.hexdigest(),
        }
        write_file(self.note, json.dumps(self.state, indent=1).encode())

    def _append(self, content: bytes):
        if self.compressed:
            # Members one after the other are a valid file, and can be cut apart.
            content = gzip.compress(content, mtime=0)
        with naming(self.part):
            self.stream.write(content)
            self.stream.flush()
            os.fsync(self.stream.fileno())

    def finish(self) -> None:
        if not self.lines:
            self._append(b"")
        os.replace(self.part, self.path)
        self.note.unlink(missing_ok=True)


# --- Progress ---


class _Progress:
    """Lines done, speed and time left: over one line of a terminal, else every 10 s."""

    def __init__(self, stream: TextIO | None, total_bytes: int | None):
        self.stream = stream
        self.total = total_bytes
        self.terminal = stream is not None and stream.isatty()
        self.every = 0.2 if self.terminal else 10.0
        self.lines = self.new_lines = self.tokens = self.bytes = 0

    def start(self, lines: int, bytes_done: int) -> None:
        self.begin = self.shown = monotonic()
        self.lines, self.bytes, self.first_byte = lines, bytes_done, bytes_done
        if lines and self.stream is not None:
            print(f"resuming after {lines:,} lines", file=self.stream, flush=True)

    def add(self, lines: int, tokens: int, size: int) -> None:
        self.lines += lines
        self.new_lines += lines
        self.tokens += tokens
        self.bytes += size
        if self.stream is not None and monotonic() - self.shown >= self.every:
            self._show()

    def end(self) -> None:
        if self.stream is not None:
            self._show()
            if self.terminal:
                print(file=self.stream, flush=True)

    def _show(self):
        self.shown = monotonic()
        line = self._line(max(1e-9, self.shown - self.begin))
        if self.terminal:
            print(f"\r\x1b[K{line}", end="", file=self.stream, flush=True)
        else:
            print(line, file=self.stream, flush=True)

    def _line(self, seconds: float) -> str:
        parts = [
            f"{self.lines:,} lines",
            f"{self.new_lines / seconds:.1f} sentences/s",
            f"{self.tokens / seconds:,.0f} tokens/s",
        ]
        done = self.bytes - self.first_byte
        if self.total and done:
            left = seconds * max(0, self.total - self.bytes) / done
            minutes, rest = divmod(round(left), 60)
            hours, minutes = divmod(minutes, 60)
            clock = (
                f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
            )
            parts += [f"{100 * self.bytes / self.total:.0f} %", f"{clock} left"]
        return ", ".join(parts)


def iterate_lines(path: str | os.PathLike, on_error: str = "raise") -> Iterator[str]:
    """The lines of a file as `translate_file` reads them, some thousands at a time.

    Raises:
        ValueError: a line is not UTF-8, or is too long.
        OSError: the file cannot be read.
    """
    with _opened(path) as opened:
        lines = _Lines(*opened, on_error)
        while texts := lines.window(10_000)[0]:
            yield from texts


def read_lines(path: str | os.PathLike, on_error: str = "raise") -> list[str]:
    """All lines of a file; see `iterate_lines`."""
    return list(iterate_lines(path, on_error))
