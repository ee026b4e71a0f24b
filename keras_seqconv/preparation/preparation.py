"""Runs a recipe: cleans each part, learns the merges, writes the folder of a corpus."""

import contextlib
import dataclasses
import importlib.metadata
import os
import shutil
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

from keras_seqconv.preparation.byte_pairs import (
    Pieces,
    read_counts,
    read_lines,
    write_counts,
)
from keras_seqconv.preparation.cleaning import Rule
from keras_seqconv.preparation.files import describe, find, lines
from keras_seqconv.preparation.reading import read_pairs
from keras_seqconv.preparation.recipes import Located, Recipe, locate
from keras_seqconv.preparation.stages import Stages, workplace
from keras_seqconv.preparation.text import remove_nonprinting
from keras_seqconv.preparation.workers import applied
from keras_seqconv.support.arguments import check_boolean, check_positive_integer
from keras_seqconv.support.extras import require
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer, train_tokenizers
from keras_seqconv.tokenizers.byte_pairs import learn_codes

REPORT = "preparation.json"
SPLITS = ("train", "valid", "test")
_FORMAT_VERSION = 1
_SECONDS_BETWEEN_LINES = 10.0
_DOUBLE = "double of an earlier pair"
_AFTER = ", after byte pairs"
_PACKAGES = ("sacremoses", "subword-nmt", "sentencepiece")


def prepare(
    recipe: Recipe,
    data: str | os.PathLike,
    output: str | os.PathLike,
    *,
    tokenized: bool = False,
    workers: int = 1,
    log: Callable[[str], None] | None = None,
) -> dict:
    """Makes the folder of a corpus that `keras-seqconv train --dataset` takes.

    It holds `train.xx`, `valid.xx` and `test.xx` of both languages, the tokenizers in
    `tokenizers/source` and `tokenizers/target`, and `preparation.json`: recipe,
    counts of every filter, versions, inputs and outputs with their SHA-256.

    The files hold text as it was, so that a model takes and gives plain text: markup
    is gone, and so are the pairs that the filters leave out, which act on tokens all
    the same. The tokenizers do all the steps, in training and in use. With `tokenized`
    the files hold what fairseq's scripts write before byte pairs, the tokenizers do
    byte pairs only, and `raw_tokenizers` holds those that take plain text.

    The same inputs give the same bytes, whatever `workers` is. Work is done in stages
    in `<output>.part`; after an interruption the same call goes on after the last
    finished one. Memory grows with the number of different words only (and 16 to 100
    bytes for each pair with `deduplicate`).

    Args:
        recipe: of `keras_seqconv.preparation.recipes`.
        data: folder with the files of the recipe, or their archive.
        output: folder to make; must not exist or be empty.
        tokenized: write tokens instead of plain text.
        workers: number of processes for Moses.
        log: is told of progress, a line now and then.

    Returns:
        What `preparation.json` holds.

    Raises:
        FileNotFoundError: files are missing; says which and where to get them.
        ValueError: of the inputs, with file and line; `output` is in use.
        ImportError: sacremoses, subword-nmt or sentencepiece is needed and missing.
        OSError: a process ended too early, the disk is full.

    Example:

    ```py
    from keras_seqconv.preparation import iwslt14, prepare
    prepare(iwslt14("de", "en"), "downloads/de-en.tgz", "corpus")
    ```
    """
    check_boolean("tokenized", tokenized)
    check_positive_integer("workers", workers)
    _require_packages(recipe)
    located = locate(recipe, data)
    output = Path(os.path.realpath(output))
    _check_free(output)
    part = output.with_name(f"{output.name}.part")
    with workplace(part):
        plan = {
            "format_version": _FORMAT_VERSION,
            "recipe": dataclasses.asdict(recipe),
            "tokenized": tokenized,
            "packages": _versions(),
            "inputs": [_state(path) for path in _input_files(recipe, located, data)],
        }
        job = _Job(recipe, data, located, tokenized, workers, log or (lambda _: None))
        stages = Stages(part, plan)
        if stages.finished:
            job.log(f"going on in {part}, finished: {', '.join(stages.finished)}")
        made, report = job.run(stages)
        _check_free(output)
        if output.exists():
            output.rmdir()
        made.rename(output)
        shutil.rmtree(part, ignore_errors=True)
    return report


def _check_free(output: Path):
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"`output` must not exist or be empty. Received: {output}")


def _require_packages(recipe: Recipe):
    if recipe.tokenizer.startswith("moses") or recipe.normalize:
        require("sacremoses", "mt")
    if recipe.merges is not None:
        require("subword_nmt", "mt")
    if recipe.tokenizer == "sentencepiece":
        require("sentencepiece", "mt")


