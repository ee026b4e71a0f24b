"""Prepare the papers' corpora from downloaded files: `keras-seqconv prepare`.

`recipes` has the files and steps of each recipe as data, `pairs` finds the files, reads
and tokenizes their lines. Here a recipe runs: each part is cleaned, the merges are
learned, the folder of a corpus is written.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from keras_seqconv.preparation.pairs import (
    executor_of,
    find,
    lines,
    read_pairs,
    with_tokens,
)
from keras_seqconv.preparation.recipes import (
    Recipe,
    corpus,
    iwslt14,
    listing,
    locate,
    wmt14,
    wmt16,
)
from keras_seqconv.support import require, versions
from keras_seqconv.support.arguments import check_boolean, check_positive_integer
from keras_seqconv.support.files import (
    atomic_directory,
    digest,
    iterate_lines,
    read_json,
    read_text,
    write_json,
)
from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer, train_tokenizers
from keras_seqconv.tokenizers.dictionary import learn_codes
from keras_seqconv.tokenizers.moses_bpe import count_pieces, without_nonprinting

__all__ = ["Recipe", "corpus", "iwslt14", "listing", "prepare", "wmt14", "wmt16"]

SPLITS = ("train", "valid", "test")
_FORMAT_VERSION = 1
_PACKAGES = "sacremoses", "subword-nmt", "sentencepiece"
_SECONDS_BETWEEN_LINES = 10.0
_DOUBLE = "double of an earlier pair"
_AFTER = ", after byte pairs"
_writing = functools.partial(open, mode="w", encoding="utf-8", newline="\n")


def prepare(
    recipe: Recipe,
    data: str | os.PathLike,
    output: str | os.PathLike,
    *,
    tokenized: bool = False,
    workers: int = 1,
    log: Callable[[str], None] | None = None,
) -> dict:
    """Makes the folder of a corpus for `keras-seqconv train --dataset`.

    It holds `train.xx`, `valid.xx` and `test.xx` of both languages, the tokenizers in
    `tokenizers/source` and `tokenizers/target`, and `preparation.json`: recipe,
    counts of every filter, versions, inputs and outputs with their SHA-256.

    The files hold plain text without markup and without the pairs that the filters,
    which act on tokens, skip. The tokenizers do all steps, in training and in use, so a
    model takes and returns plain text. With `tokenized` the files hold the tokens of
    fairseq's scripts before byte pairs, the tokenizers do byte pairs only, and
    `raw_tokenizers` holds tokenizers of plain text.

    Equal inputs give equal bytes for any `workers`. `<output>.part` keeps finished
    parts of the corpus and merges, and after an interruption the same call continues
    after them. Memory grows with the number of different words only (and with
    `deduplicate` by about 100 bytes for each pair).

    Args:
        recipe: recipe of `keras_seqconv.preparation`.
        data: folder with the files of the recipe, or their archive.
        output: folder to make; must not exist or be empty.
        tokenized: whether to write tokens instead of plain text.
        workers: number of processes for Moses. They are spawned: with more than one, a
            script must call this below `if __name__ == "__main__":`.
        log: called with lines of progress.

    Returns:
        The content of `preparation.json`.

    Raises:
        FileNotFoundError: files are missing; names them and their sources.
        ValueError: an input is wrong (names file and line), or `output` is in use.
        ImportError: sacremoses, subword-nmt or sentencepiece is needed and missing.
        OSError: a process ended too early, or the disk is full.

    Example:

    ```py
    from keras_seqconv.preparation import iwslt14, prepare
    prepare(iwslt14("de", "en"), "downloads/de-en.tgz", "corpus")
    ```
    """
    check_boolean("tokenized", tokenized)
    check_positive_integer("workers", workers)
    needed = {
        "sacremoses": recipe.tokenizer.startswith("moses") or recipe.normalize,
        "subword_nmt": recipe.merges is not None,
        "sentencepiece": recipe.tokenizer == "sentencepiece",
    }
    for package in filter(needed.get, needed):
        require(package, "mt")
    output = Path(os.path.realpath(output))
    stages = output.with_name(f"{output.name}.part")
    job = _Preparation(recipe, Path(data), tokenized, stages, log or (lambda text: 0))
    with _new_folder(output) as folder:
        job.check_plan()
        try:
            with executor_of(workers if needed["sacremoses"] else 1) as executor:
                job.clean(executor)
            report = job.write(job.learn(), folder)
        finally:
            if not job.finished():
                shutil.rmtree(stages, ignore_errors=True)
    shutil.rmtree(stages, ignore_errors=True)
    return report


@contextlib.contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Yields a folder that is there, and on the disk, when the block has ended."""
    with atomic_directory(path) as folder:
        yield folder
        for file in filter(Path.is_file, folder.rglob("*")):
            with open(file, "rb+") as stream:
                os.fsync(stream.fileno())


