"""Files and steps of each recipe. Data, and functions that fill it in.

Sources: fairseq's `prepare-iwslt14.sh`, `prepare-wmt14en2de.sh`,
`prepare-wmt14en2fr.sh` and its README for WMT'16 (spec fairseq 8.4).
"""

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

from keras_seqconv.preparation.pairs import Place, Wanted, find
from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    check_number,
    check_positive_integer,
)
from keras_seqconv.tokenizers.moses_bpe import check_language

TOKENIZERS = ("none", "moses", "moses+bpe", "sentencepiece")
_LONG_WORD = re.compile(r"[^\s|]{1001}")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Rules for pairs to keep, those of Moses' clean-corpus-n.perl, in its order.

    Neither side is empty; none has more than `most` words, none fewer than `least`;
    neither has more than `ratio` times as many words as the other; no word has more
    than 1,000 characters (`|` ends a word there). Words are what blanks separate. None:
    no such limit.

    Moses also deletes each `|` from the text, unless the first line holds one. After
    its own tokenisation there is none left (it is written `&#124;`), and otherwise it
    is not done here.
    """

    ratio: float | None = None
    least: int | None = None
    most: int | None = None

    @property
    def problems(self) -> list[str]:
        """Reasons to skip a pair, in the order of the tests."""
        return [name for name, _ in self._tests("a", "a")]

    def problem(self, source: str, target: str) -> str | None:
        """Reason to skip a pair, of `problems`, or None."""
        return next((name for name, bad in self._tests(source, target) if bad), None)

    def _tests(self, source: str, target: str) -> Iterator[tuple[str, bool]]:
        shorter, longer = sorted((len(source.split()), len(target.split())))
        yield "empty", shorter == 0
        if self.most is not None:
            yield f"more than {self.most} words", longer > self.most
        if self.least is not None:
            yield f"fewer than {self.least} words", shorter < self.least
        if self.ratio is not None:
            # Division, as Moses: a product would round otherwise at the limit.
            yield f"length ratio above {self.ratio:g}", longer / shorter > self.ratio
        long = _LONG_WORD.search(source) or _LONG_WORD.search(target)
        yield "word of more than 1000 characters", bool(long)


@dataclasses.dataclass(frozen=True)
class Part:
    """Files that belong to one split.

    Attributes:
        name: in reports.
        split: "train", "valid" or "test".
        wanted: the files of source and target.
        markup: "plain"; "tags" (IWSLT: lines with <url>, <talkid>, <keywords> are left
            out, the tags title and description are deleted); "segments" (SGM and XML:
            the text of the lines with <seg id).
        optional: may be missing.
    """

    name: str
    split: str
    wanted: tuple[Wanted, Wanted]
    markup: str = "plain"
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Preparation of a corpus.

    Attributes:
        name: name in reports.
        source, target: languages, two or three letters.
        parts: parts to read, in this order.
        tokenizer: "none", "moses", "moses+bpe", "sentencepiece"; or "pieces", when the
            files hold byte pairs.
        normalize, remove_nonprinting, lowercase: steps; what Moses' scripts do.
        normalize_tests: whether the first two are also done to parts other than
            training (fairseq's scripts leave test sets as they are).
        aggressive_dash_splits: of Moses' tokenizer.
        rule: rules for pairs to keep.
        rule_on: "words": on tokens, before lines are dealt out to splits, training
            parts only; "pieces": on byte pairs, after that, for training and
            validation. Test sets are never filtered.
        deduplicate: whether to keep only the first of equal training pairs.
        valid_every, test_every: of the training lines, those whose number (from 1)
            leaves the remainder 0 when divided by `valid_every` validate; those with
            the remainder 1 by `test_every`, and not the first, test.
        merges: byte-pair merges, learnt on both sides of the training lines together.
        vocabulary_size: of a SentencePiece model.
        joined: one dictionary (SentencePiece: one model) for both sides.
        threshold, nwords: limits of the dictionaries, see `Dictionary.from_counts`.
        on_error: action for lines that are not UTF-8: "raise", "skip" the pair, or
            "replace" the bytes with U+FFFD.
        codes: file of the byte pairs of "pieces", or None.
        scoring: scoring of published results.
    """

    name: str
    source: str
    target: str
    parts: tuple[Part, ...]
    tokenizer: str = "moses+bpe"
    normalize: bool = False
    remove_nonprinting: bool = False
    normalize_tests: bool = True
    lowercase: bool = False
    aggressive_dash_splits: bool = True
    rule: Rule = Rule()
    rule_on: str = "words"
    deduplicate: bool = False
    valid_every: int | None = None
    test_every: int | None = None
    merges: int | None = None
    vocabulary_size: int | None = None
    joined: bool = True
    threshold: int = -1
    nwords: int = -1
    on_error: str = "replace"
    codes: Wanted | None = None
    scoring: str = ""

    def split_of(self, number: int) -> str:
        """The split of a training line, by its number from 1."""
        if self.valid_every and number % self.valid_every == 0:
            return "valid"
        if self.test_every and number > 1 and number % self.test_every == 1:
            return "test"
        return "train"


