"""Scripts outside of the package keep up with it."""

import ast
import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = [
    path
    for folder in ("benchmarks", "examples", "tools")
    for path in sorted((ROOT / folder).glob("*.py"))
]


@pytest.mark.tensorflow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_names_that_scripts_import_exist(path, monkeypatch):
    """Also those of imports inside of functions."""
    monkeypatch.syspath_prepend(path.parent)
    ours = ("keras_seqconv", "keras_seqconv_cli", "benchmarks", "examples", "tests")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ours:
            module = importlib.import_module(node.module)
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found = hasattr(module, alias.name) or importlib.util.find_spec(name)
                assert found, name


@pytest.mark.tensorflow
@pytest.mark.parametrize("family", ["keras", "dynamic_conv"])
def test_a_step_of_the_training_benchmark(family, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    training = importlib.import_module("training")
    monkeypatch.setattr(training, "WORDS", 30)
    sizes = {"hidden_dim": 16, "intermediate_dim": 16, "num_heads": 2}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    if family != "keras":
        layers["kernel_sizes"] = 3
    model = training.make_model(family, **sizes, **layers)
    assert np.isfinite(training.training_step(model, 2, 4, "sgd")()).all()
