"""Prepare the papers' corpora as fairseq's scripts do, from files that you download.

    python examples/prepare_corpora.py iwslt14 de en downloads corpora/iwslt14
    keras-seqconv train --dataset corpora/iwslt14 --tokenizer corpora/iwslt14 \
        --source-language de --preset dynamic_conv_iwslt_de_en --workdir run

- `iwslt14`: TED talks, German and English. Markup removed; Moses' tokens without -a;
  1 to 175 words, length ratio at most 1.5; lower case; every 23rd pair validates;
  10,000 merges learnt on both sides; separate dictionaries.
- `wmt14`: news, English with German or French. Punctuation normalized, non-printing
  characters replaced; Moses' tokens with -a; every 100th pair (French: 1,333rd)
  validates; 40,000 merges learnt on both sides; then training and validation have 1 to
  250 pieces and length ratio at most 1.5.
- `wmt16`: English and German with Google's tokens and byte pairs, taken as they are;
  one dictionary of 32,768 symbols.

`downloads` is the folder in which the archives are unpacked (tar xf); missing files are
listed with the addresses of their archives. The folder that is written has the texts
of all splits, the tokenizers and `preparation.json`: counts of each filter, versions,
SHA-256 of inputs and outputs. Texts of `iwslt14` and `wmt14` are plain: the tokenizers
repeat all steps, so a model takes and returns plain text. Those of `wmt16` are byte
pairs; `raw_tokenizers` has tokenizers of plain text. Equal inputs give equal bytes.

Prints the counts. IWSLT takes minutes on two cores, WMT hours. Needs
`pip install 'keras-seqconv[mt]'`.
"""

# Processes of the executor import this file: Keras is imported where it is needed.
import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

from keras_seqconv.support import versions
from keras_seqconv.support.files import digest, iterate_lines

IWSLT = "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
IWSLT_TESTS = "TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012"
WMT = "http://statmt.org/wmt"
# Archives, and their files without the language; in the order of the training text.
WMT14 = (
    (f"{WMT}13/training-parallel-europarl-v7.tgz", "training/europarl-v7.{}-en"),
    (f"{WMT}13/training-parallel-commoncrawl.tgz", "commoncrawl.{}-en"),
    (f"{WMT}13/training-parallel-un.tgz", "un/undoc.2000.{}-en"),
    (f"{WMT}14/training-parallel-nc-v9.tgz", "training/news-commentary-v9.{}-en"),
    (
        "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
        "training/news-commentary-v12.{}-en",
    ),
    (f"{WMT}10/training-giga-fren.tar", "giga-fren.release2.fixed"),
)
WMT16 = "https://drive.google.com/uc?export=download&id=0B_bZck-ksdkpM25jRUN2X2UxMm8"
PAIRS_AT_ONCE = 100_000


@dataclasses.dataclass(frozen=True)
class Part:
    """The files of source and target that belong to one split."""

    split: str  # "train", "valid" or "test"
    file: str  # path in the archive, with {} for the side
    sides: tuple[str, str]  # what stands for {} in the names of source and target
    url: str  # of the archive
    markup: str | None = None  # "tags" (of IWSLT) or "segments" (SGM and XML)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The steps of a corpus."""

    languages: tuple[str, str]
    parts: tuple[Part, ...]
    # Settings of the tokenizers; None: the files hold byte pairs. `normalize` also
    # replaces non-printing characters by blanks.
    steps: dict | None = None
    # Filter pieces, after the split into training and validation; or words, before it.
    clean_pieces: bool = False
    longest: int = 0  # words or pieces of a line
    valid_every: int = 0  # training pairs whose number is a multiple of it validate
    merges: int = 0
    joined: bool = True  # one dictionary for both languages


def iwslt14(source: str, target: str, options: argparse.Namespace) -> Recipe:
    where = (source, target), IWSLT
    parts = [Part("train", "de-en/train.tags.de-en.{}", *where, "tags")]
    for name in IWSLT_TESTS.split():
        file = f"de-en/IWSLT14.{name}.de-en.{{}}.xml"
        parts.append(Part("test", file, *where, "segments"))
    return Recipe(
        (source, target),
        tuple(parts),
        {"normalize": False, "aggressive_dash_splits": False, "lowercase": True},
        longest=175,
        valid_every=23,
        merges=10_000,
        joined=False,
    )


