"""What comes in as text and ids, made fit for every tokenizer.

One rule for all kinds, in Python and in a graph: bytes that are not UTF-8 become U+FFFD
as `bytes.decode(errors="replace")` has it, one for each maximal part of a character.
A lone surrogate in a `str` counts as the three bytes that it would be written as.
"""

from collections.abc import Iterable, Iterator

from keras_seqconv.tokenizers.special_symbols import BOS_ID, END_ID, PAD_ID


def valid_text(text: str | bytes, name: str = "texts") -> str:
    """The text as valid Unicode, or ValueError unless it is `str` or `bytes`."""
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    raise ValueError(f"`{name}` must hold texts. Received: {text!r}")


def valid_texts(texts: Iterable[str | bytes], name: str = "texts") -> Iterator[str]:
    """Each of several texts as valid Unicode.

    Raises:
        ValueError: `texts` is one text, no iterable, or holds something else.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ValueError(f"`{name}` must be a list of texts. Received: {texts!r}")
    return (valid_text(text, name) for text in texts)


def until_end(ids: Iterable[int]) -> list[int]:
    """The ids before the first end id, without <s> and padding."""
    kept = []
    for i in map(int, ids):
        if i == END_ID:
            break
        if i not in (BOS_ID, PAD_ID):
            kept.append(i)
    return kept
