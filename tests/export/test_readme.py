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

from keras_seqconv.export import writing
from keras_seqconv_cli import main
from tests.export.models import make_translator, piece_tokenizer
from tests.export.server import StandIn

pytest.importorskip("tensorflow_serving", reason="needs the extra serve")
pytestmark = pytest.mark.tensorflow

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "saved_models" / "README.md").read_text()
FOUND = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", PAGE, re.MULTILINE)
# Blocks of code by their first words.
BLOCKS = {text.split()[0]: textwrap.dedent(text) for text in FOUND}
# tensorflow_serving/model_servers/main.cc
OFFICIAL = """
port grpc_socket_path rest_api_port rest_api_num_threads rest_api_timeout_in_ms
rest_api_enable_cors_support enable_batching batching_parameters_file
allow_version_labels_for_unavailable_models enable_per_model_batching_parameters
model_config_file model_config_file_poll_wait_seconds model_name model_base_path
num_load_threads num_unload_threads max_num_load_retries load_retry_interval_micros
file_system_poll_wait_seconds flush_filesystem_caches saved_model_tags
tensorflow_session_parallelism tensorflow_session_config_file
tensorflow_intra_op_parallelism tensorflow_inter_op_parallelism ssl_config_file
use_alts_credentials platform_config_file per_process_gpu_memory_fraction
grpc_channel_arguments grpc_max_threads enable_model_warmup version enable_profiler
num_request_iterations_for_warmup monitoring_config_file prefer_tflite_model
remove_unused_fields_from_bundle_metagraph num_tflite_pools
num_tflite_interpreters_per_pool enable_signature_method_name_check
xla_cpu_compilation_enabled xla_gpu_compilation_enabled
thread_pool_factory_config_file
"""
# Where there is no curl.
CURL = f"""\
#!{sys.executable}
import sys, urllib.request
*options, url = sys.argv[1:]
body = options[1].encode() if options else None
print(urllib.request.urlopen(url, body).read().decode())
"""


def test_flags_are_those_of_the_server():
    """Or of `saved_model_cli`."""
    flag = r"--([a-z]+_[a-z_]+)"
    known = {*OFFICIAL.split(), *re.findall(flag, BLOCKS["python"])}
    texts = PAGE + writing._BATCHING + writing._MODELS
    assert set(re.findall(flag, texts)) <= known


def test_policy_of_versions():
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    policy = BLOCKS["model_version_policy"]
    config = text_format.Parse(policy, model_server_config_pb2.ModelConfig())
    assert config.model_version_policy.specific.versions == [1]


@pytest.mark.slow
def test_commands(tmp_path, monkeypatch, capsys):
    assert set(BLOCKS) == {"docker", "curl", "python", "model_version_policy"}
    translator = make_translator(piece_tokenizer)
    translator.save(tmp_path / "phrases")
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    monkeypatch.chdir(tmp_path)
    prepare_path(tmp_path, monkeypatch)
    command = re.search("`keras-seqconv (export RUN)`", PAGE)[1]
    assert main(command.replace("RUN", "phrases").split()) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    with StandIn(tmp_path / "saved_models" / "phrases") as server:
        rest, grpc = server.address.rest, server.address.grpc

        def answers(commands: str) -> list:
            output = shell(commands.replace("http://localhost:8501", rest))
            return [json.loads(line) for line in output.splitlines()]

        rows, n_best, status, metadata = answers(BLOCKS["curl"])
        assert len(answers(printed)) == 1
        clients = client_commands()
        for command in clients:
            command = command.replace("phrases", f"phrases --rest {rest}")
            output = shell(command.replace("localhost:8500", grpc))
            assert output.splitlines() == lines_of(translator, "Anna called.")
    assert len(clients) == 2
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


def prepare_path(folder: Path, monkeypatch):
    """The programs of the page; each answer that curl gets is a line."""
    if shutil.which("curl") is None:
        (folder / "curl").write_text(CURL)
        (folder / "curl").chmod(0o755)
    path = str(folder), str(Path(sys.executable).parent), os.environ["PATH"]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    (folder / ".curlrc").write_text('write-out = "\\n"\n')
    monkeypatch.setenv("CURL_HOME", str(folder))


def shell(commands: str) -> str:
    done = subprocess.run(
        ["sh", "-ec", commands], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, (commands, done.stderr[-2000:])
    return done.stdout


def client_commands() -> list[str]:
    """Those at the top of the example."""
    text = (REPOSITORY / "examples" / "serve_client.py").read_text()
    return re.findall("^ {4}(echo .*)$", text, re.MULTILINE)


def lines_of(translator, text: str) -> list[str]:
    return [" ".join(one.splitlines()) for one in translator.translate([text])]
