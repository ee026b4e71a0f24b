"""How the value of a slot is written in English and in German.

`english(kind, value, form)` and `german(kind, value, form)` write one field
`{slot:form}` of a template. Kinds, their values and their forms:

| kind | value | English forms | German forms |
|---|---|---|---|
| name | text | | |
| city | key of CITIES | | |
| noun | key of NOUNS | "" (singular), the, a, many | "", der, den, dem, ein, einen, einem, ihn, viele, vielen |
| weekday | 0 Monday ... 6 | "", every (Mondays) | "", every (montags) |
| month | 1 ... 12 | | |
| number | int | see below | see below |
| half | int n, meaning n + 1/2 | | |
| fraction | (numerator, denominator) | "", one\\|many | "", one\\|many |
| tenths | int, meaning n / 10 | unit of CLDR, decimal, words | the same |
| money | (cents, currency) | | |
| time | minutes since midnight | "" (half past three), part, digital | the same |
| date | (month, day) | words | dem (vierten März), der (vierte März) |
| calendar | datetime.date | "", short, full | the same |

Forms of numbers: "" cardinal, plain (1250), digits (1,250), percent, calendar (a year),
th / te, ten (ordinal), one|many (agreement), a noun ("three apples"; in German
with the case before it, "einen apple": accusative), and for compounds a (English
with its article: an eight), stem and Stem (German: ein, Hundert), times / mal.
A case is named by the masculine article in it: der or ein, den or einen, dem or einem.
In the form "den te apple" a German ordinal stands between article and noun.

Month and weekday names, dates, number, currency and unit formats are CLDR's, through
Babel; numerals are num2words'. No-break spaces become spaces.
"""  # noqa: E501

import datetime
import functools
import importlib
from decimal import Decimal

from num2words import num2words

from tools.phrases.words import (
    CITIES,
    DEFINITE,
    INDEFINITE,
    NOUNS,
    WEAK_EN,
)

LOCALES = {"en": "en_US", "de": "de_DE"}


@functools.cache
def cardinal(value: int, language: str) -> str:
    """Twenty-one, einundzwanzig; 1 alone is "eins" in German."""
    words = num2words(value, lang=language)
    return words.replace(",", "")


@functools.cache
def ordinal(value: int, language: str) -> str:
    """Twenty-first, einundzwanzigste."""
    to_words = num2words
    return to_words(value, to="ordinal", lang=language).replace(",", "")


@functools.cache
def year(value: int, language: str) -> str:
    """Nineteen eighty-seven, neunzehnhundertsiebenundachtzig."""
    return num2words(value, to="year", lang=language)


@functools.cache
def babel(function: str, value, *arguments, language: str, **options) -> str:
    """What a function of Babel, such as "dates.format_date", makes of a value."""
    module, name = function.split(".")
    function = getattr(importlib.import_module(f"babel.{module}"), name)
    text = function(value, *arguments, locale=LOCALES[language], **options)
    return text.replace("\xa0", " ").replace("\u202f", " ")


def stem(value: int) -> str:
    """A German cardinal as the first part of a compound: ein, zwei, hundert."""
    if value == 1:
        return "ein"
    words = cardinal(value, "de")
    return words.removeprefix("ein") if value in (100, 1000) else words


def capital(text: str) -> str:
    """The text with a capital first letter, the others as they are."""
    return text[:1].upper() + text[1:]


def english(kind: str, value, form: str) -> str:
    """The value of a slot in English; see the module's table."""
    return _ENGLISH[kind](value, form)


def german(kind: str, value, form: str) -> str:
    """The value of a slot in German; see the module's table."""
    return _GERMAN[kind](value, form)


def _shared_number(value: int, form: str, language: str) -> str | None:
    """Forms of numbers that the languages share."""
    if "|" in form:
        return form.split("|")[abs(value) != 1]
    if form == "":
        return cardinal(value, language)
    if form == "plain":
        return str(value)
    if form == "digits":
        return babel("numbers.format_decimal", value, language=language)
    if form == "percent":
        hundredth = Decimal(value).scaleb(-2)
        return babel("numbers.format_percent", hundredth, language=language)
    if form == "calendar":
        return year(value, language)
    return None