def wmt14(source: str, target: str, options: argparse.Namespace) -> Recipe:
    other = target if source == "en" else source
    version = options.news_commentary or {"fr": "v9", "de": "v12"}[other]
    names = ["europarl", "commoncrawl", f"commentary-{version}"]
    names += ["undoc", "giga-fren"] if other == "fr" else []
    parts = [
        Part("train", f"{file.format(other)}.{{}}", (source, target), url)
        for url, file in WMT14
        if any(name in file for name in names)
    ]
    test = f"test-full/newstest2014-{other}en-{{}}.sgm"
    sides, url = (f"src.{source}", f"ref.{target}"), f"{WMT}14/test-full.tgz"
    parts.append(Part("test", test, sides, url, "segments"))
    return Recipe(
        (source, target),
        tuple(parts),
        {"normalize": True, "aggressive_dash_splits": True, "lowercase": False},
        clean_pieces=True,
        longest=250,
        valid_every=1333 if other == "fr" else 100,
        merges=40_000,
        joined=not options.separate_dictionaries,
    )


def wmt16(source: str, target: str, options: argparse.Namespace) -> Recipe:
    stems = {"train": "train.tok.clean", "valid": "newstest2013.tok"}
    stems |= {"test": "newstest2014.tok"}
    parts = [
        Part(split, f"{stem}.bpe.32000.{{}}", (source, target), WMT16)
        for split, stem in stems.items()
    ]
    codes = Part("codes", "bpe.32000", ("", ""), WMT16)  # one file for both sides
    return Recipe((source, target), (*parts, codes))


RECIPES = {
    "iwslt14": (iwslt14, ["de-en"]),
    "wmt14": (wmt14, ["de-en", "en-fr"]),
    "wmt16": (wmt16, ["de-en"]),
}

# --- Files, and their lines ---


def locate(recipe: Recipe, data: Path) -> list[tuple[Part, list[Path]]]:
    """The parts with the paths of source and target; FileNotFoundError without."""
    located, missing = [], {}
    for part in recipe.parts:
        paths = []
        for name in map(part.file.format, part.sides):
            places = data / name, data / f"{name}.gz", data / Path(name).name
            paths.append(next(filter(Path.is_file, places), None))
            if paths[-1] is None:
                missing[f"  {name}, from {part.url}"] = None
        located.append((part, paths))
    if missing:
        raise FileNotFoundError("\n".join([f"{data} must have:", *missing]))
    return located


lines_of = functools.partial(iterate_lines, on_error="replace")


def without_markup(path: Path, markup: str | None, counts: Counter) -> Iterator[str]:
    for line in lines_of(path):
        if markup == "tags":
            if dropped := re.search("<(url|talkid|keywords)>", line):
                counts[f"lines with {dropped[0]}"] += 1
                continue
            line = re.sub("</?(title|description)>", "", line)
        elif markup == "segments":
            if "<seg id" not in line:
                continue
            # As fairseq's `sed`: apostrophes are made plain, nothing is unescaped.
            line = re.sub(r'<seg id="[0-9]*">\s*|\s*</seg>\s*', "", line, flags=re.A)
            line = line.replace("\u2019", "'")
        yield line


def read_pairs(part: Part, paths: list[Path], counts: Counter) -> Iterator[tuple]:
    """Pairs of lines without markup; `counts` goes up by what was read and left out."""
    sides = [
        without_markup(path, part.markup, counter)
        for path, counter in zip(paths, (counts, Counter()), strict=True)
    ]
    for number, pair in enumerate(itertools.zip_longest(*sides)):
        if None in pair:
            names = " and ".join(part.file.format(side) for side in part.sides)
            raise ValueError(
                f"{names} must have the same number of lines. One ends after {number:,}"
            )
        counts["pairs"] += 1
        counts["pairs with U+FFFD"] += any("\ufffd" in line for line in pair)
        # NUL would not come back from a dataset of texts.
        yield tuple(line.replace("\0", " ").strip() for line in pair)


# --- Tokens and filters ---


@functools.cache
def moses(language: str) -> tuple:
    import sacremoses as moses

    return moses.MosesPunctNormalizer(language), moses.MosesTokenizer(language)


