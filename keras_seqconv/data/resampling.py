"""A corpus tokenised anew for each epoch: BPE-dropout, subword regularization."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from keras_seqconv.data.store import IdStore

_ROWS = 4096
_KEPT = 2


def resampling(
    store: IdStore,
    tokenizers: Mapping[str, object],
    rate: float,
    seed: int,
    directory: str | os.PathLike | None = None,
) -> Callable[[int], IdStore]:
    """The `resample` of a `BatchStream`: epoch -> the same texts in other pieces.

    Texts come from the ids of the store itself, so that rows stay in place whatever was
    filtered before. Draws depend on seed, epoch, key and row numbers only.

    Args:
        store: ids without sampling.
        tokenizers: key of the store -> a tokenizer whose `tokenize` samples. Keys that
            are not named keep their ids.
        rate: of `tokenizers.Sampling`.
        seed: of the run.
        directory: where stores of epochs are written, of which the last two stay; by
            default they are in memory.
    """
    unknown = sorted(set(tokenizers) - set(store.keys))
    if unknown or not tokenizers:
        raise ValueError(
            f"`tokenizers` must name keys of the store, {sorted(store.keys)}. "
            f"Received: {sorted(tokenizers)}"
        )

    def resample(epoch: int) -> IdStore:
        chunks = _sampled(store, tokenizers, rate, (seed, epoch))
        if directory is None:
            return IdStore.from_chunks(chunks)
        folder = Path(directory) / f"epoch-{epoch}"
        fingerprint = {"of": store.fingerprint, "rate": rate, "seed": seed}
        try:
            return IdStore.open(folder, fingerprint)
        except (FileNotFoundError, ValueError):
            pass
        with IdStore.writer(folder, fingerprint) as writer:
            for chunk in chunks:
                writer.add(chunk)
        IdStore.remove(Path(directory) / f"epoch-{epoch - _KEPT}")
        return IdStore.open(folder, fingerprint)

    return resample


def _sampled(store, tokenizers, rate: float, seed: tuple) -> Iterator[dict]:
    from keras_seqconv.tokenizers import Sampling

    for number, chunk in enumerate(store.chunks(_ROWS)):
        for place, (key, tokenizer) in enumerate(sorted(tokenizers.items())):
            values, lengths = chunk[key]
            ids = np.split(values, np.cumsum(lengths)[:-1])
            texts = tokenizer.detokenize([row.tolist() for row in ids])
            rows = tokenizer.tokenize(texts, Sampling(rate, (*seed, place, number)))
            lengths = np.array([len(row) for row in rows])
            chunk[key] = np.concatenate([np.asarray(row) for row in rows]), lengths
        yield chunk
