"""Which pairs a corpus keeps: the rules of Moses' clean-corpus-n.perl.

In its order: neither side is empty; none has more than `most` words, none fewer than
`least`; neither has more than `ratio` times as many words as the other; no word has
more than 1,000 characters (`|` ends a word there). Words are what blanks separate.

Moses also deletes each `|` from the text, unless the first line holds one. After its
own tokenisation there is none left (it is written `&#124;`), and otherwise it is not
done here.
"""

import dataclasses
import re

LONGEST_WORD = 1000
_LONG_WORD = re.compile(rf"[^\s|]{{{LONGEST_WORD + 1}}}")
_LONG = f"word of more than {LONGEST_WORD} characters"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Limits of a pair; None: no such limit.

    Attributes:
        ratio: the most words of one side for a word of the other.
        least, most: words of each side.
    """

    ratio: float | None = None
    least: int | None = None
    most: int | None = None

    @property
    def problems(self) -> list[str]:
        """What can speak against a pair, in the order of the tests."""
        found = ["empty"]
        if self.most is not None:
            found.append(self._too_long)
        if self.least is not None:
            found.append(self._too_short)
        if self.ratio is not None:
            found.append(self._too_different)
        return [*found, _LONG]

    def problem(self, source: str, target: str) -> str | None:
        """What speaks against a pair, of `problems`; None when nothing does."""
        first, second = len(source.split()), len(target.split())
        if not first or not second:
            return "empty"
        if self.most is not None and max(first, second) > self.most:
            return self._too_long
        if self.least is not None and min(first, second) < self.least:
            return self._too_short
        # Division, as Moses: a product would round otherwise at the limit.
        if self.ratio is not None and (
            second / first > self.ratio or first / second > self.ratio
        ):
            return self._too_different
        if _has_long_word(source) or _has_long_word(target):
            return _LONG
        return None

    @property
    def _too_long(self) -> str:
        return f"more than {self.most} words"

    @property
    def _too_short(self) -> str:
        return f"fewer than {self.least} words"

    @property
    def _too_different(self) -> str:
        return f"length ratio above {self.ratio:g}"


def _has_long_word(text: str) -> bool:
    return len(text) > LONGEST_WORD and _LONG_WORD.search(text) is not None
