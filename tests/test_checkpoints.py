"""Checkpoints hold everything, come back to the bit, and are never half there."""

import errno
import json
import os
import stat

import keras
import numpy as np
import pytest

from keras_seqconv import checkpoints
from tests.callbacks.small import Stream, make_model, same, variables
from tests.cases import few_on_jax
from tests.processes import full_disk


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model = make_model()
    model.fit(Stream().dataset(), steps_per_epoch=3, verbose=0, shuffle=False)
    path = tmp_path_factory.mktemp("trained") / "update-00000003.npz"
    checkpoints.save(path, model, {"update": 3, "position": 3, "text": "ü"})
    return model, path


def test_the_restored_model_is_the_saved_one_and_trains_on_as_it(trained):
    model, path = trained
    first, second = make_model(), make_model()
    for other in (first, second):
        state = checkpoints.restore(path, other)
        assert state == checkpoints.read_state(path)
        assert state == {"update": 3, "position": 3, "text": "ü"}
        assert same(model, other)
    with np.load(path) as file:
        header = json.loads(file["header.json"])
        assert len(file.files) == 1 + len(header["model"]) + len(header["optimizer"])
    assert [one["path"] for one in header["model"]] == [v.path for v in model.variables]
    seeds = [v for v in first.variables if "seed_generator" in v.path]
    assert len(seeds) == 1  # Keras' own files have none of these
    assert len(first.optimizer.variables) == 2 + 2 * 4
    for other in (first, second):
        other.fit(Stream().dataset(3), steps_per_epoch=2, verbose=0, shuffle=False)
    assert same(first, second) and not same(first, model)


DTYPES = ("bfloat16", "float16", "bool", "int8")


def hold(values, dtype):
    """A model with variables of these values, all of the same name."""
    model = keras.Model()
    for value in values:
        start = lambda _, dtype, value=value: keras.ops.cast(value, dtype)  # noqa: E731
        model.add_weight(np.shape(value), start, dtype, trainable=False, name="same")
    return model


# JAX has float64 only when told so.
@pytest.mark.parametrize("dtype", few_on_jax(DTYPES, [*DTYPES, "float64"]))
def test_dtypes_come_back_to_the_bit(tmp_path, dtype):
    model = hold([[0.1, 1e-3, -3.0], 1.0, [[2.0]]], dtype)
    path = tmp_path / "update-00000000.npz"
    checkpoints.save(path, model, {"update": 0})
    other = hold([[0.0, 0.0, 0.0], 0.0, [[0.0]]], dtype)
    checkpoints.restore(path, other)
    for variable, again in zip(model.variables, other.variables, strict=True):
        wanted, got = (keras.ops.convert_to_numpy(v) for v in (variable, again))
        assert got.dtype.name == wanted.dtype.name == dtype
        assert got.shape == wanted.shape
        assert got.tobytes() == wanted.tobytes() != bytes(len(got.tobytes()))
    if dtype == "int8":  # in another width, as of another backend
        wide = hold([[0, 0, 0], 0, [[0]]], "int32")
        checkpoints.restore(path, wide)
        assert [int(np.sum(v)) for v in wide.variables] == [-3, 1, 2]


def dense(*widths):
    layers = [keras.layers.Dense(width, use_bias=False) for width in widths]
    return keras.Sequential([keras.Input((3,)), *layers])


def test_matrices_of_lora_are_weights(tmp_path):
    path, models = tmp_path / "update-00000000.npz", [dense(3, 2) for _ in range(3)]
    for model in models:
        for layer in model.layers:
            layer.enable_lora(2)
    model, restored, averaged = models
    random = np.random.default_rng(1)
    for variable in model.variables:
        variable.assign(random.normal(size=variable.shape))
    checkpoints.save(path, model, {"update": 0})
    checkpoints.restore(path, restored)
    checkpoints.average([path], averaged)
    assert sum("lora" in variable.path for variable in model.variables) == 4
    for other in (restored, averaged):
        for one, another in zip(model.variables, other.variables, strict=True):
            np.testing.assert_array_equal(one, another)


