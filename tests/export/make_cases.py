"""Writes cases for `load_and_run.py`: what the Translator says.

python tests/export/make_cases.py MODEL_DIRECTORY CASES.json
"""

import json
import sys

import keras_seqconv as ks

TEXTS = [
    "Anna called three guests at half past three.", "", "  ", "three", "😀 twelve",
    "\0\7 five", "The bus comes at 7:15. " * 10,
]  # fmt: skip


def main(directory: str, path: str) -> None:
    translator = ks.load(directory)
    scores = [row[0].score for row in translator.translate_n_best(TEXTS, 1)]
    reverse = TEXTS[::-1]
    cases = [
        ["serving_default", {"text": TEXTS},
         {"translation": translator.translate(TEXTS), "score": scores}],
        ["score", {"text": TEXTS, "translation": reverse},
         {"score": translator.score(TEXTS, reverse)}],
        ["serving_default", {"text": []}, {"translation": [], "score": []}],
    ]  # fmt: skip
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(cases, stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
