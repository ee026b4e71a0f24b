"""Train a model on a corpus, from a preset to a scored model directory."""

import contextlib
import dataclasses
from pathlib import Path
from typing import NamedTuple

import keras

from keras_seqconv import callbacks, checkpoints, evaluation, hosts
from keras_seqconv.data.batches import BatchStream
from keras_seqconv.devices import Devices, find_devices
from keras_seqconv.recipes import Recipe
from keras_seqconv.support import require, tf, warnings_as_lines
from keras_seqconv.support.files import naming_file, read_json
from keras_seqconv.training.finish import (
    MAX_TRANSLATED,
    finish,
    headline,
    metrics_of_test,
    translator_of,
)
from keras_seqconv.training.recipe import (
    check_architecture,
    make_loss,
    make_model,
    make_optimizer,
    resolve_recipe,
    warm_start,
)
from keras_seqconv.training.run import Run, start_run
from keras_seqconv.training.text import Text, sentences_of
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translation.model_directory import check_writable

# Passes over the training rows that are told: no preset has as many on its corpus.
_MANY_PASSES = 300


class Result(NamedTuple):
    """Result of a run.

    Attributes:
        folder: the model directory, or None when the run was interrupted.
        scores: scores of the test split, by metric; empty without one.
        status: 0; 128 + the signal that interrupted the run; or 1 where it ended
            because losses or weights were not finite.
    """

    folder: Path | None
    scores: dict
    status: int = 0


def train(options: TrainingOptions, say=print) -> Result:
    """Trains a model, or resumes an interrupted run.

    The work folder then holds `model` (for `keras_seqconv.load`), `scores.json`,
    `test.hypotheses`, `curves.png`, `log.jsonl`, `checkpoints`, and `run.json`, from
    which the run can be repeated.

    The process stays unchanged but for settings of TensorFlow that cannot be undone:
    `deterministic` (with the seeds of Keras), and on a CPU `devices`. On a CPU call
    `keras_seqconv.keep_freed_memory()` first, as `keras-seqconv train` does.

    Args:
        options: options of the run.
        say: called with a line of text for each step of the work.

    Raises:
        ValueError, OSError, ImportError: options, files or packages are wrong or
            missing, or another process trains in the work folder. Raised before
            training.

    Example:

    ```py
    from keras_seqconv.training import TrainingOptions, train
    result = train(TrainingOptions(
        preset="dynamic_conv_multi30k", dataset="data/multi30k", workdir="runs/one"
    ))
    translator = keras_seqconv.load(result.folder)
    ```
    """
    if options.hosts is not None:
        hosts.join(options.hosts, options.num_hosts, options.host_index)
    say = say if hosts.is_first() else lambda line: None
    devices, recipe = hosts.together(lambda: _devices_and_recipe(options))
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings_as_lines(say))
        run, text = start_run(options, recipe, stack, say)
        if text is not None:
            return _train(run, text, devices, say)
    hosts.leave()
    scores = read_json(run.scores) if run.scores.exists() else {}
    with naming_file(run.scores, "holds no scores"):
        say(f"{run.folder} is finished; its model is {run.model}. {headline(scores)}")
    return Result(run.model, scores)


def _devices_and_recipe(options: TrainingOptions) -> tuple[Devices, Recipe]:
    devices = find_devices(options.devices)
    recipe = resolve_recipe(options, devices.number)
    check_architecture(options, recipe)
    make_optimizer(recipe)  # for its errors
    if recipe.search is not None:
        evaluation.check_metrics(metrics_of_test(options))
    if options.validation_bleu and hosts.shard()[1] > 1:
        raise ValueError(
            "`validation_bleu` must not be given with several hosts. "
            f"Received: {hosts.shard()[1]} hosts"
        )
    if options.tensorboard:
        require("tensorboard", "mt")
    return devices, recipe


def _train(run: Run, text: Text, devices: Devices, say) -> Result:
    options, recipe = run.options, text.recipe
    if options.deterministic:
        keras.utils.set_random_seed(options.seed)
        if keras.backend.backend() == "tensorflow":
            tf.config.experimental.enable_op_determinism()
    share = {"num_replicas": devices.number, "shard": hosts.shard()}
    stream = run.stream(text, text.train, seed=options.seed, **share)
    validation = None
    if text.validation is not None:
        validation = run.stream(text, text.validation, **share)
    with devices.scope():
        model = make_model(options, recipe.precision, *text.tokenizers)
        compiled = {"auto": "auto", "true": True, "false": False}[options.jit_compile]
        loss = make_loss(recipe, model)
        model.compile(make_optimizer(recipe), loss, jit_compile=compiled)
    _check_positions(text, model)
    check_writable(run.model, overwrite=True)
    _tell_of_limits(text, stream, say)
    # Fail early where the test set has a bad row or scoring lacks a package.
    language, corpus = run.languages[1], text.corpus
    has_test = "test" in corpus.splits
    references = [*corpus.texts("test", "target")] if has_test else []
    if recipe.search is not None:
        recipe.search.check_model(model, model.has_source)
        metrics = metrics_of_test(options, language, references)
        evaluation.check_metrics(metrics, target_language=language)
    tokens = recipe.tokens_per_batch * recipe.gradient_accumulation_steps
    say(
        f"{options.preset}: {model.count_params():,} parameters; "
        f"{len(text.train):,} training rows in {len(stream.shapes)} shapes, "
        f"{stream.batches_per_epoch():,} batches an epoch, "
        f"{stream.padding_share:.1%} padding; "
        f"at most {tokens * recipe.num_replicas:,} target tokens an update"
    )
    if newest := checkpoints.latest(run.checkpoints):
        say(f"Going on from {newest}")
    elif options.initialize_from is not None:
        say(warm_start(model, options.initialize_from, text.tokenizers))
    stop = callbacks.GracefulStop()
    with devices.scope(), hosts.awaited():
        made = _callbacks(run, text, validation, model)
        callbacks.fit_stream(
            model,
            stream,
            directory=run.checkpoints,
            max_updates=recipe.max_updates,
            max_epochs=recipe.max_epochs,
            updates_per_epoch=options.updates_per_epoch,
            callbacks=[stop, *made],
        )
        hosts.leave()
    if stop.signal is not None:
        say(f"Interrupted. The same command goes on from {run.checkpoints}.")
        return Result(None, {}, 128 + stop.signal)
    messages = {type(x): x.message for x in made if getattr(x, "message", None)}
    if callbacks.StopOnNaN in messages:  # it has told
        return Result(None, {}, 1)
    for message in messages.values():
        say(message)
    if not hosts.is_first():
        return Result(None, {})
    if devices.number > 1:  # the finished model is on one
        model = make_model(options, recipe.precision, *text.tokenizers)
        model.compile(loss=loss)
    scores = finish(run, text, model, say)
    run.note(finished=run.what_matters())
    return Result(run.model, scores)


