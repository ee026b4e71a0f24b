"""Multi-head attention with incremental self- and cross-attention.

Letters: B batch, T target time (queries), S source time (keys and values), C channels,
H heads, D channels of a head, G beams of a sentence, n new positions of a step.
"""

import functools
import math
from typing import Unpack

import keras
from keras import ops

from keras_seqconv.layers.sequences import (
    LayerOptions,
    SequenceLayer,
    checked_mask,
    fold_beams,
    split_positions,
    unfold_beams,
    zero_masked,
)
from keras_seqconv.layers.short_conv import make_canon
from keras_seqconv.ops.fused import nan_in_keys, softmax, write_positions
from keras_seqconv.support.arguments import check_boolean, check_sequence, check_shape

# Finite, so that a row without any key gives finite (and then zeroed) probabilities;
# so large that every float32 logit vanishes beside it.
_MASKED_LOGIT = -1e30


@keras.saving.register_keras_serializable(package="keras_seqconv")
class MultiHeadAttention(SequenceLayer):
    """Scaled dot-product attention of several heads.

    With queries q = D^-1/2 (x Wq + bq), keys k = y' Wk + bk and values v = y Wv + bv,
    split into heads h:

        outputs[b, t] = bo + sum_h (sum_s p[b, h, t, s] v[b, s, h]) Wo[h]
        p[b, h, t] = softmax_s(q[b, t, h] . k[b, s, h])   over the s that are not masked

    (Vaswani et al. 2017, Attention Is All You Need, section 3.2; fairseq
    `MultiheadAttention`, which also scales after the projection.) The softmax runs in
    float32. The output of a query without any key is the output bias.

    Args:
        num_heads: number of heads H.
        head_dim: channels D of a head; C // H by default, if C is a multiple of H.
        output_dim: channels of the outputs; C by default.
        use_causal_mask: query t attends to the positions s <= t only.
        dropout: rate on the probabilities, `attention_dropout` of the papers.
        use_bias: whether the four projections have biases.
        seed: seed of the dropout.
        kernel_regularizer, kernel_constraint: for the four kernels.
        canon: padding, "causal" or "same", of a Canon layer on queries, keys and values
            before they meet (Canon-B, see `make_canon`); None for none. For
            self-attention only.

    Call arguments:
        inputs, mask, training: see `layers.sequences`; `inputs` are the queries, and
            `mask` hides keys in self-attention.
        value: tensor (B, S, channels) for cross-attention; `inputs` by default, which
            is self-attention.
        key: tensor (B, S, channels), as long as `value`; `value` by default.
        value_mask, key_mask: boolean (B, S), True for real tokens. All masks of keys
            are combined by "and".
        attention_mask: boolean (B, T, S) or (T, S), True where a query may see a key.
        use_causal_mask: as in the constructor, for this call.
        inputs_mask: mask of `inputs` that Keras passes if there is a `value`.

    Masks, those attached to `value` too, and steps with `use_causal_mask=True`:
    `layers.sequences`. Incremental cross-attention: `project_memory` once, then
    `attend`.

    Output shape: (B, T, output_dim).

    Weights: `query_kernel`, `key_kernel`, `value_kernel` (channels, H, D) with biases
    (H, D), `output_kernel` (H, D, output_dim) with bias (output_dim,). Glorot-uniform
    on the matrix (channels, H * D), query, key and value with gain 1/sqrt(2).

    Example:

    ```python
    layer = keras_seqconv.layers.MultiHeadAttention(num_heads=8, use_causal_mask=True)
    outputs = layer(keras.random.normal((2, 10, 512)))
    state = layer.get_initial_state(batch_size=2, max_length=50)
    output, state = layer.step(keras.random.normal((2, 1, 512)), state)
    ```
    """

    _partners = {"key": "value"}

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        output_dim: int | None = None,
        use_causal_mask: bool = False,
        dropout: float = 0.0,
        use_bias: bool = True,
        seed: int | None = None,
        kernel_regularizer=None,
        kernel_constraint=None,
        canon: str | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self._set_arguments(locals())
        self.canon_layer = canon and make_canon(canon, self.dtype_policy)
        self._seed_dropout(dropout)

    def build(self, inputs_shape, value_shape=None, key_shape=None):
        value_shape = value_shape or inputs_shape
        key_shape = key_shape or value_shape
        channels = self._accept(inputs_shape)
        check_sequence("value", value_shape)
        check_sequence("key", key_shape)
        if self.head_dim is None and channels % self.num_heads:
            raise ValueError(
                "The channels of `inputs` must be a multiple of `num_heads` when "
                f"`head_dim` is not given. Received: inputs.shape={inputs_shape}, "
                f"num_heads={self.num_heads}"
            )
        heads = (self.num_heads, self.head_dim or channels // self.num_heads)
        width, outputs = math.prod(heads), self.output_dim or channels
        self.further_widths = {"value": value_shape[-1], "key": key_shape[-1]}
        # All three start a factor 1/sqrt(2) smaller, as if they were one matrix
        # (C, 3 * H * D) split into parts.
        gain = math.sqrt(0.5)
        for name, fan_in in (
            ("query", channels),
            ("key", key_shape[-1]),
            ("value", value_shape[-1]),
        ):
            limit = gain * math.sqrt(6 / (fan_in + width))
            self._add_projection(name, (fan_in, *heads), heads, limit)
        limit = math.sqrt(6 / (width + outputs))
        self._add_projection("output", (*heads, outputs), (outputs,), limit)
        if self.canon_layer:
            self.canon_layer.build((*inputs_shape[:2], 3 * width))

    def _add_projection(self, name, kernel_shape, bias_shape, limit):
        """Make `<name>_kernel`, uniform in [-limit, limit], and `<name>_bias`."""
        initializer = keras.initializers.RandomUniform(-limit, limit)
        options = {"name": f"{name}_kernel", **self._kernel_options()}
        kernel = self.add_weight(kernel_shape, initializer, **options)
        setattr(self, f"{name}_kernel", kernel)
        bias = self._bias_weight(bias_shape, name=f"{name}_bias")
        setattr(self, f"{name}_bias", bias)

    def call(
        self,
        inputs,
        value=None,
        key=None,
        mask=None,
        value_mask=None,
        attention_mask=None,
        training=None,
        inputs_mask=None,
        use_causal_mask=False,
        key_mask=None,
    ):
        mask = inputs_mask if mask is None else mask
        masks = mask, value_mask, key_mask, attention_mask, use_causal_mask
        return self._attend(*self._prepared(inputs, value, key, *masks), training)

    def attention_weights(
        self,
        inputs,
        value=None,
        key=None,
        mask=None,
        value_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        key_mask=None,
    ):
        """Returns the attention probabilities of `call` without dropout.

        Arguments as in `call`, but masks attached to tensors are ignored.

        Returns:
            Tensor (B, H, T, S), float32. Rows of queries without any key are zero, all
            others sum to 1.
        """
        self._require_built()
        masks = mask, value_mask, key_mask, attention_mask, use_causal_mask
        query, memory, allowed = self._prepared(inputs, value, key, *masks)
        weights = self._probabilities(query, memory["keys"], allowed)
        if allowed is not None:
            weights = ops.where(ops.any(allowed, -1, keepdims=True), weights, 0.0)
        return ops.cast(weights, "float32")

    def memory_weights(self, inputs, memory: dict):
        """Returns the probabilities (B * G, H, n, S) of `attend`, in float32.

        Arguments as in `attend`, rows as in `attention_weights`.
        """
        weights, bias = self._memory_weights(inputs, memory), memory.get("bias")
        if bias is not None:
            is_real = bias > _MASKED_LOGIT
            weights = ops.where(ops.any(is_real, -1, keepdims=True), weights, 0.0)
        weights = ops.cast(weights, "float32")
        weights = ops.transpose(weights, (0, 2, 1, 3))  # (B, G * n, H, S)
        return ops.transpose(unfold_beams(weights, inputs), (0, 2, 1, 3))

    def get_initial_state(self, batch_size, max_length: int | None = None) -> dict:
        """Returns the state of causal self-attention; see `layers.sequences`.

        With `max_length` the state has a constant size, as XLA and JAX need it, and
        every step reads all positions: {"keys": (B, H, max_length, D), "values": alike,
        "position": () int32}. Without, for eager loops and for TensorFlow graphs of
        any batch size, the state grows with every step: {"keys":
        (B, H, 0, D), "values": the same}. With `canon` either has that of the Canon
        layer, too: {"inputs": (B, 3, 3 H D)}.
        """
        self._require_causal()
        heads, head_dim = self.key_kernel.shape[1:]
        grows = max_length is None
        if grows:
            # Of a size that is a tensor a loop must not take the 0 for a constant.
            max_length = 0 if isinstance(batch_size, int) else batch_size - batch_size
        shape = (batch_size, heads, max_length, head_dim)
        zeros = ops.zeros(shape, dtype=self.compute_dtype)
        memory = {"keys": zeros, "values": zeros}
        if self.canon_layer:
            memory |= self.canon_layer.get_initial_state(batch_size)
        return memory if grows else {**memory, "position": ops.zeros((), "int32")}

    def step(self, inputs, state: dict) -> tuple:
        """Computes n new positions (B, n, output_dim), and the next state.

        Positions beyond `max_length` make all outputs NaN, because a graph cannot
        raise an error. An n larger than `max_length` raises ValueError.
        """
        self._require_causal()
        heads, head_dim = self.key_kernel.shape[1:]
        shapes = dict.fromkeys(("keys", "values"), (None, heads, None, head_dim))
        shapes |= self.canon_layer._state_shapes() if self.canon_layer else {}
        grows = isinstance(state, dict) and "position" not in state
        self._check_step(inputs, state, shapes if grows else {**shapes, "position": ()})
        check_shape("state['values']", state["values"], state["keys"].shape)
        new, held = ops.shape(inputs)[1], ops.shape(state["keys"])[2]
        query, added, canon = self._projected(inputs, inputs, inputs, state=state)
        added = nan_in_keys(**added)
        if grows:
            memory = {n: ops.concatenate([state[n], added[n]], axis=2) for n in added}
            # One new position may attend to all there are.
            single = inputs.shape[1] == 1
            allowed = None if single else _causal_mask(new, held + new, held)
            return self._attend(query, memory, allowed), {**memory, **canon}
        if _known(new, held) and new > held:
            raise ValueError(
                f"`inputs` has more positions than the state holds. Received: "
                f"inputs.shape={tuple(inputs.shape)}, max_length={held}"
            )
        position = state["position"]
        start = ops.minimum(position, held - new)
        memory = {n: write_positions(state[n], added[n], start) for n in added}
        outputs = self._attend(query, memory, _causal_mask(new, held, position))
        outputs = ops.where(position + new <= held, outputs, float("nan"))
        return outputs, {**memory, **canon, "position": position + new}

    def project_memory(self, value, key=None, mask=None) -> dict:
        """Computes keys and values of a source, once for any number of `attend`.

        Args:
            value: tensor (B, S, channels).
            key: tensor (B, S, channels), `value` by default.
            mask: boolean (B, S), True for real tokens.

        Returns:
            {"keys": (B, H, S, D), "values": (B, H, S, D)}, and with a mask, which
            makes both zero, "bias" (B, 1, 1, S), to be added to the logits.
        """
        self._require_built()
        self._require_no_canon()
        memory = self._project_memory(value, value if key is None else key)
        if mask is None:
            return memory
        mask = checked_mask("mask", mask, value.shape[:2])
        real = ops.expand_dims(mask, (1, 3))
        memory = {name: ops.where(real, x, 0.0) for name, x in memory.items()}
        return {**memory, "bias": self.memory_bias(mask)}

    def memory_bias(self, mask):
        """The "bias" of a memory, from the mask."""
        bias = ops.where(ops.expand_dims(mask, (1, 2)), 0.0, _MASKED_LOGIT)
        return ops.cast(bias, self.wide_dtype)

    def _projected(self, inputs, value, key, value_mask=None, mask=None, state=None):
        """Queries (B, T, H, D), their memory, and the next state of the Canon layer."""
        query = self._project("query", inputs)
        if self.canon_layer is None:
            return query, self._project_memory(value, key), {}
        further = [self._project("key", key), self._project("value", value)]
        further = [zero_masked(x, value_mask) for x in further]
        joined = ops.concatenate([zero_masked(query, mask), *further], axis=2)
        heads = joined.shape[2:]
        joined = split_positions(joined, inputs, math.prod(heads))
        if state is None:
            joined = self.canon_layer(joined)
        else:
            joined, state = self.canon_layer.step(joined, {"inputs": state["inputs"]})
        joined = split_positions(joined, inputs, *heads)
        query, keys, values = ops.split(joined, 3, axis=2)
        return query, _memory(keys, values), state

    def _project_memory(self, value, key):
        return _memory(self._project("key", key), self._project("value", value))

    def attend(self, inputs, memory: dict, num_beams=None):
        """Attends to a projected memory, which all beams of a sentence share.

        Args:
            inputs: tensor (B * G, n, C); the G rows of one sentence are adjacent.
            memory: result of `project_memory` for the B sentences.
            num_beams: G; None derives it from the shapes, which takes operations.

        Returns:
            Tensor (B * G, n, output_dim), equal to `call` with the value and its mask
            repeated G times. ValueError is raised where the shapes do not allow for G.
        """
        if self.use_causal_mask:
            raise ValueError(
                "`attend` needs a layer without look-ahead mask. "
                "Received: use_causal_mask=True"
            )
        rows, sentences = inputs.shape[0], memory["keys"].shape[0]
        if _known(rows, sentences) and rows % max(sentences, 1):
            raise ValueError(
                "The rows of `inputs` must be a multiple of those of `memory`. "
                f"Received: inputs.shape={tuple(inputs.shape)}, {sentences} rows"
            )
        # The beams become further query positions, so nothing is repeated.
        weights = self._memory_weights(inputs, memory, num_beams)
        weights = ops.cast(weights, self.compute_dtype)
        # A query without any key attends to zeros.
        attended = ops.matmul(weights, memory["values"])
        attended = ops.transpose(attended, (0, 2, 1, 3))
        return self._project("output", unfold_beams(attended, inputs), inner=2)

    def _memory_weights(self, inputs, memory, num_beams=None):
        """inputs (B * G, n, C) -> (B, H, G * n, S), at least float32."""
        self._require_no_canon()
        keys, bias = memory["keys"], memory.get("bias")
        # G by the mask: it is that of all layers, and so is the operation.
        sentences = keys if bias is None else bias
        query = fold_beams(self._project("query", inputs), sentences, num_beams)
        logits = self._logits(query, keys)
        return softmax(logits if bias is None else logits + bias)

    def _project(self, name, inputs, inner=1):
        """inputs (B, T, ...) times a kernel of which the first `inner` axes are theirs.

        (B, T, C) and kernel (C, H, D) -> (B, T, H, D); with inner=2 (B, T, H, D) and
        kernel (H, D, channels) -> (B, T, channels).
        """
        kernel, bias = getattr(self, f"{name}_kernel"), getattr(self, f"{name}_bias")
        if inner == 1:
            argument = "inputs" if name == "query" else name
            check_sequence(argument, inputs.shape, kernel.shape[0])
        outer = kernel.shape[inner:]
        size = math.prod(kernel.shape[:inner])
        # Keys are scaled, not queries: the steps of a search find them in the memory.
        # Scaled weights give scaled keys, and are fewer than the keys of a sequence.
        scale = outer[-1] ** -0.5 if name == "key" else 1.0
        single = inputs.shape[1] == 1
        if scale != 1.0 and not single:
            kernel, bias = kernel * scale, None if bias is None else bias * scale
        kernel = ops.cast(kernel, self.compute_dtype)
        kernel = ops.reshape(kernel, (size, math.prod(outer)))
        inputs = ops.cast(inputs, self.compute_dtype)
        outputs = ops.matmul(ops.reshape(inputs, (-1, size)), kernel)
        if bias is not None:
            # TensorFlow fuses `ops.add` of a bias with the product, but not "+".
            bias = ops.reshape(ops.cast(bias, self.compute_dtype), (-1,))
            outputs = ops.add(outputs, bias)
        if scale != 1.0 and single:
            outputs *= scale
        return split_positions(outputs, inputs, *outer)

    def _probabilities(self, query, keys, allowed):
        """query (B, T, H, D), keys (B, H, S, D) -> (B, H, T, S), at least float32.

        Where `allowed` holds for no key the row is uniform and must not be used.
        """
        logits = self._logits(query, keys)
        if allowed is not None:
            logits = ops.where(allowed, logits, _MASKED_LOGIT)
        return softmax(logits)

    def _logits(self, query, keys):
        """query (B, T, H, D), keys (B, H, S, D) -> (B, H, T, S), at least float32."""
        query = ops.transpose(query, (0, 2, 1, 3))
        logits = ops.einsum("bhtd,bhsd->bhts", query, keys)
        return ops.cast(logits, self.wide_dtype)

    def _attend(self, query, memory, allowed, training=False):
        """query (B, T, H, D) and the memory -> outputs (B, T, output_dim)."""
        weights = self._probabilities(query, memory["keys"], allowed)
        weights = self._dropped(weights, self.dropout, training)
        weights = ops.cast(weights, self.compute_dtype)
        heads = ops.matmul(weights, memory["values"])
        if allowed is not None:
            # Zeroing here and not in `weights` is a factor S / D cheaper.
            heads = ops.where(ops.any(allowed, -1, keepdims=True), heads, 0.0)
        return self._project("output", ops.transpose(heads, (0, 2, 1, 3)), inner=2)

    def _prepared(self, inputs, value, key, mask, *further):
        """Queries, their memory, and all masks as one, see `_allowed`."""
        value_mask, key_mask, attention_mask, causal = further
        sources = self._zeroed(inputs, value, key, mask, value_mask, key_mask)
        causal = check_boolean("use_causal_mask", causal) or self.use_causal_mask
        query, memory, _ = self._projected(*sources, mask)
        # What `value_mask` hides is zero by now; other masks hide from some queries.
        if causal or attention_mask is not None:
            memory = nan_in_keys(**memory)
        return query, memory, self._allowed(*sources, attention_mask, causal)

    def _allowed(self, inputs, value, key, value_mask, attention_mask, causal):
        """All masks as one, broadcastable to (B, H, T, S), or None."""
        masks = []
        if value_mask is not None:
            masks.append(ops.expand_dims(ops.cast(value_mask, "bool"), (1, 2)))
        if attention_mask is not None:
            attention_mask = ops.cast(attention_mask, "bool")
            sizes, name = (*inputs.shape[:2], value.shape[1]), "attention_mask"
            if len(attention_mask.shape) == 2:  # one for all sentences
                check_shape(name, attention_mask, sizes[1:], (1, None))
                attention_mask = attention_mask[None]
            check_shape(name, attention_mask, sizes, (1, None))
            masks.append(attention_mask[:, None])
        if causal:
            masks.append(_causal_mask(ops.shape(inputs)[1], ops.shape(value)[1]))
        return functools.reduce(ops.logical_and, masks) if masks else None

    def _require_causal(self):
        if not self.use_causal_mask:
            raise ValueError(
                "Steps need attention to the past only. Received: use_causal_mask=False"
            )
        self._require_built()

    def _require_no_canon(self):
        if self.canon_layer is not None:
            raise ValueError(
                "Attention with `canon` takes no `value`, `key` or memory: its Canon "
                "layer runs over queries, keys and values of the same positions. "
                f"Received: canon={self.canon!r}"
            )

    def _zeroed(self, inputs, value, key, mask, value_mask, key_mask):
        """Queries, values and keys, zero where masked, and the mask of keys."""
        if value is not None or key is not None:
            self._require_no_canon()
        inputs = zero_masked(inputs, mask)
        masks = {"value_mask": value_mask, "key_mask": key_mask}
        if value is None:
            value, masks["mask"] = inputs, mask
        if key is not None:
            check_shape("key", key, (*value.shape[:2], None))
        masks = [
            checked_mask(name, of_keys, value.shape[:2])
            for name, of_keys in masks.items()
            if of_keys is not None
        ]
        real = functools.reduce(ops.logical_and, masks) if masks else None
        key = None if key is None else zero_masked(key, real)
        if value is not inputs or len(masks) > 1 or mask is None:
            value = zero_masked(value, real)
        return inputs, value, value if key is None else key, real

    def compute_output_shape(self, inputs_shape, value_shape=None, key_shape=None):
        return (*inputs_shape[:-1], self.output_dim or inputs_shape[-1])


def _memory(keys, values):
    """Keys and values (B, S, H, D) as a memory, (B, H, S, D)."""
    memory = {"keys": keys, "values": values}
    return {name: ops.transpose(x, (0, 2, 1, 3)) for name, x in memory.items()}


def _known(*sizes):
    """Whether these sizes are numbers already when the graph is made."""
    return all(isinstance(size, int) for size in sizes)


def _causal_mask(queries, keys, offset=0):
    """(1, 1, queries, keys); query t is at position t + offset."""
    last = ops.arange(queries, dtype="int32") + offset
    return (ops.arange(keys, dtype="int32") <= last[:, None])[None, None]
