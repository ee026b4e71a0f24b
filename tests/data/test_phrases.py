"""The embedded corpus: the sentences that people have checked, apart by split."""

import hashlib

from keras_seqconv.data import open_corpus

DIGEST = "0ed1a7c3d32a3675e7bf9715c90af792a1cb5915b135cf6020b4dc5330925125"


def test_its_sentences_are_those_that_were_checked():
    corpus = open_corpus("phrases", source_language="en", target_language="de")
    digest, seen = hashlib.sha256(), set()
    for split, size in (("train", 18_000), ("validation", 1_000), ("test", 1_000)):
        pairs = zip(
            *(corpus.texts(split, s) for s in ("source", "target")), strict=True
        )
        pairs = [f"{source}\t{target}\n" for source, target in pairs]
        assert len({*pairs}) == size and not seen & {*pairs}
        seen |= {*pairs}
        digest.update("".join(pairs).encode())
    assert digest.hexdigest() == DIGEST
