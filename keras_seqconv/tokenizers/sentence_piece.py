"""SentencePiece models: BPE and unigram language model, with and without a graph.

The file is sentencepiece's own, with the ids of this package. Python runs it with the
package sentencepiece, graphs with the ops of tensorflow-text.
"""

import hashlib
import io
import itertools
import os
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_seqconv.support.arguments import (
    check_boolean,
    check_choice,
    check_integer,
    check_positive_integer,
    is_number,
)
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import write_file
from keras_seqconv.tokenizers import graph
from keras_seqconv.tokenizers.files import read_file, read_settings, write_settings
from keras_seqconv.tokenizers.special_symbols import (
    BOS_ID,
    END_ID,
    PAD_ID,
    SPECIAL_SYMBOLS,
    UNK_ID,
)
from keras_seqconv.tokenizers.texts import until_end, valid_text, valid_texts

NORMALIZATIONS = ("identity", "nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf")
# SentencePiece's sign for a blank.
_BLANK = "\u2581"
_MODEL_FILE = "sentencepiece.model"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
# Of the numbers in sentencepiece_model.proto.
_CONTROL, _UNUSED, _BYTE_TYPE = 3, 5, 6
_MODEL_TYPES = {1: "unigram", 2: "bpe"}
# normalizer_spec { add_dummy_prefix: false }, merged into that of the model.
_WITHOUT_PREFIX = b"\x1a\x02\x18\x00"


