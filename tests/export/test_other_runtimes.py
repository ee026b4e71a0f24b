"""Layers and models in ONNX Runtime and LiteRT, and generation outside of Keras."""

import functools
import http.server
import random
import shutil
import threading

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import layers, models
from keras_seqconv.export import onnx
from keras_seqconv.models.onnx_graphs import write_graphs
from keras_seqconv.runtime.onnx_model import OnnxModel
from tests.cases import quick_and_slow
from tests.small_models import (
    TEXTS,
    WORDS,
    answering,
    make_language_model,
    make_translator,
)
from tests.test_examples import load
from tests.tokenizers.test_sentencepiece import IDS, foreign_model

tf = pytest.importorskip("tensorflow")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You are using a softmax over axis"),
    pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated"),
]

CHANNELS, SIZE = 8, 30
SHAPES = [(2, 5), (1, 1), (3, 40), (2, 70)]  # of one block and of several
SMALL = dict(
    hidden_dim=8, intermediate_dim=8, num_heads=2, num_encoder_layers=2,
    num_decoder_layers=2, kernel_sizes=[3, 3], dropout=0.0,
)  # fmt: skip


def of_layers():
    """Outputs of all layers side by side, so that an export shows each."""
    every = [
        layers.DynamicConv(2, 3), layers.DynamicConv(2, 37, padding="causal"),
        layers.LightConv(2, 4), layers.GLU(), layers.MultiHeadAttention(2),
        layers.PositionEncoding(), layers.WeightNormConv1D(6, 3, "causal"),
        layers.WeightNormDense(6), layers.FeedForward(6), layers.ConvS2SBlock(6, 3),
        layers.DynamicConvModule(2, 3), layers.LightConvModule(2, 3),
        layers.QueryConvModule(2, 3), layers.ShortConv(), layers.GatedShortConv(),
    ]  # fmt: skip
    return of_layer(lambda x: keras.layers.Concatenate()([one(x) for one in every]))


def of_layer(layer):
    inputs = keras.Input((None, CHANNELS))
    model = keras.Model(inputs, layer(inputs))
    return model, lambda rng, b, t: [rng.normal(size=(b, t, CHANNELS)).astype("f")]


def ids(rng, b, t):
    return rng.integers(4, SIZE, (b, t)).astype("int32")


def of_translator(make=models.EncoderDecoder, **options):
    model = make(SIZE, SIZE, **options)
    return model, lambda rng, b, t: [ids(rng, b, t), ids(rng, b, t + 2)]


def of_language_model(**options):
    model = models.ConvLanguageModel(
        SIZE, dropout=0.0, embedding_dim=8, convolutions="[(8, 3)] * 2", **options
    )
    return model, lambda rng, b, t: [ids(rng, b, t)]


CASES = {
    "dynamic_conv": lambda: of_layer(layers.DynamicConv(2, 3)),
    "layers": of_layers,
    "mixers": lambda: of_translator(**SMALL, mixer={
        "encoder": ["dynamic_conv", "attention"],
        "decoder": ["light_conv", "query_conv"],
    }),
    "conv_s2s": lambda: of_translator(
        models.ConvS2S, embedding_dim=8, convolutions="[(8, 3)] * 2", output_dim=8,
        dropout=0.0, max_length=128,
    ),
    "language_model": of_language_model,
}  # fmt: skip


def in_onnx(model, path):
    model.export(f"{path}.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(f"{path}.onnx")
    names = [one.name for one in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))[0]


def in_litert(model, path):
    builtins = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}  # no Flex
    model.export(f"{path}.tflite", format="litert", verbose=False, target_spec=builtins)

    def run(inputs):
        interpreter = tf.lite.Interpreter(f"{path}.tflite")
        details = sorted(interpreter.get_input_details(), key=lambda one: one["name"])
        for one, value in zip(details, inputs, strict=True):
            interpreter.resize_tensor_input(one["index"], value.shape)
        interpreter.allocate_tensors()
        for one, value in zip(details, inputs, strict=True):
            interpreter.set_tensor(one["index"], value)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return run


def as_called(inputs):
    if inputs[0].dtype != "int32":
        return inputs[0]  # of a layer
    names = ("source_ids", "target_ids")[-len(inputs) :]
    return dict(zip(names, inputs, strict=True))


EVERYWHERE = [(case, form) for case in [*CASES][1:] for form in (in_onnx, in_litert)]


