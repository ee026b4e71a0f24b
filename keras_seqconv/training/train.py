"""A corpus and a preset in, a trained and scored model directory out."""

import dataclasses
from pathlib import Path

import keras

from keras_seqconv import callbacks, checkpoints, plots
from keras_seqconv.data.batches import BatchStream
from keras_seqconv.devices import Devices, find_devices
from keras_seqconv.fitting import fit_stream
from keras_seqconv.support.files import read_json
from keras_seqconv.training.finish import (
    check_scoring,
    finish,
    sentences_of,
    translator_of,
)
from keras_seqconv.training.recipe import (
    Recipe,
    make_loss,
    make_model,
    make_optimizer,
    resolve_recipe,
    schedule_callbacks,
)
from keras_seqconv.training.run import Run, headline, note_finished, open_run, sole_run
from keras_seqconv.training.text import Text, corpus_of, read_text
from keras_seqconv.training_options import TrainingOptions

# Sentences of the validation set that `validation_bleu` translates at most.
_MOST_TRANSLATED = 2000
# And whose attention goes to TensorBoard.
_PICTURES = 2


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run has come to.

    Attributes:
        folder: the model directory, or None when the run was interrupted.
        scores: of the test split, by metric; empty where there is none.
        status: 0, or 128 + the signal that interrupted the run.
    """

    folder: Path | None
    scores: dict
    status: int = 0


def train(options: TrainingOptions, say=print) -> Result:
    """Trains a model, or goes on training it where an earlier run was interrupted.

    The work folder then holds `model` (for `keras_seqconv.load`), `scores.json`,
    `test.hypotheses`, `curves.png`, `log.jsonl`, `checkpoints`, and `run.json`, which
    says how to repeat the run.

    The process is left as it was, but for what the options ask of TensorFlow, which
    cannot be taken back: `deterministic` (with the seeds of Keras), and on a CPU
    `devices`. On a CPU call `keras_seqconv.keep_freed_memory()` first, as
    `keras-seqconv train` does.

    Args:
        options: what to train on what, and how.
        say: called with a line of text for each step of the work.

    Raises:
        ValueError, OSError, ImportError: before anything is trained, for options,
            files or packages that are wrong or missing, or a work folder in which
            another process is training.

    Example:

    ```py
    from keras_seqconv.training import TrainingOptions, train
    result = train(TrainingOptions(
        preset="dynamic_conv_multi30k", dataset="data/multi30k", workdir="runs/one"
    ))
    translator = keras_seqconv.load(result.folder)
    ```
    """
    devices = find_devices(options.devices)
    recipe = resolve_recipe(options, devices.number)
    check_scoring(recipe)
    with sole_run(options.workdir):
        return _train(options, recipe, devices, say)


def _train(options: TrainingOptions, recipe: Recipe, devices: Devices, say) -> Result:
    run = open_run(options, recipe)
    corpus = corpus_of(run)
    if run.finished:
        scores = read_json(run.scores) if run.scores.exists() else {}
        say(f"{run.folder} is finished; its model is {run.model}. {headline(scores)}")
        return Result(run.model, scores)
    if options.deterministic:
        keras.utils.set_random_seed(options.seed)
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.experimental.enable_op_determinism()
    text = read_text(run, recipe, corpus, say)
    stream, validation = _streams(options, recipe, text, devices)
    with devices.scope():
        model = make_model(options, recipe.precision, *text.tokenizers)
        compiled = {"auto": "auto", "true": True, "false": False}[options.jit_compile]
        loss = make_loss(recipe, model)
        model.compile(make_optimizer(recipe), loss, jit_compile=compiled)
    tokens = recipe.tokens_per_batch * recipe.gradient_accumulation_steps
    say(
        f"{options.preset}: {model.count_params():,} parameters; "
        f"{len(text.train):,} training rows in {len(stream.shapes)} shapes, "
        f"{stream.batches_per_epoch():,} batches an epoch, "
        f"{stream.padding_share:.1%} padding; "
        f"at most {tokens * recipe.num_replicas:,} target tokens an update"
    )
    if files := checkpoints.find(run.checkpoints):
        say(f"Going on from {files[-1]}")
    stop = callbacks.GracefulStop()
    with devices.scope():
        fit_stream(
            model,
            stream,
            directory=run.checkpoints,
            max_updates=recipe.max_updates,
            max_epochs=recipe.max_epochs,
            callbacks=[stop, *_callbacks(run, recipe, text, validation, model)],
        )
    if stop.signal is not None:
        say(f"Interrupted. The same command goes on from {run.checkpoints}.")
        return Result(None, {}, stop.exit_status)
    scores = finish(run, recipe, text, model, say)
    note_finished(run)
    return Result(run.model, scores)


def _streams(options: TrainingOptions, recipe: Recipe, text: Text, devices: Devices):
    """Batches to train on, and to validate on, or None."""
    settings = {
        "tokens_per_batch": recipe.tokens_per_batch // devices.cores,
        "num_replicas": devices.number * devices.cores,
        "max_shapes": options.max_shapes,
        "start_id": text.target_tokenizer.start_id,
        "pad_id": text.target_tokenizer.pad_id,
    }
    stream = BatchStream(text.train, seed=options.seed, **settings)
    if text.validation is None:
        return stream, None
    return stream, BatchStream(text.validation, **settings)


def _callbacks(run: Run, recipe: Recipe, text: Text, validation, model) -> list:
    options, averaging = run.options, recipe.averaging
    monitor, mode = run.monitor if validation is not None else ("nll", "min")
    every = options.validate_every
    made = [
        callbacks.StopOnNaN(directory=run.checkpoints),
        callbacks.LogFile(run.log, every_updates=50),
        callbacks.Progress(recipe.max_updates, recipe.max_epochs),
        callbacks.Checkpoints(
            run.checkpoints,
            every_updates=options.checkpoint_every,
            keep_last=max(options.keep, averaging["count"]),
            keep_best=averaging["count"] if averaging["kind"] == "best" else 1,
            monitor=monitor,
            mode=mode,
            recipe=recipe.to_json(),
        ),
        *schedule_callbacks(recipe, monitor, mode),
    ]
    if validation is not None:
        made.append(callbacks.Validate(validation, every_updates=every))
    if options.validation_bleu:
        if text.source_tokenizer is None:
            raise ValueError(
                "`validation_bleu` is for translation models. "
                f"Received: preset={options.preset!r}"
            )
        made.append(
            callbacks.ValidationBLEU(
                translator_of(run, recipe, model, *text.tokenizers),
                *sentences_of(text.corpus, "validation", _MOST_TRANSLATED),
                every_updates=every,
            )
        )
    if options.early_stopping is not None:
        patience = options.early_stopping
        made.append(callbacks.EarlyStopping(patience, monitor=monitor, mode=mode))
    if options.tensorboard:
        pictures = None
        if validation is not None and text.source_tokenizer is not None:
            translator = translator_of(run, recipe, model, *text.tokenizers)
            sources, _ = sentences_of(text.corpus, "validation", _PICTURES)
            pictures = lambda: _attention_pictures(translator, sources)  # noqa: E731
        folder = run.folder / "tensorboard"
        made.append(callbacks.TensorBoard(folder, attention_figure=pictures))
    return made


def _attention_pictures(translator, sources: list[str]) -> dict:
    """Where the model looks in some sentences."""
    results = translator.translate_n_best(sources, 1, return_attention=True)
    pictures = {}
    for number, (source, best) in enumerate(zip(sources, results, strict=True)):
        if best and best[0].attention is not None:
            attention = best[0].attention
            tokens = translator.source_tokenizer.split(source)
            # The source, and what is written, each with its end.
            figure = plots.attention(
                attention,
                [*tokens, "</s>"][-attention.shape[1] :],
                [*best[0].tokens, "</s>"][: len(attention)],
            )
            pictures[f"attention/{number}"] = plots.to_image(figure)
    return pictures
