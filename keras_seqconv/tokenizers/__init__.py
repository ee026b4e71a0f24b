"""Text to ids and back.

What all kinds of tokenizers share:

- `tokenize(texts)` -> one list of ids per text, with `end_id` at its end;
  `detokenize(ids)` -> texts; both take and return lists, as sentences differ in length;
- `to_tokens(ids)`, `split(text)` and `join(tokens)`: the way in between;
- `vocabulary_size`, `pad_id`, `start_id`, `end_id`, `unk_id`; `unspellable_ids`: those
  that a search should never choose, as no text comes of them;
- `tokenize_tensor` and `detokenize_tensor` give the very ids and texts of `tokenize`
  and `detokenize` inside a TensorFlow graph, and so inside an export (those of the
  dictionary know no Moses), and `trackables` are the resources that an exported module
  must hold as an attribute; `in_graph`: whether they prepare data, too;
- `save(directory)` and a class method `load(directory)`; `settings.json` there holds
  `kind`, by which `load_tokenizer` finds the class.

| kind          | class                  | in a graph | any text comes back            |
|---------------|------------------------|------------|--------------------------------|
| sentencepiece | SentencePieceTokenizer | yes        | yes, but for U+2581            |
| words         | WordTokenizer          | yes        | known words with single blanks |
| characters    | CharacterTokenizer     | yes        | if its characters are known    |
| dictionary    | DictionaryTokenizer    | but Moses  | nearly (blanks change)         |

Ids are fairseq's: <s> 0, <pad> 1, </s> 2, <unk> 3; sentences start and end with </s>.
Ids outside the vocabulary count as unknown; an unknown token is spelled `<unk>`. Text
that looks like a special symbol never becomes one. Bytes that are not UTF-8 become
U+FFFD.
"""

from keras_seqconv.tokenizers.common import (
    BOS_ID,
    END_ID,
    PAD_ID,
    SPECIAL_SYMBOLS,
    UNK_ID,
    Tokenizer,
)
from keras_seqconv.tokenizers.dictionary import (
    Dictionary,
    read_alignment_dictionary,
    replace_unknowns,
)
from keras_seqconv.tokenizers.kinds import KINDS, load_tokenizer, train_tokenizers
from keras_seqconv.tokenizers.moses_bpe import DictionaryTokenizer
from keras_seqconv.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_seqconv.tokenizers.words import CharacterTokenizer, WordTokenizer

__all__ = [
    "BOS_ID",
    "END_ID",
    "KINDS",
    "PAD_ID",
    "SPECIAL_SYMBOLS",
    "UNK_ID",
    "CharacterTokenizer",
    "Dictionary",
    "DictionaryTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordTokenizer",
    "load_tokenizer",
    "read_alignment_dictionary",
    "replace_unknowns",
    "train_tokenizers",
]