def tokens_of(recipe: Recipe, pair: tuple[str, str]) -> list[str]:
    """Moses' tokens of both sides, separated by blanks."""
    tokens = []
    for language, text in zip(recipe.languages, pair, strict=True):
        normalizer, tokenizer = moses(language)
        if recipe.steps["normalize"]:
            text = without_nonprinting(normalizer.normalize(text))
        dashes = recipe.steps["aggressive_dash_splits"]
        words = tokenizer.tokenize(text, aggressive_dash_splits=dashes, return_str=True)
        text = " ".join(words.split())
        tokens.append(text.lower() if recipe.steps["lowercase"] else text)
    return tokens


def without_nonprinting(text: str) -> str:
    """Moses' remove-non-printing-char.perl: a blank for characters of category C."""
    category = unicodedata.category
    return "".join(" " if category(letter)[0] == "C" else letter for letter in text)


def with_tokens(recipe: Recipe, pairs: Iterator, executor: Executor) -> Iterator:
    """(tokens, texts) of each pair, in order."""
    function = functools.partial(tokens_of, recipe)
    while block := list(itertools.islice(pairs, PAIRS_AT_ONCE)):
        tokens = executor.map(function, block, chunksize=250)
        yield from zip(tokens, block, strict=True)
        print(f"{len(block):,} pairs", file=sys.stderr)


def problem_of(source: str, target: str, longest: int) -> str | None:
    """Why Moses' clean-corpus-n.perl leaves out a pair, or None.

    Words are what blanks separate; `|` ends a word for the limit of 1,000 characters.
    """
    shorter, longer = sorted((len(source.split()), len(target.split())))
    if shorter == 0:
        return "empty"
    if longer > longest:
        return f"more than {longest} words or pieces"
    if longer / shorter > 1.5:
        return "length ratio above 1.5"
    if any(re.search(r"[^\s|]{1001}", text) for text in (source, target)):
        return "word of more than 1000 characters"
    return None


# --- The corpus ---


def clean(recipe, located, executor, rows: Path, counts: dict[str, Counter]) -> Counter:
    """Writes the training pairs to `rows`; returns how often training has each word.

    A row is [split, source tokens, target tokens, source, target].
    """
    words, number = Counter(), 0
    with open(rows, "w", encoding="utf-8") as file:
        for part, paths in located:
            if part.split != "train":
                continue
            count = counts[part.file] = Counter()
            pairs = read_pairs(part, paths, count)
            for tokens, texts in with_tokens(recipe, pairs, executor):
                problem = problem_of(*tokens, recipe.longest)
                if problem and not recipe.clean_pieces:
                    count[problem] += 1
                    continue
                number += 1
                split = "train" if number % recipe.valid_every else "valid"
                if split == "train":
                    words.update(" ".join(tokens).split())
                file.write(json.dumps([split, *tokens, *texts]) + "\n")
    return words


def splits_of_rows(recipe, rows: Path, codes: str, pieces, count: Counter) -> Iterator:
    """(split, source, target) of training and validation; `pieces` count training's."""
    from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer

    bpe = DictionaryTokenizer(Dictionary(), bpe_codes=codes)
    split_word = functools.cache(bpe.split)
    for line in lines_of(rows):
        split, *tokens, source, target = json.loads(line)
        sides = [
            [piece for word in side.split() for piece in split_word(word)]
            for side in tokens
        ]
        problem = problem_of(*map(" ".join, sides), recipe.longest)
        if problem and recipe.clean_pieces:
            count[problem] += 1
            continue
        for counter, side in zip(pieces, sides, strict=True):
            counter.update(side if split == "train" else ())
        yield split, source, target


def splits_of_files(located, counts: dict[str, Counter]) -> Iterator[tuple]:
    """(split, source, target) of files that are taken as they are."""
    for part, paths in located:
        count = counts[part.file] = Counter()
        for pair in read_pairs(part, paths, count):
            yield part.split, *pair


