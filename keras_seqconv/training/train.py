"""From a corpus and a preset to a trained and scored model directory."""

import contextlib
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import keras

from keras_seqconv import callbacks, checkpoints, evaluation, hosts, plots
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.data.batches import BatchStream
from keras_seqconv.devices import Devices, bfloat16_advice, find_devices
from keras_seqconv.fitting import fit_stream
from keras_seqconv.model_directory import check_writable
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import read_json, write_file, write_json
from keras_seqconv.training.recipe import (
    Recipe,
    check_architecture,
    make_loss,
    make_model,
    make_optimizer,
    resolve_recipe,
    schedule_callbacks,
    warm_start,
)
from keras_seqconv.training.run import (
    Run,
    Text,
    read_run,
    read_tokenizers,
    sentences_of,
)
from keras_seqconv.training.start import prepare
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translator import LanguageGenerator, Translator

# Sentences of the validation set that `validation_bleu` translates at most, and of
# those whose attention goes to TensorBoard.
_MOST_TRANSLATED, _PICTURES = 2000, 2
# What a language model writes at the end of its training.
_SAMPLE = {"temperature": 0.8, "top_k": 40, "max_length": 500}


class Result(NamedTuple):
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
    if options.hosts is not None:
        hosts.join(options.hosts, options.num_hosts, options.host_index)
    say = say if hosts.is_first() else lambda line: None
    devices, recipe = hosts.together(lambda: _what_and_where(options))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_warnings_as_lines(say))
        run, text = prepare(options, recipe, stack, say)
        if text is not None:
            return _train(run, recipe, text, devices, say)
    hosts.leave()
    scores = read_json(run.scores) if run.scores.exists() else {}
    say(f"{run.folder} is finished; its model is {run.model}. {_headline(scores)}")
    return Result(run.model, scores)


@contextlib.contextmanager
def _warnings_as_lines(say):
    """Warnings in the block are lines, each once, without the code they come from."""
    said = set()

    def show(message, *place, **more):
        if str(message) not in said:
            said.add(str(message))
            say(str(message))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _what_and_where(options: TrainingOptions) -> tuple[Devices, Recipe]:
    devices = find_devices(options.devices)
    recipe = resolve_recipe(options, devices.number)
    check_architecture(options, recipe.precision)
    if "ROUGE" in recipe.scoring:
        require("rouge_score", "rouge")
    elif recipe.search is not None:
        require("sacrebleu", "mt")
    return devices, recipe


def _train(run: Run, recipe: Recipe, text: Text, devices: Devices, say) -> Result:
    options = run.options
    if options.deterministic:
        keras.utils.set_random_seed(options.seed)
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.experimental.enable_op_determinism()
    settings = {
        "tokens_per_batch": recipe.tokens_per_batch,
        "num_replicas": devices.number,
        "shard": hosts.shard(),
        "max_shapes": options.max_shapes,
        "start_id": text.tokenizers[1].start_id,
        "pad_id": text.tokenizers[1].pad_id,
    }
    stream = BatchStream(text.train, seed=options.seed, **settings)
    validation = None
    if text.validation is not None:
        validation = BatchStream(text.validation, **settings)
    with devices.scope():
        model = make_model(options, recipe.precision, *text.tokenizers)
        compiled = {"auto": "auto", "true": True, "false": False}[options.jit_compile]
        loss = make_loss(recipe, model)
        model.compile(make_optimizer(recipe), loss, jit_compile=compiled)
    if recipe.search is not None and "ROUGE" not in recipe.scoring:
        # A tokenizer that scoring needs is missed before the training, not after it.
        evaluation.metric_of("bleu", target_language=_languages(run)[1])
    tokens = recipe.tokens_per_batch * recipe.gradient_accumulation_steps
    say(
        f"{options.preset}: {model.count_params():,} parameters; "
        f"{len(text.train):,} training rows in {len(stream.shapes)} shapes, "
        f"{stream.batches_per_epoch():,} batches an epoch, "
        f"{stream.padding_share:.1%} padding; "
        f"at most {tokens * recipe.num_replicas:,} target tokens an update"
    )
    if recipe.precision == "float32":
        flag, gain = "--precision mixed_bfloat16", "trained 1.2 times as fast"
        if advice := bfloat16_advice(flag, gain):
            say(advice)
    if newest := checkpoints.latest(run.checkpoints):
        say(f"Going on from {newest}")
    elif options.initialize_from is not None:
        say(warm_start(model, options.initialize_from, text.tokenizers))
    stop = callbacks.GracefulStop()
    with devices.scope(), hosts.awaited():
        fit_stream(
            model,
            stream,
            directory=run.checkpoints,
            max_updates=recipe.max_updates,
            max_epochs=recipe.max_epochs,
            callbacks=[stop, *_callbacks(run, recipe, text, validation, model)],
        )
        hosts.leave()
    if stop.signal is not None:
        say(f"Interrupted. The same command goes on from {run.checkpoints}.")
        return Result(None, {}, stop.exit_status)
    if not hosts.is_first():
        return Result(None, {})
    if devices.number > 1:  # the finished model is on one
        model = make_model(options, recipe.precision, *text.tokenizers)
    scores = _finish(run, recipe, text, model, say)
    run.note_finished()
    return Result(run.model, scores)


