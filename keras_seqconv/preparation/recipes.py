"""What each recipe reads and does. Data, and functions that fill it in.

Sources: fairseq's `prepare-iwslt14.sh`, `prepare-wmt14en2de.sh`,
`prepare-wmt14en2fr.sh` and its README for WMT'16 (spec fairseq 8.4).
"""

import dataclasses
import os
import re
from pathlib import Path

from keras_seqconv.preparation.cleaning import Rule
from keras_seqconv.preparation.files import Place, Wanted, find
from keras_seqconv.support.arguments import (
    check_choice,
    check_positive_integer,
    is_number,
)

TOKENIZERS = ("none", "moses", "moses+bpe", "sentencepiece")


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
        normalize, remove_nonprinting, lowercase: steps, see `text.Steps`.
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


@dataclasses.dataclass(frozen=True)
class Located:
    """A part with the places of its files."""

    part: Part
    places: tuple[Place, Place]


def listing(recipe: Recipe, data: str | os.PathLike) -> list[str]:
    """The files of a recipe: found where, or missing and where to get them."""
    shown = []
    for part, wanted in _all_files(recipe):
        place = find(wanted, Path(data))
        if place is not None:
            shown.append(f"found    {place}")
            continue
        where = f" (in {wanted.archive})" if wanted.archive else ""
        missing = "optional" if part is None or part.optional else "missing "
        shown.append(f"{missing} {wanted.names[0]}{where}, from {wanted.url or '?'}")
    return shown


def locate(recipe: Recipe, data: str | os.PathLike) -> tuple[Located, ...]:
    """Finds the files of a recipe.

    Raises:
        FileNotFoundError: names those that are missing, and where to get them.
    """
    data = Path(data)
    if not data.exists():
        raise FileNotFoundError(f"`data` must exist. No such file or folder: {data}")
    located, missing = [], []
    for part in recipe.parts:
        places = tuple(find(wanted, data) for wanted in part.wanted)
        lacking = [
            wanted
            for wanted, place in zip(part.wanted, places, strict=True)
            if place is None
        ]
        if not lacking:
            located.append(Located(part, places))
        elif not part.optional or len(lacking) == 1:
            missing += lacking
    if missing:
        names = ", ".join(wanted.names[0] for wanted in missing)
        urls = list(dict.fromkeys(one.url for one in missing if one.url))
        get = f" Get them from: {', '.join(urls)}" if urls else ""
        raise FileNotFoundError(f"In {data} there must be: {names}.{get}")
    return tuple(located)


