"""Files appear complete or not at all, nobody's are lost; locks end with processes."""

import os
import subprocess
import sys
import threading

import pytest

from keras_seqconv.support.files import (
    atomic_directory,
    check_output,
    locked,
    write_file,
)


def write(path, text="new", replaceable=None):
    with atomic_directory(path, replaceable) as folder:
        (folder / "config.json").write_text(text)
        assert folder.parent == path.resolve().parent  # a rename within one file system


def ours(folder):
    return (folder / "config.json").is_file()


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_folder_appears_and_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "runs" / "model"
    with atomic_directory(path) as folder:
        (folder / "config.json").write_text("old")
        (folder / "left over").write_text("")
        assert not path.exists()
    (tmp_path / "plain").mkdir()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    write(path, "new", replaceable=ours)
    assert names(path.parent) == ["model"] and names(path) == ["config.json"]
    assert (path / "config.json").read_text() == "new"
    write(tmp_path / "plain")  # an empty folder is used
    assert names(tmp_path / "plain") == ["config.json"]
    (tmp_path / "latest").symlink_to(path)
    write(tmp_path / "latest", "newer", replaceable=ours)
    assert (tmp_path / "latest").is_symlink()
    assert (path / "config.json").read_text() == "newer"


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [False, True])
def test_interrupted_write_leaves_nothing_behind(tmp_path, stop, before):
    path = tmp_path / "model"
    if before:
        write(path, "old")
    with pytest.raises(stop), atomic_directory(path, ours) as folder:
        (folder / "config.json").write_text("half")
        raise stop
    assert names(tmp_path) == (["model"] if before else [])
    if before:
        assert (path / "config.json").read_text() == "old"


def test_links_are_followed_and_pipes_and_folders_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_file(tmp_path / "link", b"1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"1"
    os.mkfifo(tmp_path / "pipe")
    for path, mode in ((tmp_path / "pipe", "p"), (tmp_path, "d"), ("/dev/null", "c")):
        with pytest.raises(ValueError, match=f"{path} must be a regular .*: {mode}"):
            write_file(path, b"1")
    assert names(tmp_path) == ["file", "link", "pipe"]


def test_a_pipe_without_a_name_is_no_file():
    for end in os.pipe():
        with pytest.raises(ValueError, match="must be a regular file. Received: p"):
            check_output(f"/dev/fd/{end}")
        os.close(end)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write_file(tmp_path / "none" / "model", b"")
    assert error.value.filename == str(tmp_path / "none" / "model")


def test_what_killed_writers_left_is_removed_or_comes_back(tmp_path):
    for name in (".model.part", ".models.part", "model.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("half")
    write(tmp_path / "model", "old")
    assert names(tmp_path) == [".models.part", "model", "model.old"]
    (tmp_path / "model").rename(tmp_path / ".model.old")
    refused = pytest.raises(ValueError, match=r"holds: config\.json")
    with refused, atomic_directory(tmp_path / "model"):
        pytest.fail("the block ran")
    assert (tmp_path / "model" / "config.json").read_text() == "old"


def test_the_working_directory_is_never_replaced(tmp_path, monkeypatch):
    """Whoever works in it, a shell as well, would be left in a removed folder."""
    monkeypatch.chdir(tmp_path)
    for path in (".", tmp_path):
        with pytest.raises(ValueError, match="working directory"):
            write(path)
    assert not any(tmp_path.iterdir())


def test_what_is_not_ours_is_refused_and_kept(tmp_path):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years")
    for replaceable, rule in ((ours, ", or hold an earlier result"), (None, "")):
        words = rf"must be empty or not exist{rule}\. It holds: thesis\.tex"
        refused = pytest.raises(ValueError, match=words)
        with refused, atomic_directory(foreign, replaceable):
            pytest.fail("the block ran")
    path = tmp_path / "filled meanwhile"
    with refused, atomic_directory(path):
        foreign.rename(path)
    assert names(tmp_path) == [path.name] and names(path) == ["thesis.tex"]
    with pytest.raises(ValueError, match="It is a file"):
        write(path / "thesis.tex", replaceable=ours)
    assert (path / "thesis.tex").read_text() == "years"


def test_writers_of_one_folder_wait_for_each_other(tmp_path):
    path = tmp_path / "model"
    with atomic_directory(path, ours) as folder:
        second = threading.Thread(target=write, args=(path, "second", ours))
        second.start()
        second.join(timeout=0.5)
        assert second.is_alive() and names(folder) == []
        (folder / "config.json").write_text("first")
    second.join()
    assert (path / "config.json").read_text() == "second"
    assert names(tmp_path) == ["model"]


HOLDER = """
import sys
from keras_seqconv.support.files import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_kept_out_until_it_is_killed(tmp_path):
    path = tmp_path / "lock"
    refused = pytest.raises(ValueError, match="^taken$")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"held\n"
        with refused, locked(path, "taken"):
            pytest.fail("the block ran")
        process.kill()
    for _ in range(2):
        with locked(path, "taken"), refused, locked(path, "taken"):
            pytest.fail("the block ran")
    assert names(tmp_path) == []


def test_old_folder_returns_when_the_last_rename_fails(tmp_path, monkeypatch):
    path = tmp_path / "model"
    write(path, "old")
    rename = type(path).rename

    def fail(source, target):
        if source.name.endswith(".part"):
            raise OSError("no more")
        return rename(source, target)

    monkeypatch.setattr(type(path), "rename", fail)
    with pytest.raises(OSError, match="no more"):
        write(path, "new", replaceable=ours)
    assert (path / "config.json").read_text() == "old"
    assert names(tmp_path) == ["model"]
