"""Text files: what is read, what is refused, what is left out and counted."""

import bz2
import collections
import gzip
import itertools
import lzma
import os
import tracemalloc

import pytest

from keras_seqconv.data.files import from_files, from_lines
from keras_seqconv.data.rows import describe, plain_errors


def write(path, lines, end="\n"):
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def pairs(dataset):
    with plain_errors():
        return [
            (row["source"].decode(), row["target"].decode())
            for row in dataset.as_numpy_iterator()
        ]


def texts(dataset):
    with plain_errors():
        return [row["target"].decode() for row in dataset.as_numpy_iterator()]


@pytest.fixture
def two(tmp_path):
    """Writes a pair of files: two(source bytes, target bytes) -> paths."""

    def make(source, target):
        (tmp_path / "x.de").write_bytes(source)
        (tmp_path / "x.en").write_bytes(target)
        return tmp_path / "x.de", tmp_path / "x.en"

    return make


def test_pairs_in_order_and_once_more(two):
    dataset = from_files(*two(b"eins\nzwei  \n", b"one\n two"))
    expected = [("eins", "one"), ("zwei  ", " two")]
    assert pairs(dataset) == expected
    assert pairs(dataset) == expected
    assert dataset.element_spec["source"].shape == ()


def test_line_ends_marks_and_separators(two):
    source = b"\xef\xbb\xbfa\r\nb\xe2\x80\xa8c\r\nd\re\x0bf\x85".replace(
        b"\x85", "\x85g".encode()
    )
    dataset = from_files(*two(source, b"1\n2\n3\n"))
    assert pairs(dataset) == [("a", "1"), ("b\u2028c", "2"), ("d\re\x0bf\x85g", "3")]


def test_crlf_across_blocks(two, monkeypatch):
    lines = [f"{'x' * (i % 7)}y" for i in range(50)]
    files = two("\r\n".join(lines).encode(), "\r\n".join(lines).encode() + b"\r\n")
    for size in range(1, 12):
        monkeypatch.setattr("keras_seqconv.data.files.BYTES_AT_ONCE", size)
        assert pairs(from_files(*files)) == list(zip(lines, lines, strict=True))


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
@pytest.mark.parametrize("name", ["x.packed", "x.txt"])
def test_compressed_whatever_the_name(tmp_path, module, name):
    packed, plain = tmp_path / name, write(tmp_path / "plain.gz", ["BZhallo", "b"])
    with module.open(packed, "wb") as stream:
        stream.write("ä\nb\n".encode())
    assert pairs(from_files(packed, plain)) == [("ä", "BZhallo"), ("b", "b")]


def test_broken_archive_is_told_by_file_and_line(tmp_path):
    whole = gzip.compress("".join(f"line {i}\n" for i in range(9999)).encode())
    broken = tmp_path / "x.gz"
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"x\.gz must be a complete compressed file"):
        texts(from_lines(broken))
    broken.write_bytes(whole[:40] + b"\0" * 40 + whole[80:])
    with pytest.raises(ValueError, match=r"x\.gz must be a complete compressed file"):
        texts(from_lines(broken))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_several_files_longer_than_a_chunk(tmp_path, monkeypatch, on_error):
    monkeypatch.setattr("keras_seqconv.data.files.LINES_AT_ONCE", 512)
    numbers = [2_000, 1, 1_024]
    files = [
        (
            write(tmp_path / f"{n}.de", [f"s{n} {i}" for i in range(n)]),
            write(tmp_path / f"{n}.en", [f"t{n} {i}" * (1 + i % 3) for i in range(n)]),
        )
        for n in numbers
    ]
    counts = collections.Counter()
    dataset = from_files(*zip(*files, strict=True), on_error=on_error, counts=counts)
    expected = [
        (f"s{n} {i}", f"t{n} {i}" * (1 + i % 3)) for n in numbers for i in range(n)
    ]
    assert pairs(dataset) == expected
    assert counts == {"kept": sum(numbers)}


