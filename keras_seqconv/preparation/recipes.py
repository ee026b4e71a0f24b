"""What each recipe reads and does. Data, and functions that fill it in.

Sources: fairseq's `prepare-iwslt14.sh`, `prepare-wmt14en2de.sh`,
`prepare-wmt14en2fr.sh` and its README for WMT'16 (spec fairseq 8.4).
"""

import dataclasses
import os
import re
from pathlib import Path

from keras_seqconv.preparation.pairs import Place, Wanted, find
from keras_seqconv.support.arguments import (
    check_choice,
    check_positive_integer,
    is_number,
)

TOKENIZERS = ("none", "moses", "moses+bpe", "sentencepiece")
_LONG_WORD = re.compile(r"[^\s|]{1001}")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which pairs are kept: the rules of Moses' clean-corpus-n.perl, in its order.

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
        """What can speak against a pair, in the order of the tests."""
        limits = (True, self.most, self.least, self.ratio, True)
        return [
            name for name, limit in zip(self._names(), limits, strict=True) if limit
        ]

    def problem(self, source: str, target: str) -> str | None:
        """What speaks against a pair, of `problems`; None when nothing does."""
        first, second = len(source.split()), len(target.split())
        if not first or not second:
            return self._names()[0]
        if self.most is not None and max(first, second) > self.most:
            return self._names()[1]
        if self.least is not None and min(first, second) < self.least:
            return self._names()[2]
        # Division, as Moses: a product would round otherwise at the limit.
        if self.ratio is not None and (
            second / first > self.ratio or first / second > self.ratio
        ):
            return self._names()[3]
        if _LONG_WORD.search(source) or _LONG_WORD.search(target):
            return self._names()[4]
        return None

    def _names(self) -> tuple[str, ...]:
        return (
            "empty",
            f"more than {self.most} words",
            f"fewer than {self.least} words",
            f"length ratio above {self.ratio or 0:g}",
            "word of more than 1000 characters",
        )


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
    """How a corpus is prepared.

    Attributes:
        name: for reports.
        source, target: languages, two or three letters.
        parts: what is read, in this order.
        tokenizer: of `TOKENIZERS`; or "pieces", when the files hold byte pairs.
        normalize, remove_nonprinting, lowercase: steps; what Moses' scripts do.
        normalize_tests: whether the first two are also done to parts other than
            training (fairseq's scripts leave test sets as they are).
        aggressive_dash_splits: of Moses' tokenizer.
        rule: which pairs are kept.
        rule_on: "words": on tokens, before lines are dealt out to splits, training
            parts only; "pieces": on byte pairs, after that, for training and
            validation. Test sets are never filtered.
        deduplicate: keep the first of equal training pairs.
        valid_every, test_every: of the training lines, those whose number (from 1)
            leaves the remainder 0 when divided by `valid_every` validate; those with
            the remainder 1 by `test_every`, and not the first, test.
        merges: byte-pair merges, learnt on both sides of the training lines together.
        vocabulary_size: of a SentencePiece model.
        joined: one dictionary (SentencePiece: one model) for both sides.
        threshold, nwords: limits of the dictionaries, see `Dictionary.from_counts`.
        on_error: what is done to lines that are not UTF-8: "raise", "skip" the pair, or
            "replace" the bytes with U+FFFD.
        codes: file of the byte pairs of "pieces", or None.
        scoring: how published scores of this recipe are made.
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


def listing(recipe: Recipe, data: str | os.PathLike) -> list[str]:
    """The files of a recipe: found where, or missing and where to get them."""
    files = [(wanted, part.optional) for part in recipe.parts for wanted in part.wanted]
    files += [(recipe.codes, True)] * (recipe.codes is not None)
    shown = []
    for wanted, optional in files:
        where = f" (in {wanted.archive})" if wanted.archive else ""
        missing = "optional" if optional else "missing "
        place = find(wanted, Path(data))
        shown.append(
            f"found    {place}"
            if place is not None
            else f"{missing} {wanted.names[0]}{where}, from {wanted.url or '?'}"
        )
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
        elif not part.optional or places != (None, None):
            missing += [
                wanted
                for wanted, place in zip(part.wanted, places, strict=True)
                if place is None
            ]
    if missing:
        names = ", ".join(wanted.names[0] for wanted in missing)
        urls = list(dict.fromkeys(wanted.url for wanted in missing if wanted.url))
        get = f" Get them from: {', '.join(urls)}" if urls else ""
        raise FileNotFoundError(f"In {data} there must be: {names}.{get}")
    return located


def _part(name: str, split: str, names, sides, archive: str, url: str, **more) -> Part:
    """A part whose files have what `sides` says in place of the {} of `names`."""
    wanted = tuple(
        Wanted(tuple(name.format(side) for name in names), archive, url)
        for side in sides
    )
    return Part(name, split, wanted, **more)


# --- IWSLT ----------------------------------------------------------------------------

_IWSLT_URL = "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"
_WIT3_URL = "https://wit3.fbk.eu/2014-01"
_IWSLT_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011",
                "TED.tst2012")  # fmt: skip


def iwslt14(source: str = "de", target: str = "en") -> Recipe:
    """TED talks of IWSLT 2014, as fairseq's `prepare-iwslt14.sh` has them.

    1. Training: lines with <url>, <talkid> or <keywords> go; the tags of titles and
       descriptions go, their text stays. (Other lines of markup stay, as there.)
    2. Tests: the text of `<seg id`, apostrophes made plain, not unescaped.
    3. Moses' tokens, without -a and without normalisation of punctuation.
    4. Training pairs are cleaned: 1 to 175 words, ratio at most 1.5.
    5. Lower case.
    6. Of what is left, every 23rd pair validates.
    7. 10,000 merges, learnt on the training lines of both sides; dictionaries apart.

    With other languages than German and English: their archive, the test sets it has.
    """
    _check_languages(source, target)
    # Archives are named after the pair, English last; each serves both directions.
    pair = f"{target}-{source}" if source == "en" else f"{source}-{target}"
    known = pair == "de-en"
    url = _IWSLT_URL if known else f"{_WIT3_URL} ({pair}.tgz)"
    where = (source, target), f"{pair}.tgz", url

    def names(file):
        return f"{pair}/{file}", file

    train = names(f"train.tags.{pair}.{{}}")
    parts = [_part("train.tags", "train", train, *where, markup="tags")]
    for name in _IWSLT_TESTS:
        test = names(f"IWSLT14.{name}.{pair}.{{}}.xml")
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


# --- WMT ------------------------------------------------------------------------------

_STATMT = "http://statmt.org"
# Name: pattern of the files, archive, where that is.
_WMT_TRAINING = {
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


def wmt14(
    source: str = "en",
    target: str = "de",
    *,
    news_commentary: str | None = None,
    joined: bool = True,
) -> Recipe:
    """News of WMT 2014, English with German or French, as fairseq's scripts have it.

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
        joined: one dictionary, as tables that are shared need (spec 8.1).
    """
    _check_languages(source, target, ("de", "fr"))
    other = target if source == "en" else source
    french = other == "fr"
    news_commentary = news_commentary or ("v9" if french else "v12")
    versions = ("v9",) if french else ("v9", "v12")
    check_choice("news_commentary", news_commentary, versions)
    names = ["europarl-v7", "commoncrawl", f"news-commentary-{news_commentary}"]
    if french:
        names[2:2] = ["un"]
        names.append("giga")
    parts = []
    for name in names:
        file, archive, folder = _WMT_TRAINING[name]
        file = file.format(other)
        files = file, os.path.basename(file)
        where = (source, target), archive, folder + archive
        parts.append(_part(name, "train", files, *where))
    file = f"newstest2014-{other}en-{{}}.sgm"
    files, sides = (f"test-full/{file}", file), (f"src.{source}", f"ref.{target}")
    where = sides, "test-full.tgz", f"{_STATMT}/wmt14/test-full.tgz"
    parts.append(_part("newstest2014", "test", files, *where, markup="segments"))
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
    """WMT 2016 English-German, with Google's tokens and byte pairs, as fairseq uses it.

    Nothing is tokenised or filtered. Validation newstest2013, test newstest2014; one
    dictionary, 32,768 symbols at most, the four special ones included.
    """
    _check_languages(source, target, ("de",))
    folders = ("", "wmt16_en_de_bpe32k/", "wmt16_en_de/")
    archive = "wmt16_en_de.tar.gz"
    url = "https://drive.google.com/uc?export=download&id=0B_bZck-ksdkpM25jRUN2X2UxMm8"
    parts = []
    for split, stem in (
        ("train", "train.tok.clean.bpe.32000"),
        ("valid", "newstest2013.tok.bpe.32000"),
        ("test", "newstest2014.tok.bpe.32000"),
    ):
        files = [f"{folder}{stem}.{{}}" for folder in folders]
        parts.append(_part(stem, split, files, (source, target), archive, url))
    return Recipe(
        "wmt16",
        source,
        target,
        tuple(parts),
        tokenizer="pieces",
        aggressive_dash_splits=False,
        nwords=32768,
        codes=Wanted(tuple(f"{folder}bpe.32000" for folder in folders), archive, url),
        scoring="BLEU of tokens, cased, compounds split",
    )


# --- Any corpus -----------------------------------------------------------------------


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
    tokens, before byte pairs) and doubles left out; every n-th of what is left goes to
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
    for name, files in (("valid", valid), ("test", test)):
        every = options.get(f"{name}_every")
        if every is not None and check_positive_integer(f"{name}_every", every) < 2:
            raise ValueError(
                f"`{name}_every` must be at least 2. Received: {name}_every={every}"
            )
        if files and every is not None:
            raise ValueError(f"Give `{name}` or `{name}_every`, not both.")
    if most is not None:
        check_positive_integer("most", most)
    check_positive_integer("least", least)
    check_positive_integer("merges", merges)
    check_positive_integer("vocabulary_size", vocabulary_size)
    if ratio is not None and (not is_number(ratio) or ratio < 1):
        raise ValueError(f"`ratio` must be at least 1. Received: ratio={ratio!r}")
    if not train:
        raise ValueError("`train` must name at least one pair of files.")
    splits = {"train": train, "valid": valid, "test": test}
    return Recipe(
        "corpus",
        source,
        target,
        tuple(_part_of(split, *pair) for split in splits for pair in splits[split]),
        tokenizer=tokenizer,
        rule=Rule(ratio, least, most),
        merges=merges if tokenizer == "moses+bpe" else None,
        vocabulary_size=vocabulary_size if tokenizer == "sentencepiece" else None,
        on_error=on_error,
        **options,
    )


def _part_of(split: str, source, target) -> Part:
    files = [str(source), str(target)]
    markup = {
        "segments" if re.search(r"\.(sgm|xml)(\.\w+)?$", file) else "plain"
        for file in files
    }
    if len(markup) > 1:
        raise ValueError(f"`{split}` must be both text or both segments: {files}")
    name = os.path.basename(files[0])
    wanted = tuple(Wanted((file,)) for file in files)
    return Part(name, split, wanted, markup.pop())


def _check_languages(source: str, target: str, with_english: tuple[str, ...] = ()):
    pairs = {f"en and {other}": {"en", other} for other in with_english}
    if pairs and {source, target} not in pairs.values():
        raise ValueError(
            f"`source` and `target` must be {', or '.join(pairs)}, in either order. "
            f"Received: source={source!r}, target={target!r}"
        )
    for name, value in (("source", source), ("target", target)):
        if not isinstance(value, str) or not re.fullmatch("[a-z]{2,3}", value):
            raise ValueError(
                f"`{name}` must be two or three small letters, such as 'de'. "
                f"Received: {name}={value!r}"
            )
    if source == target:
        raise ValueError(f"`source` and `target` must differ. Received: {source!r}")
