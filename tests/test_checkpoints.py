"""Checkpoints hold everything, come back to the bit, and are never half there."""

import errno
import json
import os
import re
import stat
import zlib

import h5py
import keras
import numpy as np
import pytest

from keras_seqconv import checkpoints
from keras_seqconv.models import LanguageModel
from tests.backends import to_numpy
from tests.callbacks.small import Stream, make_model, same, variables
from tests.full_disk import full_disk


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    model = make_model()
    model.fit(Stream().dataset(), steps_per_epoch=3, verbose=0, shuffle=False)
    path = tmp_path_factory.mktemp("trained") / "update-00000003.h5"
    checkpoints.save(path, model, {"update": 3, "position": 3, "text": "ü"})
    return model, path


def test_restores_every_variable_of_model_and_optimizer(trained):
    model, path = trained
    other = make_model()
    state = checkpoints.restore(path, other)
    assert state == {"update": 3, "position": 3, "text": "ü"}
    assert state == checkpoints.read_state(path)
    assert same(model, other)
    seeds = [v for v in other.variables if "seed_generator" in v.path]
    assert len(seeds) == 1  # Keras' own files have none of these
    assert len(other.optimizer.variables) == 2 + 2 * 4


def test_model_after_restoring_trains_as_the_saved_one(trained):
    model, path = trained
    first, second = make_model(), make_model()
    for one in (first, second):
        checkpoints.restore(path, one)
        one.fit(Stream().dataset(3), steps_per_epoch=2, verbose=0, shuffle=False)
    assert same(first, second) and not same(first, model)


class Holder(keras.layers.Layer):
    """Variables that all have the same name."""

    def __init__(self, values, dtype):
        super().__init__(name="holder")
        self.values, self.kind = values, dtype

    def build(self, shape):
        self.held = [
            self.add_weight(
                shape=np.shape(value),
                dtype=self.kind,
                trainable=False,
                initializer=lambda shape, dtype, value=value: keras.ops.cast(
                    value, dtype
                ),
                name="same",
            )
            for value in self.values
        ]

    def call(self, inputs):
        return inputs


def hold(values, dtype="float32"):
    layer = Holder(values, dtype)
    return keras.Sequential([keras.Input((2,)), layer]), layer.held


@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16",
        "float16",
        # JAX has it only when told so.
        pytest.param("float64", marks=pytest.mark.tensorflow),
        "bool",
        "int8",
    ],
)
def test_dtypes_come_back_to_the_bit(tmp_path, dtype):
    model, (variable,) = hold([[0.1, 1e-3, -3.0]], dtype)
    path = tmp_path / "update-00000000.h5"
    checkpoints.save(path, model, {"update": 0})
    other, (restored,) = hold([[0.0, 0.0, 0.0]], dtype)
    checkpoints.restore(path, other)
    wanted, got = (keras.ops.convert_to_numpy(v) for v in (variable, restored))
    assert got.dtype.name == wanted.dtype.name == dtype
    assert got.tobytes() == wanted.tobytes() != bytes(len(got.tobytes()))


def test_integers_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "update-00000000.h5"
    checkpoints.save(path, hold([300], "int32")[0], {"update": 0})
    with pytest.raises(ValueError, match="does not fit into int8"):
        checkpoints.restore(path, hold([0], "int8")[0])


def test_variables_with_the_same_path_are_told_apart(tmp_path):
    first, held = hold([1.0, 2.0, [3.0]])
    assert held[0].path == held[1].path
    path = tmp_path / "update-00000000.h5"
    checkpoints.save(path, first, {"update": 0})
    second, restored = hold([0.0, 0.0, [0.0]])
    checkpoints.restore(path, second)
    assert [float(np.squeeze(v)) for v in restored] == [1.0, 2.0, 3.0]


def other_models():
    wide = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(5),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    few = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    return {
        "wide": (wide, r"has shape \(3, 4\), not \(3, 5\)"),
        "few": (few, "only the file has"),
    }


def test_parts_of_blocks_were_once_called_residual(tmp_path):
    def make():
        return LanguageModel(
            9, hidden_dim=4, intermediate_dim=4, num_heads=1, num_layers=2
        )

    model, again = make(), make()
    for number, variable in enumerate(model.variables):
        path = re.sub(r"block_(\d)_(mixer|feed_forward)", r"residual_\1", variable.path)
        variable._path = path
        if "float" in variable.dtype:
            variable.assign(np.full(variable.shape, number))
    checkpoints.save(tmp_path / "old.h5", model, {})
    checkpoints.restore(tmp_path / "old.h5", again)
    for old, new in zip(model.variables, again.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(new), to_numpy(old))


@pytest.mark.parametrize("kind", ["wide", "few"])
def test_other_models_are_refused_and_untouched(trained, kind):
    model, expected = other_models()[kind]
    model.compile("adam", "mse")
    before = variables(model)
    with pytest.raises(ValueError, match=expected) as error:
        checkpoints.restore(trained[1], model)
    assert str(trained[1]) in str(error.value)
    for one, other in zip(before, variables(model), strict=False):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("missing", "end"), [(5, "the file."), (6, "; and 1 more.")])
