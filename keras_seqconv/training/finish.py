"""After the last update: the average, the model directory, its scores."""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from keras_seqconv import callbacks, checkpoints, evaluation
from keras_seqconv.callbacks.control import is_better
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.evaluation import plots
from keras_seqconv.presets import PRESETS
from keras_seqconv.recipes import Recipe
from keras_seqconv.support.arguments import check_integer
from keras_seqconv.support.files import naming_file, read_json, write_file, write_json
from keras_seqconv.training.recipe import make_model
from keras_seqconv.training.run import Run, read_run
from keras_seqconv.training.text import Text, read_tokenizers, sentences_of
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translation.model_directory import check_writable, save_with_graphs
from keras_seqconv.translation.translate_files import BREAKS
from keras_seqconv.translation.translator import LanguageGenerator, Translator

# Largest number of sentences of the validation set that are translated.
MAX_TRANSLATED = 2000
# Files of a run that belong to its model.
_RESULTS = "scores.json", "test.hypotheses", "sample.txt"
# Options of the sample at the end of a language model's training.
_SAMPLE = {"temperature": 0.8, "top_k": 40, "max_length": 500}


def translator_of(run: Run, recipe: Recipe, model, tokenizers, averaged: str = ""):
    """The model with tokenizers, search, languages and notes, to be saved."""
    if tokenizers[0] is None:
        translator = LanguageGenerator(model, tokenizers[1])
    else:
        translator = Translator(
            model,
            *tokenizers,
            recipe.search,
            max_source_length=run.options.truncate_source,
            languages=run.languages,
        )
    names = {"preset": run.options.preset, "dataset": run.options.dataset}
    for name in ("variant", "tsv_header"):  # how the data set is read
        if (value := getattr(run.options, name)) is not None:
            names[name] = value
    translator.trained = {**names, "checkpoints": averaged}
    return translator


def finish(run: Run, text: Text, model, say) -> dict:
    """Averages, writes the model directory, and scores the test split, if any.

    A language model without one is scored on the validation split.
    """
    recipe = text.recipe
    description = _average(run, model, recipe.average_kind, recipe.average)
    say(description)
    translator = translator_of(run, recipe, model, text.tokenizers, description)
    if text.validation is not None:
        say(_average_or_best(run, text, translator))
    run.note(finished={})  # until the scores are those of the new model
    say(save_with_graphs(translator, run.model, overwrite=True))
    for name in _RESULTS:  # of the model before
        (run.folder / name).unlink(missing_ok=True)
    try:
        curves = plots.learning_curves({run.folder.name: read_log(run.log)})
        plots.save_figure(curves, run.folder / "curves.png")
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
    scores = {"split": split, **score(run, text, translator, split, say)}
    write_json(run.scores, scores)
    say(headline(scores))
    return scores


def _average_or_best(run: Run, text: Text, translator) -> str:
    """Validates the average, and replaces it by the best checkpoint if that is better.

    An average that the options ask for stays. Returns a line about the results.
    """
    monitor, options = run.monitor, run.options
    if monitor == "val_bleu":
        pairs = sentences_of(text.corpus, "validation", MAX_TRANSLATED)
        validation = callbacks.ValidationBLEU(translator, *pairs)
    else:
        validation = callbacks.Validate(run.stream(text, text.validation))
    validation.set_model(translator.model)
    value = validation.results()[monitor]
    best_value = math.nan
    with contextlib.suppress(ValueError):  # no checkpoint was validated
        (best,) = checkpoints.select(run.checkpoints, "best", 1, monitor=monitor)
        best_value = checkpoints.read_state(best)["metrics"][monitor]
    mode = checkpoints.direction(monitor)
    if not is_better(best_value, value, mode, 1e-4):
        return f"{monitor} of the model: {value:.4g}"
    chosen, rejected, flag = "average", "checkpoint", " --best 1"
    if options.average is options.average_kind is None:
        chosen, rejected, flag = "checkpoint", "average", ""
        translator.trained["checkpoints"] = _mean(translator.model, [best], "best")
    return (
        f"{monitor} of the average: {value:.4g}, of the checkpoint of update "
        f"{checkpoints.update_of(best)}: {best_value:.4g}. The model is the {chosen}; "
        f"`keras-seqconv average {run.folder}{flag}` makes that of the {rejected}"
    )


def metrics_of_test(
    options: TrainingOptions,
    language: str | None = None,
    references: Iterable[str] = (),
) -> tuple[str, ...]:
    """Metrics of the test split: the options', or those of the task and its texts."""
    if options.metrics is not None:
        return tuple(name.strip() for name in options.metrics.split(","))
    published = PRESETS[options.preset].task.metric
    return evaluation.usual_metrics(language, references, published)


