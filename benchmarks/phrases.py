"""What BLEU does memorising reach on the embedded corpus?

    python benchmarks/phrases.py        # minutes

The answer is the target of the training pair whose source is nearest in edit distance
of words; sacreBLEU, English to German, on the test split.
"""

import re

import numpy as np
import sacrebleu

from keras_seqconv.data import open_corpus

TOKEN = re.compile(r"\w+|[^\w\s]")


def nearest(sources: list[str], queries: list[str]) -> list[int]:
    """Number of the source that is nearest to each query, the first of equal ones."""
    ids = {}
    rows = [
        [ids.setdefault(token, len(ids)) for token in TOKEN.findall(source)]
        for source in sources
    ]
    lengths = np.array([len(row) for row in rows])
    matrix = np.full((len(rows), lengths.max()), -1)
    for line, row in zip(matrix, rows, strict=True):
        line[: len(row)] = row
    numbers = []
    for query in queries:
        tokens = [ids.get(token, -2) for token in TOKEN.findall(query)]
        distance = distances(tokens, matrix)[np.arange(len(rows)), lengths]
        numbers.append(int(np.argmin(distance)))
    return numbers


def distances(tokens: list[int], matrix: np.ndarray) -> np.ndarray:
    """Edit distances (N, T + 1) of all tokens to the prefixes of N rows of T ids."""
    columns = np.arange(matrix.shape[1] + 1)
    row = np.broadcast_to(columns, (len(matrix), len(columns))).astype("int16")
    for count, token in enumerate(tokens, 1):
        below = np.empty_like(row)
        below[:, 0] = count
        below[:, 1:] = np.minimum(row[:, :-1] + (matrix != token), row[:, 1:] + 1)
        # Insertions: the least of below[j] + (i - j) over j <= i.
        row = np.minimum.accumulate(below - columns, axis=1) + columns
    return row.astype("int16")


def main():
    corpus = open_corpus("phrases", source_language="en", target_language="de")
    sources, targets = (list(corpus.texts("train", s)) for s in ("source", "target"))
    queries, references = (list(corpus.texts("test", s)) for s in ("source", "target"))
    answers = [targets[number] for number in nearest(sources, queries)]
    print(sacrebleu.BLEU().corpus_score(answers, [references]))


if __name__ == "__main__":
    main()