# What is wrong: source, target, the error, key of the counts, sources that stay.
WRONG = {
    "empty source": (b"a\n\nc\n", b"1\n2\n3\n", "x.de, line 2, has no", "empty", "ac"),
    "empty target": (b"a\nb\nc\n", b"1\n \t\n3", "x.en, line 2, has no", "empty", "ac"),
    "empty both": (b"\r\nb\n", b"\n2\n", "x.de, line 1, has no", "empty", "b"),
    "unicode blanks": (
        b"a\nb\n",
        "1\n\u3000\u00a0\n".encode(),
        "x.en, line 2, has no text",
        "empty",
        "a",
    ),
    "utf-8": (
        b"a\nb\xff\nc\n",
        b"1\n2\n3\n",
        "x.de, line 2, is not valid UTF-8",
        "invalid_utf8",
        "ac",
    ),
    "surrogate": (
        b"a\n",
        b"1\xed\xa0\x80\n",
        "x.en, line 1, is not valid UTF-8",
        "invalid_utf8",
        "",
    ),
    "nul": (b"a\nb\n", b"1\n2\x003\n", "x.en, line 2, holds a NUL", "nul", "a"),
    "shorter target": (
        b"a\nb\nc\n",
        b"1\n",
        r"x.de has 3, \S*x.en has 1\. Line 2 of \S*x.de has no partner",
        "unpaired",
        "a",
    ),
    "shorter source": (
        b"a\nb",
        b"1\n2\n3\n\n",
        r"x.de has 2, \S*x.en has 4\. Line 3 of \S*x.en has no partner",
        "unpaired",
        "ab",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows(two, case):
    source, target, message, key, stay = WRONG[case]
    files = two(source, target)
    with pytest.raises(ValueError, match=message):
        pairs(from_files(*files))
    counts = collections.Counter()
    dataset = from_files(*files, on_error="skip", counts=counts)
    if not stay:
        with pytest.raises(ValueError, match=f"at least one row.*1 {key}"):
            pairs(dataset)
        return
    assert "".join(source for source, _ in pairs(dataset)) == stay
    left_out = 2 if case == "shorter source" else 1 + (case == "shorter target")
    assert counts == {"kept": len(stay), key: left_out}
    assert describe(counts) == f"{left_out} {key}"
    pairs(dataset)  # counts are of a pass, not of all
    assert counts["kept"] == len(stay)


def test_line_numbers_beyond_the_first_chunk(two):
    lines = [b"x"] * 20_000
    lines[17_654] = b"\xff"
    files = two(b"\n".join(lines), b"\n".join([b"y"] * 20_000))
    with pytest.raises(ValueError, match=r"x\.de, line 17,655, is not valid UTF-8"):
        pairs(from_files(*files))


def test_lengths_are_counted_to_the_end(two):
    files = two(b"a\n" * 9_000, b"b\n" * 30_001)
    with pytest.raises(ValueError, match="has 9,000, .* has 30,001. Line 9,001 of"):
        pairs(from_files(*files))


def test_counts_of_a_pass_that_was_broken_off_do_not_appear(two):
    counts = collections.Counter()
    dataset = from_files(*two(b"a\n" * 30_000, b"b\n" * 30_000), counts=counts)
    next(iter(dataset))
    assert not counts


def test_no_text(two, tmp_path):
    files = two(b"", b"")
    for on_error in ("raise", "skip"):
        with pytest.raises(ValueError, match="must hold at least one row"):
            pairs(from_files(*files, on_error=on_error))
    with pytest.raises(ValueError, match="must hold at least one row"):
        texts(from_lines(files[0]))


def test_wrong_files_at_once(tmp_path):
    there = write(tmp_path / "a", ["a"])
    with pytest.raises(FileNotFoundError, match="`target_files` must exist.*missing"):
        from_files(there, tmp_path / "missing")
    with pytest.raises(ValueError, match="`source_files` must be files. A folder"):
        from_files(tmp_path, there)
    with pytest.raises(ValueError, match="1 source files, 2 target files"):
        from_files(there, [there, there])
    with pytest.raises(ValueError, match="`files` must name at least one"):
        from_lines([])
    with pytest.raises(ValueError, match="`on_error` must be one of"):
        from_files(there, there, on_error="ignore")
    with pytest.raises(ValueError, match="`empty` must be one of"):
        from_lines(there, empty="drop")


def test_file_that_went_away(two):
    source, target = two(b"a\n", b"b\n")
    dataset = from_files(source, target)
    os.remove(source)
    with pytest.raises(FileNotFoundError):
        pairs(dataset)


def test_utf_16(tmp_path):
    path = tmp_path / "x"
    path.write_bytes("hallo\n".encode("utf-16"))
    with pytest.raises(ValueError, match="x, line 1, must be UTF-8. .*UTF-16"):
        texts(from_lines(path, on_error="skip"))


def test_a_file_without_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_seqconv.data.files.LONGEST_LINE", 1 << 16)
    monkeypatch.setattr("keras_seqconv.data.files.BYTES_AT_ONCE", 1 << 12)
    path = tmp_path / "x"
    path.write_bytes(b"short\n" + b"y" * (1 << 18))
    with pytest.raises(ValueError, match="x, line 2, must not be longer than"):
        texts(from_lines(path))


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1, "abcdefgh"),
        (3, "abcdefgh" * 3),
        (0.5, "bdfh"),
        (0.25, "dh"),
        (2.5, "abcdefgh" * 2 + "bdfh"),
        (1 / 3, "cf"),
        (0.1, ""),
        (1e-6, ""),
    ],
)
def test_upsampling(tmp_path, factor, expected):
    first = write(tmp_path / "a", "abcdefgh")
    second = write(tmp_path / "b", "xy")
    counts = collections.Counter()
    dataset = from_lines([first, second], upsample=factor, counts=counts)
    assert "".join(texts(dataset)) == expected + "xy"
    assert counts == {"kept": 10}
    dataset = from_lines([first, second], upsample=[1, factor])
    assert len(texts(dataset)) == 8 + int(2 * factor)


