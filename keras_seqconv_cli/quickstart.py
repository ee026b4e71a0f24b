"""`keras-seqconv quickstart`: the main job from end to end in a few minutes.

English phrases about numbers, dates and times become German ones: a tokenizer is
trained, a small DynamicConv with `model.fit`, checkpoints are averaged, the test split
is translated and scored, the model directory is loaded and used, and what is exported
from it, in saved_models/phrases, is asked by a process that knows nothing of this
package. What it does is what `keras-seqconv train` and `export` do.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import keras_seqconv as ks
from keras_seqconv.support.schema import Options, option
from keras_seqconv_cli import add_flags

HELP = "train, score and use a small model, from end to end in a few minutes"
DESCRIPTION = (
    "Train a small DynamicConv on an embedded corpus of English and German phrases, "
    "average its checkpoints, score it, and show translations."
)
_SHOWN = 10
_SENTENCE = "Anna called three guests at half past three."
_CLIENT = """
import sys, tensorflow as tf, tensorflow_text
served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print(served(text=tf.constant(sys.argv[2:]))["translation"].numpy()[0].decode())
"""


class _Flags(Options):
    workdir: str = option("runs/quickstart", "folder of the run", metavar="DIR")
    overwrite: bool = option(False, "remove an earlier run first")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, _Flags)


def run(options: argparse.Namespace) -> int:
    from keras_seqconv.support import require_tensorflow
    from keras_seqconv.training.run import remove_run

    require_tensorflow()  # for the export at the end
    start, workdir = time.perf_counter(), options.workdir
    if options.overwrite:
        remove_run(workdir)
    # Few shapes: each is traced and compiled, which costs more than padding here.
    training = ks.training.TrainingOptions(
        preset="dynamic_conv_phrases", dataset="phrases", max_shapes=6, workdir=workdir
    )
    print(f"Training {training.preset} on the embedded corpus; see {workdir}/run.json")
    result = ks.training.train(training)
    if result.folder is None:
        return result.status
    _show_translations(result.folder, training)
    _serve(result.folder, Path(workdir))
    model = shlex.quote(str(result.folder))
    print(
        f"\nAll of it took {time.perf_counter() - start:.0f} s. The model is in "
        f"{model}. Translate with it:\n"
        f"  echo '{_SENTENCE}' | keras-seqconv translate {model}\n"
        "Look into it in the browser (pip install 'keras-seqconv[demo]'):\n"
        f"  keras-seqconv demo {model}\n"
        "Or make a page that translates in the browser (keras-seqconv[onnx], npm):\n"
        f"  keras-seqconv export {model} --format web --output page"
    )
    if result.scores:
        print(f"test BLEU {result.scores['BLEU']['score']:.1f}")
    return 0


def _show_translations(folder: Path, options) -> None:
    """Some of the test split, by the model directory as a user would load it."""
    from keras_seqconv.training.text import open_corpus_of, sentences_of

    sources, references = sentences_of(open_corpus_of(options), "test")
    chosen = range(0, len(sources), max(1, len(sources) // _SHOWN))[:_SHOWN]
    translations = ks.load(folder).translate([sources[i] for i in chosen])
    print(f"\n{len(translations)} test sentences:")
    for i, translation in zip(chosen, translations, strict=True):
        right = translation == references[i]
        print(f"  {sources[i]}\n    {translation}")
        print("    right" if right else f"    expected: {references[i]}")


def _serve(folder: Path, workdir: Path) -> None:
    """Exports, and asks the export in a process that knows nothing of this package."""
    print("\nExporting for TensorFlow Serving ...")
    output = Path("saved_models") / "phrases"
    version = ks.export.saved_model(ks.load(folder), output, run=workdir)
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, version, _SENTENCE],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{version} could not be used: {done.stderr[-2000:]}")
    print(f"{version}, loaded with nothing but tensorflow and tensorflow_text, says")
    print(f"  {_SENTENCE}\n    {done.stdout.strip()}")
