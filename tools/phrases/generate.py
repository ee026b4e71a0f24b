"""From templates to pairs, and which pair belongs to which split.

Everything is decided by hashes (BLAKE2b) of the texts of templates and values, so that
the corpus is the same in every process and with every version of Python. A template
draws values for its slots; a draw belongs to one of three pools:

- "number": no training pair has the value of a slot, in any template (a number also not
  as an ordinal, a year, in digits or in a compound such as dreitägig, only as a part of
  larger numbers; a time neither in words nor in digits; a date in no year);
- "combination": training shows all its values, but one of them never in this slot of
  this template;
- "training": neither.

Validation and test are half "number", half "combination". Names, places and nouns are
never held out: they are all in training.
"""

import functools
import hashlib
import re
import string
from collections.abc import Iterator
from typing import NamedTuple

from tools.phrases.forms import capital, english, german
from tools.phrases.templates import GROUPS, Slot

# Of all splits, with Babel 2.18.0 and num2words 0.5.14.
CHECKSUM = "c5cfc898abd519caba42e529884e253b01e373f975afa0954d0c98f848eb92c1"
SIZES = {"train": 18_000, "validation": 1_000, "test": 1_000}
WORDS = ("name", "city", "noun", "weekday", "month")  # kinds that are never held out
DRAWS = 400  # a template, before the pools are formed


class Template(NamedTuple):
    """Two lines of a group, with the slots that it uses."""

    english: str
    german: str
    slots: dict[str, Slot]


class Pair(NamedTuple):
    """A pair of texts and where it comes from."""

    english: str
    german: str
    template: Template
    values: dict
    pool: str


def fields(text: str) -> list[tuple[str, str | None, str]]:
    """The (literal, slot, form) of a template's side."""
    return [
        (text, slot, form) for text, slot, form, _ in string.Formatter().parse(text)
    ]


def _is_noun(word: str, slots: dict[str, Slot]) -> bool:
    return word in slots and slots[word].kind == "noun"


@functools.cache
def templates() -> tuple[Template, ...]:
    """All templates, in order."""
    found = []
    for group in GROUPS:
        lines = [line.strip() for line in group.lines.strip().splitlines()]
        for sides in zip(lines[::2], lines[1::2], strict=True):
            used = {name for _, name, _ in fields(sides[0]) if name}
            used |= {
                word
                for _, _, form in fields(sides[0])
                for word in (form or "").split(" ")
                if _is_noun(word, group.slots)
            }
            slots = {name: group.slots[name] for name in sorted(used)}
            found.append(Template(sides[0], sides[1], slots))
    return tuple(found)


def _hash(*parts) -> int:
    """A 64-bit number that depends on the parts only."""
    text = "\n".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def keys(kind: str, value) -> tuple[tuple, ...]:
    """What one value shows a learner, in whatever form it is written.

    A number and its negative have one key, and so have the times 3:30 and 15:30; a day
    of the calendar has that of its date and that of its year.
    """
    if kind == "number":
        return ((kind, abs(value)),)
    if kind == "time":
        return ((kind, value % 720),)
    if kind == "calendar":
        return ("date", value.month, value.day), ("number", value.year)
    if kind == "date":
        return ((kind, *value),)
    return ((kind, value),)


def _may_be_held_out(kind: str, *value) -> bool:
    """Not so names, nor the numbers and hours that the others are composed of."""
    if kind == "number":
        (size,) = value
        return size > 20 and size % (10 if size < 100 else 100) != 0
    if kind == "time":
        return value[0] % 60 != 0
    return kind in ("date", "money", "tenths")


@functools.cache
def is_held_out(place: tuple) -> bool:
    """Whether training never shows a key; true of one in eight."""
    return _may_be_held_out(*place) and _hash("value", *place) % 8 == 0


def is_held_out_here(template: Template, slot: str, place: tuple) -> bool:
    """Whether training never shows a key in this slot of this template.

    Not so the number 1, which alone shows the singular of a verb.
    """
    if place[0] in WORDS or place == ("number", 1):
        return False
    return _hash("combination", template.english, slot, *place) % 8 == 0


def slot_keys(template: Template, values: dict) -> list[tuple[str, tuple]]:
    """Every (slot, key) of a draw."""
    return [
        (name, place)
        for name, slot in template.slots.items()
        for place in keys(slot.kind, values[name])
    ]


