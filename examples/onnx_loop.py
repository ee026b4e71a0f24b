"""The search of an exported translator: NumPy and ONNX Runtime, nothing else.

    keras-seqconv export MODEL --format onnx --output DIR
    echo "17 5 9 2" | python examples/onnx_loop.py DIR

Reads ids, a sentence a line with its end token, and prints those of the translation.
The graphs: `keras_seqconv/export/onnx.py`.
"""

import sys

import numpy as np
import onnxruntime


def search(folder, source_ids) -> list[list[int]]:
    """Ids of the best hypothesis of each row of source_ids (B, S)."""
    start, step, end = (
        onnxruntime.InferenceSession(f"{folder}/{name}.onnx")
        for name in ("start", "step", "end")
    )
    tensors, links = run(start, {"source_ids": source_ids}), []
    while (tensors["scores"] > -np.inf).any():
        made = run(step, tensors)
        links.append(made["backpointers"])
        tensors = {name: made.get(f"next_{name}", x) for name, x in tensors.items()}
    best = run(end, {name: tensors[name] for name in ("finished", "origins")})
    found = [[] for _ in source_ids]
    for row, ids in enumerate(found):
        beam = best["beams"][row, 0]
        for step_links in reversed(links[: max(0, best["last"][row, 0])]):
            token, beam = divmod(step_links[row, beam], len(step_links[row]))
            ids.insert(0, int(token))
    return found


def run(session, tensors):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, tensors), strict=True))


if __name__ == "__main__":
    for line in sys.stdin:
        if not line.split():
            print()
            continue
        [ids] = search(sys.argv[1], np.array([line.split()], "int64"))
        print(*ids)
