"""Stand-ins for models whose logits depend on the source and on the whole prefix."""

import keras
import numpy as np
from keras import ops

from tests.convert.reference import log_softmax

PAD, END, UNK = 1, 2, 3


class Recurrent:
    """h' = tanh(h W + E[id]), logits = scale * h' O; h starts from the source's ids.

    `logits(source, prefix)` says the same in NumPy. Follows the protocol of a model,
    for encoder-decoder models and language models. `traces` counts calls of `step`.
    """

    pad_id, start_id, end_id, unk_id = PAD, END, END, UNK

    def __init__(self, size, seed=0, scale=3.0, max_target_length=None, width=6):
        self.target_vocabulary_size = size
        self.max_target_length = max_target_length
        random = np.random.default_rng(seed)
        self.recurrent = random.normal(size=(width, width)).astype("float32")
        self.embedding = random.normal(size=(max(50, size), width)).astype("float32")
        self.output = scale * random.normal(size=(width, size)).astype("float32")
        self.traces = 0

    def hidden(self, source, prefix) -> np.ndarray:
        h = np.zeros(len(self.recurrent))
        for token in source:
            if token != PAD:
                h = h + self.embedding[token].astype("float64")
        for token in [END, *prefix]:
            h = np.tanh(h @ self.recurrent + self.embedding[token])
        return h

    def logits(self, source, prefix) -> np.ndarray:
        return self.hidden(source, prefix) @ self.output

    def log_probs(self, source, prefix) -> np.ndarray:
        return log_softmax(self.logits(source, prefix))

    def attention(self, source, prefix) -> np.ndarray:
        """The attention of the step whose input is the last token of the prefix."""
        return self.hidden(source, prefix)[0] * (np.arange(len(source)) + 1)

    def get_initial_state(
        self, source, num_beams=1, max_length=None, return_attention=False
    ):
        if not isinstance(source, int) and len(source.shape):
            source = ops.cast(source, "int32")
            embedded = ops.take(ops.convert_to_tensor(self.embedding), source, axis=0)
            real = ops.cast(source != PAD, "float32")
            h = ops.sum(embedded * real[..., None], axis=1)
        else:
            h = ops.zeros((source, len(self.recurrent)))
        beams = {"h": ops.repeat(h, num_beams, axis=0), "step": ops.zeros((), "int32")}
        common = {}
        if return_attention:
            common["place"] = ops.arange(ops.shape(source)[1]) + 1
            width = ops.shape(source)[1]
            beams["attention"] = ops.zeros((ops.shape(beams["h"])[0], width))
        return {"common": common, "shared": {}, "beams": beams}

    def step(self, ids, state):
        self.traces += 1
        beams = state["beams"]
        embedded = ops.take(ops.convert_to_tensor(self.embedding), ids[:, -1], axis=0)
        h = ops.tanh(ops.matmul(beams["h"], self.recurrent) + embedded)
        after = {"h": h, "step": beams["step"] + 1}
        if "attention" in beams:  # something that tells beams, steps and places apart
            place = ops.cast(state["common"]["place"], "float32")
            after["attention"] = h[:, :1] * place
        return ops.matmul(h, self.output), {**state, "beams": after}


class Table:
    """Fixed next-token probabilities by prefix; anything goes on after other prefixes.

    probabilities: for each sentence a dict of prefix (tuple) to {token: probability}.
    The prefixes are states of an automaton, so nothing is computed from ids.
    """

    pad_id, start_id, end_id, unk_id = PAD, END, END, UNK
    max_target_length = None

    def __init__(self, size, probabilities):
        self.target_vocabulary_size = size
        places = {}
        for sentence, table in enumerate(probabilities):
            for prefix in table:
                places[sentence, prefix] = len(places)
        other = len(places)
        self.following = np.full((other + 1, size), other, "int32")
        self.table = np.full((other + 1, size), -np.inf, "float32")
        self.table[other, END] = 0
        for (sentence, prefix), place in places.items():
            for token, probability in probabilities[sentence][prefix].items():
                with np.errstate(divide="ignore"):
                    self.table[place, token] = np.log(np.float32(probability))
                after = places.get((sentence, (*prefix, token)), other)
                self.following[place, token] = after
        self.first = np.array(
            [places[sentence, ()] for sentence in range(len(probabilities))], "int32"
        )

    def get_initial_state(self, source_ids, num_beams=1, max_length=None):
        first = ops.take(ops.convert_to_tensor(self.first), source_ids[:, 0])
        place = ops.repeat(first, num_beams, axis=0)
        return {"shared": {}, "beams": {"place": place, "step": ops.zeros((), "int32")}}

    def step(self, ids, state):
        place, step = state["beams"]["place"], state["beams"]["step"]
        following = ops.take(ops.convert_to_tensor(self.following), place, axis=0)
        following = ops.take_along_axis(following, ids, axis=1)[:, 0]
        place = ops.where(step == 0, place, following)
        logits = ops.take(ops.convert_to_tensor(self.table), place, axis=0)
        return logits, {"shared": {}, "beams": {"place": place, "step": step + 1}}


class Trained(keras.Model):
    """A Keras model with weights that follows the protocol: a bigram model."""

    pad_id, start_id, end_id, unk_id = PAD, END, END, UNK
    max_target_length = None

    def __init__(self, size):
        super().__init__()
        self.target_vocabulary_size = size
        self.table = keras.layers.Embedding(size, size)
        self.table.build()
        self.traces = 0

    def call(self, inputs):
        return self.table(inputs["target_ids"])

    def log_prob(self, outputs, ids):
        chosen = ops.take_along_axis(outputs, ids[..., None], axis=-1)[..., 0]
        return chosen - ops.logsumexp(outputs, axis=-1)

    def get_initial_state(self, source_ids, num_beams=1, max_length=None):
        return {"shared": {}, "beams": {}}

    def step(self, ids, state):
        self.traces += 1
        return self.table(ids)[:, -1], state