class SentencePieceTokenizer:
    """Pieces of words, learned from text without any rule of a language.

    A model of `train` gives every text back to the byte, whatever blanks, entities such
    as `&apos;` or control characters it holds, with two exceptions: U+2581, which is
    the model's own sign for a blank, comes back as a blank; and without
    `byte_fallback`, runs of characters that were not learned come back as `<unk>`.
    With another `normalization` than "identity" it is the normalized text that comes
    back. Bytes that are not UTF-8 become U+FFFD first (see `tokenizers.texts`), and so
    does each byte of an incomplete character that ids spell.

    Args:
        model: content of a model file of sentencepiece, BPE or unigram, with the ids
            0 to 3 for bos, pad, eos and unk, `add_dummy_prefix` and without
            `remove_extra_whitespaces`.

    Raises:
        ValueError: `model` is no such model.
        ImportError: sentencepiece is missing (extra `mt`); in the methods for tensors
            also tensorflow-text.

    Example:

    ```python
    from keras_seqconv.tokenizers import SentencePieceTokenizer
    texts = ["the house", "the big house", "a house in the wood"]
    tokenizer = SentencePieceTokenizer.train(texts, 290)
    ids = tokenizer.tokenize(["the  Häuser"])  # two blanks, and letters never seen
    assert tokenizer.detokenize(ids) == ["the  Häuser"]
    ```
    """

    kind = "sentencepiece"
    in_graph = True
    pad_id, start_id, end_id, unk_id = PAD_ID, END_ID, END_ID, UNK_ID

    def __init__(self, model: bytes):
        if not isinstance(model, bytes):
            raise ValueError(
                "`model` must be the content of a model file, bytes. "
                f"Received: {type(model).__name__}"
            )
        self.model = model
        self._processor = _processor(model)
        description = _description(model)
        self._pieces = [piece.piece for piece in description.pieces]
        self._types = [piece.type for piece in description.pieces]
        self._byte_pieces = {
            piece.piece for piece in description.pieces if piece.type == _BYTE_TYPE
        }
        self._unk_surface = description.trainer_spec.unk_surface
        self.model_type = _checked_type(description, self._processor)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int,
        model_type: str = "bpe",
        *,
        normalization: str = "identity",
        character_coverage: float = 0.9995,
        byte_fallback: bool = True,
        max_texts: int = 2_000_000,
        seed: int = 0,
        num_threads: int = 4,
        at_most: bool = False,
    ) -> "SentencePieceTokenizer":
        """Learns a vocabulary. The same arguments give the same model, to the byte.

        Args:
            texts: any iterable, also one that fits no memory; read once.
            vocabulary_size: number of ids, the four special ones and the 256 bytes
                included.
            model_type: "bpe" or "unigram".
            normalization: sentencepiece's name of what is done to a text first:
                "identity" (nothing), "nfkc", "nmt_nfkc", and "nfkc_cf", "nmt_nfkc_cf"
                that also lower-case.
            character_coverage: share of the characters of `texts` that get an id of
                their own, 0.98 to 1; the rarest become bytes.
            byte_fallback: spell unknown characters in bytes. Costs 256 ids; without
                them such characters are lost, so use a `character_coverage` of 1.
            max_texts: of more texts, this many are drawn evenly and learned from.
            seed: of that draw.
            num_threads: threads of the unigram training. Sums of rounded numbers
                depend on it, so the model may as well.
            at_most: take fewer than `vocabulary_size` where the texts have no more.

        Raises:
            ValueError: for a wrong argument; `texts` hold no text; `vocabulary_size` is
                too small for the characters or too large for the texts.
        """
        arguments = _training_arguments(
            vocabulary_size, model_type, normalization, character_coverage,
            byte_fallback, num_threads,
        )  # fmt: skip
        arguments["hard_vocab_limit"] = not check_boolean("at_most", at_most)
        check_positive_integer("max_texts", max_texts)
        check_integer("seed", seed, 0)
        sentences = _Sentences(_drawn(valid_texts(texts), max_texts, seed))
        return cls(_learned(sentences, arguments))

    @property
    def vocabulary_size(self) -> int:
        return len(self._pieces)

    @property
    def unspellable_ids(self) -> list[int]:
        """Ids that are no text: special ones, but for the end, and unused ones."""
        kinds = (_CONTROL, _UNUSED)
        none = {i for i, kind in enumerate(self._types) if kind in kinds}
        return sorted((none | {UNK_ID}) - {END_ID})

    @property
    def trackables(self) -> list:
        """Resources that an exported module must hold: none, the graph makes them."""
        return []

    def tokenize(self, texts: Iterable[str]) -> list[list[int]]:
        """Ids of each text (bytes are taken too), with the end id."""
        texts = list(valid_texts(texts))
        rows = self._processor.encode(texts) if texts else []
        return [[*row, END_ID] for row in rows]

    def detokenize(self, ids: Iterable[Iterable[int]]) -> list[str]:
        """Texts of rows of ids: up to the end id, without padding."""
        rows = [[self._known(i) for i in until_end(row)] for row in ids]
        return self._processor.decode(rows) if rows else []

    def _known(self, index: int) -> int:
        return index if 0 <= index < len(self._pieces) else UNK_ID

    def split(self, text: str) -> list[str]:
        """The pieces of a text; unknown characters as they are."""
        return self._processor.encode(valid_text(text, "text"), out_type=str)

    def join(self, tokens: Iterable[str]) -> str:
        """The text of pieces."""
        tokens = list(tokens)
        text = _replaced(b"".join(self._spelled(token) for token in tokens))
        # The blank that the model puts before every text.
        return text[1:] if tokens and tokens[0].startswith(_BLANK) else text

    def _spelled(self, token: str) -> bytes:
        byte = _BYTE.fullmatch(token)
        if byte and token in self._byte_pieces:
            return bytes.fromhex(byte[1])
        if token == SPECIAL_SYMBOLS[UNK_ID]:
            return self._unk_surface.encode()
        return token.replace(_BLANK, " ").encode()

    def to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Pieces of ids: up to the end id, without <s> and padding."""
        return [self._pieces[self._known(i)] for i in until_end(ids)]

    def tokenize_tensor(self, texts):
        """Ids of `texts` (N,), tf.string: ragged int32 (N, None), end ids included."""
        encoder = self._graph_tokenizer(self.model)
        return graph.append_end(encoder.tokenize(graph.valid_utf8(texts)))

    def detokenize_tensor(self, ids):
        """Texts (N,), tf.string, of `ids` (N, L): up to the end id, without padding."""
        import tensorflow as tf

        rows = graph.until_end(ids, self.vocabulary_size)
        # The op takes every blank from the start of a text, not only the one that the
        # model put there. So it decodes with a model that puts none.
        texts = self._graph_tokenizer(self.model + _WITHOUT_PREFIX).detokenize(rows)
        blank = tf.constant([piece.startswith(_BLANK) for piece in self._pieces])
        first = rows[:, :1].to_tensor(UNK_ID, shape=(None, 1))[:, 0]
        cut = tf.strings.regex_replace(texts, "^ ", "", replace_global=False)
        return tf.where(tf.gather(blank, first), cut, texts)

    def _graph_tokenizer(self, model: bytes):
        """tensorflow-text's tokenizer, made anew in each graph.

        It belongs to the kernel of the op that makes it: one that is made beforehand
        is gone after `keras.utils.set_random_seed`, which clears all kernels.
        """
        import tensorflow as tf

        text = require("tensorflow_text", "mt")
        # The kernels of one process share their resources by the names of nodes, those
        # of different graphs too: so the name must tell one model from another.
        name = f"sentencepiece_{hashlib.sha256(model).hexdigest()[:16]}"
        return text.SentencepieceTokenizer(model, out_type=tf.int32, name=name)

    def save(self, directory: str | os.PathLike):
        """Writes `sentencepiece.model` and `settings.json`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        write_file(directory / _MODEL_FILE, self.model)
        write_settings(directory, self.kind, {})

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "SentencePieceTokenizer":
        """Reads what `save` wrote."""
        directory = Path(directory)
        read_settings(directory, cls.kind, ())
        model = read_file(directory / _MODEL_FILE)
        try:
            return cls(model)
        except ValueError as error:
            raise ValueError(f"{directory / _MODEL_FILE}: {error}") from None

    def __reduce__(self):
        # Neither resources nor locks travel to another process.
        return type(self), (self.model,)


# --- The model. ---


def _processor(model: bytes):
    processor = require("sentencepiece", "mt").SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
        return processor
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"`model` must be a model of sentencepiece ({_reason(error)})."
        ) from None


def _description(model: bytes):
    """The message ModelProto of the model."""
    messages = require("sentencepiece.sentencepiece_model_pb2", "mt")
    errors = require("google.protobuf.message", "mt")
    try:
        return messages.ModelProto.FromString(model)
    except errors.DecodeError as error:
        raise ValueError(f"`model` is damaged ({error}).") from None


