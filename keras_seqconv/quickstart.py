"""The quickstart: the main job from end to end, on a corpus that generates itself.

English phrases about numbers, dates and times become German ones
(`keras_seqconv.data.phrases`): a tokenizer is trained, a small DynamicConv with
`model.fit`, checkpoints are averaged, the test split is translated and scored, and the
model directory is loaded and used, and what is exported from it is asked by a process
that knows nothing of this package. What it does is what `keras-seqconv train` does.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from keras_seqconv import export
from keras_seqconv.training import TrainingOptions, train
from keras_seqconv.training.finish import sentences_of
from keras_seqconv.training.text import open_corpus_of
from keras_seqconv.translator import load

_SHOWN = 10
_SENTENCE = "Anna called three guests at half past three."
_CLIENT = """
import sys, tensorflow as tf, tensorflow_text
served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print(served(text=tf.constant(sys.argv[2:]))["translation"].numpy()[0].decode())
"""


def main(workdir: str | os.PathLike = "runs/quickstart", say=print) -> int:
    """Trains, scores, and shows translations.

    Args:
        workdir: of the run; one that was interrupted goes on.
        say: called with each line of text.

    Returns:
        The exit status.
    """
    start = time.perf_counter()
    # Few shapes: each is traced and compiled, which costs more than padding here.
    settings = TrainingOptions(
        preset="dynamic_conv_phrases",
        dataset="phrases",
        max_shapes=6,
        workdir=os.fspath(workdir),
    )
    say(f"Training {settings.preset} on the embedded corpus; see {workdir}/run.json")
    result = train(settings, say)
    if result.folder is None:
        return result.status
    _show_translations(result.folder, settings, say)
    _serve(result.folder, Path(workdir), say)
    say(
        f"\nAll of it took {time.perf_counter() - start:.0f} s. The model is in "
        f"{result.folder}. Translate with it:\n"
        f"  echo '{_SENTENCE}' | keras-seqconv translate {result.folder}"
    )
    score = json.loads((Path(workdir) / "scores.json").read_text())["BLEU"]["score"]
    say(f"test BLEU {score:.1f}")
    return 0


def _serve(folder: Path, workdir: Path, say) -> None:
    """Exports, and asks the export in a process that knows nothing of this package."""
    say("\nExporting for TensorFlow Serving ...")
    version = export.saved_model(
        load(folder), workdir / "saved_models" / "phrases", run=workdir
    )
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, version, _SENTENCE],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{version} could not be used: {done.stderr[-2000:]}")
    say(f"{version}, loaded with nothing but tensorflow and tensorflow_text, says")
    say(f"  {_SENTENCE}\n    {done.stdout.strip()}")


def _show_translations(folder: Path, options: TrainingOptions, say) -> None:
    """Some of the test split, by the model directory as a user would load it."""
    sources, references = sentences_of(open_corpus_of(options), "test")
    chosen = range(0, len(sources), max(1, len(sources) // _SHOWN))[:_SHOWN]
    translations = load(folder).translate([sources[i] for i in chosen])
    say(f"\n{len(translations)} test sentences:")
    for i, translation in zip(chosen, translations, strict=True):
        right = translation == references[i]
        say(f"  {sources[i]}\n    {translation}")
        say("    right" if right else f"    expected: {references[i]}")


if __name__ == "__main__":
    sys.exit(main())