def _callbacks(run: Run, recipe: Recipe, text: Text, validation, model) -> list:
    options, averaging = run.options, recipe.averaging
    monitor, mode = run.monitor if validation is not None else ("nll", "min")
    every = options.validate_every
    made = []
    if hosts.is_first():
        made.append(callbacks.LogFile(run.log, every_updates=50))
        made.append(callbacks.Progress(recipe.max_updates, recipe.max_epochs))
    made += [
        callbacks.StopOnNaN(directory=run.checkpoints),
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
    translator = _translator(run, recipe, model, *text.tokenizers)
    if options.validation_bleu:
        if recipe.search is None or hosts.shard()[1] > 1:
            raise ValueError(
                "`validation_bleu` is for translation models, and for one host. "
                f"Received: preset={options.preset!r}, {hosts.shard()[1]} hosts"
            )
        pairs = sentences_of(text.corpus, "validation", _MOST_TRANSLATED)
        made.append(callbacks.ValidationBLEU(translator, *pairs, every_updates=every))
    if options.early_stopping is not None:
        patience = options.early_stopping
        made.append(callbacks.EarlyStopping(patience, monitor=monitor, mode=mode))
    if options.tensorboard and hosts.is_first():
        pictures = None
        if validation is not None and recipe.search is not None:
            sources, _ = sentences_of(text.corpus, "validation", _PICTURES)
            pictures = lambda: _attention_pictures(translator, sources)  # noqa: E731
        folder = run.folder / "tensorboard"
        made.append(callbacks.TensorBoard(folder, attention_figure=pictures))
    return made


def _attention_pictures(translator: Translator, sources: list[str]) -> dict:
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


def _translator(run: Run, recipe: Recipe, model, source_tokenizer, target_tokenizer):
    """The model with its tokenizers, the recipe's search, and the run's languages."""
    if source_tokenizer is None:
        return LanguageGenerator(model, target_tokenizer)
    return Translator(
        model,
        source_tokenizer,
        target_tokenizer,
        recipe.search,
        max_source_length=run.options.truncate_source,
        languages=_languages(run),
    )


def _languages(run: Run) -> tuple:
    return tuple(read_json(run.settings).get("languages", (None, None)))


# --- After the last update ---


def _finish(run: Run, recipe: Recipe, text: Text, model, say) -> dict:
    """Averages, writes the model directory, and scores the test split, if any.

    A language model without one is scored on the validation split.
    """
    say(_average(run, model, recipe.averaging["kind"], recipe.averaging["count"]))
    translator = _translator(run, recipe, model, *text.tokenizers)
    translator.save(run.model, overwrite=True)
    say(f"Written to {run.model}")
    try:
        curves = plots.learning_curves({run.folder.name: read_log(run.log)})
        plots.save(curves, run.folder / "curves.png")
    except ImportError as error:
        say(f"No picture of the learning curves: {error}")
    if recipe.search is None:
        sample = translator.sample([""], run.options.seed, **_SAMPLE)[0]
        write_file(run.folder / "sample.txt", f"{sample}\n".encode())
        say(f"A sample, in {run.folder / 'sample.txt'}:\n\n{sample}\n")
    split, score = "test", _translations
    if recipe.search is None:
        score = _perplexity
        split = "test" if "test" in text.corpus.splits else "validation"
    if split not in text.corpus.splits:
        say("The corpus has no test split, so there is no score.")
        return {}
    scores = {"split": split, **score(run, recipe, text, translator, split, say)}
    write_json(run.scores, scores)
    say(_headline(scores))
    return scores


def _translations(run, recipe: Recipe, text: Text, translator, split, say) -> dict:
    sources, references = sentences_of(text.corpus, split)
    say(f"Translating {len(sources):,} test sentences ...")
    start = time.perf_counter()
    hypotheses = translator.translate(sources)
    seconds = time.perf_counter() - start
    lines = "".join(f"{' '.join(line.split())}\n" for line in hypotheses)
    write_file(run.folder / "test.hypotheses", lines.encode())
    say(f"{len(sources) / seconds:.0f} sentences a second")
    # Those of the recipe's field; BLEU by sacreBLEU and by the recipe.
    language = {"target_language": translator.target_language}
    kinds, of_recipe = evaluation.usual_metrics(**language), ["tokenized_bleu"]
    if "ROUGE" in recipe.scoring:
        kinds, of_recipe = ["rouge"], []
    elif not evaluation.has_spaces(translator.target_language):
        of_recipe = []
    elif "compounds" in recipe.scoring:
        of_recipe = ["compound_split_bleu"]
    lowercase = "lower-cased" in recipe.scoring
    scores = evaluation.scores(hypotheses, references, kinds, **language)
    scores += evaluation.scores(hypotheses, references, of_recipe, lowercase=lowercase)
    for score in scores:
        say(score.line)
    return {
        "sentences": len(sources),
        "seconds": round(seconds, 2),
        **{score.name: {"score": score.value, "line": score.line} for score in scores},
    }


def _perplexity(run, recipe: Recipe, text: Text, generator, split, say) -> dict:
    lines = text.corpus.texts(split, "target")
    measured = evaluation.text_perplexity(generator, lines, **recipe.blocks)
    for line in measured.lines():
        say(line)
    names = ("nll", "bits", "perplexity", "word_perplexity")
    return {name: getattr(measured, name) for name in names}


def _headline(scores: dict) -> str:
    """The first score of `scores.json`, such as "test BLEU 41.3"; "" without one."""
    if "perplexity" in scores:
        return f"{scores['split']} perplexity {scores['perplexity']:.2f}"
    for name, score in scores.items():
        if isinstance(score, dict):
            return f"test {name} {score['score']:.1f}"
    return ""


def average_run(
    folder: str | os.PathLike,
    output: str | os.PathLike,
    kind: str | None = None,
    count: int | None = None,
    *,
    files: Sequence[str | os.PathLike] | None = None,
    up_to: int | None = None,
    overwrite: bool = False,
) -> str:
    """Averages checkpoints of a run and writes a model directory.

    Args:
        folder: the work folder of `train`.
        output: the model directory, which `keras_seqconv.load` reads.
        kind: "last_epochs", "last_updates" or "best"; None: as the run's recipe says.
            Of a run without a whole epoch, its newest checkpoint.
        count: how many; None: as the run's recipe says.
        files: these checkpoints instead.
        up_to: none of a later update; not with "best".
        overwrite: replace a model directory.

    Returns:
        What was averaged, in words.

    Raises:
        FileNotFoundError: there is no run, or no such checkpoint.
        ValueError: there are no such checkpoints; one is damaged or of another model;
            the output is something else.
    """
    run, recipe = read_run(folder)
    check_writable(output, overwrite)
    if files is None and not checkpoints.find(run.checkpoints):
        raise ValueError(f"{run.folder} has no checkpoints yet: train first.")
    pair = read_tokenizers(run.tokenizers)
    if recipe.search is None:
        pair = None, pair[1]
    model = make_model(run.options, recipe.precision, *pair)
    if files is not None:
        done = _mean(model, [Path(file) for file in files], "given")
    else:
        chosen = recipe.averaging
        kind, count = kind or chosen["kind"], count or chosen["count"]
        done = _average(run, model, kind, count, up_to)
    _translator(run, recipe, model, *pair).save(output, overwrite)
    if Path(output).resolve() == run.model.resolve() and run.scores.exists():
        old = _headline(read_json(run.scores))
        run.scores.unlink()
        done += f"\nscores.json was of the model before ({old}) and is removed"
    return done


def _average(run: Run, model, kind: str, count: int, up_to: int | None = None) -> str:
    """Gives a model the mean of checkpoints of its run; says in words which."""
    what = kind.replace("_", " ")
    with warnings.catch_warnings():
        # That there are fewer is said below; that one is damaged is not.
        warnings.filterwarnings("ignore", r".* has \d+ checkpoints")
        try:
            if kind == "best":
                paths = checkpoints.best(run.checkpoints, count, *run.monitor)
            else:
                paths = getattr(checkpoints, kind)(run.checkpoints, count, up_to)
        except ValueError:
            if kind == "last_updates":
                raise
            for path in checkpoints.find(run.checkpoints):
                checkpoints.check(path)  # a damaged one may be what was asked for
            paths = checkpoints.last_updates(run.checkpoints, 1, up_to)
            why = "none is validated" if kind == "best" else "no epoch is complete"
            what = f"newest, as {why}"
    done = _mean(model, paths, what)
    return done + (f"; there are no {count}" if len(paths) < count else "")


def _mean(model, paths: Sequence[Path], what: str) -> str:
    checkpoints.average(paths, model)
    updates = sorted(checkpoints.read_state(path)["update"] for path in paths)
    noun = "checkpoint" if len(paths) == 1 else "checkpoints"
    numbers = ", ".join(map(str, updates))
    return f"Averaged {len(paths)} {noun} ({what}: updates {numbers})"
