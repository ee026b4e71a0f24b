"""The embedded corpus: splits, unseen numbers, functions both ways, German."""

import datetime
import re
from collections import Counter, defaultdict
from importlib.metadata import version

import pytest

pytest.importorskip("babel")
pytest.importorskip("num2words")

from keras_seqconv.data.sources import open_corpus
from tools.phrases import (
    CHECKSUM,
    SIZES,
    checksum,
    forms,
    generate,
    phrases,
    words,
)

TOKEN = re.compile(r"\w+|[^\w\s]")
VERSIONS = {"Babel": "2.18.0", "num2words": "0.5.14"}


@pytest.fixture(scope="module")
def corpus():
    return generate.corpus()


def numbers_of(pair):
    """What a pair shows of numbers, written here once more: one key for a value."""
    for name, slot in pair.template.slots.items():
        value = pair.values[name]
        if slot.kind == "number":
            yield name, ("number", abs(value))
        elif slot.kind == "time":
            yield name, ("time", value // 60 % 12, value % 60)
        elif slot.kind == "calendar":
            yield name, ("day", value.month, value.day)
            yield name, ("number", value.year)
        elif slot.kind == "date":
            yield name, ("day", *value)
        elif slot.kind not in ("name", "city", "noun", "weekday", "month"):
            yield name, (slot.kind, value)


@pytest.mark.slow
def test_counts_and_disjoint_splits(corpus):
    assert {split: len(pairs) for split, pairs in corpus.items()} == SIZES
    assert sum(SIZES.values()) == 20_000
    assert len(generate.templates()) >= 200
    for side in (0, 1):
        texts = [pair[side] for pairs in corpus.values() for pair in pairs]
        assert len(set(texts)) == 20_000  # also: no text is in two splits
    assert list(phrases("test")) == [pair[:2] for pair in corpus["test"]]


@pytest.mark.parametrize("split", SIZES)
def test_the_package_has_what_the_generator_writes(split):
    shipped = open_corpus("phrases")
    sides = [shipped.texts(split, side) for side in ("source", "target")]
    assert list(zip(*sides, strict=True)) == list(phrases(split))


def test_unknown_split():
    with pytest.raises(ValueError, match="`split` must be one of .*'dev'"):
        list(phrases("dev"))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_unseen_numbers_and_combinations(corpus, split):
    seen, seen_here = set(), set()
    for pair in corpus["train"]:
        for name, key in numbers_of(pair):
            seen.add(key)
            seen_here.add((pair.template.english, name, key))
    counts = Counter(pair.pool for pair in corpus[split])
    assert counts == {"number": 500, "combination": 500}
    for pair in corpus[split]:
        found = list(numbers_of(pair))
        if pair.pool == "number":
            assert any(key not in seen for _, key in found), pair.english
        else:
            assert all(key in seen for _, key in found), pair.english
            here = [(pair.template.english, name, key) for name, key in found]
            assert any(place not in seen_here for place in here), pair.english


def test_every_template_is_trained(corpus):
    counts = Counter(pair.template for pair in map(as_text, corpus["train"]))
    assert len(counts) == len(generate.templates())
    assert min(counts.values()) >= 60
    for split in ("validation", "test"):
        assert len({pair.template for pair in map(as_text, corpus[split])}) >= 250


def as_text(pair):
    return pair._replace(template=pair.template.english)


@pytest.mark.slow
def test_english_and_german_determine_each_other():
    """Not by leaving out what clashes: all draws, not only those of the corpus."""
    german, english = {}, {}
    for template in generate.templates():
        for values in generate._draws(template):
            pair = generate._write(template, values, "")
            assert german.setdefault(pair.english, pair.german) == pair.german
            assert english.setdefault(pair.german, pair.english) == pair.english
    assert len(german) > 60_000


def split_numeral(word):
    """(parts of the numeral that a German word begins with, the rest of it)."""
    for end in range(len(word), 0, -1):
        parts = generate.numeral_parts(word[:end])
        if parts is not None:
            return parts, word[end:]
    return [], word


def test_words_of_test_are_trained(corpus):
    """Numerals by their parts: each is in training, and so is what follows them."""
    for side in (0, 1):
        trained, parts, any_case = Counter(), Counter(), Counter()
        for pair in corpus["train"]:
            for word in TOKEN.findall(pair[side]):
                trained[word] += 1
                any_case[word.lower()] += 1
                if side == 1:
                    numeral, rest = split_numeral(word)
                    parts.update(numeral)
                    parts[rest] += bool(numeral)
        characters = Counter(c for pair in corpus["train"] for c in pair[side])
        for split in ("validation", "test"):
            for pair in corpus[split]:
                assert all(characters[c] >= 20 for c in pair[side])
                for word in TOKEN.findall(pair[side]):
                    if word.isdigit():
                        continue
                    if trained[word] and any_case[word.lower()] >= 5:
                        continue
                    numeral, rest = split_numeral(word)
                    assert side == 1 and numeral, word
                    assert all(parts[p] >= 5 for p in [*numeral, rest] if p), word


def test_every_numeral_word_is_trained(corpus):
    """The words of all numbers up to 999, cardinal and ordinal."""
    trained = [
        {w.lower() for pair in corpus["train"] for w in re.findall(r"\w+", pair[side])}
        for side in (0, 1)
    ]
    parts = {p for word in trained[1] for p in generate.numeral_parts(word) or ()}
    for number in range(1000):
        assert set(re.findall(r"\w+", forms.cardinal(number, "en"))) <= trained[0]
        assert set(generate.numeral_parts(forms.cardinal(number, "de"))) <= parts
    for number in range(1, 100):
        assert set(re.findall(r"\w+", forms.ordinal(number, "en"))) <= trained[0]
        assert set(generate.numeral_parts(forms.ordinal(number, "de"))) <= parts


def test_sentences_look_like_sentences(corpus):
    for pairs in corpus.values():
        for pair in pairs:
            for text in pair[:2]:
                assert 3 <= len(text.split()) <= 20, text
                assert text[0] == text[0].upper() and text == " ".join(text.split())
                assert text[-1] in ".?" or text.startswith(("Date:", "Datum:")), text
    small = {
        word
        for pair in corpus["train"]
        for word in TOKEN.findall(pair.english)
        if not word.isdigit()
    }
    assert len(small) < 800
    plain = {
        split_numeral(word)[1]
        for pair in corpus["train"]
        for word in TOKEN.findall(pair.german)
        if not word.isdigit()
    }
    assert len(plain) < 800


def test_checksum_with_the_pinned_versions():
    found = {name: version(name) for name in VERSIONS}
    if found != VERSIONS:
        pytest.skip(f"the checksum is that of {VERSIONS}, here are {found}")
    assert checksum() == CHECKSUM


MARCH = datetime.date(2024, 3, 4)
# kind, value, English form, English, German form, German
FORMS = [
    ("number", 0, "", "zero", "", "null"),
    ("number", 1, "", "one", "", "eins"),
    ("number", 11, "", "eleven", "", "elf"),
    ("number", 12, "", "twelve", "", "zwölf"),
    ("number", 16, "", "sixteen", "", "sechzehn"),
    ("number", 17, "", "seventeen", "", "siebzehn"),
    ("number", 21, "", "twenty-one", "", "einundzwanzig"),
    ("number", 30, "", "thirty", "", "dreißig"),
    ("number", 76, "", "seventy-six", "", "sechsundsiebzig"),
    ("number", 100, "", "one hundred", "", "einhundert"),
    ("number", 101, "", "one hundred and one", "", "einhunderteins"),
    ("number", 121, "", "one hundred and twenty-one", "", "einhunderteinundzwanzig"),
    ("number", 1000, "", "one thousand", "", "eintausend"),
    ("number", 1_000_000, "", "one million", "", "eine Million"),
    ("number", -5, "", "minus five", "", "minus fünf"),
    ("number", 1250, "digits", "1,250", "digits", "1.250"),
    ("number", 1250, "plain", "1250", "plain", "1250"),
    ("number", 12, "percent", "12%", "percent", "12 %"),
    ("number", 1, "th", "first", "te", "erste"),
    ("number", 3, "th", "third", "ten", "dritten"),
    ("number", 7, "th", "seventh", "te", "siebte"),
    ("number", 8, "th", "eighth", "te", "achte"),
    ("number", 16, "th", "sixteenth", "te", "sechzehnte"),
    ("number", 19, "th", "nineteenth", "te", "neunzehnte"),
    ("number", 20, "th", "twentieth", "te", "zwanzigste"),
    ("number", 31, "th", "thirty-first", "ten", "einunddreißigsten"),
    ("number", 100, "th", "one hundredth", "te", "hundertste"),
    ("number", 1905, "calendar", "nineteen oh-five", "calendar", "neunzehnhundertfünf"),
    ("number", 2000, "calendar", "two thousand", "calendar", "zweitausend"),
    ("number", 2024, "calendar", "twenty twenty-four")
    + ("calendar", "zweitausendvierundzwanzig"),
    ("number", 1987, "calendar", "nineteen eighty-seven")
    + ("calendar", "neunzehnhundertsiebenundachtzig"),
    ("number", 1, "hour", "one hour", "ein hour", "eine Stunde"),
    ("number", 1, "hour", "one hour", "einem hour", "einer Stunde"),
    ("number", 2, "hour", "two hours", "einem hour", "zwei Stunden"),
    ("number", 1, "day", "one day", "einen day", "einen Tag"),
    ("number", 1, "day", "one day", "einem day", "einem Tag"),
    ("number", 21, "day", "twenty-one days", "einen day", "einundzwanzig Tage"),
    ("number", 21, "day", "twenty-one days", "einem day", "einundzwanzig Tagen"),
    ("number", 1, "child", "one child", "einen child", "ein Kind"),
    ("number", 3, "child", "three children", "einem child", "drei Kindern"),
    ("number", 5, "euro", "five euros", "einem euro", "fünf Euro"),
    ("number", 1, "euro", "one euro", "einen euro", "einen Euro"),
    ("number", -1, "degree", "minus one degree", "ein degree", "minus ein Grad"),
    ("number", 1, "million", "one million", "ein million", "eine Million"),
    ("number", 2, "million", "two million", "ein million", "zwei Millionen"),
    ("number", 8, "a", "an eight", "stem", "acht"),
    ("number", 11, "a", "an eleven", "Stem", "Elf"),
    ("number", 100, "a", "a one-hundred", "Stem", "Hundert"),
    ("number", 1, "times", "once", "mal", "einmal"),
    ("number", 2, "times", "twice", "mal", "zweimal"),
    ("number", 21, "times", "twenty-one times", "mal", "einundzwanzigmal"),
    ("half", 1, "", "one and a half", "", "eineinhalb"),
    ("half", 2, "", "two and a half", "", "zweieinhalb"),
    ("fraction", (1, 3), "", "one third", "", "ein Drittel"),
    ("fraction", (3, 4), "", "three quarters", "", "drei Viertel"),
    ("fraction", (2, 7), "", "two sevenths", "", "zwei Siebtel"),
    ("tenths", 25, "mass-kilogram", "2.5 kilograms", "mass-kilogram", "2,5 Kilogramm"),
    ("tenths", 25, "words", "two point five", "words", "zwei Komma fünf"),
    ("money", (125050, "EUR"), "", "€1,250.50", "", "1.250,50 €"),
    ("money", (1200, "USD"), "", "$12.00", "", "12,00 $"),
    ("weekday", 2, "", "Wednesday", "", "Mittwoch"),
    ("weekday", 5, "every", "Saturdays", "every", "samstags"),
    ("month", 3, "", "March", "", "März"),
    ("date", (3, 1), "", "the first of March", "dem", "ersten März"),
    ("date", (12, 31), "", "the thirty-first of December")
    + ("der", "einunddreißigste Dezember"),
    ("calendar", MARCH, "", "March 4, 2024", "", "4. März 2024"),
    ("calendar", MARCH, "short", "3/4/2024", "short", "04.03.2024"),
    ("calendar", MARCH, "full", "Monday, March 4, 2024")
    + ("full", "Montag, dem 4. März 2024"),
    ("time", 0, "", "twelve o'clock", "", "zwölf Uhr"),
    ("time", 60, "", "one o'clock", "", "ein Uhr"),
    ("time", 12 * 60 + 30, "", "half past twelve", "", "halb eins"),
    ("time", 15, "", "quarter past twelve", "", "Viertel nach zwölf"),
    ("time", 12 * 60 + 45, "", "quarter to one", "", "Viertel vor eins"),
    ("time", 205, "", "twenty-five past three", "", "fünf vor halb vier"),
    ("time", 215, "", "twenty-five to four", "", "fünf nach halb vier"),
    ("time", 210, "part", "half past three at night", "part", "halb vier nachts"),
    ("time", 20 * 60 + 50, "part", "ten to nine in the evening")
    + ("part", "zehn vor neun abends"),
    ("time", 15, "digital", "12:15 AM", "digital", "0:15 Uhr"),
    ("time", 12 * 60 + 30, "digital", "12:30 PM", "digital", "12:30 Uhr"),
    ("time", 23 * 60 + 59, "digital", "11:59 PM", "digital", "23:59 Uhr"),
    ("noun", "apple", "a", "an apple", "einen", "einen Apfel"),
    ("noun", "cup", "the", "the cup", "dem", "der Tasse"),
    ("noun", "sheep", "many", "sheep", "vielen", "Schafen"),
    ("city", "Munich", "", "Munich", "", "München"),
]


@pytest.mark.parametrize("row", FORMS, ids=lambda row: f"{row[3]}-{row[4]}")
def test_forms(row):
    kind, value, english_form, english, german_form, german = row
    assert forms.english(kind, value, english_form) == english
    assert forms.german(kind, value, german_form) == german


# the beginning of a template, values of its slots, English, German
SENTENCES = [
    ("{who} bought {n:thing}.", dict(who="Anna", n=1, thing="egg"))
    + ("Anna bought one egg.", "Anna hat ein Ei gekauft."),
    ("There {n:is|are} {n:thing} in", dict(n=1, thing="orange"))
    + ("There is one orange in the basket.", "Im Korb liegt eine Orange."),
    ("{who} says that {n:thing}", dict(who="Paul", n=21, thing="apple"))
    + ("Paul says that twenty-one apples are missing.",)
    + ("Paul sagt, dass einundzwanzig Äpfel fehlen.",),
    ("{n:guest} arrived at", dict(n=1, guest="woman", t=930))
    + ("One woman arrived at half past three.", "Eine Frau kam um halb vier an."),
    ("{who} sold the {n:th}", dict(who="Eva", n=3, thing="hat"))
    + ("Eva sold the third hat too.", "Eva hat auch den dritten Hut verkauft."),
    ("Every {n:th} {thing}", dict(n=10, thing="bicycle"))
    + ("Every tenth bicycle is free of charge.",)
    + ("Jedes zehnte Fahrrad ist kostenlos.",),
    ("If {thing:the} costs more", dict(thing="lamp", e=1, who="Nina"))
    + ("If the lamp costs more than one euro, Nina will not buy it.",)
    + ("Wenn die Lampe mehr als einen Euro kostet, kauft Nina sie nicht.",),
    ("{who} paid {whom} with", dict(who="Anna", whom="Eva", n=2, note=100))
    + ("Anna paid Eva with two one-hundred-euro bills.",)
    + ("Anna hat Eva mit zwei Hundert-Euro-Scheinen bezahlt.",),
    ("{who} lives in {s:a}-story", dict(who="Anna", s=8, city="Cologne"))
    + ("Anna lives in an eight-story house in Cologne.",)
    + ("Anna wohnt in Köln in einem achtstöckigen Haus.",),
    ("The {s} of us", dict(s=7, t=60, city="Rome"))
    + ("The seven of us went to Rome at one o'clock.",)
    + ("Wir sind um ein Uhr zu siebt nach Rom gefahren.",),
    ("Today is {w}", dict(w=0, d=(3, 7)))
    + ("Today is Monday, the seventh of March.",)
    + ("Heute ist Montag, der siebte März.",),
    ("At {n:degree}", dict(n=-5, who="Paul"))
    + ("At minus five degrees, Paul stays at home.",)
    + ("Bei minus fünf Grad bleibt Paul zu Hause.",),
    ("Subtract {m}", dict(n=101, m=30))
    + ("Subtract thirty from one hundred and one.",)
    + ("Ziehen Sie dreißig von einhunderteins ab.",),
    ("{n:animal} ran after", dict(n=2, animal="cow", m=1, pet="dog"))
    + ("Two cows ran after one dog.", "Zwei Kühe liefen einem Hund hinterher."),
    ("{x} of the {n:guest}", dict(x=(1, 4), n=20, guest="guest", city="Vienna"))
    + ("One quarter of the twenty guests came from Vienna.",)
    + ("Ein Viertel der zwanzig Gäste kam aus Wien.",),
]


@pytest.mark.parametrize("row", SENTENCES, ids=lambda row: row[2])
def test_sentences(row):
    start, values, english, german = row
    (template,) = (t for t in generate.templates() if t.english.startswith(start))
    pair = generate._write(template, values, "")
    assert pair[:2] == (english, german)


def test_nouns_are_capitalised_and_not_after_101():
    for noun in words.NOUNS.values():
        assert noun.gender in ("der", "die", "das")
        assert noun.german[0].isupper() and noun.german_plural[0].isupper()
    with pytest.raises(ValueError, match="101"):
        forms.german("number", 101, "ein hour")


def test_every_value_can_be_written():
    """Each value of each slot alone, the other slots at their first value."""
    for template in generate.templates():
        first = {name: slot.values[0] for name, slot in template.slots.items()}
        sides = defaultdict(set)
        for name, slot in template.slots.items():
            values = slot.values if len(slot.values) < 150 else slot.values[::101]
            for value in values:
                pair = generate._write(template, {**first, name: value}, "")
                sides[pair.english].add(pair.german)
                assert "{" not in "".join(pair[:2])
        assert all(len(germans) == 1 for germans in sides.values())
