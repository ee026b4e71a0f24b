"""Writes cases for `load_and_run.py`: what the Translator says.

python tests/export/make_cases.py MODEL_DIRECTORY CASES.json [TEXT]

With a file TEXT its lines are cases as well.
"""

import json
import sys

import keras_seqconv as ks
from keras_seqconv.export.servable import NOT_FOUND
from keras_seqconv.support.files import read_lines
from keras_seqconv.translation.translator import Translation

TEXTS = [
    "Anna called three guests at half past three.", "", "  ", "three", "😀 twelve",
    "\0\7 five", "The bus comes at 7:15. " * 10,
]  # fmt: skip


def main(directory: str, path: str, *files: str) -> None:
    texts = TEXTS + [line for file in files for line in read_lines(file)]
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(cases_of(ks.load(directory), texts), stream)


def cases_of(owner, texts: list[str], **options) -> list:
    """[signature, inputs, outputs] of an export with these options of the search."""
    tokenizer = next(iter(owner.tokenizers.values()))
    rows = tokenizer.tokenize(texts)
    counts = {
        "tokens": [len(ids) - 1 for ids in rows],
        "unknown": [ids.count(tokenizer.unk_id) for ids in rows],
    }
    counts = ["count_tokens", {"text": texts}, counts]
    penalty = {key: options[key] for key in options if key == "length_penalty"}
    reverse = texts[::-1]
    if hasattr(owner, "generate"):
        generated = owner.generate(texts, **options)
        best = {"generation": generated, "score": owner.score(generated, **penalty)}
        scores = {"score": owner.score(reverse, **penalty)}
        drawing = {"temperature": 0.9, "seed": 3, "top_k": 5}
        draw = {**drawing, "length": 6}
        drawn = owner.sample(texts, max_length=6, **drawing)
        all_of_it = owner.sample(texts, 4, max_length=5)
        return [
            ["serving_default", {"text": texts}, best],
            counts,
            ["generate", {"prompt": texts, **draw}, {"generation": drawn}],
            [
                "generate",
                {"prompt": texts, "length": 5, "temperature": 1, "seed": 4, "top_k": 0},
                {"generation": all_of_it},
            ],
            ["score", {"text": reverse}, scores],
            ["generate", {"prompt": [], **draw}, {"generation": [], "score": []}],
        ]
    count = options.get("num_beams", owner.search.num_beams)
    n_best, scores = n_best_of(owner, texts, count, **options)
    best = {
        "translation": [row[0] for row in n_best],
        "score": [row[0] for row in scores],
    }
    cases = [
        ["serving_default", {"text": texts}, best],
        counts,
        ["count_tokens", {"text": []}, {"tokens": [], "unknown": []}],
        ["translate_n_best", {"text": texts}, {"translation": n_best, "score": scores}],
        ["score", {"text": texts, "translation": reverse},
         {"score": owner.score(texts, reverse, **penalty)}],
        ["serving_default", {"text": []}, {"translation": [], "score": []}],
        ["translate_n_best", {"text": []}, {"translation": [], "score": []}],
    ]  # fmt: skip
    if hasattr(owner.model, "encode"):
        cases.append(["encode", {"text": []}, {"lengths": []}])
    return cases


def n_best_of(translator, texts: list[str], count: int, **options) -> tuple:
    """Texts and scores of the hypotheses, filled up as an export does."""
    found = translator.translate_n_best(texts, count, **options)
    missing = Translation("", NOT_FOUND)
    rows = [[*row, *[missing] * (count - len(row))] for row in found]
    return (
        [[one.text for one in row] for row in rows],
        [[one.score for one in row] for row in rows],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
