"""Inside a TensorFlow graph and an export: the very ids and texts of Python."""

import itertools
import pickle
import sys
from collections import Counter

import keras
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_seqconv.tokenizers import Dictionary, DictionaryTokenizer, moses_bpe
from tests.cases import quick_and_slow
from tests.conftest import corpus_folder
from tests.export.stock_ops import STOCK_OPS, not_stock
from tests.processes import run_python
from tests.tokenizers.test_kinds import TOKENIZERS
from tests.tokenizers.test_sentencepiece import MODELS, TEXTS

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text", reason="needs the extra mt")
pytestmark = pytest.mark.tensorflow

# Bytes of all kinds, and such as begin or continue a character.
BYTES = st.lists(st.sampled_from([*range(256), *"  \u2581😀".encode()])).map(bytes)
LIKELY = st.text("  thegardnäß😀\t\u2581")
ROWS = st.lists(st.lists(st.integers(-3, 420) | st.just(8), max_size=9), max_size=5)
EDGES = [
    b"", b" ", b"  two  blanks ", b"\0", b"a\0b", b"\xff", b"\xe2\x82", b"\xed\xa0\x80",
    "😀 \ufeffx\u2028y\u00a0z".encode(), b"<pad>", b"\t\r\n\v\f", "\u2581a".encode(),
]  # fmt: skip


# Of each class and of each option that a graph sees.
QUICK = ["bpe+bytes", "nmt_nfkc", "words", "characters", "byte pairs"]


@pytest.fixture(
    params=quick_and_slow(QUICK, [name for name in TOKENIZERS if name not in QUICK]),
    scope="module",
)
def tokenizer(request):
    return TOKENIZERS[request.param]


@pytest.fixture(scope="module")
def graphs(tokenizer):
    """Both ways as graphs with open shapes, as a server runs them."""
    strings = tf.TensorSpec([None], tf.string)
    matrix = tf.TensorSpec([None, None], tf.int32)
    return (
        tf.function(tokenizer.tokenize_tensor, input_signature=[strings]),
        tf.function(tokenizer.detokenize_tensor, input_signature=[matrix]),
    )


def same(tokenizer, graphs, texts, rows=()):
    """Asserts equality; rows are told to the way back beside the texts' own."""
    tokenize, detokenize = graphs
    ids = tokenize(tf.constant(texts, tf.string))
    assert ids.dtype == tf.int32
    assert ids.to_list() == tokenizer.tokenize(texts)
    rows = [*ids.to_list(), *rows]
    padded = tf.ragged.constant(rows, tf.int32, ragged_rank=1).to_tensor(1)
    back = [text.decode() for text in detokenize(padded).numpy()]
    assert back == tokenizer.detokenize(rows)


@settings(deadline=None, max_examples=25)
@given(
    texts=st.lists(BYTES | (st.text() | LIKELY).map(str.encode), max_size=6), rows=ROWS
)
@example(texts=EDGES, rows=[[], [-1, 10**6, 0, 1, 3], [5, 2, 5]])
@example(texts=[], rows=[])
def test_any_bytes_and_ids(tokenizer, graphs, texts, rows):
    same(tokenizer, graphs, texts, rows)


def test_lines_of_multi30k(tokenizer, graphs):
    lines = (corpus_folder("multi30k") / "test2016.de").read_bytes().split(b"\n")
    same(tokenizer, graphs, lines[:-1])


SYMBOLS = st.sampled_from(["a", "b", "aa", "ab", "aab", "</w>", "b</w>", "/", "w", "<"])


@settings(deadline=None, max_examples=25)
@given(
    version=st.sampled_from(["", "#version: 0.1\n", "#version: 0.2\n"]),
    pairs=st.lists(st.tuples(SYMBOLS, SYMBOLS), min_size=1, max_size=15),
    words=st.lists(st.text("aaabbä</w>", min_size=1, max_size=12), max_size=20),
)
@example(version="", pairs=[("a", "a"), ("aa", "a")], words=["a" * 9, "baaa", "a"])
@example(version="", pairs=[("b", "</w>"), ("a", "a")], words=["ab", "b", "</w>"])
def test_any_byte_pairs(version, pairs, words):
    """Also such as nobody learned: overlapping, in any order, of both versions."""
    codes = version + "".join(f"{left} {right}\n" for left, right in pairs)
    split = DictionaryTokenizer(Dictionary(), bpe_codes=codes).split
    dictionary = Dictionary.from_counts(Counter(itertools.chain(*map(split, words))))
    tokenizer = DictionaryTokenizer(dictionary, bpe_codes=codes)
    texts = [*words, " ".join(words)]
    assert tokenizer.tokenize_tensor(texts).to_list() == tokenizer.tokenize(texts)