def _translations(run: Run, text: Text, translator, split, say) -> dict:
    sources, references = sentences_of(text.corpus, split)
    say(f"Translating {len(sources):,} test sentences ...")
    start = time.perf_counter()
    hypotheses = translator.translate(sources)
    seconds = time.perf_counter() - start
    lines = "".join(f"{text.translate(BREAKS)}\n" for text in hypotheses)
    write_file(run.folder / "test.hypotheses", lines.encode())
    say(f"{len(sources) / seconds:.0f} sentences a second")
    task, language = PRESETS[run.options.preset].task, translator.target_language
    metrics = metrics_of_test(run.options, language, references)
    scores = evaluation.scores(
        hypotheses, references, metrics, target_language=language
    )
    usual = run.options.metrics is None and "bleu" in metrics
    if usual and evaluation.has_spaces(language):
        scores += evaluation.scores(
            hypotheses, references, [task.metric], lowercase=task.lowercase
        )
    for score in scores:
        say(score.line)
    return {
        "sentences": len(sources),
        "seconds": round(seconds, 2),
        **{score.name: {"score": score.value, "line": score.line} for score in scores},
    }


def _perplexity(run: Run, text: Text, generator, split, say) -> dict:
    lines = text.corpus.texts(split, "target")
    blocks = dataclasses.asdict(text.recipe.blocks)
    measured = evaluation.text_perplexity(generator, lines, **blocks)
    for line in measured.lines():
        say(line)
    names = ("nll", "bits", "perplexity", "word_perplexity")
    return {name: measured.for_json()[name] for name in names}


def headline(scores: dict) -> str:
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
    say=print,
) -> str:
    """Averages checkpoints of a run and writes a model directory.

    Args:
        folder: the work folder of `train`.
        output: the model directory, which `keras_seqconv.load` reads.
        kind: "last_epochs" or "best", see `checkpoints.select`; by default that of the
            recipe.
        count: number of checkpoints; by default that of the recipe.
        files: checkpoints to average instead.
        up_to: latest update of the checkpoints.
        overwrite: whether to replace a model directory.
        say: called with lines of text about the result.

    Returns:
        A description of the average.

    Raises:
        FileNotFoundError: there is no run, or no such checkpoint.
        ValueError: no such checkpoints, a damaged one or one of another model, or
            `output` is no model directory.
    """
    run, recipe = read_run(folder)
    check_writable(output, overwrite)
    if files is None and not checkpoints.find(run.checkpoints):
        raise ValueError(f"{run.folder} has no checkpoints yet: train first.")
    tokenizers = read_tokenizers(run.tokenizers)
    if recipe.search is None:
        tokenizers = None, tokenizers[1]
    with naming_file(run.settings, "describes no model"):
        model = make_model(run.options, recipe.precision, *tokenizers)
    if files is not None:
        description = _mean(model, [Path(file) for file in files], "given")
    else:
        kind = recipe.average_kind if kind is None else kind
        count = recipe.average if count is None else count
        check_integer("count", count, 1)
        description = _average(run, model, kind, count, up_to)
    translator = translator_of(run, recipe, model, tokenizers, description)
    written = save_with_graphs(translator, output, overwrite)
    if Path(output).resolve() == run.model.resolve():
        description += _remove_results(run)
    say(description)
    say(written)
    return description


def _remove_results(run: Run) -> str:
    """Removes the scores and outputs of the model before; says so."""
    with naming_file(run.scores, "holds no scores"):
        old = headline(read_json(run.scores)) if run.scores.exists() else ""
    paths = [run.folder / name for name in _RESULTS]
    removed = [path for path in paths if path.exists()]
    for path in removed:
        path.unlink()
    names = ", ".join(path.name for path in removed)
    return f"\nRemoved, as of the model before: {names} ({old})" if removed else ""


def _average(run: Run, model, kind: str, count: int, up_to: int | None = None) -> str:
    """Sets a model to the mean of checkpoints of its run; returns a description."""
    options = dict(monitor=run.monitor, up_to=up_to)
    what = kind.replace("_", " ")
    try:
        paths = checkpoints.select(run.checkpoints, kind, count, **options)
    except ValueError:
        if kind != "best":
            raise
        paths = checkpoints.select(run.checkpoints, "last_epochs", 1, up_to=up_to)
        what = "newest; none is validated and undamaged"
    description = _mean(model, paths, what)
    return description + (f"; there are no {count}" if len(paths) < count else "")


def _mean(model, paths: Sequence[Path], what: str) -> str:
    checkpoints.average(paths, model)
    updates = sorted(map(checkpoints.update_of, paths))
    noun = "checkpoint" if len(paths) == 1 else "checkpoints"
    numbers = ", ".join(map(str, updates))
    return f"Averaged {len(paths)} {noun} ({what}: updates {numbers})"
