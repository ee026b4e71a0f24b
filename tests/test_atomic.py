"""A folder appears complete or not at all, and nobody's files are lost."""

import threading

import pytest

from keras_seqconv.atomic import atomic_directory


def write(path, text="new", **options):
    with atomic_directory(path, **options) as folder:
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


def test_what_is_as_good_stays(tmp_path):
    path = tmp_path / "model"
    write(path, "old")
    there = path.stat().st_ino
    write(path, "new", replaceable=ours, equal=lambda folder: True)
    assert (path / "config.json").read_text() == "old"
    assert path.stat().st_ino == there
    assert names(tmp_path) == ["model"]
    write(path, "new", replaceable=ours, equal=lambda folder: False)
    assert (path / "config.json").read_text() == "new"


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / "model"
    kept = [".model.my_notes.part", ".models.0123abcd.part", ".model.part", "model.old"]
    for name in [".model.0123abcd.part", ".model.89abcdef.old", *kept]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("half")
    with atomic_directory(path, ours) as living:
        (living / "config.json").write_text("first")
        write(path, "second")
        assert names(tmp_path) == sorted([*kept, living.name, "model"])
    assert (path / "config.json").read_text() == "first"
    assert names(tmp_path) == sorted([*kept, "model"])


def test_no_writer_comes_between_the_look_and_the_renaming(tmp_path):
    path, threads = tmp_path / "model", []
    write(path, "old")

    def look(folder):
        options = {"target": write, "args": (path, "second")}
        threads.append(threading.Thread(**options, kwargs={"replaceable": ours}))
        threads[0].start()
        threads[0].join(timeout=0.5)
        assert threads[0].is_alive() and names(folder) == ["config.json"]
        return False

    write(path, "first", replaceable=ours, equal=look)
    threads[0].join()
    assert (path / "config.json").read_text() == "second"
    assert names(tmp_path) == ["model"]


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