def listing(recipe: Recipe, data: str | os.PathLike) -> list[str]:
    """The files of a recipe: found where, or missing and where to get them."""
    files = [(wanted, part.optional) for part in recipe.parts for wanted in part.wanted]
    files += [(recipe.codes, True)] * (recipe.codes is not None)
    shown = []
    for wanted, optional in files:
        if (place := find(wanted, Path(data))) is not None:
            shown.append(f"found    {place}")
            continue
        where = f" (in {wanted.archive})" if wanted.archive else ""
        missing = "optional" if optional else "missing "
        shown.append(f"{missing} {wanted.names[0]}{where}, from {wanted.url or '?'}")
    return shown


def locate(
    recipe: Recipe, data: str | os.PathLike
) -> list[tuple[Part, tuple[Place, Place]]]:
    """The parts of a recipe that are there, with the files of source and target.

    Raises:
        FileNotFoundError: names those that are missing, and where to get them.
    """
    data = Path(data)
    if not data.exists():
        raise FileNotFoundError(f"`data` must exist. No such file or folder: {data}")
    located, missing = [], []
    for part in recipe.parts:
        places = tuple(find(wanted, data) for wanted in part.wanted)
        if None not in places:
            located.append((part, places))
        elif not part.optional or any(places):
            found = zip(part.wanted, places, strict=True)
            missing += [wanted for wanted, place in found if place is None]
    if missing:
        names = ", ".join(wanted.names[0] for wanted in missing)
        urls = ", ".join(dict.fromkeys(wanted.url for wanted in missing if wanted.url))
        get = f" Get them from: {urls}" if urls else ""
        raise FileNotFoundError(f"In {data} there must be: {names}.{get}")
    return located


# --- The papers' corpora. ---

_IWSLT_URL = "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
_WIT3_URL = "https://wit3.fbk.eu/2014-01"
_IWSLT_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011",
                "TED.tst2012")  # fmt: skip
_STATMT = "http://statmt.org"
# Name: files, of the language beside English and the side; archive; where that is. In
# the order of the training text.
_WMT14 = {
    "europarl-v7": ("training/europarl-v7.{}-en.{{}}",
                    "training-parallel-europarl-v7.tgz", f"{_STATMT}/wmt13/"),
    "commoncrawl": ("commoncrawl.{}-en.{{}}",
                    "training-parallel-commoncrawl.tgz", f"{_STATMT}/wmt13/"),
    "un": ("un/undoc.2000.{}-en.{{}}",
           "training-parallel-un.tgz", f"{_STATMT}/wmt13/"),
    "news-commentary-v9": ("training/news-commentary-v9.{}-en.{{}}",
                           "training-parallel-nc-v9.tgz", f"{_STATMT}/wmt14/"),
    "news-commentary-v12": ("training/news-commentary-v12.{}-en.{{}}",
                            "training-parallel-nc-v12.tgz",
                            "http://data.statmt.org/wmt17/translation-task/"),
    "giga": ("giga-fren.release2.fixed.{{}}",
             "training-giga-fren.tar", f"{_STATMT}/wmt10/"),
}  # fmt: skip
_WMT16 = {
    "archive": "wmt16_en_de.tar.gz",
    "url": "https://drive.google.com/uc?export=download&id=0B_bZck-ksdkpM25jRUN2X2UxMm8",
}


def _part(name: str, split: str, file: str, sides, archive: str, url: str, **more):
    """A part whose files have what `sides` says in place of the {} of `file`.

    They are also looked for without the folder that `file` may name.
    """
    names = dict.fromkeys((file, os.path.basename(file)))
    wanted = tuple(
        Wanted(tuple(one.format(side) for one in names), archive, url) for side in sides
    )
    return Part(name, split, wanted, **more)


