"""What is in the embedded corpus of phrases, and what does BLEU on its test split mean?

    python benchmarks/phrases.py        # 1 to 4 minutes; needs keras-seqconv[test]

Baselines that translate without counting: the target of the training pair whose source
is nearest in edit distance of words; a model that knows every template and takes the
slots from the training pair of that template with most slots right; one that also gets
every name, place and noun right and writes numbers that it has seen; and one that
leaves the numbers out. BLEU is sacreBLEU's, English to German, on the test split.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import sacrebleu

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools.phrases import forms, generate  # noqa: E402

TOKEN = re.compile(r"\w+|[^\w\s]")


def table(title: tuple[str, ...], rows: list[tuple]):
    print(f"\n| {title[0]} | " + " | ".join(title[1:]) + " |")
    print("|" + "---|" * len(title))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


def describe(splits: dict):
    rows = []
    for split, pairs in splits.items():
        pools = Counter(pair.pool for pair in pairs)
        for side, language in enumerate(("en", "de")):
            texts = [TOKEN.findall(pair[side]) for pair in pairs]
            types = Counter(token for text in texts for token in text)
            plain = [t for t in types if not t.isdigit() and not numeral(t)]
            lengths = [len(text) for text in texts]
            rows.append(
                (split, language, len(pairs), pools["number"], pools["combination"])
                + (len({pair.template.english for pair in pairs}),)
                + (f"{min(lengths)}-{np.mean(lengths):.1f}-{max(lengths)}",)
                + (len(types), len(plain))
            )
    head = ("split", "side", "pairs", "unseen number", "unseen combination")
    head += ("templates", "words min-mean-max", "types", "without numerals and digits")
    table(head, rows)


def numeral(word: str) -> bool:
    """Whether a German word is nothing but parts of numerals."""
    return generate.numeral_parts(word) is not None


def nearest(sources: list[str], queries: list[str]) -> list[int]:
    """Index of the source with the least word edit distance to each query."""
    texts = [TOKEN.findall(source) for source in sources]
    ids = {}
    rows = [[ids.setdefault(token, len(ids)) for token in text] for text in texts]
    lengths = np.array([len(row) for row in rows])
    matrix = np.full((len(rows), lengths.max()), -1)
    for line, row in zip(matrix, rows, strict=True):
        line[: len(row)] = row
    everyone = np.arange(len(rows))
    found = []
    for query in queries:
        tokens = [ids.get(token, -2) for token in TOKEN.findall(query)]
        found.append(int(np.argmin(distances(tokens, matrix)[everyone, lengths])))
    return found


def distances(tokens: list[int], matrix: np.ndarray) -> np.ndarray:
    """Edit distances (N, T + 1) of all tokens to the prefixes of N rows of T ids."""
    columns = np.arange(matrix.shape[1] + 1)
    row = np.broadcast_to(columns, (len(matrix), len(columns))).astype("int16")
    for count, token in enumerate(tokens, 1):
        below = np.empty_like(row)
        below[:, 0] = count
        below[:, 1:] = np.minimum(row[:, :-1] + (matrix != token), row[:, 1:] + 1)
        # insertions: the least of below[j] + (i - j) over j <= i
        row = np.minimum.accumulate(below - columns, axis=1) + columns
    return row.astype("int16")


def same_template(train, pair):
    """The training pair of the same template with most slots right."""
    return max(
        (other for other in train if other.template == pair.template),
        key=lambda other: sum(
            other.values[name] == value for name, value in pair.values.items()
        ),
    )


def without_counting(train, pair, omit: bool) -> str:
    """The reference with its numbers left out, or those of a training pair."""
    other = same_template(train, pair).values
    slots = pair.template.slots

    def write(kind, value, form):
        number = kind not in generate.WORDS
        return "" if omit and number else forms.german(kind, value, form)

    values = {
        name: value if slots[name].kind in generate.WORDS else other[name]
        for name, value in pair.values.items()
    }
    text = generate.render(pair.template.german, values, slots, write)
    return " ".join(text.split())


def baselines(splits: dict):
    train, test = splits["train"], splits["test"]
    places = nearest([pair.english for pair in train], [pair.english for pair in test])
    by_template = {}
    for pair in train:
        by_template.setdefault(pair.template.english, []).append(pair)
    groups = [by_template[pair.template.english] for pair in test]
    systems = {
        "source copied": [pair.english for pair in test],
        "nearest training source": [train[place].german for place in places],
        "template known, slots of the best training pair": [
            same_template(group, pair).german
            for group, pair in zip(groups, test, strict=True)
        ],
        "template and words known, numbers of that pair": [
            without_counting(group, pair, omit=False)
            for group, pair in zip(groups, test, strict=True)
        ],
        "template and words known, numbers omitted": [
            without_counting(group, pair, omit=True)
            for group, pair in zip(groups, test, strict=True)
        ],
    }
    rows = []
    for name, texts in systems.items():
        scores = [bleu(texts, test, pool) for pool in (None, "number", "combination")]
        right = np.mean([t == p.german for t, p in zip(texts, test, strict=True)])
        rows.append((name, *(f"{score:.1f}" for score in scores), f"{right:.1%}"))
    head = ("baseline", "BLEU", "unseen number", "unseen combination", "right")
    table(head, rows)


def bleu(texts: list[str], test, pool: str | None) -> float:
    chosen = [i for i, pair in enumerate(test) if pool in (None, pair.pool)]
    references = [test[i].german for i in chosen]
    return sacrebleu.corpus_bleu(
        [texts[i] for i in chosen], [references], force=True
    ).score


def main():
    splits = generate.corpus()
    print(f"{len(generate.templates())} templates, checksum {generate.checksum()}")
    describe(splits)
    baselines(splits)


if __name__ == "__main__":
    main()
