"""The notation of convolutions: what is understood, and that nothing is executed."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqconv.models.conv_s2s import Convolution, parse_convolutions

LAYERS = st.tuples(st.integers(1, 5000), st.integers(1, 99))
# Groups of equal layers: fairseq's way of writing them down.
GROUPS = st.lists(st.tuples(LAYERS, st.integers(1, 20)), min_size=1, max_size=6)


def test_fairseq_notation():
    found = parse_convolutions("[(512, 3)] * 2 + [(1024, 4, 2)] + 1 * [(7, 1, 0)]")
    assert found == [(512, 3, 1), (512, 3, 1), (1024, 4, 2), (7, 1, 0)]
    assert all(isinstance(layer, Convolution) for layer in found)
    assert parse_convolutions("\n [(512, 3)]*1 ") == [Convolution(512, 3)]
    assert len(parse_convolutions("([(2, 3)] * 2 + [(4, 5)]) * 3")) == 9
    assert parse_convolutions("[(2 * 4, 1 + 2)]") == [Convolution(8, 3)]


@settings(deadline=None, max_examples=100)
@given(GROUPS)
def test_text_and_list_mean_the_same(groups):
    text = " + ".join(f"[{layer}] * {times}" for layer, times in groups)
    layers = [layer for layer, times in groups for _ in range(times)]
    expected = [(*layer, 1) for layer in layers]
    assert parse_convolutions(text) == expected
    assert parse_convolutions(layers) == expected
    assert parse_convolutions([list(layer) for layer in layers]) == expected
    assert parse_convolutions(expected) == expected  # as it comes from a configuration


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="[](),*+0123456789 -x.'\"\n", max_size=40) | st.text())
def test_any_text_is_read_or_refused(text):
    try:
        layers = parse_convolutions(text)
    except ValueError as error:
        assert "`convolutions`" in str(error)
    else:
        assert layers and all(layer.channels >= 1 for layer in layers)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "()", "512", "(512, 3)", "[512, 3]", "[(512,)]", "[(512, 3, 1, 1)]",
        "[(0, 3)]", "[(512, 0)]", "[(-1, 3)]", "[(512, 3)] * 0", "[(512, 3)] - [1]",
        "[(512, 3.0)]", "[('512', 3)]", "[(True, 3)]", "[(512, 3)] * -1",
        "[(512, 3, -1)]", "[(512, 3, 2)]", "[(512, 3)", "[(512, 3)]; 1", "[(a, 3)]",
        "[(1, 3) for i in range(3)]", "list(((1, 3),))", "[(1, 3)] ** 2", "{1: 3}",
        "[(9**9, 3)]", "(lambda: [(1, 3)])()", "[(1, 3)][0:1]", "[*[(1, 3)]]",
        "__import__('os').system('true')", "[(1, 3)] * '3'", "[(1, 3)\0]", "x" * 99999,
        "(" * 500 + "[(1, 3)]" + ")" * 500, "+".join(["[(1, 3)]"] * 1111),
        "[(1, 3), 4]", "[[(1, 3)]]", '"[(1, 3)]"', "[(1, 3)] + 4", "[(1, 3)] + (4,)",
        "[(1j, 3)]", "[(1, 3)] if 1 else 2", "f'{1}'",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="`convolutions` must be.*Received") as caught:
        parse_convolutions(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "[(1,1)]*10000000000",
        "10000000000*[(1,1)]",
        "[(1,1)]*1000*1000*1000",
        "[(1,1)]*(99999*99999*99999)",
        "[(1,1)*1000000000]",
        "([(1,1)]*600)+([(1,1)]*600)",
        "[[[(1,1)]*1000]*1000]*1000",
    ],
)
def test_a_short_text_makes_no_huge_list(text):
    start = time.monotonic()
    with pytest.raises(ValueError, match="`convolutions`"):
        parse_convolutions(text)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        (None, "holds no layer"),
        ([], "holds no layer"),
        (7, "holds no layer"),
        ([(4, 3), (4, 3.5)], r"layer 2 is \(4, 3.5\)"),
        ([(True, 3)], r"layer 1 is \(True, 3\)"),
        (["43"], "layer 1 is '43'"),
        ([(4, 3, 1), (4, 3, 3)], "residual of layer 2 must be 0 to 2, not 3"),
        ([(1, 1)] * 1001, "1000 layers at most"),
    ],
)
def test_wrong_lists_say_what_is_wrong(layers, match):
    with pytest.raises(ValueError, match=match):
        parse_convolutions(layers)


def test_a_residual_may_reach_the_input_of_the_stack():
    assert parse_convolutions([(4, 3, 1), (4, 3, 2)])[1].residual == 2
