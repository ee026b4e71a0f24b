"""Every program of examples/, in small; the slow tests run them as a user would."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.tensorflow


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments):
    """`main(arguments)` of an example, in this process.

    Without XLA, whose compilation takes longer than so few updates.
    """
    import keras_seqconv as ks

    module = load(name)
    with ks.ops.jit_scope(False):
        return module.main([str(one) for one in arguments])


def run_command(name: str, *arguments, folder: Path) -> str:
    """What an example prints when it is run as its docstring says."""
    command = [sys.executable, EXAMPLES / f"{name}.py", *map(str, arguments)]
    return subprocess.check_output(command, text=True, timeout=1200, cwd=folder)


@pytest.fixture
def small_preset(monkeypatch):
    """The preset of the examples, narrow and shallow."""
    from keras_seqconv.presets import PRESETS

    architecture = PRESETS["dynamic_conv_phrases"].architecture
    small = dict(hidden_dim=16, intermediate_dim=16, num_heads=2, kernel_sizes=3)
    small |= dict(num_encoder_layers=1, num_decoder_layers=1)
    for name, value in small.items():
        monkeypatch.setitem(architecture, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("small_preset")
def test_train_wmt_tfds_on_mocked_data(tmp_path, capsys):
    """The real WMT builder, with made-up texts."""
    mock_data = pytest.importorskip("tensorflow_datasets").testing.mock_data
    import keras_seqconv as ks

    small = ["--vocabulary-size", 400, "--average", 2, "--updates-per-epoch", 1]
    small += ["--test-sentences", 2, "--data-dir", tmp_path]
    small += ["--dataset", "wmt14_translate/de-en", "--workdir", tmp_path / "run"]
    with mock_data(num_examples=40):
        run("train_wmt_tfds", *small, "--max-updates", 2)
        score = run("train_wmt_tfds", *small, "--max-updates", 3)  # goes on
    printed = capsys.readouterr().out
    *_, line = re.findall(r"^BLEU\|nrefs:1\|.*? = ([\d.]+)", printed, re.M)
    assert float(line) == pytest.approx(score, abs=0.01)
    last = ks.checkpoints.find(tmp_path / "run/checkpoints")[-1]
    assert last.name == "update-00000003.npz"
    assert len(ks.load(tmp_path / "run/model").translate(["ein Haus"])) == 1


@pytest.mark.slow
def test_custom_training_loop(tmp_path, capsys):
    small = ["--words", 5, "--tokens-per-batch", 256, "--report-every", 2]
    small += ["--workdir", tmp_path]
    run("custom_training_loop", *small, "--updates", 2)
    assert "update 2:" in capsys.readouterr().out
    share = run("custom_training_loop", *small, "--updates", 4)
    printed = capsys.readouterr().out
    assert "Going on after" in printed
    assert "update 2:" not in printed and "update 4:" in printed
    assert f"{share * 200:.0f} of 200 sequences" in printed
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == "update-00000004.npz"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "patterns"),
    [
        ("text_classifier", ["--reviews=2000"], {
            r"accuracy ([\d.]+) %": (98, 100), r"the answers by (\S+)": (-1, 1e-5)}),
        ("causal_lm", ["--epochs=1", "--width=64", "--data-dir=data"], {
            r"word .*perplexity ([\d.]+)": (1, 80),
            r"By hand:\n(?:  .*\n){3}By decoding.*\n(?:  .*\n){3}()": (0, 0)}),
        ("short_convolutions", ["--updates=150"], {
            r"loss: ([\d.]+)\s*Written": (1, 3), r"whole pass: (\S+)": (-1, 1e-4),
            r"padded batch: (\S+)": (-1, 1e-4)}),
    ],
)  # fmt: skip
def test_commands_learn_with_less(tmp_path, name, arguments, patterns):
    printed = run_command(name, *arguments, folder=tmp_path)
    for pattern, (least, most) in patterns.items():
        (found,) = re.search(pattern, printed).groups()
        assert not found or least < float(found) <= most, pattern


@pytest.mark.slow
@pytest.mark.usefixtures("small_preset")
def test_summarize_on_mocked_cnn_dailymail(tmp_path, capsys):
    """The names of the texts in the real data set."""
    mock_data = pytest.importorskip("tensorflow_datasets").testing.mock_data
    import keras_seqconv as ks

    small = ["--max-updates", 2, "--vocabulary-size", 400, "--max-source", 40]
    small += ["--min-length", 2, "--max-length", 9, "--test-articles", 2]
    small += ["--workdir", tmp_path / "run", "--data-dir", tmp_path]
    with mock_data(num_examples=40):
        scores = run("summarize", *small)
    printed = capsys.readouterr().out
    pairs = re.findall(r"^(.*)\n  reference: (.*)$", printed, re.M)
    assert len(pairs) == 2 and printed.count("ROUGE-") == 3
    expected = ks.evaluation.scores(*zip(*pairs, strict=True), ["rouge"])
    assert scores == [one.value for one in expected]
