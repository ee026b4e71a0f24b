"""Ctrl-C and SIGTERM while a command does what cannot be interrupted well."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from keras_seqconv_cli import signals
from tests.processes import COMMAND

# A command whose work is `work`, without TensorFlow, which takes seconds to load.
PROGRAM = """
import atexit, signal, sys, threading, time
import keras_seqconv_cli
from keras_seqconv_cli import presets, signals

def work():
    # Said when the work is under way.
    threading.Timer(0.5, print, ["ready"], dict(flush=True)).start()
{work}

def run(options):
    try:
        work()
    finally:
        print("tidied up", flush=True)

keras_seqconv_cli.load_quietly = lambda: None
presets.run, signals.SECONDS = run, {seconds}
sys.argv = ["keras-seqconv", "presets"]
keras_seqconv_cli.program()
"""
WAITS = "time.sleep(300)"
# As TensorFlow does where C++ calls Python and Python C++.
CONVERTS = """
try:
    time.sleep(300)
except BaseException:
    raise RuntimeError("None values not supported")
"""
SWALLOWS = """
while True:
    try:
        time.sleep(300)
    except BaseException:
        pass
"""
# As Python is leaving, where there is much to free.
LEAVES = "atexit.register(time.sleep, 300); time.sleep(300)"
# Where what was begun is tidied up, which takes its time.
TIDIES = """
try:
    time.sleep(300)
finally:
    print("tidied up", flush=True)
    time.sleep(300)
"""


def signalled(work, number, seconds=60.0, again=False):
    """Status, output and errors of a process that gets a signal amid its work.

    Another one comes once it has tidied up.
    """
    work = textwrap.indent(textwrap.dedent(work).strip(), "    ")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(work=work, seconds=seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    if again:
        assert process.stdout.readline() == "tidied up\n"
        time.sleep(0.5)
        process.send_signal(number)
    output, errors = process.communicate(timeout=50)
    return process.returncode, output, errors


@pytest.mark.parametrize(
    ("work", "number"), [(WAITS, signal.SIGTERM), (CONVERTS, signal.SIGINT)]
)
def test_ends_as_that_signal_after_tidying_up(work, number):
    status, output, errors = signalled(work, number)
    assert status == 128 + number and output == "tidied up\n"
    assert errors == ("\nInterrupted.\n" if number == signal.SIGINT else "")


@pytest.mark.parametrize("work", [LEAVES, TIDIES])
def test_ctrl_c_again_ends_at_once_without_a_traceback(work):
    status, output, errors = signalled(work, signal.SIGINT, again=True)
    assert status == 130 and output == ""
    assert errors == "\nInterrupted.\n" * (1 + (work == LEAVES))


def test_ends_soon_where_the_work_does_not():
    status, output, errors = signalled(SWALLOWS, signal.SIGTERM, seconds=0.5)
    assert (status, output, errors) == (143, "", "\nInterrupted.\n")


def test_a_handler_of_the_work_keeps_its_meaning():
    """Training ends after the update at hand, however long that takes."""
    number = signal.SIGINT
    work = f"""
        ended = []
        signal.signal({int(number)}, lambda *_: ended.append(1))
        while not ended:
            time.sleep(0.01)
        time.sleep(1.0)
    """
    assert signalled(work, number, seconds=0.5) == (0, "tidied up\n", "")


@pytest.mark.parametrize("module", ["argparse", "keras"])
def test_ctrl_c_while_a_module_is_imported(module):
    program = f"""
        import os, signal, sys
        class Finder:
            def find_spec(self, name, *_):
                if name == {module!r}:
                    os.write(2, b"What TensorFlow says.")
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Finder())
        import keras_seqconv_cli
        sys.exit(keras_seqconv_cli.main(["quickstart"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    errors = done.stderr.removeprefix("What TensorFlow says." * (module != "keras"))
    assert (done.returncode, errors) == (130, "\nInterrupted.\n")


@pytest.mark.parametrize(
    ("command", "closed", "words"),
    [
        (["translate", "x"], 0, "standard input is closed: --input must be given."),
        (["presets"], 1, "standard output must not be closed: use >/dev/null"),
    ],
)
def test_closed_streams(command, closed, words):
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *command],
        stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.close(closed),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"error: {words}\n")


def test_handlers_of_before_come_back_and_other_errors_stay():
    before = [signal.getsignal(number) for number in signals._SIGNALS]
    with pytest.raises(SystemExit, match="143"), signals.endable():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(ValueError, match="wrong"), signals.endable():
        raise ValueError("wrong")
    assert [signal.getsignal(number) for number in signals._SIGNALS] == before