@pytest.mark.slow
def test_letters_of_all_kinds():
    """Of Python, whatever the Unicode of TensorFlow's library knows."""
    letters = [chr(code) for code in range(sys.maxunicode + 1)]
    letters = [one for one in letters if not "\ud800" <= one <= "\udfff"]
    texts = [f"{one}b AΣ A\0{one} ΣA.Σ-" for one in letters]
    found = moses_bpe.lower(tf.constant([text.encode() for text in texts]))
    assert found.numpy().tolist() == [text.lower().encode() for text in texts]
    blank = tf.strings.regex_full_match([one + "." for one in letters],
                                        moses_bpe.WHITE_SPACE + "[.]")  # fmt: skip
    assert blank.numpy().tolist() == [one.isspace() for one in letters]


@pytest.mark.parametrize("text", ["the garden " * 5000, "x" * 100_000])
def test_long_texts(tokenizer, graphs, text):
    same(tokenizer, graphs, [text.encode()])
    if tokenizer in MODELS.values() and 3 not in tokenizer.tokenize([text])[0]:
        assert tokenizer.detokenize(tokenizer.tokenize([text])) == [text]


@pytest.mark.parametrize("name", ["bpe+bytes", "words", "byte pairs"])
def test_no_resource_is_lost(name):
    """Neither with the graph it was first used in, nor with Keras' seed."""
    tokenizer = TOKENIZERS[name]
    copy = pickle.loads(pickle.dumps(tokenizer))
    expected, texts = tokenizer.tokenize(TEXTS), tf.constant(TEXTS)
    function = tf.function(copy.tokenize_tensor)
    assert function(texts).to_list() == expected
    data = tf.data.Dataset.from_tensors(texts).map(copy.tokenize_tensor)
    keras.utils.set_random_seed(2)
    for run in (function, copy.tokenize_tensor, lambda _: next(iter(data))):
        assert run(texts).to_list() == expected


def test_ops_are_those_of_stock_servers(graphs):
    ops, functions = set(), set()
    for function in graphs:
        graph = function.get_concrete_function().graph.as_graph_def()
        functions |= {one.signature.name for one in graph.library.function}
        for part in (graph.node, *(one.node_def for one in graph.library.function)):
            ops |= {node.op for node in part}
    stock = {line.split()[0] for line in STOCK_OPS.read_text().splitlines()}
    assert ops - functions - {"_Arg", "_Retval"} <= stock


SERVE = """
import sys
import tensorflow as tf
import tensorflow_text
assert not any(name.startswith("keras_seqconv") for name in sys.modules)
for folder in sys.argv[1:]:
    model = tf.saved_model.load(folder)
    for texts in ([], ["the young garden  \\u00e4"], ["", "the garden", "x " * 10_000]):
        found = model.signatures["serving_default"](tf.constant(texts, tf.string))
        ids, back = found["ids"], found["text"]
        assert ids.shape[0] == back.shape[0] == len(texts)
        print([text.decode() for text in back.numpy()])
"""


def served(tokenizer):
    """texts -> ids and the texts of these ids."""

    def serve(texts):
        ids = tokenizer.tokenize_tensor(texts).to_tensor(1)
        return {"ids": ids, "text": tokenizer.detokenize_tensor(ids)}

    spec = [tf.TensorSpec([None], tf.string, name="texts")]
    return tf.function(serve, input_signature=spec)


@pytest.mark.slow
def test_exports_run_without_this_package(tmp_path):
    expected = []
    for name in QUICK:
        tokenizer = TOKENIZERS[name]
        module = tf.Module()
        module.tokenizer = tokenizer.trackables
        module.serve = served(tokenizer)
        tf.saved_model.save(module, tmp_path / name, module.serve)
        assert not_stock(tmp_path / name) == []
        for texts in ([], ["the young garden  ä"], ["", "the garden", "x " * 10_000]):
            expected.append(str(tokenizer.detokenize(tokenizer.tokenize(texts))))
    printed = run_python(SERVE, *(tmp_path / name for name in QUICK)).stdout
    assert printed.split("\n")[:-1] == expected
