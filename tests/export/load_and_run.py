"""Runs a version with TensorFlow and tensorflow-text only, of any release since 2.12.

    python tests/export/load_and_run.py VERSION_FOLDER CASES.json

CASES.json: a list of [signature, {input: values}, {output: expected}]. Texts must be
equal, numbers to 1e-4. Prints what it found in one line, or fails.
"""

import json
import sys

import tensorflow as tf
import tensorflow_text


def main(folder: str, cases: str) -> None:
    model = tf.saved_model.load(folder)
    with open(cases, encoding="utf-8") as stream:
        cases = json.load(stream)
    for name, inputs, expected in cases:
        signature = model.signatures[name]
        specs = signature.structured_input_signature[1]
        tensors = {
            key: tf.constant(value, specs[key].dtype) for key, value in inputs.items()
        }
        found = signature(**tensors)
        assert set(found) >= set(expected), (name, sorted(found))
        for key, value in expected.items():
            check(name, found[key].numpy().tolist(), value)
    assert not any(one.split(".")[0] == "keras_seqconv" for one in sys.modules)
    sys.stdout.write(
        f"TensorFlow {tf.__version__}, tensorflow-text {tensorflow_text.__version__}: "
        f"{len(cases)} cases as expected\n"
    )


def check(name, found, expected) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected), (name, found, expected)
        for one, other in zip(found, expected):  # noqa: B905 (Python 3.9 too)
            check(name, one, other)
    elif isinstance(expected, str):
        assert found.decode() == expected, (name, found, expected)
    else:
        assert abs(found - expected) <= 1e-4 * max(1, abs(expected)), (
            name, found, expected,
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
