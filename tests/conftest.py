"""What all tests share: quiet logs, strict skips, reference outputs and real text."""

import gc
import os
import random
import signal
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"
MODELS = sorted(path.parent.name for path in GOLDEN.glob("*/args.json"))

# Jobs in the background ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help="fail when a test was skipped (CI: nothing may be missing)",
    )


def pytest_collection_finish(session):
    """What was imported stays; tracing graphs makes the collector look at it too often.

    Without this the tests take 6 % longer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not session.config.getoption("--strict-skips") or reporter is None:
        return
    skipped = reporter.stats.get("skipped", [])
    if skipped and exitstatus == 0:
        reporter.write_line(f"--strict-skips: {len(skipped)} skipped", red=True)
        session.exitstatus = 1


def corpus_folder(name: str) -> Path:
    """A corpus of docs/data.md; skips where it is missing."""
    data = os.environ.get("KERAS_SEQCONV_DATA")
    if not data or not Path(data, name).is_dir():
        pytest.skip(f"needs the corpus {name}: KERAS_SEQCONV_DATA={data}")
    return Path(data, name)


@pytest.fixture
def golden():
    """The folder of fairseq's outputs."""
    return GOLDEN


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same random numbers, whatever ran before it.

    Keras' own `set_random_seed` would empty TensorFlow's cache of kernels each time.
    """
    random.seed(1)
    np.random.seed(1)
