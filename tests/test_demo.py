"""The demo page, as a browser shows it."""

import http.client
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv.evaluation import demo, plots
from tests.processes import COMMAND
from tests.small_models import TOKENIZER, encoder_decoder, make_language_model

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("gradio", reason="needs the extra demo (Gradio)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("needs Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    for flag in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "window-size=1300,2000",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A translation model with dynamic convolutions, and a language model."""
    folder, search = tmp_path_factory.mktemp("demo"), {"num_beams": 3, "max_length": 6}
    translator = ks.Translator(encoder_decoder(), TOKENIZER, TOKENIZER, search)
    for name in ("translator", "another"):
        translator.save(folder / name)
    make_language_model().save(folder / "writer")
    return folder


@pytest.fixture
def start():
    """Starts the command for models; ends it after the test."""
    pytest.importorskip("gradio", reason="needs the extra demo (Gradio)")
    processes = []

    def start(*models):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        command = [sys.executable, "-c", COMMAND, "demo", *models, "--port", str(port)]
        command += ["--runtime", "keras"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(process)
        timer = threading.Timer(120, process.kill)
        timer.start()
        printed = process.stdout.readline()
        timer.cancel()
        assert f"http://127.0.0.1:{port}" in printed
        for _ in range(60):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                wait_a_moment()
        return port

    yield start
    for process in processes:
        process.terminate()
        process.wait(30)


@pytest.fixture
def serve(start, browser):
    """Starts the command for models and opens its page."""

    def serve(*models):
        browser.get(f"http://127.0.0.1:{start(*models)}")
        return browser

    return serve


def wait_a_moment():
    threading.Event().wait(0.5)


def answer(port, method, path, body=None, **headers):
    """Status of a real request, and what is answered."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, names)
    response = connection.getresponse()
    return response.status, response.read().decode()


def event(port, number, data, **headers):
    """What the page is told after an event with this data."""
    body = {"data": data, "fn_index": number, "session_hash": "me"}
    headers["Content_Type"] = "application/json"
    joined = answer(port, "POST", "/gradio_api/queue/join", json.dumps(body), **headers)
    if joined[0] != 200:
        return joined
    return answer(port, "GET", "/gradio_api/queue/data?session_hash=me")


def test_other_hosts_and_sites_are_refused_and_nothing_is_stored(
    start, folders, tmp_path, monkeypatch
):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    port = start(folders / "translator")
    refused = (403, "Refused.\n")
    for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", "[::1]:80"):
        assert answer(port, "GET", "/", Host=host)[0] == 200
    for host in ("evil.test", f"evil.test:{port}", "127.0.0.1.evil.test", "", "[evil"):
        assert answer(port, "GET", "/config", Host=host) == refused
    own, others = f"http://127.0.0.1:{port}", ("http://evil.test", "null", "")
    assert answer(port, "GET", "/config", Origin=own)[0] == 200
    for origin in others:
        assert answer(port, "GET", "/config", Origin=origin) == refused
        assert event(port, 0, ["w1", 1, 1.0, "none"], Origin=origin) == refused
    file = (
        b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
        b"stored\r\n--x--\r\n"
    )
    kind = {"Content_Type": "multipart/form-data; boundary=x"}
    for path in ("upload", "process_recording", "run/predict", "component_server"):
        for origin in ({}, {"Origin": own}, {"Origin": "http://evil.test"}):
            path = f"/gradio_api/{path}"
            assert answer(port, "POST", path, file, **kind, **origin) == refused
    assert event(port, 0, ["w" * (1 << 20), 1, 1.0, "none"]) == refused
    join = "/gradio_api/queue/join"
    assert answer(port, "POST", join, iter([b"{}"])) == refused  # of unknown length
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_every_handler_has_the_limit_of_texts(start, folders):
    port, layer = start(folders / "translator"), "encoder 1"
    answers = [
        event(port, 0, ["w " * 501, 1, 1.0, layer]),
        event(port, 1, ["w " * 501, "w", layer]),
    ]
    for status, told in answers:
        assert status == 200 and "At most 1,000 characters, please; 1,002" in told
    # Of a long translation, the first tokens are drawn.
    told = event(port, 1, ["w1\n" * 333, "w3 " * 100_000, layer])[1]
    assert '"success":true' in told.replace(" ", "")
    port = start(folders / "writer")
    told = event(port, 0, ["w " * 501, 10, 1.0, 0, 1])[1]
    assert "At most 1,000 characters, please; 1,002" in told


def until(browser, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 90).until(condition)


def elements(browser, css: str):
    return browser.find_elements("css selector", css)


def click(browser, label: str):
    def button(page):
        labels = {one.text: one for one in elements(page, "button")}
        return labels.get(label)

    until(browser, button).click()


def values(browser) -> list[str]:
    return [box.get_attribute("value") for box in elements(browser, "textarea")]


def test_a_translation_with_its_scores_and_pictures(serve, folders):
    """Of each line, as `translate` finds them; two models stand side by side."""
    page = serve(folders / "translator", folders / "another")
    text = until(page, lambda page: elements(page, "textarea"))[0]
    click(page, "Translate")
    until(page, lambda page: "Type a text first" in page.page_source)
    assert not elements(page, ".error")  # none of the outputs is marked
    text.send_keys("w1 w2 w3\n\nw4 odd")
    click(page, "Translate")
    until(page, lambda page: "1 of 5 tokens are unknown" in page.page_source)
    # Attention and the kernels of the first layer, of each model.
    until(page, lambda page: len(elements(page, "img[src^='data:image']")) == 4)
    texts = ["w1 w2 w3", "w4 odd"]
    found = ks.load(folders / "translator").translate_n_best(texts, 3)
    assert values(page)[1:] == ["\n".join(best[0].text for best in found)] * 2
    for hypotheses, shown in zip(found, elements(page, "table")[:2], strict=True):
        for best in hypotheses:
            assert best.text in shown.text and f"{best.score:.3f}" in shown.text
            scores = [f"{score:.2f}" for score in best.positional_scores]
            assert all(score in shown.text for score in scores)


def test_a_text_without_a_token_has_a_row_without_tokens():
    (nothing,) = ks.Translator(
        encoder_decoder(), TOKENIZER, TOKENIZER
    ).translate_n_best([""], 1)
    shown = demo.table(nothing)
    assert "0.000" in shown and "log-probability" not in shown


def test_pictures_have_whole_labels(rows=15, columns=1):
    """As Gradio saves them: no ink at the edges."""
    image = pytest.importorskip("matplotlib.image", reason="needs the extra plot")
    tokens = ["m" * 22] * rows, ["m" * 20] * columns
    picture = plots.attention(np.full((rows, columns), 0.1), *tokens[::-1])
    file = io.BytesIO()
    picture.savefig(file, format="png")
    file.seek(0)
    ink = image.imread(file)[..., :3].min(axis=-1) < 0.8
    assert not (ink[[0, -1]].any() or ink[:, [0, -1]].any())


def test_a_language_model_continues_a_text(serve, folders):
    page = serve(folders / "writer")
    text = until(page, lambda page: elements(page, "textarea"))[0]
    text.send_keys("w1 odd")
    click(page, "Continue")
    until(page, lambda page: values(page)[-1])
    assert "1 of 2 tokens are unknown" in page.page_source
    generator = ks.load(folders / "writer")
    expected = generator.sample(
        ["w1 odd"], seed=1, temperature=0.8, top_k=40, max_length=200
    )
    assert values(page)[-1] == expected[0]
    text.clear()
    text.send_keys("w" * 1001)  # the box takes no more than 1,000
    assert re.fullmatch("w{1000}", values(page)[0])
