"""SentencePiece models: BPE and unigram language model, with and without a graph.

The file is sentencepiece's own, with the ids of this package. Python runs it with the
package sentencepiece, graphs with the ops of tensorflow-text.
"""

import codecs
import hashlib
import io
import itertools
import random
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_seqconv.support import require, tf
from keras_seqconv.support.arguments import (
    check_boolean,
    check_choice,
    check_integer,
    check_number,
)
from keras_seqconv.support.files import read_bytes
from keras_seqconv.tokenizers.common import (
    BOS_ID,
    END_ID,
    PAD_ID,
    SPECIAL_SYMBOLS,
    UNK_ID,
    Tokenizer,
    valid_texts,
)

# Largest number of texts that a model is learned from, and threads that learn it: sums
# of rounded numbers, and so a unigram model, depend on the threads.
_MOST_TEXTS, _THREADS = 2_000_000, 4
_MODEL_FILE = "sentencepiece.model"
_BLANK = "\u2581"
# Rules of sentencepiece that make a blank of white space and of the sign for it.
_FOLDED = "".join(
    f"{code:x}\t20\n"
    for code in range(0x3001)
    if chr(code).isspace() and chr(code) != " " or chr(code) == _BLANK
)
# Merged into the normalizer_spec of the model to decode in a graph: add_dummy_prefix
# and remove_extra_whitespaces: false, as they would take every blank from the start of
# a text, and not only the one that the model puts there.
_AS_SPELLED = b"\x1a\x04\x18\x00\x20\x00"

# As sentencepiece decodes: U+FFFD for each byte that is part of no character.
codecs.register_error(
    "keras_seqconv.each_byte",
    lambda error: ("\ufffd" * (error.end - error.start), error.end),
)