class _Preparation:
    """One recipe on its files, in stages, each a folder in the folder `stages`.

    A part of the corpus is a stage: `counts.json`, and in `rows.jsonl` its rows,
    [split, source tokens, target tokens, source, target]. The last one is `merges`.
    """

    def __init__(self, recipe: Recipe, data: Path, tokenized, stages: Path, log):
        self.recipe, self.data, self.tokenized = recipe, data, tokenized
        self.stages, self.log = stages, log
        self.parts = {
            f"{number:02d}-{part.split}": (part, places)
            for number, (part, places) in enumerate(locate(recipe, data))
        }
        self.languages = (recipe.source, recipe.target)
        self.moses = recipe.tokenizer.startswith("moses")
        names = ("normalize", "aggressive_dash_splits", "lowercase")
        self.steps = {name: getattr(recipe, name) for name in names}
        # Whether the files hold something other than what the filters look at.
        self.keeps_raw = self.moses and not tokenized
        self.codes_of_pieces = recipe.codes and find(recipe.codes, data)
        places = [place for _, places in self.parts.values() for place in places]
        places += [self.codes_of_pieces] * (self.codes_of_pieces is not None)
        self.inputs = list(dict.fromkeys(place.path for place in places))

    def finished(self) -> list[str]:
        """Names of the stages that are finished."""
        return sorted(p.name for p in self.stages.glob("[!.]*") if p.is_dir())

    def check_plan(self):
        """Finished stages of other inputs, options or packages are refused."""
        plan = {
            "stages": "rows of all splits",
            "recipe": dataclasses.asdict(self.recipe),
            "tokenized": self.tokenized,
            "packages": versions(*_PACKAGES),
            "inputs": [
                [str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns]
                for path in self.inputs
            ],
        }
        plan, path = json.loads(json.dumps(plan)), self.stages / "plan.json"
        self.stages.mkdir(exist_ok=True)
        if not (finished := self.finished()):
            write_json(path, plan)
        elif not path.exists() or read_json(path) != plan:
            raise ValueError(
                f"{self.stages} holds the stages of a preparation with other inputs, "
                "options or packages. Delete it, or choose another `output`."
            )
        else:
            self.log(f"going on in {self.stages}, finished: {', '.join(finished)}")

    # --- Clean the parts: tokens, filters, splits. ---

    def clean(self, executor):
        number, seen = 0, set()  # of training lines, and digests of them
        for name, (part, places) in self.parts.items():
            train, folder = part.split == "train", self.stages / name
            if not folder.exists():
                with _new_folder(folder) as new:
                    counts = self._clean(part, places, executor, number, seen, new)
                    write_json(new / "counts.json", counts)
            elif train and self.recipe.deduplicate:
                seen.update(_digest(row[3:]) for row in self._rows(name))
            if train:
                counts = read_json(folder / "counts.json")
                number += sum(counts.get(f"to {split}", 0) for split in SPLITS)

    def _clean(self, part, places, executor, number: int, seen: set, folder) -> dict:
        recipe, train = self.recipe, part.split == "train"
        rule = recipe.rule if train and recipe.rule_on == "words" else None
        deduplicate = train and recipe.deduplicate
        problems = [*(rule.problems if rule else ()), *[_DOUBLE] * deduplicate]
        # In the order of the report; what leaves nothing out is shown, too.
        counts = Counter(dict.fromkeys(("lines", "pairs", *problems), 0))
        pairs = read_pairs(places, part.markup, recipe.on_error, counts)
        rows = with_tokens(pairs, self._steps(train), executor)
        with _writing(folder / "rows.jsonl") as file:
            for tokens, texts in self._logged(part.name, rows):
                problem = rule.problem(*tokens) if rule else None
                if problem is None and deduplicate:
                    digest = _digest(texts)
                    problem = _DOUBLE if digest in seen else None
                    seen.add(digest)
                if problem is not None:
                    counts[problem] += 1
                    continue
                number += 1
                split = recipe.split_of(number) if train else part.split
                counts[f"to {split}"] += 1
                row = json.dumps([split, *tokens, *texts], ensure_ascii=False)
                file.write(row + "\n")
        return {"part": part.name, "split": part.split, **counts}

    def _steps(self, train: bool) -> list[dict]:
        """Arguments of `moses_steps` for both sides of a part."""
        recipe = self.recipe
        if self.keeps_raw and not train:
            return [{}, {}]  # nothing looks at the tokens of these
        steps = self.steps | {"moses": self.moses}
        if train or recipe.normalize_tests:
            steps["remove_nonprinting"] = recipe.remove_nonprinting
        else:
            steps["normalize"] = False
        return [{"language": language, **steps} for language in self.languages]

    def _rows(self, *names: str) -> Iterator[list[str]]:
        for name in names or self.parts:
            yield from map(json.loads, iterate_lines(self.stages / name / "rows.jsonl"))

    def _logged(self, name: str, rows: Iterable) -> Iterator:
        """Tells of rows and their rate now and then, and at the end."""
        start = last = time.perf_counter()
        number = 0

        def tell():
            rate = number / max(time.perf_counter() - start, 1e-9)
            self.log(f"{name}: {number:,} pairs, {rate:,.0f} a second")

        for number, row in enumerate(rows, 1):  # noqa: B007
            yield row
            if time.perf_counter() - last > _SECONDS_BETWEEN_LINES:
                last = time.perf_counter()
                tell()
        tell()

    # --- Learn merges. ---

    def learn(self) -> str | None:
        """The codes file of the merges, None where the recipe has none."""
        if self.recipe.merges is None:
            return None
        folder = self.stages / "merges"
        if not folder.exists():
            words = Counter()
            for split, *tokens, _, _ in self._rows():
                if split == "train":
                    words.update(" ".join(tokens).split())
            self.log(f"learning {self.recipe.merges:,} merges of {len(words):,} words")
            with _new_folder(folder) as new:
                codes = learn_codes(words, self.recipe.merges)
                (new / "codes").write_bytes(codes.encode())
        return read_text(folder / "codes")

    # --- Write the corpus. ---

    def write(self, codes: str | None, folder: Path) -> dict:
        recipe, split_word, words = self.recipe, None, (Counter(), Counter())
        if codes is not None:
            bpe = DictionaryTokenizer(Dictionary(), bpe_codes=codes)
            split_word = functools.cache(bpe.split)
        parts = [read_json(self.stages / name / "counts.json") for name in self.parts]
        splits = self._write_texts(split_word, words, folder)
        if not splits["train"]["kept"]:
            received = "; ".join(
                f"{name}: {count}"
                for counts in (*parts, splits["train"])
                for name, count in counts.items()
                if isinstance(count, int)
            )
            raise ValueError(
                f"The training set must keep at least one pair. Received: {received}"
            )
        if split_word is not None:
            words = [count_pieces(side, split_word) for side in words]
        vocabulary = {}
        if recipe.tokenizer != "none":
            made = self._tokenizers(words, codes, folder)
            for name, pair in made.items():
                for side, tokenizer in zip(("source", "target"), pair, strict=True):
                    tokenizer.save(folder / name / side)
                    vocabulary[side] = tokenizer.vocabulary_size
            vocabulary["joined"] = recipe.joined
            if codes is not None:
                vocabulary = {"merges": codes.count("\n") - 1, **vocabulary}
        self.log("SHA-256 of inputs and outputs")
        text = "tokens" if self.tokenized and self.moses else "plain"
        base = self.data if self.data.is_dir() else self.data.parent
        report = {
            "format_version": _FORMAT_VERSION,
            "recipe": dataclasses.asdict(recipe),
            "text": "pieces" if recipe.tokenizer == "pieces" else text,
            "packages": versions(*_PACKAGES),
            "inputs": [_file(path, base) for path in self.inputs],
            "parts": parts,
            "splits": {name: one for name, one in splits.items() if "kept" in one},
            "vocabulary": vocabulary,
            "outputs": [
                _file(path, folder)
                for path in sorted(filter(Path.is_file, folder.rglob("*")))
            ],
        }
        write_json(folder / "preparation.json", report)
        return report

    def _write_texts(self, split_word, words, folder) -> dict[str, Counter]:
        """Writes the files of the splits that have lines; returns the counts of each.

        `words`, of source and target, go up by the training words where a dictionary
        is to be made of them.
        """
        recipe, counts, files = self.recipe, {split: Counter() for split in SPLITS}, {}
        counted = recipe.tokenizer not in ("none", "sentencepiece")
        filtered = ("train", "valid") if recipe.rule_on == "pieces" else ()
        for split in filtered:
            counts[split].update({name + _AFTER: 0 for name in recipe.rule.problems})

        def joined(text):
            return " ".join(itertools.chain(*map(split_word, text.split())))

        with contextlib.ExitStack() as stack:
            for split, *row in self._logged("writing", self._rows()):
                tokens, texts = row[:2], row[2:] if self.keeps_raw else row[:2]
                if split in filtered:
                    problem = recipe.rule.problem(*map(joined, tokens))
                    if problem is not None:
                        counts[split][problem + _AFTER] += 1
                        continue
                counts[split]["kept"] += 1
                for side, language in enumerate(self.languages):
                    name, text = f"{split}.{language}", texts[side]
                    if self.keeps_raw and recipe.remove_nonprinting:
                        # The tokenizer does not do this.
                        text = without_nonprinting(text).strip()
                    if name not in files:
                        files[name] = stack.enter_context(_writing(folder / name))
                    files[name].write(text + "\n")
                    if counted and split == "train":
                        words[side].update(tokens[side].split())
        return counts

    def _tokenizers(self, words, codes: str | None, folder: Path) -> dict:
        """Pairs of tokenizers by the names of their folders."""
        recipe, made = self.recipe, {}
        if recipe.tokenizer == "sentencepiece":
            self.log(f"training SentencePiece, {recipe.vocabulary_size:,} entries")
            pair = train_tokenizers(
                "sentencepiece_bpe",
                *(
                    iterate_lines(folder / f"train.{language}")
                    for language in self.languages
                ),
                vocabulary_size=recipe.vocabulary_size,
                joint=recipe.joined,
            )
            return {"tokenizers": pair}
        both = [words[0] + words[1]] * 2 if recipe.joined else words
        dictionaries = [
            Dictionary.from_counts(counts, recipe.threshold, recipe.nwords)
            for counts in both
        ]
        pieces = recipe.tokenizer == "pieces"
        if not self.keeps_raw:  # for what the files hold
            joins = pieces or codes is not None
            made["tokenizers"] = [
                DictionaryTokenizer(dictionary, bpe_codes=codes, remove_bpe=joins)
                for dictionary in dictionaries
            ]
        if pieces and self.codes_of_pieces is not None:
            codes = "".join(line + "\n" for line in lines(self.codes_of_pieces))
        if self.moses or codes is not None:  # for plain text
            steps = {"moses": True, "bpe_codes": codes, **self.steps}
            made["tokenizers" if self.keeps_raw else "raw_tokenizers"] = [
                DictionaryTokenizer(dictionary, language=language, **steps)
                for dictionary, language in zip(
                    dictionaries, self.languages, strict=True
                )
            ]
        return made


def _digest(texts: list[str]) -> bytes:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=8).digest()


def _file(path: Path, folder: Path) -> dict:
    """Size and SHA-256 of a file, and its name in a folder."""
    name = path.relative_to(folder) if path.is_relative_to(folder) else path
    return {
        "file": name.as_posix(),
        "bytes": path.stat().st_size,
        "sha256": digest(path),
    }
