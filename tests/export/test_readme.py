"""saved_models/README.md: its commands and flags in the form in which they stand there.

Those that need Docker or `tensorflow_model_server` are only looked at.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from keras_seqconv_cli import main
from tests.export.server import stand_in
from tests.processes import ROOT
from tests.small_models import make_translator

pytestmark = pytest.mark.tensorflow

PAGE = (ROOT / "saved_models" / "README.md").read_text()
FOUND = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", PAGE, re.MULTILINE)
# Blocks of code by their first words.
BLOCKS = {text.split()[0]: textwrap.dedent(text) for text in FOUND}
# Where there is no curl.
CURL = f"""\
#!{sys.executable}
import sys, urllib.request
*options, url = sys.argv[1:]
body = options[1].encode() if options else None
print(urllib.request.urlopen(url, body).read().decode())
"""


@pytest.mark.slow
def test_commands(tmp_path, monkeypatch, capsys):
    files = {"model_config_list", "max_batch_size"}
    assert set(BLOCKS) == {"docker", "curl", "python", *files}
    translator = make_translator("pieces")
    translator.save(tmp_path / "phrases")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    # The programs of the page; each answer that curl gets is a line.
    if shutil.which("curl") is None:
        (tmp_path / "curl").write_text(CURL)
        (tmp_path / "curl").chmod(0o755)
    path = str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    (tmp_path / ".curlrc").write_text('write-out = "\\n"\n')
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    command = re.search("`keras-seqconv (export RUN)`", PAGE)[1]
    assert main(command.replace("RUN", "phrases").split()) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    with stand_in(tmp_path / "saved_models" / "phrases") as (rest, grpc, _):

        def answers(commands: str) -> list:
            output = shell(commands.replace("http://localhost:8501", rest))
            return [json.loads(line) for line in output.splitlines()]

        rows, n_best, status, metadata = answers(BLOCKS["curl"])
        assert len(answers(printed)) == 1
        # Those at the top of the example.
        example = (ROOT / "examples" / "serve_client.py").read_text()
        clients = re.findall("^ {4}(echo .*)$", example, re.MULTILINE)
        assert len(clients) == 2
        (translation,) = translator.translate(["Anna called."])
        for command in clients:
            command = command.replace("phrases", f"phrases --rest {rest}")
            output = shell(command.replace("localhost:8500", grpc))
            assert output == " ".join(translation.splitlines()) + "\n"
    text = "Anna called three guests."
    (row,) = rows["predictions"]
    assert row["translation"] == translator.translate([text])[0]
    assert set(row) == {"translation", "score"}
    expected = translator.translate_n_best(["three"], 2)[0]
    assert n_best["outputs"]["translation"] == [[one.text for one in expected]]
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    assert set(signatures["score"]["inputs"]) == {"text", "translation"}
    output = shell(BLOCKS["python"])
    assert repr(translator.translate(["three guests"])[0].encode()) in output


def shell(commands: str) -> str:
    done = subprocess.run(
        ["sh", "-ec", commands], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (commands, done.stderr[-2000:])
    return done.stdout