def _english_number(value: int, form: str) -> str:
    shared = _shared_number(value, form, "en")
    if shared is not None:
        return shared
    if form == "th":
        return ordinal(value, "en")
    if form == "times":
        return {1: "once", 2: "twice"}.get(value, f"{cardinal(value, 'en')} times")
    words = cardinal(value, "en")
    if form == "stem":
        return words.replace(" ", "-")
    if form == "a":
        article = "an" if words[0] == "e" else "a"  # eight, eleven, not one
        return f"{article} {words.replace(' ', '-')}"
    noun = NOUNS[form]
    return f"{words} {noun.english if abs(value) == 1 else noun.english_plural}"


def _german_number(value: int, form: str) -> str:
    shared = _shared_number(value, form, "de")
    if shared is not None:
        return shared
    if form in ("te", "ten"):
        return ordinal(value, "de") + form[2:]
    if form in ("stem", "Stem"):
        return capital(stem(value)) if form == "Stem" else stem(value)
    if form == "mal":
        return stem(value) + "mal"
    if form == "dritt":  # zu zweit, zu dritt
        return ordinal(value, "de").removesuffix("e")
    case, key = form.replace(" te ", " ").split(" ", 1)
    if case in DEFINITE:
        return _german_ordinal_phrase(value, case, key)
    return _german_count(value, case, key)


def _german_ordinal_phrase(value: int, case: str, key: str) -> str:
    """Den dritten Apfel."""
    noun = NOUNS[key]
    ending = "n" if (case, noun.gender) in WEAK_EN else ""
    article = DEFINITE[case][noun.gender]
    return f"{article} {ordinal(value, 'de')}{ending} {noun.german}"


def _german_count(value: int, case: str, key: str) -> str:
    """Einen Apfel, drei Äpfel; minus ein Grad."""
    noun = NOUNS[key]
    if abs(value) == 1:
        sign = "minus " if value < 0 else ""
        return f"{sign}{INDEFINITE[case][noun.gender]} {noun.german}"
    if abs(value) % 100 == 1:
        raise ValueError(f"No German plural form after a hundred and one: {value}")
    plural = noun.german_dative_plural if case == "einem" else noun.german_plural
    return f"{cardinal(value, 'de')} {plural}"


def _english_noun(value: str, form: str) -> str:
    noun = NOUNS[value]
    if form == "the":
        return f"the {noun.english}"
    if form == "a":
        return f"{'an' if noun.english[0] in 'aeiou' else 'a'} {noun.english}"
    return {"": noun.english, "many": noun.english_plural}[form]


def _german_noun(value: str, form: str) -> str:
    noun = NOUNS[value]
    if form == "ihn":
        return DEFINITE[form][noun.gender]
    if form in DEFINITE:
        return f"{DEFINITE[form][noun.gender]} {noun.german}"
    if form in INDEFINITE:
        return f"{INDEFINITE[form][noun.gender]} {noun.german}"
    plurals = {"viele": noun.german_plural, "vielen": noun.german_dative_plural}
    return {"": noun.german, **plurals}[form]


def _weekday(value: int, form: str, language: str) -> str:
    monday = datetime.date(2024, 1, 1)
    day = monday + datetime.timedelta(value)
    name = babel("dates.format_date", day, "EEEE", language=language)
    if form == "every":
        return name + "s" if language == "en" else name.lower() + "s"
    return name


def _month(value: int, form: str, language: str) -> str:
    day = datetime.date(2024, value, 1)
    return babel("dates.format_date", day, "LLLL", language=language)


def _english_fraction(value: tuple[int, int], form: str) -> str:
    if form:
        return form.split("|")[value[0] != 1]
    part = "quarter" if value[1] == 4 else ordinal(value[1], "en")
    number = cardinal(value[0], "en")
    return f"{number} {part}{'' if value[0] == 1 else 's'}"


def _german_fraction(value: tuple[int, int], form: str) -> str:
    if form:
        return form.split("|")[value[0] != 1]
    return f"{stem(value[0])} {capital(ordinal(value[1], 'de'))}l"


def _tenths(value: int, form: str, language: str) -> str:
    number = Decimal(value).scaleb(-1)
    if form == "words":
        return num2words(float(number), lang=language)
    if form == "decimal":
        return babel("numbers.format_decimal", number, language=language)
    return babel("units.format_unit", number, form, "long", language=language)