def pool(template: Template, values: dict) -> str:
    """The pool of a draw: "number", "combination" or "training"."""
    places = slot_keys(template, values)
    if any(is_held_out(place) for _, place in places):
        return "number"
    if any(is_held_out_here(template, name, place) for name, place in places):
        return "combination"
    return "training"


def render(text: str, values: dict, slots: dict[str, Slot], write) -> str:
    """One side of a template with its fields filled by `write` (english or german)."""
    written = []
    for literal, name, form in fields(text):
        written.append(literal)
        if name:
            # a form may name the slot of a noun: "einen thing"
            form = " ".join(
                values[word] if _is_noun(word, slots) else word
                for word in form.split(" ")
            )
            written.append(write(slots[name].kind, values[name], form))
    return capital("".join(written))


def _draws(template: Template) -> Iterator[dict]:
    """Different values for the slots of a template."""
    seen = set()
    for count in range(DRAWS):
        values = {
            name: slot.values[_hash(template.english, name, count) % len(slot.values)]
            for name, slot in template.slots.items()
        }
        place = tuple(values.values())
        if place not in seen:
            seen.add(place)
            yield values


def _write(template: Template, values: dict, kind: str) -> Pair:
    sides = [
        render(text, values, template.slots, write)
        for text, write in ((template.english, english), (template.german, german))
    ]
    return Pair(*sides, template, values, kind)


class _Taker:
    """Takes pairs from pools, in turn from each template, never the same text twice."""

    def __init__(self):
        self.english, self.german, self.seen = set(), set(), set()
        self.pools = {"number": [], "combination": [], "training": []}
        for template in templates():
            for draws in self.pools.values():
                draws.append([])
            for values in reversed(list(_draws(template))):
                self.pools[pool(template, values)][-1].append((template, values))

    def take(self, kind: str, count: int) -> list[Pair]:
        """`count` pairs, in each round one of every template that still has one."""
        pairs = []
        while any(self.pools[kind]):
            for draws in filter(None, self.pools[kind]):
                template, values = draws.pop()
                places = {place for _, place in slot_keys(template, values)}
                if kind == "training":
                    self.seen |= places
                if kind != "combination" or places <= self.seen:
                    self._add(pairs, _write(template, values, kind))
                if len(pairs) == count:
                    return pairs
        raise ValueError(f"the templates have no more pairs of the pool {kind!r}")

    def _add(self, pairs: list[Pair], pair: Pair):
        if pair.english not in self.english and pair.german not in self.german:
            self.english.add(pair.english)
            self.german.add(pair.german)
            pairs.append(pair)


@functools.cache
def corpus() -> dict[str, tuple[Pair, ...]]:
    """All pairs by split, with their templates and values."""
    taker = _Taker()
    splits = {"train": taker.take("training", SIZES["train"])}
    for split in ("test", "validation"):
        half = SIZES[split] // 2
        splits[split] = taker.take("number", half) + taker.take("combination", half)
    return {
        split: tuple(sorted(splits[split], key=lambda pair: _hash(pair.english)))
        for split in SIZES
    }


def phrases(split: str) -> Iterator[tuple[str, str]]:
    """The (English, German) pairs of "train", "validation" or "test", in fixed order.

    Raises:
        ValueError: another split.
    """
    if split not in SIZES:
        raise ValueError(f"`split` must be one of {list(SIZES)}. Received: {split!r}")
    for pair in corpus()[split]:
        yield pair.english, pair.german


def checksum() -> str:
    """SHA-256 of all splits, which the versions of Babel and num2words may change."""
    digest = hashlib.sha256()
    for split in SIZES:
        for pair in phrases(split):
            digest.update("\t".join((split, *pair)).encode() + b"\n")
    return digest.hexdigest()


_GERMAN_PARTS = (
    "million|tausend|hundert|zwanzig|dreißig|zig|zehn|"
    "null|eins|eine|ein|zwei|drei|vier|fünf|sechs|sech|sieben|sieb|achte|acht|neun|"
    "elf|zwölf|und|erste|dritte|siebte|ste|te|n|s|l"
)


def numeral_parts(word: str) -> list[str] | None:
    """The parts of a German numeral, "ein und zwanzig ste"; None for other words."""
    word = word.lower()
    if not re.fullmatch(f"({_GERMAN_PARTS})+", word):
        return None
    return re.findall(_GERMAN_PARTS, word)
