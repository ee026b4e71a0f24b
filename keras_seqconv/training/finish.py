"""What follows the last update: average, save, translate the test split, score."""

import time

from keras_seqconv import evaluation, perplexity, plots
from keras_seqconv.callbacks.reporting import read_log
from keras_seqconv.language_generator import LanguageGenerator
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import write_file
from keras_seqconv.training.averaging import average
from keras_seqconv.training.models import translator_of
from keras_seqconv.training.run import Run, headline, write_json
from keras_seqconv.training.text import Text


def finish(run: Run, recipe: dict, text: Text, model, say) -> dict:
    """Averages checkpoints, writes the model directory, scores the test split.

    Returns:
        The scores by name, as in `scores.json`; empty without a test split.
    """
    averaging = recipe["averaging"]
    say(average(run, model, averaging["kind"], averaging["count"]))
    owner = translator_of(run, recipe, model, *text.tokenizers)
    owner.save(run.model, overwrite=True)
    say(f"Written to {run.model}")
    _draw(run, say)
    if "test" not in text.corpus.splits:
        say("The corpus has no test split, so there is no score.")
        return {}
    measure = _perplexity if isinstance(owner, LanguageGenerator) else _translations
    scores = measure(run, recipe, text, owner, say)
    write_json(run.scores, scores)
    say(headline(scores))
    return scores


def check_scoring(recipe: dict) -> None:
    """ImportError, before anything is trained, without the package of the scores."""
    if "ROUGE" in (recipe["scoring"] or ""):
        require("rouge_score", "rouge")
    elif recipe["search"] is not None:
        require("sacrebleu", "mt")


def _scores(recipe: dict, hypotheses: list[str], references: list[str]) -> list:
    """Those of the recipe's field: ROUGE of summaries; BLEU by sacreBLEU and by it."""
    scoring = recipe["scoring"]
    if "ROUGE" in scoring:
        return evaluation.rouge(hypotheses, references)
    kind = "compound_split_bleu" if "compounds" in scoring else "tokenized_bleu"
    return [
        *evaluation.scores(hypotheses, references, ("bleu", "chrf")),
        *evaluation.scores(
            hypotheses, references, (kind,), lowercase="lower-cased" in scoring
        ),
    ]


def sentences_of(
    corpus, split: str, most: int | None = None
) -> tuple[list[str], list[str]]:
    """Sources and references of a split, at most so many."""
    return tuple([*corpus.texts(split, side, most)] for side in ("source", "target"))


def _translations(run: Run, recipe: dict, text: Text, translator, say) -> dict:
    sources, references = sentences_of(text.corpus, "test")
    say(f"Translating {len(sources):,} test sentences ...")
    start = time.perf_counter()
    hypotheses = translator.translate(sources)
    seconds = time.perf_counter() - start
    write_file(
        run.folder / "test.hypotheses",
        "".join(f"{' '.join(line.split())}\n" for line in hypotheses).encode(),
    )
    found = _scores(recipe, hypotheses, references)
    say(f"{len(sources) / seconds:.0f} sentences a second")
    for score in found:
        say(score.line)
    return {
        "split": "test",
        "sentences": len(sources),
        "seconds": round(seconds, 2),
        **{score.name: {"score": score.value, "line": score.line} for score in found},
    }


def _perplexity(run: Run, recipe: dict, text: Text, generator, say) -> dict:
    lines = text.corpus.texts("test", "target")
    found = perplexity.text_perplexity(generator, lines, **recipe["blocks"])
    for line in found.lines():
        say(line)
    return {
        "split": "test",
        "nll": found.nll,
        "perplexity": found.perplexity,
        "word_perplexity": found.word_perplexity,
    }


def _draw(run: Run, say) -> None:
    """Learning curves, where matplotlib is installed."""
    try:
        plots.save(
            plots.learning_curves({run.folder.name: read_log(run.log)}),
            run.folder / "curves.png",
        )
    except ImportError as error:
        say(f"No picture of the learning curves: {error}")
