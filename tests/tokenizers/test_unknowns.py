"""Unknown words and the source words in their place."""

import numpy as np
import pytest

from keras_seqconv.tokenizers import read_alignment_dictionary, replace_unknowns


def write_lines(path, text):
    path.write_bytes(text.encode())
    return path


def test_unknowns_take_the_source_word_with_most_attention():
    attention = np.array(
        [
            [0.9, 0.1, 0.0, 0.0],
            [0.1, 0.6, 0.3, 0.0],
            [0.2, 0.2, 0.5, 0.1],
            [0.0, 0.1, 0.2, 0.7],  # padding does not count: the end has most
            [1.0, 0.0, 0.0, 0.0],  # the row of the end of the hypothesis
        ]
    )
    hypothesis = ["<unk>", "<unk>", "ist", "<unk>"]
    source = ["Bob", "runs"]
    assert replace_unknowns(hypothesis, source, attention) == [
        "Bob", "runs", "ist", "<eos>",
    ]  # fmt: skip
    assert hypothesis[0] == "<unk>"
    replaced = replace_unknowns(hypothesis, source, attention, {"runs": "läuft"})
    assert replaced == ["Bob", "läuft", "ist", "<eos>"]
    with pytest.raises(ValueError, match=r"shape \(2, 4\), 4 tokens"):
        replace_unknowns(hypothesis, source, attention[:2])


def test_alignment_dictionary(tmp_path):
    path = write_lines(
        tmp_path / "align", "runs läuft 0.9\n\nBob  Robert\nruns rennt\n"
    )
    assert read_alignment_dictionary(path) == {"runs": "rennt", "Bob": "Robert"}
    write_lines(path, "runs läuft\nBob\n")
    with pytest.raises(ValueError, match="line 2"):
        read_alignment_dictionary(path)
