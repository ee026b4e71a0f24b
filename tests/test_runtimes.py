"""Text without Keras: the graphs of a model directory in ONNX Runtime."""

import json
import pickle
import shutil
import signal
import sys
import time

import numpy as np
import pytest

import keras_seqconv as ks
from keras_seqconv import devices
from keras_seqconv.models import onnx_graphs
from keras_seqconv.translation.model_directory import save_with_graphs
from keras_seqconv.translation.translate_files import translate_file
from tests.cli.commands import call, make_language_model, make_translator, write
from tests.processes import run_python
from tests.small_models import TOKENIZER

pytestmark = pytest.mark.tensorflow
TEXTS = ["w1 w2 w3", "", "w4", "w5 unheard w7 w8 w9 w1 w2"]
# What both runtimes are asked for; prints JSON.
PROGRAM = f"""
import json, sys, warnings
import keras_seqconv as ks
from keras_seqconv import translation
from keras_seqconv.translation.translate_files import translate_file

warnings.simplefilter("ignore")
texts, (model, other, language, runtime) = {TEXTS!r}, sys.argv[1:]
both = translation.graphs_of([model, other], None, runtime)
writer = ks.load(language, runtime=runtime)
found, prompts = {{}}, ["w1 w2", "", "w3"]
for name, one in (
    ("one", ks.load(model, runtime=runtime)),
    ("both", translation.load_ensemble([model, other], None, both)),
):
    options = dict(return_attention=True, no_repeat_ngram_size=2)
    best = one.translate_n_best(texts, 2, 3, **options)
    drawn = one.translate_n_best(texts, 2, sample=True, seed=5, top_k=4)
    for key, results in ((name, best), (f"{{name}} drawn", drawn)):
        found[key] = [[x.text for x in row] for row in results]
        found[f"{{key}} scores"] = [[x.score for x in row] for row in results]
    found[f"{{name}} scored"] = one.score(texts, ["w2", "", "w5 w6 w7", "unheard"])
    found[f"{{name}} attention"] = best[0][0].attention.tolist()
    options = {{"unk_penalty": -20.0, "max_length": 3}}
    found[f"{{name}} unknown"] = one.translate(texts, **options)
    options["replace_unknowns"] = True
    found[f"{{name}} replaced"] = one.translate(texts, **options)
found["generated"] = writer.generate(prompts, 2, max_length=7)
found["drawn"] = writer.sample(prompts, 3, temperature=0.7, max_length=9)
found["streamed"] = "".join(writer.stream("w1 w2", 3, temperature=0.7, max_length=9))
found["scored"] = writer.score(["w1 w2", "", "unheard"])
print(json.dumps(found))
"""
BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("keras", "tensorflow", "jax"):
            raise AssertionError(f"{name} is imported")
sys.meta_path.insert(0, Block())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtimes")
    make_translator().save(folder / "model", onnx=True)
    make_translator(seed=4).save(folder / "other", onnx=True)
    make_language_model().save(folder / "language", onnx=True)
    return folder


@pytest.mark.slow
def test_results_of_keras_without_keras(folder):
    names = [folder / name for name in ("model", "other", "language")]
    plain = json.loads(run_python(PROGRAM, *names, "keras").stdout)
    found = json.loads(run_python(BLOCKED + PROGRAM, *names, "onnx").stdout)
    assert set(plain) == set(found)
    difference = np.subtract(plain["one scored"], plain["both scored"])
    assert np.abs(difference).max() > 1e-2
    assert "<unk>" in str(plain["one unknown"])
    assert "<unk>" not in str(plain["one replaced"])
    assert found["streamed"] == found["drawn"][0]
    for name, expected in plain.items():
        if "score" in name or "attention" in name:
            flat = [np.ravel(np.concatenate([np.ravel(row) for row in rows]))
                    for rows in (found[name], expected)]  # fmt: skip
            np.testing.assert_allclose(*flat, atol=1e-4, err_msg=name)
        else:
            assert found[name] == expected, name