def _all_files(recipe: Recipe):
    for part in recipe.parts:
        for wanted in part.wanted:
            yield part, wanted
    if recipe.codes is not None:
        yield None, recipe.codes


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

    def wanted(file):
        return Wanted((f"{pair}/{file}", file), f"{pair}.tgz", url)

    def part(name, split, markup, pattern, optional=False):
        files = tuple(wanted(pattern.format(lang)) for lang in (source, target))
        return Part(name, split, files, markup, optional)

    tests = [
        part(name, "test", "segments", f"IWSLT14.{name}.{pair}.{{}}.xml", not known)
        for name in _IWSLT_TESTS
    ]
    return Recipe(
        "iwslt14",
        source,
        target,
        (part("train.tags", "train", "tags", f"train.tags.{pair}.{{}}"), *tests),
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
_TEST_URL = f"{_STATMT}/wmt14/test-full.tgz"
# name, prefix of the files, archive, where it is from
_EUROPARL = ("europarl-v7", "training/europarl-v7.{}",
             "training-parallel-europarl-v7.tgz", f"{_STATMT}/wmt13/")  # fmt: skip
_COMMON_CRAWL = ("commoncrawl", "commoncrawl.{}",
                 "training-parallel-commoncrawl.tgz", f"{_STATMT}/wmt13/")  # fmt: skip
_NEWS = {
    "v9": ("news-commentary-v9", "training/news-commentary-v9.{}",
           "training-parallel-nc-v9.tgz", f"{_STATMT}/wmt14/"),
    "v12": ("news-commentary-v12", "training/news-commentary-v12.{}",
            "training-parallel-nc-v12.tgz",
            "http://data.statmt.org/wmt17/translation-task/"),
}  # fmt: skip
_UN = ("un", "un/undoc.2000.{}", "training-parallel-un.tgz",
       f"{_STATMT}/wmt13/")  # fmt: skip
_GIGA = ("giga", "giga-fren.release2.fixed", "training-giga-fren.tar",
         f"{_STATMT}/wmt10/")  # fmt: skip


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
    if sorted((source, target)) not in (["de", "en"], ["en", "fr"]):
        raise ValueError(
            "`source` and `target` must be en and de, or en and fr, in either order. "
            f"Received: source={source!r}, target={target!r}"
        )
    other = target if source == "en" else source
    french = other == "fr"
    news_commentary = news_commentary or ("v9" if french else "v12")
    check_choice(
        "news_commentary", news_commentary, ("v9",) if french else tuple(_NEWS)
    )
    corpora = [_EUROPARL, _COMMON_CRAWL, _NEWS[news_commentary]]
    if french:
        corpora[2:2] = [_UN]
        corpora.append(_GIGA)
    parts = [_training(*corpus, f"{other}-en", source, target) for corpus in corpora]
    return Recipe(
        "wmt14",
        source,
        target,
        (*parts, _newstest2014(source, target, other)),
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


def _training(name, prefix, archive, base, pair, source, target) -> Part:
    stem = prefix.format(pair)
    files = tuple(
        Wanted((f"{stem}.{lang}", f"{Path(stem).name}.{lang}"), archive, base + archive)
        for lang in (source, target)
    )
    return Part(name, "train", files)


def _newstest2014(source: str, target: str, other: str) -> Part:
    def wanted(kind, lang):
        name = f"newstest2014-{other}en-{kind}.{lang}.sgm"
        return Wanted((f"test-full/{name}", name), "test-full.tgz", _TEST_URL)

    files = (wanted("src", source), wanted("ref", target))
    return Part("newstest2014", "test", files, "segments")


_WMT16_URL = (
    "https://drive.google.com/uc?export=download&id=0B_bZck-ksdkpM25jRUN2X2UxMm8"
)


def wmt16(source: str = "en", target: str = "de") -> Recipe:
    """WMT 2016 English-German, with Google's tokens and byte pairs, as fairseq uses it.

    Nothing is tokenised or filtered. Validation newstest2013, test newstest2014; one
    dictionary, 32,768 symbols at most, the four special ones included.
    """
    if sorted((source, target)) != ["de", "en"]:
        raise ValueError(
            "`source` and `target` must be en and de, in either order. "
            f"Received: source={source!r}, target={target!r}"
        )

    def wanted(name):
        names = (name, f"wmt16_en_de_bpe32k/{name}", f"wmt16_en_de/{name}")
        return Wanted(names, "wmt16_en_de.tar.gz", _WMT16_URL)

    def part(split, stem):
        files = tuple(wanted(f"{stem}.{lang}") for lang in (source, target))
        return Part(stem, split, files)

    return Recipe(
        "wmt16",
        source,
        target,
        (
            part("train", "train.tok.clean.bpe.32000"),
            part("valid", "newstest2013.tok.bpe.32000"),
            part("test", "newstest2014.tok.bpe.32000"),
        ),
        tokenizer="pieces",
        aggressive_dash_splits=False,
        nwords=32768,
        codes=wanted("bpe.32000"),
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
    valid_every: int | None = None,
    test_every: int | None = None,
    tokenizer: str = "moses+bpe",
    normalize: bool = False,
    remove_nonprinting: bool = False,
    aggressive_dash_splits: bool = True,
    lowercase: bool = False,
    ratio: float | None = None,
    least: int = 1,
    most: int | None = None,
    deduplicate: bool = False,
    merges: int = 10000,
    vocabulary_size: int = 10000,
    joined: bool = True,
    threshold: int = -1,
    nwords: int = -1,
    on_error: str = "raise",
) -> Recipe:
    """Any parallel files.

    In this order: tokens; training pairs are cleaned (`ratio`, `least`, `most`, on
    tokens, before byte pairs) and doubles left out; every n-th of what is left goes to
    validation or test; merges learnt on both sides of the training lines.

    Args:
        source, target: languages, two or three letters.
        train, valid, test: pairs of paths, (source, target); several are joined.
            A name with .sgm or .xml holds segments.
        The others: see `Recipe`.
    """
    _check_languages(source, target)
    check_choice("tokenizer", tokenizer, TOKENIZERS)
    check_choice("on_error", on_error, ("raise", "skip"))
    for name, value in (("valid_every", valid_every), ("test_every", test_every)):
        if value is not None and check_positive_integer(name, value) < 2:
            raise ValueError(f"`{name}` must be at least 2. Received: {name}={value}")
    for name, value in (
        ("most", most),
        ("merges", merges),
        ("least", least),
        ("vocabulary_size", vocabulary_size),
    ):
        if value is not None:
            check_positive_integer(name, value)
    if ratio is not None and (not is_number(ratio) or ratio < 1):
        raise ValueError(f"`ratio` must be at least 1. Received: ratio={ratio!r}")
    if not train:
        raise ValueError("`train` must name at least one pair of files.")
    for name, files, every in (
        ("valid", valid, valid_every),
        ("test", test, test_every),
    ):
        if files and every is not None:
            raise ValueError(f"Give `{name}` or `{name}_every`, not both.")
    groups = (("train", train), ("valid", valid), ("test", test))
    parts = [_part_of(split, *files) for split, pairs in groups for files in pairs]
    bpe = tokenizer == "moses+bpe"
    return Recipe(
        "corpus",
        source,
        target,
        tuple(parts),
        tokenizer=tokenizer,
        normalize=normalize,
        remove_nonprinting=remove_nonprinting,
        lowercase=lowercase,
        aggressive_dash_splits=aggressive_dash_splits,
        rule=Rule(ratio, least, most),
        deduplicate=deduplicate,
        valid_every=valid_every,
        test_every=test_every,
        merges=merges if bpe else None,
        vocabulary_size=vocabulary_size if tokenizer == "sentencepiece" else None,
        joined=joined,
        threshold=threshold,
        nwords=nwords,
        on_error=on_error,
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


def _check_languages(source: str, target: str):
    for name, value in (("source", source), ("target", target)):
        if not isinstance(value, str) or not re.fullmatch("[a-z]{2,3}", value):
            raise ValueError(
                f"`{name}` must be two or three small letters, such as 'de'. "
                f"Received: {name}={value!r}"
            )
    if source == target:
        raise ValueError(f"`source` and `target` must differ. Received: {source!r}")