def _checked_type(description, processor) -> str:
    """ "bpe" or "unigram"; ValueError for models that this package cannot run."""
    ids = processor.bos_id(), processor.pad_id(), processor.eos_id(), processor.unk_id()
    if ids != (BOS_ID, PAD_ID, END_ID, UNK_ID):
        raise ValueError(
            "`model` must have the ids bos 0, pad 1, eos 2, unk 3 (train it with "
            f"--bos_id=0 --pad_id=1 --eos_id=2 --unk_id=3). Received: {ids}"
        )
    model_type = _MODEL_TYPES.get(description.trainer_spec.model_type)
    if model_type is None:
        raise ValueError("`model` must be of the type BPE or unigram.")
    # One blank before, none taken away, none behind.
    if processor.normalize(" a") != f"{_BLANK}{_BLANK}a":
        raise ValueError(
            "`model` must be trained with --add_dummy_prefix=true "
            "--remove_extra_whitespaces=false, and without "
            "--treat_whitespace_as_suffix or --escape_whitespaces=false."
        )
    return model_type


def _replaced(content: bytes) -> str:
    """The text, with U+FFFD for each byte that is part of no character."""
    parts = []
    while True:
        try:
            return "".join([*parts, content.decode()])
        except UnicodeDecodeError as error:
            parts.append(content[: error.start].decode())
            parts.append("\ufffd" * (error.end - error.start))
            content = content[error.end :]


# --- Training. ---


def _training_arguments(
    vocabulary_size, model_type, normalization, coverage, byte_fallback, num_threads
) -> dict:
    """Checked arguments, by sentencepiece's names."""
    check_positive_integer("vocabulary_size", vocabulary_size)
    check_choice("model_type", model_type, tuple(_MODEL_TYPES.values()))
    check_choice("normalization", normalization, NORMALIZATIONS)
    check_boolean("byte_fallback", byte_fallback)
    check_positive_integer("num_threads", num_threads)
    if not is_number(coverage) or not 0.98 <= coverage <= 1:
        raise ValueError(
            "`character_coverage` must be from 0.98 to 1. "
            f"Received: character_coverage={coverage!r}"
        )
    return {
        "vocab_size": vocabulary_size,
        "model_type": model_type,
        "normalization_rule_name": normalization,
        "character_coverage": float(coverage),
        "byte_fallback": byte_fallback,
        "num_threads": num_threads,
    }


class _Sentences:
    """An iterator that keeps what sentencepiece hides: its error, its being empty."""

    def __init__(self, texts: Iterator[str]):
        self._texts = texts
        self.error = None
        self.empty = True

    def __iter__(self):
        return self

    def __next__(self) -> str:
        try:
            text = next(self._texts)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise
        self.empty = self.empty and not text.strip("\0 ")
        return text


def _drawn(texts: Iterable[str], most: int, seed: int) -> Iterator[str]:
    """All texts, or `most` of them drawn evenly (algorithm R), in bounded memory."""
    texts = iter(texts)
    kept = list(itertools.islice(texts, most))
    generator = random.Random(seed)
    for number, text in enumerate(texts, most + 1):
        place = generator.randrange(number)
        if place < most:
            kept[place] = text
    # Gives each text away, as sentencepiece keeps a copy of its own.
    kept.reverse()
    while kept:
        yield kept.pop()


def _learned(sentences: _Sentences, arguments: dict) -> bytes:
    sentencepiece = require("sentencepiece", "mt")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences,
            model_writer=model,
            bos_id=BOS_ID,
            pad_id=PAD_ID,
            eos_id=END_ID,
            unk_id=UNK_ID,
            unk_surface=SPECIAL_SYMBOLS[UNK_ID],
            add_dummy_prefix=True,
            remove_extra_whitespaces=False,
            max_sentence_length=1 << 30,  # it would drop longer ones
            minloglevel=2,
            **arguments,
        )
    except (RuntimeError, ValueError) as error:
        if sentences.error is not None:
            raise sentences.error from None
        if sentences.empty:
            raise ValueError("`texts` must hold a text. Received: none") from None
        raise _training_error(error, arguments) from None
    return model.getvalue()


def _training_error(error: Exception, arguments: dict) -> ValueError:
    """The error of sentencepiece in the words of `train`."""
    size = arguments["vocab_size"]
    received = f"Received: vocabulary_size={size}"
    if most := re.search(r"too high.*<= (\d+)", str(error)):
        return ValueError(
            "`vocabulary_size` must be at most the number of pieces that the texts "
            f"have, {most[1]}. {received}"
        )
    if least := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
        return ValueError(
            "`vocabulary_size` must be at least what characters"
            f"{', bytes' if arguments['byte_fallback'] else ''} and special symbols "
            f"take, {least[1]}. {received}"
        )
    return ValueError(f"sentencepiece cannot learn from `texts`: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Its message without places in C++ files."""
    return re.sub(r"^\w+: (\S+\(\d+\) )?", "", str(error)).strip()
