"""Files appear complete or not at all, nobody's are lost; locks end with processes."""

import subprocess
import sys
import threading

import pytest

from keras_seqconv.support.files import atomic_directory, locked, write_file
from tests.full_disk import full_disk


def write(path, text="new", replaceable=None):
    with atomic_directory(path, replaceable) as folder:
        (folder / "config.json").write_text(text)
        assert folder.parent == path.parent  # a rename within one file system


def ours(folder):
    return (folder / "config.json").is_file()


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_folder_appears_at_the_end(tmp_path):
    path = tmp_path / "runs" / "model"
    with atomic_directory(path) as folder:
        (folder / "config.json").write_text("new")
        assert not path.exists()
    assert (path / "config.json").read_text() == "new"
    assert names(path.parent) == ["model"]


def test_permissions_are_those_of_any_new_folder(tmp_path):
    write(tmp_path / "model")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("stop", [RuntimeError, KeyboardInterrupt, SystemExit])
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


def test_what_is_replaceable_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "model"
    write(path, "old")
    (path / "left over").write_text("")
    write(path, "new", replaceable=ours)
    assert names(path) == ["config.json"]
    assert (path / "config.json").read_text() == "new"
    assert names(tmp_path) == ["model"]


def write_in_folder(path):
    with atomic_directory(path) as folder, open(folder / "ids", "wb") as stream:
        stream.write(bytes(9000))


def write_one_file(path):
    write_file(path, bytes(9000))


@pytest.mark.parametrize("write", [write_in_folder, write_one_file])
def test_full_disk_is_named_and_leaves_nothing(tmp_path, write):
    with pytest.raises(OSError) as error, full_disk():
        write(tmp_path / "new")
    assert error.value.filename == str(tmp_path / "new")
    assert names(tmp_path) == []


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    for name in (".model.part", ".models.part", "model.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("half")
    write(tmp_path / "model")
    assert names(tmp_path) == [".models.part", "model", "model.old"]
    assert names(tmp_path / "model") == ["config.json"]


def test_what_a_killed_writer_was_replacing_comes_back(tmp_path):
    write(tmp_path / "model", "old")
    (tmp_path / "model").rename(tmp_path / ".model.old")
    refused = pytest.raises(ValueError, match=r"holds: config\.json")
    with refused, atomic_directory(tmp_path / "model"):
        pytest.fail("the block ran")
    assert (tmp_path / "model" / "config.json").read_text() == "old"


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
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ValueError, match="^taken$"), locked(path, "taken"):
            pytest.fail("the block ran")
        process.kill()
    for _ in range(2):
        refused = pytest.raises(ValueError, match="^taken$")
        with locked(path, "taken"), refused, locked(path, "taken"):
            pytest.fail("the block ran")
    assert names(tmp_path) == []


def test_empty_folder_is_used(tmp_path):
    (tmp_path / "model").mkdir()
    write(tmp_path / "model")
    assert names(tmp_path / "model") == ["config.json"]


@pytest.mark.parametrize("options", [{}, {"replaceable": ours}])
def test_foreign_folder_is_refused_before_any_work(tmp_path, options):
    (tmp_path / "thesis.tex").write_text("years")
    refused = pytest.raises(ValueError, match=r"holds: thesis\.tex")
    with refused, atomic_directory(tmp_path, **options):
        pytest.fail("the block ran")
    assert names(tmp_path) == ["thesis.tex"]


def test_folder_filled_meanwhile_is_kept(tmp_path):
    path = tmp_path / "model"
    refused = pytest.raises(ValueError, match=r"holds: thesis\.tex")
    with refused, atomic_directory(path):
        path.mkdir()
        (path / "thesis.tex").write_text("years")
    assert names(tmp_path) == ["model"]
    assert names(path) == ["thesis.tex"]


def test_file_is_refused(tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(ValueError, match="It is a file"):
        write(tmp_path / "model", replaceable=ours)
    assert (tmp_path / "model").read_text() == "a file"


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


def test_link_stays_a_link(tmp_path):
    write(tmp_path / "model", "old")
    (tmp_path / "latest").symlink_to(tmp_path / "model")
    write(tmp_path / "latest", "new", replaceable=ours)
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "model" / "config.json").read_text() == "new"
