"""Commands print nothing that is not for the user, whatever libraries log."""

import re

import numpy as np
import pytest

from tests.processes import run_python

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow]

# What may go to standard error: progress.
OURS = re.compile(
    r"update \d|[\d,]+ lines|[\w .-]+: [\d,]+ pairs|Compiling the first update"
)


def test_errors_have_no_words_of_libraries(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    for split, count in (("train", 200), ("valid", 20), ("test", 20)):
        lines = [
            " ".join(rng.choice(["ein", "Hund", "läuft"], 4)) for _ in range(count)
        ]
        for language in ("de", "en"):
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    small = '{"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}'
    # As in a new shell, with the logs that TensorFlow writes by itself; in one process,
    # as libraries log while they load.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    train = f"train --preset dynamic_conv_phrases --dataset {tmp_path} --workdir run"
    commands = (
        f"{train} --max-updates 9 --architecture '{small}'",
        "average run --last-epochs 1 --output averaged",
        "translate run --input test.de --output out.txt",
        "evaluate run --source test.de --reference test.en",
        "plot dynamic-kernels run --text 'ein Hund' --output kernels.png",
        "export run --output served",
    )
    code = """
    import shlex, sys, keras_seqconv_cli
    for command in sys.argv[1:]:
        assert keras_seqconv_cli.main(shlex.split(command)) == 0, command
    """
    done = run_python(code, *commands, folder=tmp_path)
    lines = re.split(r"[\r\n]+", done.stderr)
    assert not [line for line in lines if line.strip() and not OURS.match(line)]