class SentencePieceTokenizer(Tokenizer):
    """SentencePiece: pieces of words, learned from text without language rules.

    A model of `train` returns a text with folded white space: each run of it is one
    blank, and none remains at the ends. With `remove_extra_whitespaces=False` it
    returns every text to the byte, with all blanks, entities such as `&apos;` and
    control characters, except for U+2581, the model's sign for a blank, which becomes a
    blank. Without `byte_fallback`, runs of unknown characters become `<unk>`. A model
    of another program that normalizes texts returns the normalized text. Bytes that are
    not UTF-8 first become U+FFFD, as does each byte of an incomplete character in ids.

    Args:
        model: content of a model file of sentencepiece with the ids 0 to 3 for bos,
            pad, eos and unk, and `add_dummy_prefix`.

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
    assert tokenizer.detokenize(ids) == ["the Häuser"]
    ```
    """

    kind = "sentencepiece"
    trackables = []  # the graph makes its resources

    def __init__(self, model: bytes):
        processor = require("sentencepiece", "mt").SentencePieceProcessor()
        if not isinstance(model, bytes):
            raise ValueError(
                "`model` must be the content of a model file, bytes. "
                f"Received: {type(model).__name__}"
            )
        try:
            processor.LoadFromSerializedProto(model)
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"`model` must be a model of sentencepiece ({_reason(error)})."
            ) from None
        names = ("bos_id", "pad_id", "eos_id", "unk_id")
        ids = tuple(getattr(processor, name)() for name in names)
        if ids != (BOS_ID, PAD_ID, END_ID, UNK_ID):
            raise ValueError(
                "`model` must have the ids bos 0, pad 1, eos 2, unk 3 (train it with "
                f"--bos_id=0 --pad_id=1 --eos_id=2 --unk_id=3). Received: {ids}"
            )
        if processor.normalize("a") != f"{_BLANK}a":
            raise ValueError(
                "`model` must be trained with --add_dummy_prefix=true, and without "
                "--treat_whitespace_as_suffix or --escape_whitespaces=false."
            )
        self.model, self._processor = model, processor
        indices = range(processor.vocab_size())
        super().__init__(map(processor.id_to_piece, indices), {})
        # What is not spelled as it is written: <unk>, and bytes such as <0x20>.
        self._spellings = {
            piece: bytes.fromhex(piece[3:5])
            for i, piece in enumerate(self._symbols)
            if processor.is_byte(i)
        }
        unknown = processor.decode([UNK_ID])
        self._spellings[self._symbols[UNK_ID]] = unknown.encode()
        # Special ids, but for the end, and unused ones.
        self.unspellable_ids = [
            i
            for i in indices
            if i == UNK_ID
            or (processor.is_control(i) or processor.is_unused(i))
            and i != END_ID
        ]

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocabulary_size: int,
        model_type: str = "bpe",
        *,
        remove_extra_whitespaces: bool = True,
        character_coverage: float = 0.9995,
        byte_fallback: bool = True,
        at_most: bool = False,
    ) -> "SentencePieceTokenizer":
        """Learns a vocabulary. Equal arguments give equal models, to the byte.

        Args:
            texts: iterable, read once, which may exceed the memory: a model is learned
                from all texts, or from two million of them, drawn evenly.
            vocabulary_size: number of ids, including the four special ones and the 256
                bytes.
            model_type: "bpe" or "unigram".
            remove_extra_whitespaces: whether to fold white space of all kinds. False if
                white space is content, as in the text of a language model.
            character_coverage: share of the characters of `texts` with their own id,
                0.98 to 1; the rarest become bytes.
            byte_fallback: whether to spell unknown characters in bytes, for 256 ids.
                Otherwise they are lost, so use a `character_coverage` of 1.
            at_most: whether to take fewer than `vocabulary_size` if the texts have no
                more.

        Raises:
            ValueError: an argument breaks its rule, `texts` hold no text, or
                `vocabulary_size` does not fit the characters or the texts.
        """
        check_number("character_coverage", character_coverage, ge=0.98, le=1)
        check_integer("vocabulary_size", vocabulary_size, 1)
        check_choice("model_type", model_type, ("bpe", "unigram"))
        check_boolean("remove_extra_whitespaces", remove_extra_whitespaces)
        check_boolean("byte_fallback", byte_fallback)
        check_boolean("at_most", at_most)
        texts, model, rules = _drawn(valid_texts(texts), _MOST_TEXTS), io.BytesIO(), {}
        if not any(text.replace("\0", "").strip() for text in texts):
            raise ValueError("`texts` must hold a text. Received: none")
        # Gives each text away, as sentencepiece keeps a copy of its own.
        texts.append(None)
        texts.reverse()
        try:
            with tempfile.TemporaryDirectory() as folder:
                if remove_extra_whitespaces:
                    rules = {"normalization_rule_tsv": f"{folder}/rules.tsv"}
                    Path(folder, "rules.tsv").write_text(_FOLDED)
                require("sentencepiece", "mt").SentencePieceTrainer.train(
                    sentence_iterator=iter(texts.pop, None),
                    model_writer=model,
                    vocab_size=vocabulary_size,
                    hard_vocab_limit=not at_most,
                    model_type=model_type,
                    normalization_rule_name="identity",
                    remove_extra_whitespaces=remove_extra_whitespaces,
                    character_coverage=float(character_coverage),
                    byte_fallback=byte_fallback,
                    num_threads=_THREADS,
                    bos_id=BOS_ID,
                    pad_id=PAD_ID,
                    eos_id=END_ID,
                    unk_id=UNK_ID,
                    unk_surface=SPECIAL_SYMBOLS[UNK_ID],
                    add_dummy_prefix=True,
                    max_sentence_length=1 << 30,  # it would drop longer ones
                    minloglevel=2,
                    **rules,
                )
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                "sentencepiece cannot learn `vocabulary_size` pieces from `texts`: "
                f"{_reason(error)} Received: vocabulary_size={vocabulary_size}"
            ) from None
        # Without the name of the file of rules, which differs from call to call.
        from sentencepiece.sentencepiece_model_pb2 import ModelProto

        content = ModelProto.FromString(model.getvalue())
        content.normalizer_spec.ClearField("normalization_rule_tsv")
        return cls(content.SerializeToString(deterministic=True))

    def tokenize(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """Ids of each text, with the end id; by several threads."""
        texts = list(valid_texts(texts))
        # Threads take longer to start than to split one text.
        encode = self._processor.encode
        rows = encode(texts) if len(texts) > 1 else map(encode, texts)
        return [[*row, END_ID] for row in rows]

    def _split(self, text: str) -> list[str]:
        return self._processor.encode(text, out_type=str)

    def join(self, tokens: Iterable[str]) -> str:
        """Returns the text of pieces, also of pieces outside the vocabulary."""
        content = b"".join(self._each_spelling(tokens))
        return content.decode(errors="keras_seqconv.each_byte")

    def text_in_pieces(self, ids: Iterable[int]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("keras_seqconv.each_byte")
        for content in self._each_spelling(self._each_token(ids)):
            yield decoder.decode(content)
        yield decoder.decode(b"", final=True)

    def _each_spelling(self, tokens: Iterable[str]) -> Iterator[bytes]:
        for number, token in enumerate(tokens):
            content = self._spellings.get(token) or token.replace(_BLANK, " ").encode()
            # Without the blank that the model puts before every text.
            yield content[1:] if number == 0 and token.startswith(_BLANK) else content

    def _ids_tensor(self, texts):
        return self._op(self.model).tokenize(texts)

    def _texts_tensor(self, rows):
        texts = self._op(self.model + _AS_SPELLED).detokenize(rows)
        blank = tf.constant([piece.startswith(_BLANK) for piece in self._symbols])
        first = rows[:, :1].to_tensor(UNK_ID, shape=(None, 1))[:, 0]
        cut = tf.strings.regex_replace(texts, "^ ", "", replace_global=False)
        return tf.where(tf.gather(blank, first), cut, texts)

    def _op(self, model: bytes):
        """tensorflow-text's tokenizer, made anew in each graph.

        It belongs to the kernel of the op that makes it: one that is made beforehand
        is gone after `keras.utils.set_random_seed`, which clears all kernels.
        """
        text = require("tensorflow_text", "mt")
        # The kernels of one process share their resources by the names of nodes, those
        # of different graphs too: so the name must tell one model from another.
        name = f"sentencepiece_{hashlib.sha256(model).hexdigest()[:16]}"
        return text.SentencepieceTokenizer(model, out_type=tf.int32, name=name)

    def _files(self) -> dict[str, bytes]:
        return {_MODEL_FILE: self.model}

    @staticmethod
    def _read(directory: Path, settings: dict) -> dict:
        return {"model": read_bytes(directory / _MODEL_FILE)}

    def __reduce__(self):
        return type(self), (self.model,)


def _drawn(texts: Iterable[str], limit: int) -> list[str]:
    """All texts, or `limit` of them drawn evenly (algorithm R), always the same."""
    texts = iter(texts)
    kept = list(itertools.islice(texts, limit))
    generator = random.Random(0)
    for number, text in enumerate(texts, limit + 1):
        index = generator.randrange(number)
        if index < limit:
            kept[index] = text
    return kept


def _reason(error: Exception) -> str:
    """Its message without places and conditions in C++ files."""
    return re.sub(r"^\w+: (\S+\(\d+\) )?(\[.*?\] (?=\S))?", "", str(error)).strip()
