"""Writes cases for `load_and_run.py`: what the Translator says.

python tests/export/make_cases.py MODEL_DIRECTORY CASES.json [TEXT]

With a file TEXT its lines are cases as well.
"""

import json
import sys
from pathlib import Path

import keras_seqconv as ks

TEXTS = [
    "Anna called three guests at half past three.", "", "  ", "three", "😀 twelve",
    "\0\7 five", "The bus comes at 7:15. " * 10,
]  # fmt: skip


def main(directory: str, path: str, *files: str) -> None:
    translator = ks.load(directory)
    texts = TEXTS + [
        line for file in files for line in Path(file).read_text("utf-8").splitlines()
    ]
    scores = [row[0].score for row in translator.translate_n_best(texts, 1)]
    reverse = texts[::-1]
    cases = [
        ["serving_default", {"text": texts},
         {"translation": translator.translate(texts), "score": scores}],
        ["score", {"text": texts, "translation": reverse},
         {"score": translator.score(texts, reverse)}],
        ["serving_default", {"text": []}, {"translation": [], "score": []}],
    ]  # fmt: skip
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(cases, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