def test_other_models_and_optimizers_are_refused_and_untouched(trained, tmp_path):
    path = tmp_path / "update-00000000.npz"
    checkpoints.save(path, dense(3, 3, 3, 3, 3, 3, 1), {"update": 0})
    keras.config.set_dtype_policy("bfloat16")
    try:
        half = make_model()
    finally:
        keras.config.set_dtype_policy("float32")
    differs = "optimizer is not the one in memory .* takes only the weights"
    for file, other, words in [
        (path, dense(3, 3, 3, 3, 3, 3, 2),
         r"its model .*: number 6 .*\[3, 1\] in the file, .*\[3, 2\] in memory\.$"),
        (path, dense(3, 3), "it has 7 variables, not 2"),
        (trained[1], half, r"kernel float32 .* in the file, .*bfloat16"),
        (trained[1], make_model(keras.optimizers.SGD(0.1)), differs),
        (trained[1], make_model(compiled=False), differs),
        (saved(tmp_path, 3, 1.0), make_model(), differs),
    ]:  # fmt: skip
        before = [np.array(weight) for weight in other.weights]
        with pytest.raises(ValueError, match=words) as error:
            checkpoints.restore(file, other)
        assert str(error.value).startswith(f"{file}: ")
        for one, weight in zip(before, other.weights, strict=True):
            np.testing.assert_array_equal(one, weight)
    model = make_model(compiled=False)
    checkpoints.average([trained[1]], model)
    for one, other in zip(model.weights, trained[0].weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("where", ["cut", "array", "header", "empty"])
def test_damaged_files_are_named(trained, tmp_path, where):
    content = bytearray(trained[1].read_bytes())
    if where == "array":
        kernel = keras.ops.convert_to_numpy(trained[0].layers[0].kernel).tobytes()
        content[content.index(kernel) + 2] ^= 1
    elif where == "header":
        content[content.index(b'"format_version": 2') + 18] ^= 1
    else:
        content = content[: {"cut": -1, "empty": 0}[where]]
    path = tmp_path / "update-00000003.npz"
    path.write_bytes(content)
    model = make_model()
    before = variables(model)
    for call in (checkpoints.check, lambda path: checkpoints.restore(path, model)):
        with pytest.raises(ValueError, match=r"update-00000003.npz: it is damaged"):
            call(path)
    for one, other in zip(before, variables(model), strict=False):
        np.testing.assert_array_equal(one, other)


def test_latest_falls_back(trained, tmp_path):
    assert checkpoints.latest(tmp_path / "missing") is None
    with pytest.raises(FileNotFoundError, match="update-00000001.npz"):
        checkpoints.read_state(tmp_path / "update-00000001.npz")
    good = trained[1].read_bytes()
    updates = [5, 99_999_999, 100_000_000]  # in their order as names, too
    for update in updates:
        checkpoints.path_of(tmp_path, update).write_bytes(good)
    (tmp_path / "update-1.npz").write_text("another file")
    assert updates_of(checkpoints.find(tmp_path)) == updates
    checkpoints.path_of(tmp_path, updates[2]).write_bytes(good[: len(good) // 2])
    with pytest.warns(UserWarning, match="Skipped a checkpoint.*update-100000000.npz"):
        assert checkpoints.latest(tmp_path) == checkpoints.path_of(tmp_path, updates[1])


def test_content_and_then_the_name_reach_the_disk(trained, tmp_path, monkeypatch):
    path, synced = tmp_path / "update-00000003.npz", []

    def fsync(descriptor):
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(("folder" if folder else "file", path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoints.save(path, trained[0], {"update": 3})
    assert synced == [("file", False), ("folder", True)]


def test_full_disk_leaves_the_old_file(trained, tmp_path):
    model, path = trained
    target = tmp_path / "update-00000003.npz"
    target.write_bytes(path.read_bytes())
    with pytest.raises(OSError) as error, full_disk():
        checkpoints.save(target, model, {"update": 3})
    assert error.value.filename == str(target)
    assert error.value.errno == errno.EFBIG
    with pytest.raises(TypeError):  # before any work
        checkpoints.save(target, model, {"a": object()})
    assert target.read_bytes() == path.read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == [target.name]
    # A killed process has left something; what is not ours stays.
    for name in (".update-00000007.npz.0123abcd.part", ".other.part"):
        (tmp_path / name).write_text("half")
    checkpoints.remove_parts(tmp_path)
    left = sorted(entry.name for entry in tmp_path.iterdir())
    assert left == [".other.part", target.name]


def saved(tmp_path, update, value, state=()):
    model = make_model(compiled=False)
    for weight in model.weights:
        weight.assign(np.full(weight.shape, value, "float32"))
    seed = next(v for v in model.variables if "seed_generator" in v.path)
    seed.assign([update, update])
    path = checkpoints.path_of(tmp_path, update)
    checkpoints.save(path, model, {"update": update, **dict(state)})
    return path


def damage(path, array):
    """One bit of the header or of the last array of such values."""
    content = bytearray(path.read_bytes())
    wanted = b'"format_version"' if array is None else array.tobytes()
    content[content.rindex(wanted) + 2] ^= 1
    path.write_bytes(content)


def test_average(tmp_path):
    values = [3.0, 1e8, -1e8]  # in float32 the 3 would be lost
    paths = [saved(tmp_path, n + 1, value) for n, value in enumerate(values)]
    model = make_model()
    checkpoints.average([paths[2], paths[0], paths[1]], model)
    for weight in model.weights:
        np.testing.assert_array_equal(np.asarray(weight), 1.0)
    seed = next(v for v in model.variables if "seed_generator" in v.path)
    assert np.asarray(seed).tolist() == [3, 3]  # of the newest
    checkpoints.average(paths[:1], model)
    assert float(model.weights[0][0, 0]) == 3.0
    damage(paths[1], np.full(4, 1e8, "float32"))
    with pytest.raises(ValueError, match="update-00000002.npz: it is damaged"):
        checkpoints.average(paths, model)
    checkpoints.save(paths[1], dense(4), {"update": 2})
    with pytest.raises(ValueError, match="update-00000002.npz: its model is not"):
        checkpoints.average(paths, model)
    assert all(np.all(np.asarray(weight) == 3.0) for weight in model.weights)
    with pytest.raises(ValueError, match="at least one"):
        checkpoints.average([], model)


def updates_of(paths):
    return [checkpoints.update_of(path) for path in paths]


def test_selection(tmp_path):
    for update, (end, nll) in enumerate(
        [(True, 3.0), (False, 1.0), (True, 2.0), (True, float("nan")), (False, 1.0)], 1
    ):
        state = {"epoch_end": end, "metrics": {"val_nll": nll}}
        saved(tmp_path, update, 0.0, state)

    def select(kind, count, **options):
        return updates_of(checkpoints.select(tmp_path, kind, count, **options))

    assert select("last_epochs", 2) == [5, 4]
    assert select("last_epochs", 1, up_to=2) == [1]
    assert select("best", 3) == [5, 2, 3]
    assert select("best", 2, up_to=3) == [2, 3]
    assert select("best", 1, mode="max") == [1]
    assert select("last_epochs", 5) == [5, 4, 3, 1]
    with pytest.raises(ValueError, match="no undamaged checkpoint with the metric val"):
        select("best", 1, monitor="val_bleu")


@pytest.mark.parametrize("array", [None, np.full(4, 0.5, "float32")])
def test_selection_skips_damaged_files_by_name(tmp_path, array):
    state = {"epoch_end": True, "metrics": {"val_nll": 1.0}}
    paths = [saved(tmp_path, update, 0.5, state) for update in (1, 2, 3)]
    damage(paths[1], array)
    for kind in ("last_epochs", "best"):
        with pytest.warns(UserWarning, match="Skipped .*update-00000002.npz: it is da"):
            chosen = checkpoints.select(tmp_path, kind, 2)
        assert chosen == [paths[2], paths[0]]