def _versions() -> dict:
    versions = {"python": sys.version.split()[0]}
    for name in ("keras-seqconv", *_PACKAGES):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _input_files(recipe, located, data) -> list[Path]:
    paths = {place.path: None for one in located for place in one.places}
    if recipe.codes is not None and (codes := find(recipe.codes, Path(data))):
        paths[codes.path] = None
    return list(paths)


def _state(path: Path) -> list:
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns]


class _Job:
    """The stages of one preparation."""

    def __init__(self, recipe, data, located, tokenized, workers, log):
        self.recipe = recipe
        self.data = Path(data)
        self.located = located
        self.tokenized = tokenized
        self.workers = workers
        self.log = log
        self.languages = (recipe.source, recipe.target)
        moses = recipe.tokenizer.startswith("moses")
        # Whether the files hold something other than what the filters look at.
        self.keeps_raw = moses and not tokenized
        self.steps = {
            "normalize": recipe.normalize,
            "remove_nonprinting": recipe.remove_nonprinting,
            "moses": moses,
            "aggressive_dash_splits": recipe.aggressive_dash_splits,
            "lowercase": recipe.lowercase,
        }

    def run(self, stages: Stages) -> tuple[Path, dict]:
        folders, counts, lines, seen = [], [], 0, set()
        for number, located in enumerate(self.located):
            name = f"{number:02d}-{located.part.split}"
            folder, report = stages.run(
                name,
                lambda folder, located=located, lines=lines: self._clean(
                    located, folder, lines, seen
                ),
            )
            if self.recipe.deduplicate:
                seen.update(_read_digests(folder))
            lines = report["lines_so_far"]
            folders.append(folder)
            counts.append(report["counts"])
        codes = None
        if self.recipe.merges is not None:
            folder, _ = stages.run(
                "merges", lambda folder: self._learn(folders, folder)
            )
            codes = folder / "codes"
        return stages.run(
            "output",
            lambda folder: self._write(folders, counts, codes, folder),
            REPORT,
        )

    # --- Clean a part: tokens, filters, splits. ---

    def _clean(self, located: Located, folder: Path, lines: int, seen: set) -> dict:
        part, recipe = located.part, self.recipe
        train = part.split == "train"
        digests, words = array("Q"), Counter()
        rule = recipe.rule if train and recipe.rule_on == "words" else None
        known = (seen, digests) if train and recipe.deduplicate else None
        counts = Counter(dict.fromkeys(rule.problems, 0) if rule else {})
        counts.update({_DOUBLE: 0} if known else {})
        chunks = read_pairs(located, recipe.on_error, counts)
        progress = _Progress(self.log, part.name)
        with _Files(folder) as files, applied(self._sides(train), self.workers) as map_:
            for raw, tokens in map_(chunks):
                progress.add(len(raw[0]))
                problems = _problems(raw, tokens, rule, known)
                for problem, *row in zip(problems, *tokens, *raw, strict=True):
                    if problem is not None:
                        counts[problem] += 1
                        continue
                    lines += train
                    split = self._split(lines) if train else part.split
                    counts[f"to {split}"] += 1
                    self._keep(files, split, row)
                    if split == "train" and recipe.merges is not None:
                        words.update(row[0].split())
                        words.update(row[1].split())
        progress.end()
        write_counts(folder / "words", words)
        if recipe.deduplicate:
            (folder / "digests").write_bytes(digests.tobytes())
        named = {"part": part.name, "split": part.split, **_in_order(counts)}
        return {"counts": named, "lines_so_far": lines}

    def _keep(self, files: "_Files", split: str, row: list[str]):
        """Writes tokens of both sides, and their texts where these are wanted."""
        for language, tokens, raw in zip(self.languages, row[:2], row[2:], strict=True):
            files.write(f"{split}.tokens.{language}", tokens)
            if self.keeps_raw:
                if self.recipe.remove_nonprinting:
                    # The tokenizer does not do this.
                    raw = remove_nonprinting(raw).strip()
                files.write(f"{split}.raw.{language}", raw)

    def _sides(self, train: bool) -> list[dict]:
        """Arguments of `Steps` for the lines of a part."""
        steps = dict(self.steps)
        if not train and self.keeps_raw:
            # Nothing looks at the tokens of these.
            return [{}, {}]
        if not train and not self.recipe.normalize_tests:
            steps.update(normalize=False, remove_nonprinting=False)
        return [{**steps, "language": language} for language in self.languages]

    def _split(self, number: int) -> str:
        """Of the training line with a number, from 1."""
        recipe = self.recipe
        if recipe.valid_every is not None and number % recipe.valid_every == 0:
            return "valid"
        every = recipe.test_every
        if every is not None and number % every == 1 and number > 1:
            return "test"
        return "train"

    # --- Learn merges. ---

    def _learn(self, folders: list[Path], folder: Path) -> dict:
        words = Counter()
        for one in folders:
            words.update(read_counts(one / "words"))
        self.log(f"learning {self.recipe.merges:,} merges of {len(words):,} words")
        codes = learn_codes(words, self.recipe.merges)
        (folder / "codes").write_text(codes, encoding="utf-8", newline="\n")
        return {"merges": codes.count("\n") - 1, "words": len(words)}

    # --- Write the corpus. ---

    def _write(self, folders, counts, codes: Path | None, folder: Path) -> dict:
        recipe = self.recipe
        merges = None if codes is None else codes.read_text(encoding="utf-8")
        pieces = None if merges is None else Pieces(merges)
        words, final = (Counter(), Counter()), {}
        with _Files(folder) as files:
            for split in SPLITS:
                final[split] = self._write_split(split, folders, files, pieces, words)
        if not final["train"].get("kept"):
            raise ValueError(
                "The training set must keep at least one pair. Received: "
                + "; ".join(f"{name} {n}" for name, n in _problems_of(counts, final))
            )
        symbols = [side if pieces is None else pieces.counts(side) for side in words]
        vocabulary = self._write_tokenizers(symbols, merges, folder)
        return {
            "format_version": _FORMAT_VERSION,
            "recipe": _described(recipe),
            "text": self._kind_of_text(),
            "packages": _versions(),
            "inputs": self._inputs(),
            "parts": counts,
            "splits": {split: one for split, one in final.items() if "kept" in one},
            "vocabulary": vocabulary,
            "outputs": [
                describe(path, path.relative_to(folder).as_posix())
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            ],
        }

    def _kind_of_text(self) -> str:
        if self.recipe.tokenizer == "pieces":
            return "pieces"
        return "tokens" if self.tokenized and self.steps["moses"] else "plain"

    def _write_split(self, split, folders, files, pieces, words) -> dict:
        """Writes the lines of a split; returns the counts."""
        recipe, counts, rule = self.recipe, Counter(), None
        if recipe.rule_on == "pieces" and split in ("train", "valid"):
            rule = recipe.rule
            counts.update({problem + _AFTER: 0 for problem in rule.problems})
        counted = split == "train" and recipe.tokenizer not in ("none", "sentencepiece")
        progress = _Progress(self.log, f"writing {split}")
        for row in self._stored(folders, split):
            progress.add(1)
            tokens, shown = row[:2], row[-2:]
            if rule is not None:
                problem = rule.problem(*map(pieces.join, tokens))
                if problem is not None:
                    counts[problem + _AFTER] += 1
                    continue
            counts["kept"] += 1
            for side, language in enumerate(self.languages):
                files.write(f"{split}.{language}", shown[side])
                if counted:
                    words[side].update(tokens[side].split())
        progress.end()
        return _in_order(counts)

    def _stored(self, folders: list[Path], split: str) -> Iterator[tuple[str, ...]]:
        """Rows of tokens of both sides, and of the texts if they were kept."""
        forms = ("tokens", "raw") if self.keeps_raw else ("tokens",)
        for folder in folders:
            paths = [
                folder / f"{split}.{form}.{language}"
                for form in forms
                for language in self.languages
            ]
            if paths[0].exists():
                yield from zip(*map(read_lines, paths), strict=True)

    def _inputs(self) -> list[dict]:
        base = self.data if self.data.is_dir() else self.data.parent
        found = []
        for path in _input_files(self.recipe, self.located, self.data):
            self.log(f"SHA-256 of {path}")
            inside = path.is_relative_to(base)
            found.append(
                describe(path, str(path.relative_to(base) if inside else path))
            )
        return found

    # --- Tokenizers. ---

    def _write_tokenizers(self, symbols, merges: str | None, folder: Path) -> dict:
        recipe = self.recipe
        if recipe.tokenizer == "none":
            return {}
        if recipe.tokenizer == "sentencepiece":
            return self._write_sentencepiece(folder)
        if recipe.joined:
            symbols = (symbols[0] + symbols[1],) * 2
        dictionaries = [
            Dictionary.from_counts(one, recipe.threshold, recipe.nwords)
            for one in symbols
        ]
        for name, raw in self._tokenizer_folders():
            for side, dictionary, language in zip(
                ("source", "target"), dictionaries, self.languages, strict=True
            ):
                tokenizer = self._tokenizer(dictionary, language, merges, raw)
                tokenizer.save(folder / name / side)
        sizes = [len(one) for one in dictionaries]
        found = {"source": sizes[0], "target": sizes[1], "joined": recipe.joined}
        return found if merges is None else {"merges": merges.count("\n") - 1, **found}

    def _tokenizer_folders(self):
        """(folder, whether its tokenizers take plain text)."""
        yield "tokenizers", self.keeps_raw
        moses = self.steps["moses"] or self._codes_of_pieces() is not None
        if moses and not self.keeps_raw:
            yield "raw_tokenizers", True

    def _tokenizer(self, dictionary, language, merges, raw: bool):
        if self.recipe.tokenizer == "pieces":
            if not raw:
                return DictionaryTokenizer(dictionary, remove_bpe=True)
            merges = self._codes_of_pieces()
        if not raw:
            return DictionaryTokenizer(dictionary, bpe_codes=merges)
        steps = {**self.steps, "moses": True}
        del steps["remove_nonprinting"]
        return DictionaryTokenizer(
            dictionary, language=language, bpe_codes=merges, **steps
        )

    def _codes_of_pieces(self) -> str | None:
        if self.recipe.codes is None:
            return None
        place = find(self.recipe.codes, self.data)
        if place is None:
            return None
        return "".join(line.decode() + "\n" for line in lines(place))

    def _write_sentencepiece(self, folder: Path) -> dict:
        texts = [
            read_lines(folder / f"train.{language}") for language in self.languages
        ]
        self.log(f"training SentencePiece, {self.recipe.vocabulary_size:,} entries")
        tokenizers = train_tokenizers(
            "sentencepiece_bpe",
            *texts,
            vocabulary_size=self.recipe.vocabulary_size,
            joint=self.recipe.joined,
        )
        for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
            tokenizer.save(folder / "tokenizers" / side)
        sizes = [one.vocabulary_size for one in tokenizers]
        return {"source": sizes[0], "target": sizes[1], "joined": self.recipe.joined}


