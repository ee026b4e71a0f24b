"""The start of a run, on one host or on several that must train the same."""

import contextlib
import hashlib
import shutil

import numpy as np

from keras_seqconv import checkpoints, hosts
from keras_seqconv.data.ids import IdStore
from keras_seqconv.presets import Recipe
from keras_seqconv.support.files import read_json, write_file
from keras_seqconv.training.run import (
    OF_A_MACHINE,
    Run,
    Text,
    corpus_of,
    open_run,
    read_text,
    sole_run,
    versions_here,
)
from keras_seqconv.training_options import TrainingOptions
from keras_seqconv.translation.model_directory import tokenizer_fingerprint


def prepare(
    options: TrainingOptions, recipe: Recipe, stack: contextlib.ExitStack, say
) -> tuple[Run, Text | None]:
    """The run and its text, which is None where the run is finished.

    Of several hosts the first one goes first. Another reads what that one has written
    if it sees the same folder, and otherwise makes its own text and is given the newest
    checkpoint. `stack` then keeps the lock of the folder.

    Raises:
        ValueError, OSError: as `sole_run`, `open_run`, `corpus_of`, and where hosts
            are not going to train the same; on all hosts.
    """

    def alone():
        stack.enter_context(sole_run(options.workdir))
        _check_end(Run(options.workdir, options), recipe)
        run = open_run(options, recipe)
        corpus = corpus_of(run)
        return run, None if run.finished else read_text(run, recipe, corpus, say)

    def beside(start: dict):
        run = Run(options.workdir, options, writes=False)
        if run.last_start != start:
            return alone()
        return run, read_text(run, recipe, corpus_of(run), say)

    if hosts.shard()[1] == 1:
        return alone()
    first = hosts.is_first()
    made = hosts.together(lambda: alone() if first else None)
    start, finished = hosts.gather(made and (made[0].last_start, made[1] is None))[0]
    if finished:
        return made or (Run(options.workdir, options, writes=False), None)
    run, text = hosts.together(lambda: made if first else beside(start))
    hosts.check_same(_what_is_trained(run, text))
    if not any(hosts.gather(run.writes)[1:]):
        return run, text
    newest = hosts.file_of_first(checkpoints.latest(run.checkpoints) if first else None)
    if run.writes and not first:
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        run.checkpoints.mkdir()
        if newest is not None:
            write_file(run.checkpoints / newest[0], newest[1])
    return run, text


def _check_end(run: Run, recipe: Recipe) -> None:
    """ValueError where a run has gone beyond the end that the options ask for."""
    _, state = next(checkpoints.states(run.checkpoints), (None, None))
    if state is None:
        return
    begun = state["epoch"] + (not state["epoch_end"])
    for name, done in (("max_updates", state["update"]), ("max_epochs", begun)):
        most = getattr(recipe, name)
        if most is not None and most < done:
            raise ValueError(
                f"`{name}` must be at least {done}, where the run in {run.folder} is; "
                f"`keras-seqconv average {run.folder} --up-to N` makes a model of its "
                f"earlier checkpoints. Received: {name}={most}"
            )


def _what_is_trained(run: Run, text: Text) -> dict:
    """All that must be the same on all hosts, by names for a message."""
    stores = {"train": text.train, "validation": text.validation}
    options = run.options.model_dump(mode="json", exclude=OF_A_MACHINE)
    return {
        **{f"version of {name}": one for name, one in versions_here().items()},
        **{f"`{name}`": value for name, value in options.items()},
        **read_json(run.settings)["corpus"],
        "tokenizer": [one and tokenizer_fingerprint(one) for one in text.tokenizers],
        **{f"{name}, ids": one and _digest(one) for name, one in stores.items()},
    }


def _digest(store: IdStore) -> str:
    """Of all lengths and of two rows: texts and tokenizers are compared as well."""
    digest = hashlib.sha256()
    for key in store.keys:
        for values in (store.lengths[key], store[0][key], store[len(store) - 1][key]):
            digest.update(np.ascontiguousarray(values))
    return digest.hexdigest()[:16]
