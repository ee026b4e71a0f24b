"""What a server would load: the answers and the files of a version."""

from pathlib import Path

import numpy as np
import pytest

import keras_seqconv as ks
from tests.export.make_cases import n_best_of
from tests.export.stock_ops import not_stock, operations_of_a_step
from tests.small_models import (
    TEXTS,
    make_conv_s2s,
    make_language_model,
    make_translator,
)

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text", reason="needs the extra mt")
pytestmark = pytest.mark.tensorflow

WORD_TEXTS = ["w1 w2 w3", "", " ", "w4", "w9 x w9 w25 w0 w1 w2 w7 w3", "w5 w6"]
MISSING = -1e9


@pytest.fixture(autouse=True, scope="module")
def without_xla():
    """What it compiles is used once."""
    with ks.ops.jit_scope(False):
        yield


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A SentencePiece model and its export, sources of at most 40 tokens."""
    folder = tmp_path_factory.mktemp("saved_models") / "pieces"
    translator = make_translator("pieces")
    path = ks.export.saved_model(
        translator, folder, max_source_length=40, tokens_per_batch=160
    )
    return translator, path, tf.saved_model.load(str(path)).signatures


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    generator = make_language_model()
    path = ks.export.saved_model(generator, tmp_path_factory.mktemp("language"))
    return generator, path, tf.saved_model.load(str(path)).signatures


def bare():
    """Without tokenizers: the smallest export."""
    return ks.Translator(make_translator().model, search={"max_length": 5})


def decoded(texts):
    return np.vectorize(bytes.decode, otypes=[object])(texts.numpy()).tolist()


def test_answers_are_those_of_translate(pieces):
    """test_kinds.py has all kinds of models, and more texts."""
    translator, _, run = pieces
    texts = [*TEXTS, ""]
    found = run["translate_n_best"](text=tf.constant(texts))
    n_best, scores = n_best_of(translator, texts, 2)
    assert all(one > other for one, other in scores)  # best first
    assert decoded(found["translation"]) == n_best
    np.testing.assert_allclose(found["score"], scores, atol=1e-4)
    reverse = texts[::-1]
    found = run["score"](text=tf.constant(texts), translation=tf.constant(reverse))
    expected = translator.score(texts, reverse)
    np.testing.assert_allclose(found["score"], expected, atol=1e-4)
    found = run["encode"](text=tf.constant(TEXTS))
    rows = translator.source_tokenizer.tokenize(TEXTS)
    assert found["lengths"].numpy().tolist() == [len(row) for row in rows]
    for outputs, row in zip(found["outputs"].numpy(), rows, strict=True):
        expected, _ = translator.model.encode(np.array([row], "int32"))
        np.testing.assert_allclose(outputs[: len(row)], expected[0], atol=1e-5)
        assert not outputs[len(row) :].any()


def searched(translator, ids):
    ids, scores = ks.decoding.beam_search(
        translator.model, np.array([ids], "int32"), 2, max_length=8,
        suppressed_ids=[0, 1, 3], length_penalty=0.6,
    )  # fmt: skip
    return np.asarray(ids)[0], np.asarray(scores)[0]


# --- Any text ---


def test_long_texts_are_cut_as_said(pieces):
    translator, _, run = pieces
    long = "the young garden in the wood " * 400
    ids = translator.source_tokenizer.tokenize([long])[0]
    expected, scores = searched(translator, [*ids[:39], 2])
    found = run["serving_default"](text=tf.constant([long]))
    best = translator.target_tokenizer.detokenize(expected[:1].tolist())
    assert decoded(found["translation"]) == best
    np.testing.assert_allclose(found["score"][0], scores[0], atol=1e-4)


def test_ids_that_make_no_sense(pieces):
    """Padding of a server, wrong lengths, unknown ids: the other rows do not care."""
    translator, _, run = pieces
    row = translator.source_tokenizer.tokenize(TEXTS[:1])[0]
    junk = np.full((4, len(row) + 3), 7, "int32")
    junk[0, : len(row)] = row
    junk[1] = 10**6
    lengths = tf.constant([len(row), 99, -5, 0])
    found = run["translate_ids"](source_ids=tf.constant(junk), lengths=lengths)
    for place, ids in enumerate([row, [3] * (len(row) + 3)]):  # 3: unknown
        expected, scores = searched(translator, ids)
        np.testing.assert_array_equal(found["ids"][place], expected)
        np.testing.assert_allclose(found["scores"][place], scores, atol=1e-4)
    assert (found["ids"].numpy()[2:] == 1).all()
    np.testing.assert_allclose(found["scores"][2:], [[0, MISSING]] * 2)
    found = run["score_ids"](
        source_ids=tf.constant(junk), lengths=tf.constant([len(row), 99, 3, 0]),
        target_ids=tf.constant(junk), target_lengths=tf.constant([3, 3, -5, 3]),
    )["score"].numpy()  # fmt: skip
    assert (found[:2] < 0).all() and (found[2:] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pieces", "language"])
def test_inputs_of_other_sizes(request, kind):
    """Every signature: nothing of nothing; rows for other texts are refused."""
    for function in request.getfixturevalue(kind)[2].values():
        specs = function.structured_input_signature[1]

        def tensors(rows, width, specs=specs):
            return {
                name: tf.zeros((rows, width)[: len(spec.shape)], spec.dtype)
                for name, spec in specs.items()
            }

        for rows, width in ((0, 0), (0, 3), (2, 0)):
            for found in function(**tensors(rows, width)).values():
                assert found.shape[0] == rows
        of_rows = [name for name, spec in specs.items() if spec.shape.rank]
        for name in of_rows if len(of_rows) > 1 else ():
            for rows in (0, 1, 3):
                inputs = tensors(2, 3) | {name: tensors(rows, 3)[name]}
                with pytest.raises(tf.errors.InvalidArgumentError, match="one row for"):
                    function(**inputs)
        for name in of_rows:  # an axis too many
            inputs = tensors(2, 3)
            inputs[name] = inputs[name][..., None]
            shape = (
                rf"tensor {name} \[{','.join(map(str, inputs[name].shape))}\] is not"
            )
            with pytest.raises(tf.errors.InvalidArgumentError, match=shape):
                function(**inputs)


# --- The files ---


def test_a_step_is_few_operations(pieces):
    """Of which none hands on a weight, and none looks for what is known."""
    step = operations_of_a_step(pieces[1])
    assert step.total() <= 260
    # One for all of a shape.
    assert 0 < step["ReadVariableOp"] < 25
    assert not {"StatelessIf", "If", "BroadcastTo"} & step.keys()


@pytest.mark.slow
def test_versions(tmp_path, monkeypatch):
    """The next one; one that is refused or interrupted leaves nothing."""
    kept = {"3", "12", "x9", ".14.part"}
    for name in kept:
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="`version`.*never overwritten"):
        ks.export.saved_model(make_conv_s2s(), tmp_path, version=3)
    with pytest.raises(ValueError, match="`warmup_texts` must hold a text"):
        ks.export.saved_model(make_conv_s2s(), tmp_path, warmup_texts=[])
    seen = []

    def interrupted(module, path, *_):
        Path(path, "saved_model.pb").write_bytes(b"half")
        seen.extend(entry.name for entry in Path(path).parent.iterdir())
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tf.saved_model, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ks.export.saved_model(bare(), tmp_path)
    assert len(seen) > len(kept)
    assert not any(name.isdecimal() for name in set(seen) - kept)
    assert {entry.name for entry in tmp_path.iterdir()} == kept
    assert ks.export.saved_model(bare(), tmp_path).name == "13"


def test_files_of_a_version(pieces):
    path = pieces[1]
    assert path.name == "1" and not_stock(path) == []
    assert [entry.name for entry in path.parent.iterdir()] == ["1"]
    names = {entry.name for entry in path.iterdir()}
    assert {"saved_model.pb", "variables", "assets.extra", "MODEL_CARD.md"} <= names
    card = (path / "MODEL_CARD.md").read_text()
    for words in (
        "40 tokens", "at most 9 steps", "`translate_ids`", "Licence",
        "- num_beams: 2\n", "- num_hypotheses: 2\n",
    ):  # fmt: skip
        assert words in card


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "xla", "near"),
    [("float32", True, 1e-4), ("mixed_bfloat16", False, 0.02)],
)
def test_xla_and_mixed_precision(tmp_path, policy, xla, near):
    translator = make_translator(dtype=policy)
    path = ks.export.saved_model(translator, tmp_path / "m", xla=xla)
    assert bool(not_stock(path)) is xla
    assert not_stock(path, xla=xla) == []
    run = tf.saved_model.load(str(path)).signatures["serving_default"]
    found = run(text=tf.constant(WORD_TEXTS))
    best = [row[0] for row in translator.translate_n_best(WORD_TEXTS, 1)]
    np.testing.assert_allclose(found["score"], [one.score for one in best], atol=near)
    if policy == "float32":
        assert decoded(found["translation"]) == [one.text for one in best]