def test_commands_without_keras(folder, tmp_path):
    write(tmp_path / "in", *filter(None, TEXTS))
    commands = [
        f"translate {folder}/model {folder}/other --input in --output out",
        f"translate {folder}/model --input in --output float --format tsv",
        f"translate {folder}/model --input in --output int8 --format tsv "
        "--quantize int8",
        f"evaluate {folder}/model --source in --reference out --metrics bleu",
        f"generate {folder}/language --stream --seed 2 --length 9",
        f"generate {folder}/language --seed 2 --length 9",
    ]
    code = f"""
    import keras_seqconv_cli
    for line in {commands!r}:
        assert keras_seqconv_cli.main(line.split()) == 0
    """
    done = run_python(BLOCKED + "if True:" + code, folder=tmp_path)
    assert len((tmp_path / "out").read_text().split("\n")) == 4
    assert (tmp_path / "int8").read_text() != (tmp_path / "float").read_text()
    streamed, drawn = done.stdout.splitlines()[-2:]
    assert streamed == drawn and "warning: Keras" not in done.stderr


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_dtype_of_the_command_line_is_that_of_keras(folder, tmp_path, capsys):
    source = write(tmp_path / "in", "w1")
    command = ["translate", folder / "model", "--input", source, "--dtype", "foo"]
    done = call(capsys, *command)
    assert done.status == 2 and "only Keras has a --dtype" in done.errors
    assert "error: --dtype must be the name of a float dtype" in done.errors


def spoil(folder, what, patch):
    """Makes the graphs of a folder of no use; a part of the reason that is told."""
    graphs = folder / "onnx"
    if what == "no graphs":
        shutil.rmtree(graphs)
        return "has no graphs"
    if what == "a cut file":
        content = (graphs / "step.onnx").read_bytes()
        (graphs / "step.onnx").write_bytes(content[:-1])
        return "step.onnx is damaged"
    if what == "other weights":
        make_translator(seed=9).save(folder.parent / "new")
        for name in ("model.weights.h5", "config.json"):
            (folder.parent / "new" / name).replace(folder / name)
        return "made of other weights"
    if what == "no package":
        patch.setitem(sys.modules, "onnxruntime", None)
        return "pip install 'keras-seqconv"
    patch.setattr(devices, "accelerator", lambda: "GPU")
    return "there is a GPU"


@pytest.mark.parametrize(
    "what", ["no graphs", "a cut file", "other weights", "no package", "a GPU"]
)  # fmt: skip
def test_keras_does_what_graphs_cannot_and_one_line_says_why(
    what, folder, tmp_path, monkeypatch, capsys
):
    copy = shutil.copytree(folder / "model", tmp_path / "model")
    reason = spoil(copy, what, monkeypatch)
    with pytest.warns(UserWarning, match=reason) as told:
        assert ks.load(copy, runtime="auto").is_of_keras
    assert len(told) == 1
    if what != "a GPU":
        with pytest.raises((ValueError, OSError, ImportError), match=reason):
            ks.load(copy, runtime="onnx")