def iwslt14(source: str = "de", target: str = "en") -> Recipe:
    """TED talks of IWSLT 2014, as in fairseq's `prepare-iwslt14.sh`.

    1. Training: lines with <url>, <talkid> or <keywords> go; the tags of titles and
       descriptions go, their text stays. (Other lines of markup stay, as there.)
    2. Tests: the text of `<seg id`, apostrophes made plain, not unescaped.
    3. Moses' tokens, without -a and without normalisation of punctuation.
    4. Training pairs are cleaned: 1 to 175 words, ratio at most 1.5.
    5. Lower case.
    6. Of the remaining pairs, every 23rd validates.
    7. 10,000 merges, learnt on the training lines of both sides; dictionaries apart.

    With other languages than German and English: their archive, the test sets it has.
    """
    _check_languages(source, target)
    # Archives are named after the pair, English last; each serves both directions.
    pair = f"{target}-{source}" if source == "en" else f"{source}-{target}"
    known = pair == "de-en"
    url = _IWSLT_URL if known else f"{_WIT3_URL} ({pair}.tgz)"
    where = (source, target), f"{pair}.tgz", url
    train = f"{pair}/train.tags.{pair}.{{}}"
    parts = [_part("train.tags", "train", train, *where, markup="tags")]
    for name in _IWSLT_TESTS:
        test = f"{pair}/IWSLT14.{name}.{pair}.{{}}.xml"
        markup = {"markup": "segments", "optional": not known}
        parts.append(_part(name, "test", test, *where, **markup))
    return Recipe(
        "iwslt14",
        source,
        target,
        tuple(parts),
        lowercase=True,
        aggressive_dash_splits=False,
        rule=Rule(1.5, 1, 175),
        valid_every=23,
        merges=10000,
        joined=False,
        scoring="BLEU of tokens, lower-cased, byte pairs joined",
    )


def wmt14(
    source: str = "en",
    target: str = "de",
    *,
    news_commentary: str | None = None,
    joined: bool = True,
) -> Recipe:
    """News of WMT 2014, English with German or French, as in fairseq's scripts.

    1. Training files one after the other: punctuation normalised, non-printing
       characters made blanks, Moses' tokens with -a; case is kept.
    2. Every 100th line (with French every 1,333rd) validates.
    3. 40,000 merges, learnt on the training lines of both sides, uncleaned.
    4. After the merges, training and validation are cleaned: 1 to 250 pieces, ratio at
       most 1.5.
    5. Test: newstest2014, apostrophes made plain, Moses' tokens with -a, otherwise as
       it is: no normalisation, no unescaping.

    Args:
        source, target: "en" and "de", or "en" and "fr", in either order.
        news_commentary: with German "v12", fairseq's default (its `wmt17_en_de`), or
            "v9" (fairseq's `--icml17`, the data of ConvS2S); with French only "v9".
        joined: one dictionary, as tables that are shared need.
    """
    _check_languages(source, target, ("de", "fr"))
    other = target if source == "en" else source
    french = other == "fr"
    versions = ("v9",) if french else ("v12", "v9")
    news_commentary = news_commentary or versions[0]
    check_choice("news_commentary", news_commentary, versions)
    names = ["europarl-v7", "commoncrawl", f"news-commentary-{news_commentary}"]
    names += ["un", "giga"] * french
    parts = [
        _part(
            name, "train", file.format(other), (source, target), archive, url + archive
        )
        for name, (file, archive, url) in _WMT14.items()
        if name in names
    ]
    test = f"test-full/newstest2014-{other}en-{{}}.sgm"
    sides = f"src.{source}", f"ref.{target}"
    where = "test-full.tgz", f"{_STATMT}/wmt14/test-full.tgz"
    parts.append(_part("newstest2014", "test", test, sides, *where, markup="segments"))
    return Recipe(
        "wmt14",
        source,
        target,
        tuple(parts),
        normalize=True,
        remove_nonprinting=True,
        normalize_tests=False,
        rule=Rule(1.5, 1, 250),
        rule_on="pieces",
        valid_every=1333 if french else 100,
        merges=40000,
        joined=joined,
        scoring="BLEU of tokens, cased" + ("" if french else ", compounds split"),
    )