@pytest.mark.parametrize(
    ("case", "to_format"), quick_and_slow([("dynamic_conv", in_onnx)], EVERYWHERE)
)
def test_layers_and_models(case, to_format, tmp_path):
    keras.utils.set_random_seed(1)
    model, inputs_of = CASES[case]()
    rng = np.random.default_rng(0)
    batches = [inputs_of(rng, *shape) for shape in SHAPES]
    # The first call records what Keras exports.
    with ks.ops.jit_scope(False):  # of many shapes
        expected = [np.asarray(model(as_called(inputs))) for inputs in batches]
    run = to_format(model, tmp_path / "model")
    for inputs, outputs in zip(batches, expected, strict=True):
        np.testing.assert_allclose(run(inputs), outputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", quick_and_slow([], ["mixed_bfloat16", "float16"]))
def test_half_precision_leaves_in_float32(dtype, tmp_path):
    """A model by itself, though never called; a layer in a model of Keras' refuses."""
    model, _ = of_language_model(dtype=dtype)
    run = in_litert(model, tmp_path / "model")
    inputs = [ids(np.random.default_rng(0), 2, 5)]
    for original, tolerance in ((model, 2e-2), (model.in_float32(), 1e-5)):
        outputs = np.asarray(original(as_called(inputs)))
        np.testing.assert_allclose(run(inputs), outputs, atol=tolerance)
    single, _ = of_layer(layers.GLU(dtype=dtype))
    single(np.ones((1, 2, CHANNELS)))
    for to_format in (in_onnx, in_litert):
        with pytest.raises(ValueError, match="`dtype` must be float32 for exports"):
            to_format(single, tmp_path / "single")
    assert not list(tmp_path.glob("single*"))
    single.export(tmp_path / "saved_model", verbose=False)  # stays in TensorFlow


SEARCHES = {  # mixer and options
    # Limits of one token more in float32.
    "limits": ("dynamic_conv", {"max_length": 1, "max_length_ratio": 1.5 - 1e-9}),
    "groups": ("light_conv", {"num_beams": 4, "num_groups": 2}),
    "optimal": ("attention", {"stopping": "optimal", "length_penalty_kind": "gnmt"}),
    "n-grams": ("query_conv", {"no_repeat_ngram_size": 2, "num_beams": 1}),
}


def answering_translator(mixer):
    tokenizer = ks.tokenizers.WordTokenizer(WORDS[:10])
    return ks.Translator(answering(mixer), tokenizer, tokenizer, {"max_length": 9})


@pytest.mark.parametrize(
    "case", quick_and_slow(["int8"], ["limits", "groups", "optimal", "n-grams"])
)
def test_the_loop_of_the_example_finds_the_same(case, tmp_path):
    mixer, search = SEARCHES.get(case, ("dynamic_conv", {}))
    translator = answering_translator(mixer)
    quantize = "int8" if case == "int8" else None
    ks.export.onnx_model(translator, tmp_path / "onnx", quantize=quantize, **search)
    loop = load("onnx_loop")
    source = np.random.default_rng(1).integers(4, 14, (12, 9))
    for row, length in zip(source, [1, 2, 9, 5] * 3, strict=True):
        row[length - 1 :] = [2] + [1] * (9 - length)
    options = translator.search_options(search)
    found = ks.decoding.beam_search_hypotheses(
        translator.model, source, options=options
    )
    if quantize is not None:
        write_graphs(translator.model, tmp_path)
        model = OnnxModel(tmp_path, quantize=quantize)
        found, other = model.beam_search_hypotheses(source, options=options), found
        assert (found.scores != np.asarray(other.scores))[:, 0].all()
    ids, lengths = np.asarray(found.ids)[:, 0], np.asarray(found.lengths)[:, 0]
    expected = [row[: n - 1].tolist() for row, n in zip(ids, lengths, strict=True)]
    assert len({*map(len, expected)}) > 2
    assert loop.search(tmp_path / "onnx", source) == expected


PAGES = {  # model and options by folder
    "": ({}, {}),
    "groups": ({"mixer": "light_conv"}, {
        "num_beams": 4, "num_groups": 2, "no_repeat_ngram_size": 1}),
    "optimal": ({"mixer": "attention"}, {
        "num_beams": 3, "stopping": "optimal", "length_penalty": 0.3}),
}  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A browser, the folder of `PAGES`, and a function that opens one of them."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    from selenium.webdriver.support.ui import WebDriverWait

    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("npm") is None:
        pytest.skip("needs Debian's chromium-driver and npm")
    folder = tmp_path_factory.mktemp("web") / "page"
    fetched = pytest.MonkeyPatch()
    for name, (model, search) in PAGES.items():
        try:
            ks.export.web_page(
                make_translator("pieces", **model), folder / name, **search
            )
        except OSError as error:
            if "npm cannot fetch" not in str(error):
                raise
            pytest.skip(str(error))
        # Once is enough.
        fetched.setattr(
            onnx,
            "_fetch",
            lambda other, kinds: [
                shutil.copytree(folder / part, other / part)
                for part in ("ort", "sentencepiece")
            ],
        )
    fetched.undo()
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    service = webdriver.ChromeService(driver)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        webdriver.Chrome(options=options, service=service) as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def open_page(name=""):
            browser.get(f"http://127.0.0.1:{server.server_port}/{name}/index.html")
            WebDriverWait(browser, 60).until(
                lambda one: one.execute_script("return !!window.translator")
            )

        yield browser, folder, open_page
        server.shutdown()


TRANSLATE = (
    "const [texts, done] = arguments;"
    "(async () => {const all = [];"
    "for (const text of texts) all.push(await translator.translate(text));"
    "done(all)})()"
)


@pytest.mark.slow
def test_a_page_translates_without_a_server(page):
    from selenium.webdriver.support.ui import WebDriverWait

    browser, _, open_page = page
    open_page()
    translator = make_translator("pieces")
    texts = [*TEXTS, "", " tea\tfor \u3000two", "Über ½ 😀 straße", "a\x00b", "日本"]
    texts += ["\ufeff", "\x85 \u2028", "tea\u2028for\x0ctwo\x85", "\x0b\x0c"]
    expected = translator.translate(texts)
    assert browser.execute_async_script(TRANSLATE, texts) == expected
    ids = browser.execute_script(r"return translator.sourceIds('a\ud83d b')")
    assert [ids] == translator.source_tokenizer.tokenize(["a\ud83d b"])
    # Each line, which ends with a line feed alone, has one line.
    texts = [text.replace("\0", "") for text in texts]
    enter = (
        "const box = document.getElementById('source'); box.value = arguments[0];"
        "box.dispatchEvent(new Event('input'))"
    )
    browser.execute_script(enter, "\n".join(texts))
    read = "return document.getElementById('target').textContent"
    WebDriverWait(browser, 60).until(
        lambda one: one.execute_script(read).count("\n") == len(texts) - 1
    )
    assert browser.execute_script(read).split("\n") == translator.translate(texts)
    assert browser.find_element("id", "canvas").is_displayed()
    spoil = (  # bytes of unknown characters are pieces, too
        "const id = (x) => x === '日' ? 3 : 9;"
        "translator.source.encodeIds = (text) => [...text].map(id);"
        "translator.source.encodePieces = (text) => [...text];"
    )
    browser.execute_script(spoil)
    browser.execute_script(enter, "日a\n日")
    WebDriverWait(browser, 60).until(
        lambda one: one.find_element("id", "status").text.endswith("to the model: 日")
    )
    labels = browser.find_elements("css selector", "main label")
    languages = [translator.source_language, translator.target_language]
    assert [label.text for label in labels] == languages


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAGES][1:])
def test_a_page_searches_as_it_is_told(page, name):
    browser, _, open_page = page
    open_page(name)
    model, search = PAGES[name]
    translator, texts = make_translator("pieces", **model), [*TEXTS, "tea", "a wood"]
    expected = translator.translate(texts, **search)
    assert expected != translator.translate(texts)
    assert browser.execute_async_script(TRANSLATE, texts) == expected
    script = "const [text, done] = arguments; translator.hypotheses(text).then(done)"
    for text in texts:
        shown = browser.execute_async_script(script, text)
        n_best = translator.translate_n_best([text], search["num_beams"], **search)[0]
        assert [row["text"] for row in shown] == [row.text for row in n_best]
        sums = [row.positional_scores.sum() for row in n_best]
        probabilities = [row["probability"] for row in shown]
        np.testing.assert_allclose(probabilities, np.exp(sums), rtol=1e-3)