# --- Small things. ---


def _problems(raw, tokens, rule: Rule | None, known) -> Iterator[str | None]:
    """What speaks against each pair of a chunk.

    Args:
        raw, tokens: columns.
        rule: for the tokens, or None.
        known: (set, array) of digests of the pairs so far, both go up; or None.
    """
    for source, target, *pair in zip(*raw, *tokens, strict=True):
        problem = None if rule is None else rule.problem(*pair)
        if problem is None and known is not None:
            text = f"{source}\n{target}".encode()
            digest = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
            if digest in known[0]:
                problem = _DOUBLE
            else:
                known[0].add(digest)
                known[1].append(digest)
        yield problem


def _read_digests(folder: Path) -> array:
    digests = array("Q")
    digests.frombytes((folder / "digests").read_bytes())
    return digests


def _in_order(counts: Counter) -> dict:
    """What was read first, then what was left out, then what is left."""
    first = [name for name in ("lines", "pairs") if name in counts]
    last = [f"to {split}" for split in SPLITS if f"to {split}" in counts]
    last += ["kept"] * ("kept" in counts)
    between = [name for name in counts if name not in {*first, *last}]
    return {name: counts[name] for name in (*first, *between, *last)}


def _problems_of(parts: list[dict], splits: dict):
    for found in (*parts, splits["train"]):
        yield from (item for item in found.items() if isinstance(item[1], int))


