"""What another process does with the same texts, seeds and folders."""

import ast
import inspect

import pytest

from keras_seqconv.tokenizers import (
    KINDS,
    SentencePieceTokenizer,
    load_tokenizer,
)
from tests.tokenizers.test_kinds import train
from tests.tokenizers.test_sentencepiece import TEXTS


def outcome(texts, folders):
    """Models, ids, as plain values."""
    found = []
    for kind, size in (("bpe", 300), ("unigram", 295)):
        model = SentencePieceTokenizer.train(texts, size, kind, max_texts=4, seed=3)
        found.append(model.model)
        found.append(model.tokenize(texts + ["x" * 30]))
    for folder in folders:
        tokenizer = load_tokenizer(folder)
        ids = tokenizer.tokenize(["the young  Mann", ""])
        found.append([type(tokenizer).__name__, ids, tokenizer.detokenize(ids)])
    return found


CODE = """
import sys

import pytest
from keras_seqconv.tokenizers import SentencePieceTokenizer, load_tokenizer
{outcome}
print(outcome({texts}, sys.argv[1:]))
"""


@pytest.mark.slow
def test_another_process_does_the_same(tmp_path, fresh_process):
    folders = [str(tmp_path / kind) for kind in KINDS]
    expected = []
    for kind, folder in zip(KINDS, folders, strict=True):
        tokenizer, _ = train(kind, True)
        tokenizer.save(folder)
        ids = tokenizer.tokenize(["the young  Mann", ""])
        expected.append([type(tokenizer).__name__, ids, tokenizer.detokenize(ids)])
    code = CODE.format(outcome=inspect.getsource(outcome), texts=TEXTS)
    found = ast.literal_eval(fresh_process(code, *folders))
    assert found == outcome(TEXTS, folders)
    assert found[-len(KINDS) :] == expected