SYMBOLS = ["<sep>", "<a b>", "\u2581the", "ing", "日本", "😀", "tea<x"]
UNUSUAL = [
    *SYMBOLS, "<2xx>", "<s>", "<unk>", "<0x41>", "e\u0301", "ﬁ", "Ⅳ", "½", "ﾊﾟ", "İ",
    "ẞ", "👩\u200d👧", "\u0378", "\U00020000", "\u2581", "  ", "\t", "\r", "\n", "\x0c",
    "\x00a", "\x1f", "\x7f", "\x85", "\xa0", "\xad", "\u200b", "\u2028", "\u202e",
    "\u3000", "\ufeff", "\ufffd",
]  # fmt: skip


def model_of_pieces(kind, texts, **options):
    """A model of sentencepiece with the ids of this package and symbols of a user."""
    options |= dict(model_type=kind, vocab_size=600, hard_vocab_limit=False, **IDS)
    options |= dict(user_defined_symbols=SYMBOLS, control_symbols=["<2xx>"])
    return ks.tokenizers.SentencePieceTokenizer(foreign_model(texts, **options))


@pytest.mark.slow
def test_a_page_splits_and_joins_as_sentencepiece(page):
    """All kinds of models and rules; phrases, and texts and ids without sense."""
    browser, folder, open_page = page
    open_page()
    rng = random.Random(0)
    sources, targets = next(iter(ks.data.open_corpus("phrases").blocks("train")))
    phrases = [*sources[:1500], *targets[:1500]]
    texts = ["", " ", "IİKẞΣſ", "a" * 3000, "日" * 3000, " ".join(phrases[:99])]
    texts += phrases[::5]
    for phrase in phrases[::3]:
        letters = [
            *phrase[:20],
            *rng.choices(UNUSUAL, k=6),
            chr(rng.randrange(1, 9999)),
        ]
        rng.shuffle(letters)
        texts.append("".join(letters))
    bare = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    rules = [{}, bare, {"normalization_rule_name": "nmt_nfkc_cf"}]
    cases = [
        (kind, rule) for kind in ("unigram", "word", "char", "bpe") for rule in rules
    ]
    cases += [(kind, {**bare, "byte_fallback": True}) for kind in ("unigram", "bpe")]
    script = (
        "const [folder, texts, drawn, done] = arguments;"
        "(async () => {const {loadTokenizer} = await import('./translate.js');"
        "const one = await loadTokenizer(folder, 3);"
        "const ids = texts.map((text) => one.encodeIds(text));"
        "done([ids, [...ids, ...drawn].map((row) => one.decode(row))])})()"
    )
    made = [(*case, model_of_pieces(case[0], phrases, **case[1])) for case in cases]
    for cls in (ks.tokenizers.WordTokenizer, ks.tokenizers.CharacterTokenizer):
        made.append((cls.kind, {}, cls.train(phrases)))
    lower = map(str.lower, [*phrases, "iıßſσς"])
    made.append(("characters", {}, ks.tokenizers.CharacterTokenizer.train(lower)))
    for number, (kind, rule, tokenizer) in enumerate(made):
        tokenizer.save(folder / str(number))  # no name twice, as browsers keep files
        never = {2, *tokenizer.unspellable_ids} - {3}  # in the results of a search
        known = [i for i in range(tokenizer.vocabulary_size) if i not in never]
        drawn = [rng.choices(known, k=k % 12) for k in range(500)]
        found = browser.execute_async_script(script, str(number), texts, drawn)
        ids = [row[:-1] for row in tokenizer.tokenize(texts)]
        expected = ids, tokenizer.detokenize([*ids, *drawn])
        inputs = texts, [*ids, *drawn]
        for triples in zip(inputs, found, expected, strict=True):
            triples = zip(*triples, strict=True)
            wrong = [one for one in triples if one[1] != one[2]]
            assert not wrong, (kind, rule, len(wrong), wrong[0])


@pytest.mark.slow
def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(ValueError, match="`translator` must be a Translator"):
        ks.export.onnx_model(make_language_model(), tmp_path / "onnx")
    moses = make_translator("dictionary")
    with pytest.raises(ValueError, match="`source_tokenizer` must be of a kind"):
        ks.export.web_page(moses, tmp_path / "onnx")
    with pytest.raises(TypeError, match="Did you mean num_beams"):
        ks.export.onnx_model(make_translator("pieces"), tmp_path / "onnx", num_beam=2)
    quantized = make_translator.__wrapped__("pieces")
    quantized.model.quantize("int8")
    with pytest.raises(ValueError, match="`model` must not be quantized by Keras"):
        ks.export.onnx_model(quantized, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