def _described(recipe: Recipe) -> dict:
    described = dataclasses.asdict(recipe)
    described["parts"] = [
        {
            "name": part.name,
            "split": part.split,
            "files": [wanted.names[0] for wanted in part.wanted],
        }
        for part in recipe.parts
    ]
    described["codes"] = recipe.codes and recipe.codes.names[0]
    return described


class _Files:
    """Text files of a folder by name, opened when first written to."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._streams = {}
        self._stack = contextlib.ExitStack()

    def write(self, name: str, line: str):
        if name not in self._streams:
            self._streams[name] = self._stack.enter_context(
                open(  # noqa: SIM115
                    self._folder / name, "w", encoding="utf-8", newline="\n"
                )
            )
        self._streams[name].write(line + "\n")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stack.close()


class _Progress:
    """Tells of lines and their rate now and then, and at the end."""

    def __init__(self, log: Callable[[str], None], name: str):
        self._log, self._name, self._lines = log, name, 0
        self._start = self._last = time.perf_counter()

    def add(self, lines: int):
        self._lines += lines
        now = time.perf_counter()
        if now - self._last > _SECONDS_BETWEEN_LINES:
            self._last = now
            self.end()

    def end(self):
        rate = self._lines / max(time.perf_counter() - self._start, 1e-9)
        self._log(f"{self._name}: {self._lines:,} pairs, {rate:,.0f} a second")