def _money(value: tuple[int, str], form: str, language: str) -> str:
    cents, currency = value
    amount = Decimal(cents).scaleb(-2)
    return babel("numbers.format_currency", amount, currency, language=language)


PARTS = (  # from this hour on
    (0, "at night", "nachts"),
    (5, "in the morning", "morgens"),
    (12, "in the afternoon", "nachmittags"),
    (18, "in the evening", "abends"),
    (23, "at night", "nachts"),
)


def _hour(value: int) -> int:
    """The hour of the 12-hour clock."""
    return value // 60 % 12 or 12


def _english_time(value: int, form: str) -> str:
    if form == "digital":
        time = datetime.time(*divmod(value, 60))
        return babel("dates.format_time", time, "short", language="en")
    if form == "part":
        part = [english for hour, english, _ in PARTS if value >= hour * 60][-1]
        return f"{_english_time(value, '')} {part}"
    minute = value % 60
    if minute == 0:
        return f"{cardinal(_hour(value), 'en')} o'clock"
    after = minute <= 30
    steps = {15: "quarter", 30: "half"}
    distance = minute if after else 60 - minute
    amount = steps.get(distance) or cardinal(distance, "en")
    hour = _hour(value if after else value + 60)
    return f"{amount} {'past' if after else 'to'} {cardinal(hour, 'en')}"


def _german_time(value: int, form: str) -> str:
    if form == "digital":
        time = datetime.time(*divmod(value, 60))
        return babel("dates.format_time", time, "H:mm", language="de") + " Uhr"
    if form == "part":
        part = [german for hour, _, german in PARTS if value >= hour * 60][-1]
        return f"{_german_time(value, '')} {part}"
    minute = value % 60
    this, following = (cardinal(_hour(value + more), "de") for more in (0, 60))
    if minute == 0:
        return f"{stem(_hour(value))} Uhr"
    if minute == 15:
        return f"Viertel nach {this}"
    if minute == 45:
        return f"Viertel vor {following}"
    if 25 <= minute <= 35:  # half past three is "half four"
        around = {25: "fünf vor ", 30: "", 35: "fünf nach "}[minute]
        return f"{around}halb {following}"
    if minute < 30:
        return f"{cardinal(minute, 'de')} nach {this}"
    return f"{cardinal(60 - minute, 'de')} vor {following}"


def _english_date(value: tuple[int, int], form: str) -> str:
    month, day = value
    return f"the {ordinal(day, 'en')} of {_month(month, '', 'en')}"


def _german_date(value: tuple[int, int], form: str) -> str:
    month, day = value
    ending = {"der": "", "dem": "n"}[form]
    return f"{ordinal(day, 'de')}{ending} {_month(month, '', 'de')}"


def _calendar(value: datetime.date, form: str, language: str) -> str:
    patterns = {
        "en": {"": "long", "full": "full", "short": "M/d/y"},
        "de": {"": "long", "full": "EEEE, 'dem' d. MMMM y", "short": "medium"},
    }
    pattern = patterns[language][form]
    return babel("dates.format_date", value, pattern, language=language)


def _in(function, language: str):
    return functools.partial(function, language=language)


_SHARED = {
    "weekday": _weekday,
    "month": _month,
    "tenths": _tenths,
    "money": _money,
    "calendar": _calendar,
}
_ENGLISH = {
    "name": lambda value, form: value,
    "city": lambda value, form: value,
    "noun": _english_noun,
    "number": _english_number,
    "half": lambda value, form: f"{cardinal(value, 'en')} and a half",
    "fraction": _english_fraction,
    "time": _english_time,
    "date": _english_date,
    **{kind: _in(function, "en") for kind, function in _SHARED.items()},
}
_GERMAN = {
    "name": lambda value, form: value,
    "city": lambda value, form: CITIES[value],
    "noun": _german_noun,
    "number": _german_number,
    "half": lambda value, form: f"{stem(value)}einhalb",
    "fraction": _german_fraction,
    "time": _german_time,
    "date": _german_date,
    **{kind: _in(function, "de") for kind, function in _SHARED.items()},
}