def test_a_search_ends_soon_after_control_c(folder):
    writer = ks.load(folder / "language", runtime="onnx")
    writer.sample(["w1"], max_length=9)  # makes the graph
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            writer.sample(["w1"], min_length=10**5, max_length=10**5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 5  # of 100,000 tokens


def test_a_run_does_not_change_its_runtime(folder, tmp_path):
    def broken(*arguments, **options):
        raise RuntimeError

    files = write(tmp_path / "in", "w1", "w2", "w3"), tmp_path / "out"
    first, second = (ks.load(folder / "model", runtime=x) for x in ("onnx", "keras"))
    found, windows = first.each_n_best, []

    def once(*arguments, **options):
        windows.append(True)
        return (found if len(windows) == 1 else broken)(*arguments, **options)

    first.each_n_best = once
    with pytest.raises(RuntimeError):
        translate_file(first, *files, window=1)
    with pytest.raises(ValueError, match="differ in: model, runtime"):
        translate_file(second, *files, window=1, resume=True)
    first.each_n_best = found
    translate_file(first, *files, window=1, resume=True)
    assert files[1].read_text().splitlines() == second.translate(["w1", "w2", "w3"])


def test_a_model_is_there_before_its_graphs(tmp_path, monkeypatch):
    """Which may take too much memory or time."""

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(onnx_graphs, "write_graphs", interrupted)
    translator, path = make_translator(), tmp_path / "model"
    with pytest.raises(KeyboardInterrupt):
        save_with_graphs(translator, path, overwrite=False)
    assert ks.load(path).translate(TEXTS) == translator.translate(TEXTS)
    assert [x.name for x in tmp_path.iterdir() if x.is_dir()] == ["model"]


@pytest.mark.slow
def test_a_process_of_tensorflow_makes_the_graphs_on_jax(folder, tmp_path):
    code = """
    import sys, keras_seqconv as ks
    ks.load(sys.argv[1]).save("copy", onnx=True)
    """
    run_python(code, folder / "model", folder=tmp_path, KERAS_BACKEND="jax")
    again = ks.load(tmp_path / "copy", runtime="onnx")
    assert again.translate(TEXTS[:1]) == ks.load(folder / "model").translate(TEXTS[:1])


def test_a_model_that_does_not_convert_is_saved_without_graphs(tmp_path, monkeypatch):
    def refuses(*arguments, **options):
        raise ValueError("without a form in ONNX: MyOp")

    monkeypatch.setattr(onnx_graphs, "write_graphs", refuses)
    translator, path = make_translator(), tmp_path / "model"
    assert "without graphs for ONNX Runtime: without a form in ONNX: MyOp" in (
        save_with_graphs(translator, path, overwrite=True)
    )
    assert sorted(x.name for x in path.iterdir())[0] == "config.json"
    with pytest.raises(ValueError, match="MyOp"):
        translator.save(tmp_path / "other", onnx=True)
    assert not (tmp_path / "other").exists()


def test_a_translator_is_copied(folder):
    translator = ks.load(folder / "model", runtime="onnx")
    copy = pickle.loads(pickle.dumps(translator))
    assert copy.translate(TEXTS) == translator.translate(TEXTS)


def test_a_model_that_gives_nan_has_no_score(tmp_path):
    broken = make_translator.func.__wrapped__(*make_translator.args)
    for weight in broken.model.trainable_weights:
        weight.assign(1e28 * weight)
    broken.save(tmp_path / "model", onnx=True)
    for runtime in ("onnx", "keras"):
        loaded = ks.load(tmp_path / "model", runtime=runtime)
        assert np.isnan(loaded.score(["w1 w2"], ["w3"])).all()
        with pytest.raises(ValueError, match="must give finite logits"):
            ks.evaluation.translation_perplexity(loaded, ["w1 w2"], ["w3"])


def test_arguments_that_keras_refuses_and_what_needs_keras(folder, tmp_path):
    writer = ks.load(folder / "language", runtime="onnx")
    translator = ks.load(folder / "model", runtime="onnx")
    with pytest.raises(TypeError, match="temperature"):
        writer.score(["w1"], temperature=3.0)
    for options in ({"return_attention": True}, {"max_length_ratio": 3.0}):
        with pytest.raises(ValueError, match=f"`{[*options][0]}` needs `source_ids`"):
            writer.generate(["w1"], **options)
    for export in (ks.export.saved_model, ks.export.onnx_model):
        with pytest.raises(
            ValueError, match="must be .*of Keras|of one model of Keras"
        ):
            export(translator, tmp_path / "out")
    model, size = translator.model, translator.model.source_vocabulary_size
    for ids, prefix, words in (
        ([[-1, 2]], None, "`source_ids` must be at least 0.*Received: -1"),
        ([[size, 2]], None, f"vocabulary's size {size}. Received: {size}"),
        ([[5, 2]] * 2, [[5]], "must have as many rows. Received: 2 and 1"),
        ([5, 2], None, "`source_ids` must have two axes"),
        (None, [[5]], "`source_ids` must be given for a translation model"),
    ):
        with pytest.raises(ValueError, match=words):
            model.beam_search_hypotheses(ids, prefix_ids=prefix, max_length=4)
    model.beam_search_hypotheses([[size - 1, 2]], max_length=4)
    with pytest.raises(ValueError, match="must be given. Received: none of them"):
        writer.model.beam_search_hypotheses(max_length=4)
    warm = ks.LanguageGenerator(writer.model, TOKENIZER, {"temperature": 3.0})
    drawn = warm.sample(["w1"] * 9, seed=3, max_length=6)
    assert drawn[0] == "".join(warm.stream("w1", 3, max_length=6))
    assert drawn == writer.sample(["w1"] * 9, seed=3, temperature=3.0, max_length=6)
    assert drawn != writer.sample(["w1"] * 9, seed=3, max_length=6)
