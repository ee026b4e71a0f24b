"""The real corpus."""

import pytest

from tests.conftest import corpus_folder


@pytest.fixture
def multi30k():
    """Lines of a file of Multi30k by its name; skips where it is missing."""
    folder = corpus_folder("multi30k")
    return lambda name: (folder / name).read_bytes().decode().split("\n")[:-1]
