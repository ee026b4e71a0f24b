"""Blocks of a stream of tokens, which language models are trained and scored on.

T: tokens of a block.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_seqconv.support.arguments import (
    check_choice,
    check_integer,
    check_positive_integer,
)

# "eos" is fairseq's name of "sentence".
BREAK_MODES = ("none", "complete", "complete_doc", "sentence", "eos")


def blocks(
    lines: Iterable[Sequence[int]],
    tokens_per_sample: int,
    *,
    break_mode: str = "none",
    context_window: int = 0,
    end_id: int = 2,
    pad_id: int = 1,
) -> Iterator[dict[str, np.ndarray]]:
    """Cuts tokenised lines into rows for a language model, as fairseq does.

    The lines one after the other are the stream. A row's labels are a piece of the
    stream, and its inputs the same piece one position earlier: the first input is the
    real token before the piece, or the end token at the very start. Every token of
    the stream is a label exactly once.

    Break modes:
        "none": pieces of `tokens_per_sample` tokens, the last one shorter.
        "complete": as many whole lines as fit into `tokens_per_sample`.
        "complete_doc": likewise, and a piece ends where a document ends. Documents are
            divided by empty lines (the end token alone), which are left out.
        "sentence" (or "eos"): each line a piece, whatever `tokens_per_sample` is.

    With a `context_window` w, pieces have `tokens_per_sample` - w tokens, and each is
    preceded by the last w tokens of input before it (fewer at the start, and before a
    long line), across lines and documents. Their labels are padding: not scored.

    Args:
        lines: token ids of lines, each with its end token.
        tokens_per_sample: longest row, but for long lines.
        break_mode: see above.
        context_window: w, 0 <= w < `tokens_per_sample`; for evaluation.
        end_id: id of the end token.
        pad_id: id of padding.

    Yields:
        {"target_ids": inputs (T,), "labels": (T,)}, int32, of equal length. Memory
        holds a row and a line, no more.

    Raises:
        ValueError: of an argument, at once; when the line is reached, of one that does
            not end with its end token, or has padding in it; at the end, without any
            token.

    Example:

    ```python
    from keras_seqconv.data.blocks import blocks
    rows = blocks([[5, 6, 2], [7, 2]], tokens_per_sample=4)
    next(rows)  # {"target_ids": [2, 5, 6, 2], "labels": [5, 6, 2, 7]}
    ```
    """
    check_positive_integer("tokens_per_sample", tokens_per_sample)
    check_choice("break_mode", break_mode, BREAK_MODES)
    check_integer("end_id", end_id, 0)
    check_integer("pad_id", pad_id, 0)
    if check_integer("context_window", context_window, 0) >= tokens_per_sample:
        raise ValueError(
            "`context_window` must be smaller than `tokens_per_sample`. Received: "
            f"context_window={context_window}, tokens_per_sample={tokens_per_sample}"
        )
    size = tokens_per_sample - context_window
    lines = _checked(lines, end_id, pad_id)
    if break_mode == "none":
        pieces = _fixed_pieces(lines, size)
    else:
        limit = 0 if break_mode in ("eos", "sentence") else size
        pieces = _whole_lines(lines, limit, break_mode == "complete_doc")
    return _with_inputs(pieces, tokens_per_sample, context_window, end_id, pad_id)


def _checked(lines, end_id, pad_id) -> Iterator[np.ndarray]:
    number = 0
    for number, line in enumerate(lines, 1):  # noqa: B007
        line = np.asarray(line, np.int32)
        if line.ndim != 1 or not line.size or line[-1] != end_id:
            raise ValueError(
                f"A line must be token ids that end with the end token {end_id}. "
                f"Received: line {number:,} = {line[:20].tolist()}"
            )
        if (line == pad_id).any():
            raise ValueError(
                f"A line must not hold the padding id {pad_id}. "
                f"Received: line {number:,} = {line[:20].tolist()}"
            )
        yield line
    if not number:
        raise ValueError("`lines` must hold at least one line. It holds none.")


def _fixed_pieces(lines, size) -> Iterator[np.ndarray]:
    """Pieces of `size` tokens, the last one shorter."""
    waiting, length = [], 0
    for line in lines:
        waiting.append(line)
        length += len(line)
        if length < size:
            continue
        tokens = np.concatenate(waiting)
        end = length - length % size
        for start in range(0, end, size):
            yield tokens[start : start + size]
        waiting, length = [tokens[end:]], length - end
    if length:
        yield np.concatenate(waiting)


def _whole_lines(lines, limit: int, documents: bool) -> Iterator[np.ndarray]:
    """Pieces of whole lines up to `limit` tokens; 0: one line each."""
    waiting, length = [], 0
    for line in lines:
        divides = documents and len(line) == 1
        if length and (divides or length + len(line) > limit):
            yield np.concatenate(waiting)
            waiting, length = [], 0
        if not divides:
            waiting.append(line)
            length += len(line)
    if length:
        yield np.concatenate(waiting)


def _with_inputs(
    pieces, longest, window, end_id, pad_id
) -> Iterator[dict[str, np.ndarray]]:
    past = np.zeros(0, np.int32)  # the last inputs before the piece
    before = np.array([end_id], np.int32)  # the stream's token before it
    for piece in pieces:
        # A long line takes the room of its context.
        past = past[max(0, len(past) + len(piece) - longest) :]
        inputs = np.concatenate([past, before, piece[:-1]])
        unscored = np.full(len(past), pad_id, np.int32)
        yield {"target_ids": inputs, "labels": np.concatenate([unscored, piece])}
        past = inputs[max(0, len(inputs) - window) :] if window else past
        before = piece[-1:]
