"""Layers and models in ONNX Runtime and LiteRT, and generation outside of Keras."""

import functools
import http.server
import importlib.util
import shutil
import threading
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import layers, models
from tests.small_models import TEXTS, make_language_model, make_translator

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf2onnx", reason="needs the extra onnx")
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
        layers.QueryConvModule(2, 3),
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


def assert_equal_outside(case, to_format, path):
    keras.utils.set_random_seed(1)
    model, inputs_of = CASES[case]()
    rng = np.random.default_rng(0)
    batches = [inputs_of(rng, *shape) for shape in SHAPES]
    # The first call records what Keras exports.
    with ks.ops.jit_scope(False):  # of many shapes
        expected = [np.asarray(model(as_called(inputs))) for inputs in batches]
    run = to_format(model, path)
    for inputs, outputs in zip(batches, expected, strict=True):
        np.testing.assert_allclose(run(inputs), outputs, atol=1e-5, rtol=1e-5)


def test_a_convolution_runs_in_onnx(tmp_path):
    assert_equal_outside("dynamic_conv", in_onnx, tmp_path / "model")


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float16"])
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
        with pytest.raises(ValueError, match="`dtype` must be float32 where layers"):
            to_format(single, tmp_path / "single")
    assert not list(tmp_path.glob("single*"))
    single.export(tmp_path / "saved_model", verbose=False)  # stays in TensorFlow


@pytest.mark.slow
@pytest.mark.parametrize("to_format", [in_onnx, in_litert])
@pytest.mark.parametrize("case", [*CASES][1:])
def test_layers_and_models(case, to_format, tmp_path):
    assert_equal_outside(case, to_format, tmp_path / "model")


def example():
    path = Path(__file__).parents[2] / "examples/onnx_translate.py"
    spec = importlib.util.spec_from_file_location("onnx_translate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fresh_translator(**options):
    return make_translator.__wrapped__("pieces", **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixer", "search", "quantized"),
    [
        ("query_conv", {"num_beams": 1, "max_length": 7}, "int8"),
        ("attention", {"no_repeat_ngram_size": 2, "min_length": 3}, None),
    ],
)
def test_a_search_in_numpy_finds_the_same(mixer, search, quantized, tmp_path):
    translator = fresh_translator(mixer=mixer)
    translator.search.update(search)
    if quantized:
        translator.model.quantize(quantized)
    ks.export.onnx_model(translator, tmp_path / "onnx")
    outside = example().Translator(tmp_path / "onnx")
    texts = [*TEXTS, "", "tea", "a  wood, a house and an old garden for two"]
    assert outside.translate(texts) == translator.translate(texts)
    assert outside.translate(texts[:1]) == translator.translate(texts[:1])


@pytest.fixture
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("npm") is None:
        pytest.skip("needs Debian's chromium-driver and npm")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    service = webdriver.ChromeService(driver)
    with webdriver.Chrome(options=options, service=service) as browser:
        yield browser


def served(folder):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)


@pytest.mark.slow
def test_a_page_translates_without_a_server(browser, tmp_path):
    from selenium.webdriver.support.ui import WebDriverWait

    translator = make_translator("pieces")
    try:
        ks.export.web_page(translator, tmp_path / "page")
    except OSError as error:
        pytest.xfail(f"npm has no network: {error}")
    texts = [*TEXTS, "", " tea\tfor \u3000two", "Über ½ 😀 straße", "a\x00b", "日本"]
    tokenizer = translator.source_tokenizer
    with served(tmp_path / "page") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.get(f"http://127.0.0.1:{server.server_port}/index.html")
        WebDriverWait(browser, 60).until(
            lambda one: one.execute_script("return !!window.translator")
        )
        encode = "return arguments[0].map(text => translator.source.encode(text))"
        ids = browser.execute_script(encode, texts)
        assert ids == [row[:-1] for row in tokenizer.tokenize(texts)]
        decode = "return arguments[0].map(ids => translator.target.decode(ids))"
        assert browser.execute_script(decode, ids) == tokenizer.detokenize(ids)
        translate = (
            "const [texts, done] = arguments;"
            "(async () => {const all = [];"
            "for (const text of texts) all.push(await translator.translate(text));"
            "done(all)})()"
        )
        assert browser.execute_async_script(translate, texts) == (
            translator.translate(texts)
        )
        browser.find_element("id", "source").send_keys(texts[0])
        WebDriverWait(browser, 60).until(
            lambda one: one.find_element("id", "canvas").is_displayed()
        )
        written = browser.find_element("id", "target").text
        assert written == translator.translate(texts[:1])[0]
        server.shutdown()


def test_what_cannot_be_exported(tmp_path):
    with pytest.raises(ValueError, match="`translator` must be a Translator"):
        ks.export.onnx_model(make_language_model(), tmp_path / "onnx")
    with pytest.raises(ValueError, match="`stopping` must be 'first', as the page"):
        ks.export.web_page(
            make_translator("pieces"), tmp_path / "onnx", stopping="optimal"
        )
    with pytest.raises(TypeError, match="Did you mean num_beams"):
        ks.export.onnx_model(make_translator("pieces"), tmp_path / "onnx", num_beam=2)
    assert not (tmp_path / "onnx").exists()