def wmt16(source: str = "en", target: str = "de") -> Recipe:
    """WMT 2016 English-German, with Google's tokens and byte pairs, as in fairseq.

    Nothing is tokenised or filtered. Validation newstest2013, test newstest2014; one
    dictionary, 32,768 symbols at most, the four special ones included.
    """
    _check_languages(source, target, ("de",))
    parts = [
        _part(stem, split, f"{stem}.{{}}", (source, target), **_WMT16)
        for split, stem in (
            ("train", "train.tok.clean.bpe.32000"),
            ("valid", "newstest2013.tok.bpe.32000"),
            ("test", "newstest2014.tok.bpe.32000"),
        )
    ]
    return Recipe(
        "wmt16",
        source,
        target,
        tuple(parts),
        tokenizer="pieces",
        aggressive_dash_splits=False,
        nwords=32768,
        codes=Wanted(("bpe.32000",), **_WMT16),
        scoring="BLEU of tokens, cased, compounds split",
    )


# --- Any corpus. ---


def corpus(
    source: str,
    target: str,
    train: list,
    *,
    valid: list = (),
    test: list = (),
    tokenizer: str = "moses+bpe",
    ratio: float | None = None,
    least: int = 1,
    most: int | None = None,
    merges: int = 10000,
    vocabulary_size: int = 10000,
    on_error: str = "raise",
    **options,
) -> Recipe:
    """Any parallel files.

    In this order: tokens; training pairs are cleaned (`ratio`, `least`, `most`, on
    tokens, before byte pairs) and duplicates skipped; every n-th remaining pair goes to
    validation or test; merges learnt on both sides of the training lines.

    Args:
        source, target: languages, two or three letters.
        train, valid, test: pairs of paths, (source, target); several are joined.
            A name with .sgm or .xml holds segments.
        ratio, least, most: see `Rule`.
        merges: for the tokenizer "moses+bpe".
        vocabulary_size: for the tokenizer "sentencepiece".
        on_error: "raise" or "skip".
        tokenizer, **options: see `Recipe`.
    """
    _check_languages(source, target)
    check_choice("tokenizer", tokenizer, TOKENIZERS)
    check_choice("on_error", on_error, ("raise", "skip"))
    check_positive_integer("least", least)
    check_positive_integer("most", least if most is None else most)
    check_positive_integer("merges", merges)
    check_positive_integer("vocabulary_size", vocabulary_size)
    if ratio is not None:
        check_number("ratio", ratio, "at least 1", lambda ratio: ratio >= 1)
    if not train:
        raise ValueError("`train` must name at least one pair of files.")
    splits = {"train": train, "valid": valid, "test": test}
    for name in ("valid", "test"):
        if (every := options.get(f"{name}_every")) is not None:
            check_integer(f"{name}_every", every, 2)
            if splits[name]:
                raise ValueError(f"Give `{name}` or `{name}_every`, not both.")
    return Recipe(
        "corpus",
        source,
        target,
        tuple(_files(split, *pair) for split in splits for pair in splits[split]),
        tokenizer=tokenizer,
        rule=Rule(ratio, least, most),
        merges=merges if tokenizer == "moses+bpe" else None,
        vocabulary_size=vocabulary_size if tokenizer == "sentencepiece" else None,
        on_error=on_error,
        **options,
    )


def _files(split: str, *files) -> Part:
    segments = {bool(re.search(r"\.(sgm|xml)(\.\w+)?$", str(file))) for file in files}
    if len(segments) > 1:
        raise ValueError(f"`{split}` must be both text or both segments: {files}")
    wanted = tuple(Wanted((str(file),)) for file in files)
    markup = "segments" if segments.pop() else "plain"
    return Part(os.path.basename(files[0]), split, wanted, markup)


def _check_languages(source: str, target: str, with_english: tuple[str, ...] = ()):
    check_language("source", source)
    check_language("target", target)
    if with_english and {source, target} not in [{"en", one} for one in with_english]:
        pairs = ", or ".join(f"en and {one}" for one in with_english)
        raise ValueError(
            f"`source` and `target` must be {pairs}, in either order. "
            f"Received: source={source!r}, target={target!r}"
        )
    if source == target:
        raise ValueError(f"`source` and `target` must differ. Received: {source!r}")
