"""What the tokenizers that run inside a graph share: core TensorFlow ops only.

Letters: N texts, L ids of a padded row.
"""

import functools
import sys
from collections.abc import Mapping

from keras_seqconv.tokenizers.special_symbols import BOS_ID, END_ID, PAD_ID, UNK_ID

# What `str.isspace` is true of, as a class of RE2.
WHITE_SPACE = (
    r"[\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}"
    r"\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
)


def valid_utf8(texts):
    """`texts` (N,) strings, with U+FFFD for what is not UTF-8; see `texts`."""
    import tensorflow as tf

    texts = tf.convert_to_tensor(texts, tf.string)
    return tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD
    )


def lower(texts):
    """`str.lower` of `texts` (N,), valid UTF-8."""
    import tensorflow as tf

    # ICU's follows the server's locale, and knows fewer letters. So Python's letters
    # come first; it is left with the capital sigma, which depends on its neighbours.
    texts = tf.strings.regex_replace(texts, "İ", "İ".lower())
    upper, lower = tf.unstack(tf.constant(_lower_codes()), axis=1)
    codes = tf.strings.unicode_decode(texts, "UTF-8")
    places = tf.searchsorted(upper, codes.values)
    places = tf.minimum(places, tf.size(upper) - 1)
    lowered = tf.where(
        tf.gather(upper, places) == codes.values, tf.gather(lower, places), codes.values
    )
    texts = tf.strings.unicode_encode(codes.with_values(lowered), "UTF-8")
    # The op believes that a text ends at NUL.
    parts = tf.strings.split(texts, "\0")
    lowered = tf.strings.lower(parts.values, encoding="utf-8") + "\0"
    texts = tf.strings.reduce_join(parts.with_values(lowered), axis=-1)
    lengths = tf.strings.length(texts) - 1
    return tf.strings.substr(texts, tf.zeros_like(lengths), lengths)


@functools.cache
def _lower_codes() -> list[tuple[int, int]]:
    """Code points and those that they have in lower case, where both are one."""
    letters = [chr(code) for code in range(sys.maxunicode + 1) if chr(code) not in "Σİ"]
    return [(ord(one), ord(one.lower())) for one in letters if one != one.lower()]


def table(entries: Mapping, default: int):
    """A lookup table of texts or integers to int64, outside of any graph."""
    import tensorflow as tf

    keys, values = list(entries), list(entries.values())
    with tf.init_scope():
        key_dtype = tf.int64 if keys and isinstance(keys[0], int) else tf.string
        entries = tf.lookup.KeyValueTensorInitializer(
            tf.constant(keys, key_dtype), tf.constant(values, tf.int64)
        )
        return tf.lookup.StaticHashTable(entries, default)


def append_end(rows):
    """Ragged ids (N, None) with the end id after each row, int32."""
    import tensorflow as tf

    end = tf.fill([rows.nrows(), 1], END_ID)
    return tf.concat([tf.cast(rows, tf.int32), end], axis=1)


def until_end(ids, vocabulary_size: int):
    """Ragged ids (N, None) of `ids` (N, L): what `texts.until_end` keeps.

    Ids outside the vocabulary become the unknown one.
    """
    import tensorflow as tf

    ids = ids.to_tensor(PAD_ID) if isinstance(ids, tf.RaggedTensor) else ids
    ids = tf.convert_to_tensor(ids)
    before = tf.cumsum(tf.cast(ids == END_ID, tf.int32), axis=1) == 0
    kept = tf.ragged.boolean_mask(ids, before & (ids != BOS_ID) & (ids != PAD_ID))
    return kept.with_values(known_ids(kept.values, vocabulary_size))


def known_ids(ids, vocabulary_size: int):
    """`ids` as int32, the unknown one for those outside the vocabulary."""
    import tensorflow as tf

    inside = (ids >= 0) & (ids < vocabulary_size)
    return tf.cast(tf.where(inside, ids, tf.cast(UNK_ID, ids.dtype)), tf.int32)
