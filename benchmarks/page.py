"""The page of `keras-seqconv export --format web`: load time, milliseconds a sentence.

    python benchmarks/page.py PAGE TEXTS [--screenshots DIR]

PAGE is the exported folder, served on loopback; the first 100 lines of TEXTS are
translated one by one in chromium (selenium, Debian's chromium and chromium-driver),
twice, the second time measured. Loading, from the request of the page until it can
translate, is that of a browser that has nothing in its cache; the median of five.
"""

import argparse
import functools
import http.server
import shutil
import statistics
import threading
import time
from pathlib import Path

from machine import lines_of, machine
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

LOADS, SENTENCES = 5, 100
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
TRANSLATE = """
const [texts, done] = arguments;
(async () => {
  const times = [];
  for (const text of [...texts, ...texts]) {
    const begun = performance.now();
    await translator.translate(text);
    times.push(performance.now() - begun);
  }
  done(times.slice(texts.length));
})();
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def browser():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def load(driver, address: str) -> float:
    """Seconds until the page can translate."""
    start = time.perf_counter()
    driver.get(address)
    WebDriverWait(driver, 60, 0.01).until(
        lambda one: one.execute_script("return !!window.translator")
    )
    return time.perf_counter() - start


def take_screenshots(driver, text: str, folder: Path) -> None:
    driver.find_element("id", "source").send_keys(text)
    WebDriverWait(driver, 60).until(
        lambda one: one.find_element("id", "canvas").is_displayed()
    )
    for name, (width, height) in SIZES.items():
        # A window is never narrower than 500; this sets what the page sees.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", metrics | {"mobile": name == "phone"}
        )
        driver.save_screenshot(str(folder / f"{name}.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--screenshots", type=Path, metavar="DIR")
    options = parser.parse_args()
    texts = lines_of(options.texts)[:SENTENCES]
    handler = functools.partial(Quiet, directory=options.page)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/index.html"
        loads = []
        for _ in range(LOADS):
            with browser() as driver:
                loads.append(load(driver, address))
                if len(loads) == LOADS:
                    driver.set_script_timeout(300)
                    times = driver.execute_async_script(TRANSLATE, texts)
                    if options.screenshots:
                        take_screenshots(driver, texts[0], options.screenshots)
        server.shutdown()
    size = sum(file.stat().st_size for file in options.page.rglob("*"))
    print(machine(), "\n")
    print(
        f"{size / 1e6:.1f} MB; load {statistics.median(loads):.2f} s "
        f"({min(loads):.2f}-{max(loads):.2f}); a sentence "
        f"{statistics.median(times):.0f} ms ({min(times):.0f}-{max(times):.0f})"
    )


if __name__ == "__main__":
    main()
