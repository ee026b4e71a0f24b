"""Products for single positions, as steps of a search need them, and masked positions.

Letters: B batch, T time, C channels.
"""

from keras import ops

from keras_seqconv.support.arguments import check_dense, check_mask


def apply_dense(dense, inputs):
    """`dense(inputs)` for inputs (B, T, C), cheaper where T is known to be 1.

    With an unknown B, Keras multiplies tensors of rank 3 by a dozen operations that
    find out shapes, which for the few rows of a step cost more than the product.
    """
    check_dense("inputs", inputs)
    if len(inputs.shape) != 3 or inputs.shape[1] != 1:
        return dense(inputs)
    return ops.expand_dims(dense(ops.squeeze(inputs, axis=1)), axis=1)


def split_positions(rows, inputs, *shape):
    """Rows (B * T, ...) of the positions of inputs (B, T, C) -> (B, T, *shape)."""
    batch, length = ops.shape(inputs)[:2]
    if isinstance(length, int) and length > 0:
        batch = -1  # so that no operation has to find it out
    return ops.reshape(rows, (batch, length, *shape))


def zero_masked(inputs, mask, name="mask"):
    """inputs (B, T, C) with zeros where mask (B, T), if there is one, is False.

    A selection, not a product, which would leave NaN.
    """
    check_dense("inputs", inputs)
    if mask is None:
        return inputs
    check_mask(name, mask, inputs.shape[:2])
    mask = ops.expand_dims(ops.cast(mask, "bool"), axis=-1)
    return ops.where(mask, inputs, ops.zeros_like(inputs))