def test_upsampling_counts_files_once_and_skips_every_time(two):
    files = two(b"a\n\nc\nd", b"1\n2\n3\n4\n")
    counts = collections.Counter()
    dataset = from_files(*files, upsample=2, on_error="skip", counts=counts)
    assert pairs(dataset) == [("a", "1"), ("c", "3"), ("d", "4")] * 2
    assert counts == {"kept": 3, "empty": 1}


@pytest.mark.parametrize(
    "wrong", [0, -1, True, "2", float("nan"), float("inf"), [1], [1, 2, 3], [1, 0], []]
)
def test_wrong_upsampling(tmp_path, wrong):
    files = [write(tmp_path / name, ["x"]) for name in "ab"]
    with pytest.raises(ValueError, match="`upsample` must be a number > 0"):
        from_files(files, files, upsample=wrong)


def test_lines_of_a_language_model(tmp_path):
    path = tmp_path / "wiki"
    path.write_bytes(b"\n = Title = \n\nText .\n \n\nMore .\n")
    expected = ["", " = Title = ", "", "Text .", " ", "", "More ."]
    assert texts(from_lines(path)) == expected
    with pytest.raises(ValueError, match="wiki, line 1, has no text"):
        texts(from_lines(path, empty="error"))
    counts = collections.Counter()
    dataset = from_lines(path, empty="error", on_error="skip", counts=counts)
    assert texts(dataset) == [" = Title = ", "Text .", "More ."]
    assert counts == {"kept": 3, "empty": 4}
    path.write_bytes(b"a\n\nb\0\n")
    with pytest.raises(ValueError, match="wiki, line 3, holds a NUL"):
        texts(from_lines(path))


def test_errors_of_others_pass_through():
    with pytest.raises(KeyError), plain_errors():
        raise KeyError("x")
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError), plain_errors():
        raise tf.errors.InvalidArgumentError(None, None, "another reason")


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(number):
        path = tmp_path / str(number)
        with open(path, "w") as stream:
            stream.writelines(f"{'x' * 60} {i}\n" for i in range(number))
        dataset = from_files(path, path).batch(1024)
        tracemalloc.start()
        try:
            for _ in itertools.islice(dataset, None):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(40_000), peak(100_000)  # 2.7 and 6.9 MB a side
    assert large < 1.25 * small
