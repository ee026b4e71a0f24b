"""Subject lines of e-mails: pairs to train first on, and what cannot be copied.

    python benchmarks/summaries.py sentences AESLC OUTPUT
    python benchmarks/summaries.py words AESLC HYPOTHESES

"sentences" makes pairs from the bodies of the training part alone, no other text: of
each body up to three sentences that share most with the rest (the gap sentences of
PEGASUS, Zhang et al. 2020, section 3.1); the source is the body without the sentence.
A model that has written those knows where in an e-mail words are to be found, and goes
on with the subjects (`train --initialize-from`).

"words" tells which words of the test subjects stand in the body and which of them the
hypotheses have: how much a model loses that cannot copy what it has seldom seen.
"""

import argparse
import collections
import re
from pathlib import Path

LONGEST, SHORTEST, MOST = 24, 3, 3


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def gap_sentences(body: str):
    """(body without a sentence, sentence), those that share most with the rest."""
    sentences, found = re.split(r"(?<=[.?!])\s+", body), []
    for place, sentence in enumerate(sentences):
        rest = " ".join(sentences[:place] + sentences[place + 1 :])
        own, others = words(sentence), words(rest)
        if SHORTEST <= len(own) <= LONGEST and len(others) > SHORTEST:
            common = (collections.Counter(own) & collections.Counter(others)).total()
            found.append((common / len(own), -place, rest, sentence))
    return [pair for _, _, *pair in sorted(found, reverse=True)[:MOST]]


def write_sentences(corpus: Path, output: Path) -> None:
    bodies = (corpus / "train.body").read_text().split("\n")[:-1]
    output.mkdir(parents=True)
    pairs = [pair for body in bodies for pair in gap_sentences(body)]
    for name, column in zip(("body", "subject"), zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in column)
        (output / f"train.{name}").write_text(text)
    print(f"{len(pairs):,} pairs of {len(bodies):,} bodies")


def count_words(corpus: Path, hypotheses: Path) -> None:
    def read(path):
        return [set(words(line)) for line in path.read_text().split("\n")[:-1]]

    training = collections.Counter()
    for name in ("body", "subject"):
        training.update(words((corpus / f"train.{name}").read_text()))
    kinds = collections.defaultdict(collections.Counter)
    columns = [corpus / "test.body", corpus / "test.subject", hypotheses]
    for body, subject, found in zip(*map(read, columns), strict=True):
        for word in subject:
            rare = "at most 20 times" if training[word] <= 20 else "more often"
            where = "in the body" if word in body else "elsewhere"
            kinds[rare, where]["words"] += 1
            kinds[rare, where]["written"] += word in found
    total = sum(kind["words"] for kind in kinds.values())
    print("| in training | stands | share of the words | written |\n|---|---|---|---|")
    for (rare, where), kind in sorted(kinds.items()):
        shares = kind["words"] / total, kind["written"] / kind["words"]
        print(f"| {rare} | {where} | {shares[0]:.1%} | {shares[1]:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("sentences", "words"))
    parser.add_argument("corpus", type=Path)
    parser.add_argument("path", type=Path)
    options = parser.parse_args()
    do = {"sentences": write_sentences, "words": count_words}[options.what]
    do(options.corpus, options.path)


if __name__ == "__main__":
    main()