def _check_positions(text: Text, model) -> None:
    """ValueError where rows have more tokens than the model has learned positions."""
    limits = {"source_ids": model.max_source_length}
    limits["target_ids"] = model.max_target_length
    for store in filter(None, (text.train, text.validation)):
        for key, limit in limits.items():
            if limit and key in store.lengths and store.lengths[key].max() > limit:
                option = "max_length" if model.has_source else "tokens_per_sample"
                raise ValueError(
                    f"`{option}` must leave out rows beyond the {limit} positions of "
                    f"the model, or `architecture` give it more. Received: "
                    f"{store.lengths[key].max()} {key}, with the end"
                )


def _tell_of_limits(text: Text, stream: BatchStream, say) -> None:
    """Says where the recipe's numbers do not fit the text or the length of training."""
    recipe, lengths = text.recipe, text.train.lengths
    schedule, last = recipe.schedule, recipe.max_updates
    if last is not None and last < schedule.warmup_steps:
        say(
            f"The learning rate rises for {schedule.warmup_steps:,} updates "
            f"(--warmup-steps), and training ends after {last:,} (--max-updates)."
        )
    updates = stream.batches_per_epoch() / recipe.gradient_accumulation_steps
    if last is not None and last > _MANY_PASSES * updates:
        say(
            f"{last:,} updates (--max-updates) are {last / updates:,.0f} passes over "
            "the training rows."
        )
    if recipe.search is not None:
        sources, targets = (lengths[f"{side}_ids"] for side in ("source", "target"))
        tokenizer = text.tokenizers[1]
        whole = (targets == 2).mean()  # a word and the end
        many = 5 * tokenizer.vocabulary_size > len(targets)
        if tokenizer.kind == "words" and whole > 0.9 and many:
            say(
                f"{whole:.0%} of the targets are one word, and the model can write no "
                "other words: --target-tokenizer characters reads their letters."
            )
        limits, _ = recipe.search.length_limits(sources, int(sources.max()))
        if long := int((targets - 1 > limits).sum()):
            say(
                f"{long:,} of {len(targets):,} training targets have more tokens than "
                f"a translation may have, {recipe.search.max_length} "
                "(--max-translation-length)."
            )


def _callbacks(run: Run, text: Text, validation, model) -> list:
    """Each after those whose results it needs."""
    options, recipe = run.options, text.recipe
    best = {"monitor": "nll" if validation is None else run.monitor}
    if best["monitor"] == "val_accuracy" and not model.has_logits:
        raise ValueError(
            "`monitor` must be nll with an adaptive softmax, which computes no "
            "accuracy. Received: monitor=accuracy"
        )
    made = []
    if validation is not None:
        made.append(callbacks.Validate(validation))
    if options.validation_bleu:
        translator = translator_of(run, recipe, model, text.tokenizers)
        pairs = sentences_of(text.corpus, "validation", MAX_TRANSLATED)
        made.append(callbacks.ValidationBLEU(translator, *pairs))
    made.append(callbacks.StopOnNaN(directory=run.checkpoints))
    schedule = dataclasses.asdict(recipe.schedule)
    kind = schedule.pop("name")
    if kind == "fixed":
        made.append(callbacks.FixedSchedule(**schedule))
    elif kind == "plateau":
        made.append(callbacks.ReduceOnPlateau(**schedule, **best))
    if recipe.stop_learning_rate is not None:
        made.append(callbacks.StopAtLearningRate(recipe.stop_learning_rate))
    if recipe.early_stopping is not None:
        made.append(callbacks.EarlyStopping(recipe.early_stopping, **best))
    if hosts.is_first():
        made.append(callbacks.LogFile(run.log))
        made.append(callbacks.Progress(recipe.max_updates, recipe.max_epochs))
        if options.tensorboard:
            folder = run.folder / "tensorboard"
            made.append(keras.callbacks.TensorBoard(folder, write_graph=False))
    keep_best = recipe.average if recipe.average_kind == "best" else 1
    keep_last = max(options.keep, recipe.average)
    keep = {"keep_last": keep_last, "keep_best": keep_best, **best}
    made.append(callbacks.Checkpoints(run.checkpoints, **keep))
    return made