def write(recipe: Recipe, splits: Iterable[tuple], folder: Path) -> Counter:
    """Writes (split, source, target) to the files of the corpus; returns counts."""
    counts = Counter()
    with contextlib.ExitStack() as stack:

        @functools.cache
        def file_of(split: str, language: str):
            path = folder / f"{split}.{language}"
            return stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))

        for split, *texts in splits:
            counts[split] += 1
            for language, text in zip(recipe.languages, texts, strict=True):
                if recipe.steps and recipe.steps["normalize"]:
                    # The tokenizers do not do this.
                    text = without_nonprinting(text).strip()
                file_of(split, language).write(text + "\n")
    return counts


def save_tokenizers(recipe, dictionaries, codes: str, folder: Path, **steps) -> None:
    from keras_seqconv.tokenizers import DictionaryTokenizer

    sides = zip(("source", "target"), recipe.languages, dictionaries, strict=True)
    for side, language, dictionary in sides:
        steps |= {"language": language, "moses": True, "bpe_codes": codes}
        DictionaryTokenizer(dictionary, **steps).save(folder / side)


def prepare_text(recipe: Recipe, located, folder: Path, workers: int) -> dict:
    """`iwslt14` and `wmt14`: writes the corpus and its tokenizers; returns counts."""
    rows, counts = folder / "rows.jsonl", {}
    with (ThreadPoolExecutor if workers == 1 else ProcessPoolExecutor)(workers) as pool:
        words = clean(recipe, located, pool, rows, counts)

    from keras_seqconv.tokenizers import Dictionary
    from keras_seqconv.tokenizers.dictionary import learn_codes

    codes = learn_codes(words, recipe.merges)
    pieces, counts["pieces"] = (Counter(), Counter()), Counter()
    tests = [(part, paths) for part, paths in located if part.split == "test"]
    splits = itertools.chain(
        splits_of_rows(recipe, rows, codes, pieces, counts["pieces"]),
        splits_of_files(tests, counts),
    )
    counts["written"] = write(recipe, splits, folder)
    rows.unlink()
    pieces = (pieces[0] + pieces[1],) * 2 if recipe.joined else pieces
    dictionaries = map(Dictionary.from_counts, pieces)
    save_tokenizers(recipe, dictionaries, codes, folder / "tokenizers", **recipe.steps)
    return counts


def prepare_pieces(recipe: Recipe, located, folder: Path, workers: int) -> dict:
    """`wmt16`: writes the corpus and its tokenizers; returns counts."""
    from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer

    *files, (_, (codes, _)) = located
    counts, pieces = {}, Counter()
    counts["written"] = write(recipe, splits_of_files(files, counts), folder)
    for language in recipe.languages:
        for line in lines_of(folder / f"train.{language}"):
            pieces.update(line.split())
    dictionary = Dictionary.from_counts(pieces, nwords=32768)
    for side in ("source", "target"):
        tokenizer = DictionaryTokenizer(dictionary, remove_bpe=True)
        tokenizer.save(folder / "tokenizers" / side)
    codes = "".join(f"{line}\n" for line in lines_of(codes))
    raw = folder / "raw_tokenizers"
    save_tokenizers(recipe, [dictionary] * 2, codes, raw, aggressive_dash_splits=False)
    return counts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--news-commentary", choices=("v9", "v12"), help="of wmt14")
    parser.add_argument("--separate-dictionaries", action="store_true", help="of wmt14")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    languages = options.source, options.target
    recipe, pairs = RECIPES[options.recipe]
    if "-".join(sorted(languages)) not in pairs:
        raise ValueError(f"Languages must be of {pairs}. Received: {languages}")
    recipe = recipe(*languages, options)
    located = locate(recipe, options.data)
    if options.output.exists():
        raise ValueError(f"{options.output} must not exist.")
    # It gets its name when it is complete.
    folder = options.output.with_name(f"{options.output.name}.part")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prepare = prepare_text if recipe.steps else prepare_pieces
    counts = prepare(recipe, located, folder, options.workers)
    inputs = {path for _, paths in located for path in paths}
    outputs = [path for path in folder.rglob("*") if path.is_file()]
    report = {
        "recipe": dataclasses.asdict(recipe),
        "counts": counts,
        "versions": versions("sacremoses", "subword-nmt"),
        "inputs": {path.name: digest(path) for path in sorted(inputs)},
        "outputs": {str(p.relative_to(folder)): digest(p) for p in sorted(outputs)},
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    (folder / "preparation.json").write_text(text, encoding="utf-8")
    folder.rename(options.output)
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