def test_five_differences_are_listed_and_the_others_counted(tmp_path, missing, end):
    def model(*names):
        layers = [keras.layers.Dense(3, use_bias=False, name=name) for name in names]
        return keras.Sequential([keras.Input((3,)), *layers], name="one")

    checkpoints.save(tmp_path / "few.h5", model("a"), {})
    with pytest.raises(ValueError) as error:
        checkpoints.restore(tmp_path / "few.h5", model("a", *"bcdefg"[:missing]))
    assert str(error.value).count("is not in the file") == 5
    assert str(error.value).endswith(end)


def test_other_dtype_is_refused(trained):
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = make_model()
    finally:
        keras.config.set_dtype_policy("float32")
    with pytest.raises(ValueError, match="has dtype float32, not bfloat16"):
        checkpoints.restore(trained[1], model)


def test_other_optimizer_is_refused(trained, tmp_path):
    with pytest.raises(ValueError, match="optimizer is not the one in memory"):
        checkpoints.restore(trained[1], make_model(keras.optimizers.SGD(0.1)))
    with pytest.raises(ValueError, match="weights_only=True"):
        checkpoints.restore(trained[1], make_model(compiled=False))
    with pytest.raises(ValueError, match="no state of an optimizer.*weights_only"):
        checkpoints.restore(saved(tmp_path, 3, 1.0), make_model())


