"""What follows the last update: average, save, translate the test split, score."""

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from keras_seqconv import checkpoints, evaluation, plots
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.model_directory import check_writable
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import read_json, write_file, write_json
from keras_seqconv.training.recipe import Recipe, make_model
from keras_seqconv.training.run import Run, headline, read_run
from keras_seqconv.training.text import Text, is_language_model, read_tokenizers
from keras_seqconv.translator import LanguageGenerator, Translator


def finish(run: Run, recipe: Recipe, text: Text, model, say) -> dict:
    """Averages checkpoints, writes the model directory, scores the test split.

    Returns:
        The scores by name, as in `scores.json`; empty without a test split.
    """
    say(average(run, model, recipe.averaging["kind"], recipe.averaging["count"]))
    translator = translator_of(run, recipe, model, *text.tokenizers)
    translator.save(run.model, overwrite=True)
    say(f"Written to {run.model}")
    try:
        curves = plots.learning_curves({run.folder.name: read_log(run.log)})
        plots.save(curves, run.folder / "curves.png")
    except ImportError as error:
        say(f"No picture of the learning curves: {error}")
    if "test" not in text.corpus.splits:
        say("The corpus has no test split, so there is no score.")
        return {}
    measure = _perplexity if text.source_tokenizer is None else _translations
    scores = {"split": "test", **measure(run, recipe, text, translator, say)}
    write_json(run.scores, scores)
    say(headline(scores))
    return scores


def translator_of(
    run: Run, recipe: Recipe, model, source_tokenizer, target_tokenizer
) -> Translator | LanguageGenerator:
    """The model with its tokenizers, the recipe's search, and the run's languages."""
    if source_tokenizer is None:
        return LanguageGenerator(model, target_tokenizer)
    return Translator(
        model,
        source_tokenizer,
        target_tokenizer,
        recipe.search,
        max_source_length=run.options.truncate_source,
        languages=run.languages,
    )


# --- Averages ---


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
    source, target = read_tokenizers(run.tokenizers)
    if is_language_model(run.options.preset):
        source = None
    model = make_model(run.options, recipe.precision, source, target)
    if files is not None:
        done = _average(model, [Path(file) for file in files], "given")
    else:
        chosen = recipe.averaging
        done = average(
            run, model, kind or chosen["kind"], count or chosen["count"], up_to
        )
    translator_of(run, recipe, model, source, target).save(output, overwrite)
    if Path(output).resolve() == run.model.resolve() and run.scores.exists():
        old = headline(read_json(run.scores))
        run.scores.unlink()
        done += f"\nscores.json was of the model before ({old}) and is removed"
    return done


def average(run: Run, model, kind: str, count: int, up_to: int | None = None) -> str:
    """Gives a model the mean of checkpoints of its run; says in words which."""
    what = kind.replace("_", " ")
    with warnings.catch_warnings():
        # That there are fewer is said below; that one is damaged is not.
        warnings.filterwarnings("ignore", r".* has \d+ checkpoints")
        try:
            if kind == "best":
                paths = checkpoints.best(run.checkpoints, count, *run.monitor)
            elif kind == "last_epochs":
                paths = checkpoints.last_epochs(run.checkpoints, count, up_to)
            else:
                paths = checkpoints.last_updates(run.checkpoints, count, up_to)
        except ValueError:
            if kind == "last_updates":
                raise
            for path in checkpoints.find(run.checkpoints):
                checkpoints.check(path)  # a damaged one may be what was asked for
            paths = checkpoints.last_updates(run.checkpoints, 1, up_to)
            why = "none is validated" if kind == "best" else "no epoch is complete"
            what = f"newest, as {why}"
    done = _average(model, paths, what)
    return done + (f"; there are no {count}" if len(paths) < count else "")


def _average(model, paths: Sequence[Path], what: str) -> str:
    checkpoints.average(paths, model)
    updates = sorted(checkpoints.read_state(path)["update"] for path in paths)
    noun = "checkpoint" if len(paths) == 1 else "checkpoints"
    numbers = ", ".join(map(str, updates))
    return f"Averaged {len(paths)} {noun} ({what}: updates {numbers})"


# --- Scores ---


def check_scoring(recipe: Recipe) -> None:
    """ImportError, before anything is trained, without the package of the scores."""
    if "ROUGE" in (recipe.scoring or ""):
        require("rouge_score", "rouge")
    elif recipe.search is not None:
        require("sacrebleu", "mt")


def sentences_of(
    corpus, split: str, most: int | None = None
) -> tuple[list[str], list[str]]:
    """Sources and references of a split, at most so many."""
    return tuple([*corpus.texts(split, side, most)] for side in ("source", "target"))


def _translations(run: Run, recipe: Recipe, text: Text, translator, say) -> dict:
    sources, references = sentences_of(text.corpus, "test")
    say(f"Translating {len(sources):,} test sentences ...")
    start = time.perf_counter()
    hypotheses = translator.translate(sources)
    seconds = time.perf_counter() - start
    lines = "".join(f"{' '.join(line.split())}\n" for line in hypotheses)
    write_file(run.folder / "test.hypotheses", lines.encode())
    say(f"{len(sources) / seconds:.0f} sentences a second")
    scores = _scores(recipe.scoring, hypotheses, references)
    for score in scores:
        say(score.line)
    return {
        "sentences": len(sources),
        "seconds": round(seconds, 2),
        **{score.name: {"score": score.value, "line": score.line} for score in scores},
    }


def _scores(scoring: str, hypotheses: list[str], references: list[str]) -> list:
    """Those of the recipe's field: ROUGE of summaries; BLEU by sacreBLEU and by it."""
    if "ROUGE" in scoring:
        return evaluation.scores(hypotheses, references, ["rouge"])
    kind = "compound_split_bleu" if "compounds" in scoring else "tokenized_bleu"
    return [
        *evaluation.scores(hypotheses, references, ("bleu", "chrf")),
        *evaluation.scores(
            hypotheses, references, (kind,), lowercase="lower-cased" in scoring
        ),
    ]


def _perplexity(run: Run, recipe: Recipe, text: Text, generator, say) -> dict:
    lines = text.corpus.texts("test", "target")
    measured = evaluation.text_perplexity(generator, lines, **recipe.blocks)
    for line in measured.lines():
        say(line)
    return {
        "nll": measured.nll,
        "perplexity": measured.perplexity,
        "word_perplexity": measured.word_perplexity,
    }
