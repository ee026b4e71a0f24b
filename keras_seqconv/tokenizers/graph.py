"""What the tokenizers that run inside a graph share: core TensorFlow ops only.

Letters: N texts, L ids of a padded row.
"""

from keras_seqconv.tokenizers.special_symbols import BOS_ID, END_ID, PAD_ID, UNK_ID


def valid_utf8(texts):
    """`texts` (N,) strings, with U+FFFD for what is not UTF-8; see `texts`."""
    import tensorflow as tf

    texts = tf.convert_to_tensor(texts, tf.string)
    return tf.strings.unicode_transcode(
        texts, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD
    )


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