def test_weights_only(trained):
    model = make_model(compiled=False)
    checkpoints.restore(trained[1], model, weights_only=True)
    for one, other in zip(model.weights, trained[0].weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("where", ["cut", "half", "array", "index", "empty", "text"])
def test_damaged_files_are_named(trained, tmp_path, where):
    content = bytearray(trained[1].read_bytes())
    path = tmp_path / "update-00000003.h5"
    if where == "array":
        kernel = keras.ops.convert_to_numpy(trained[0].layers[0].kernel).tobytes()
        content[content.index(kernel) + 2] ^= 1
    elif where == "index":
        content[content.index(b'"format_version"') + 20] ^= 1
    else:
        cuts = {"cut": -1, "half": len(content) // 2, "empty": 0, "text": 0}
        content = content[: cuts[where]] + b"no checkpoint" * (where == "text")
    path.write_bytes(content)
    model = make_model()
    before = [np.array(v) for v in model.weights]
    for call in (checkpoints.check, lambda path: checkpoints.restore(path, model)):
        with pytest.raises(ValueError, match="update-00000003.h5: it is damaged"):
            call(path)
    for one, other in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_formats_are_refused(trained, tmp_path):
    path = tmp_path / "update-00000003.h5"
    path.write_bytes(trained[1].read_bytes())
    with h5py.File(path, "r+") as file:
        content = file["index"][()].tobytes()
        content = content.replace(b'"format_version": 1', b'"format_version": 2')
        file["index"][:] = np.frombuffer(content, "uint8")
        file.attrs["index_crc32"] = zlib.crc32(content)
    with pytest.raises(ValueError, match="`format_version` must be 1"):
        checkpoints.read_state(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="update-00000001.h5"):
        checkpoints.read_state(tmp_path / "update-00000001.h5")


def test_links_to_other_files_are_refused(trained, tmp_path):
    path = tmp_path / "update-00000003.h5"
    path.write_bytes(trained[1].read_bytes())
    with h5py.File(path, "r+") as file:
        name = next(iter(file["model"]))
        del file["model"][name]
        file["model"][name] = h5py.ExternalLink(str(trained[1]), f"model/{name}")
    with pytest.raises(ValueError, match="a link"):
        checkpoints.check(path)


def test_latest_falls_back(trained, tmp_path):
    assert checkpoints.latest(tmp_path / "missing") is None
    good = trained[1].read_bytes()
    updates = [5, 99_999_999, 100_000_000]  # in their order as names, too
    for update in updates:
        checkpoints.path_of(tmp_path, update).write_bytes(good)
    (tmp_path / "update-1.h5").write_text("another file")
    assert [checkpoints.update_of(p) for p in checkpoints.find(tmp_path)] == updates
    checkpoints.path_of(tmp_path, updates[2]).write_bytes(good[: len(good) // 2])
    with pytest.warns(UserWarning, match="Skipped a checkpoint.*update-100000000.h5"):
        assert checkpoints.latest(tmp_path) == checkpoints.path_of(tmp_path, updates[1])


def test_content_and_then_the_name_reach_the_disk(trained, tmp_path, monkeypatch):
    path, synced = tmp_path / "update-00000003.h5", []

    def fsync(descriptor):
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(("folder" if folder else "file", path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoints.save(path, trained[0], {"update": 3})
    assert synced == [("file", False), ("folder", True)]


def test_full_disk_leaves_the_old_file(trained, tmp_path):
    model, path = trained
    target = tmp_path / "update-00000003.h5"
    target.write_bytes(path.read_bytes())
    with pytest.raises(OSError, match="could not be written") as error, full_disk():
        checkpoints.save(target, model, {"update": 3})
    assert error.value.filename == str(target)
    assert error.value.errno == errno.EFBIG
    assert target.read_bytes() == path.read_bytes()
    assert [entry.name for entry in tmp_path.iterdir()] == [target.name]


def test_state_that_json_cannot_hold(trained, tmp_path):
    with pytest.raises(TypeError):
        checkpoints.save(tmp_path / "update-00000001.h5", trained[0], {"a": object()})
    assert not list(tmp_path.iterdir())


def saved(tmp_path, update, value, state=()):
    model = make_model(compiled=False)
    for weight in model.weights:
        weight.assign(np.full(weight.shape, value, "float32"))
    seed = next(v for v in model.variables if "seed_generator" in v.path)
    seed.assign([update, update])
    path = checkpoints.path_of(tmp_path, update)
    checkpoints.save(path, model, {"update": update, **dict(state)})
    return path


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
    content = bytearray(paths[1].read_bytes())
    content[content.rindex(np.full(4, 1e8, "float32").tobytes()) + 2] ^= 1
    paths[1].write_bytes(content)
    with pytest.raises(ValueError, match="update-00000002.h5: it is damaged"):
        checkpoints.average(paths, model)
    assert all(np.all(np.asarray(weight) == 3.0) for weight in model.weights)


def test_average_of_different_models_is_refused(tmp_path):
    paths = [saved(tmp_path, 1, 1.0), checkpoints.path_of(tmp_path, 2)]
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    checkpoints.save(paths[1], other, {"update": 2})
    with pytest.raises(ValueError, match="update-00000002.h5.*not in the file"):
        checkpoints.average(paths, make_model())
    with pytest.raises(ValueError, match="at least one"):
        checkpoints.average([], make_model())


def test_selection(tmp_path):
    for update, (end, nll) in enumerate(
        [(True, 3.0), (False, 1.0), (True, 2.0), (True, float("nan")), (False, 1.0)], 1
    ):
        state = {"epoch_end": end, "metrics": {"val_nll": nll}}
        saved(tmp_path, update, 0.0, state)

    def updates(paths):
        return [checkpoints.update_of(path) for path in paths]

    assert updates(checkpoints.last_updates(tmp_path, 2)) == [4, 5]
    assert updates(checkpoints.last_updates(tmp_path, 2, up_to=3)) == [2, 3]
    assert updates(checkpoints.last_epochs(tmp_path, 2)) == [3, 4]
    assert updates(checkpoints.best(tmp_path, 3)) == [5, 2, 3]
    assert updates(checkpoints.best(tmp_path, 1, mode="max")) == [1]
    with pytest.warns(UserWarning, match="has 3 checkpoints"):
        assert updates(checkpoints.last_epochs(tmp_path, 5)) == [1, 3, 4]
    with pytest.raises(ValueError, match="no checkpoint with the metric val_bleu"):
        checkpoints.best(tmp_path, 1, monitor="val_bleu")


@pytest.mark.parametrize("kind", ["last_updates", "last_epochs", "best"])
@pytest.mark.parametrize("where", ["index", "array"])
def test_selection_skips_damaged_files_by_name(tmp_path, kind, where):
    state = {"epoch_end": True, "metrics": {"val_nll": 1.0}}
    paths = [saved(tmp_path, update, 0.5, state) for update in (1, 2, 3)]
    content = bytearray(paths[1].read_bytes())
    weights = np.full(4, 0.5, "float32").tobytes()
    wanted = {"index": b'"format_version"', "array": weights}[where]
    content[content.index(wanted) + 2] ^= 1
    paths[1].write_bytes(content)
    with pytest.warns(UserWarning, match="Skipped .*update-00000002.h5: it is damaged"):
        found = getattr(checkpoints, kind)(tmp_path, 2)
    assert sorted(found) == [paths[0], paths[2]]


def test_parts_of_a_killed_process_are_removed(tmp_path):
    part = tmp_path / ".update-00000007.h5.0123abcd.part"
    part.write_text("half")
    kept = tmp_path / ".other.part"
    kept.write_text("not ours")
    checkpoints.remove_parts(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [kept.name]


def test_index_is_plain_json(trained):
    with h5py.File(trained[1]) as file:
        index = json.loads(file["index"][()].tobytes())
        assert {entry["name"] for entry in index["model"]} == set(file["model"])
        for entry in index["model"]:
            assert file["model"][entry["name"]].dtype.name == entry["dtype"]
    assert index["state"]["update"] == 3


@pytest.mark.tensorflow
def test_mirrored_variables(tmp_path):
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    path = checkpoints.path_of(tmp_path, 2)
    with strategy.scope():
        model, other = make_model(), make_model()
    model.fit(Stream().dataset(), steps_per_epoch=2, verbose=0, shuffle=False)
    checkpoints.save(path, model, {"update": 2})
    checkpoints.restore(path, other)
    assert same(model, other)
    plain = make_model()
    checkpoints.restore(path, plain)
    assert same(model, plain)
