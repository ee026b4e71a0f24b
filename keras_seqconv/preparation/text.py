"""Steps on single lines. Also run as a program of its own, by `workers.py`.

Moses' steps are those of sacremoses, nearly the Perl scripts': of the 29,000 lines of
Multi30k's training text, tokenized by its authors, 74 German and 7 English ones differ,
for example in a last full stop that stays attached to "s." or in `". ` for `." `.

The program must start in a moment and stay small, so nothing of this package may be
imported here: it would load Keras.
"""

import json
import re
import sys
import unicodedata

_SEGMENT_START = re.compile(r'<seg id="[0-9]*">\s*')
_SEGMENT_END = re.compile(r"\s*</seg>\s*")


class Steps:
    """What is done to the lines of one language, in this order.

    The same as `keras_seqconv.tokenizers.DictionaryTokenizer.split` before byte pairs,
    but for the non-printing characters, and joined with blanks.

    Args:
        language: for the Moses steps.
        normalize: Moses' normalize-punctuation.perl.
        remove_nonprinting: Moses' remove-non-printing-char.perl: a blank for every
            character of a Unicode category C (control, format, unassigned, ...).
        moses: Moses' tokenizer.perl.
        aggressive_dash_splits: its option `-a`.
        lowercase: Moses' lowercase.perl.
    """

    def __init__(
        self,
        *,
        language: str | None = None,
        normalize: bool = False,
        remove_nonprinting: bool = False,
        moses: bool = False,
        aggressive_dash_splits: bool = True,
        lowercase: bool = False,
    ):
        self._normalizer = self._moses = None
        if normalize:
            from sacremoses import MosesPunctNormalizer

            self._normalizer = MosesPunctNormalizer(language)
        if moses:
            from sacremoses import MosesTokenizer

            self._moses = MosesTokenizer(language)
        self._remove_nonprinting = remove_nonprinting
        self._dashes = aggressive_dash_splits
        self._lowercase = lowercase

    def __call__(self, line: str) -> str:
        if self._normalizer is not None:
            line = self._normalizer.normalize(line)
        if self._remove_nonprinting:
            line = remove_nonprinting(line)
        if self._moses is not None:
            line = self._moses.tokenize(
                line, aggressive_dash_splits=self._dashes, return_str=True
            )
            line = " ".join(line.split())
        if self._lowercase:
            line = line.lower()
        return line


def does_something(side: dict) -> bool:
    """Whether these arguments of `Steps` change any line."""
    steps = ("normalize", "remove_nonprinting", "moses", "lowercase")
    return any(side.get(step) for step in steps)


def remove_nonprinting(line: str) -> str:
    """A blank for every character of a Unicode category C."""
    if line.isprintable():  # also false of blanks other than the usual one
        return line
    category = unicodedata.category
    return "".join(" " if category(one)[0] == "C" else one for one in line)


def segment(line: str) -> str:
    """The text in a line `<seg id="1"> text </seg>`; nothing is unescaped.

    As fairseq's `sed` does: typographic apostrophes become plain ones.
    """
    line = _SEGMENT_END.sub("", _SEGMENT_START.sub("", line))
    return line.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def _serve():
    """Answers a line of JSON with a line of JSON: lists of texts, one of each side.

    The first line holds the arguments of `Steps` for each side.
    """
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sides = [Steps(**one) for one in json.loads(requests.readline())]
    for request in requests:
        columns = [
            [steps(text) for text in texts]
            for steps, texts in zip(sides, json.loads(request), strict=True)
        ]
        answers.write(json.dumps(columns).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    import signal

    # Whoever started this process ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve()
