"""A model in ONNX Runtime: the loop around the step of the search.

| file of the folder | inputs -> outputs                                              |
|--------------------|----------------------------------------------------------------|
| `start.onnx`       | source_ids (B, S), or rows (B, 0) -> the state                 |
| `step.onnx`        | ids (R, 1), the state -> logits (R, V), the next state         |
| `weights.bin`      | the weights of both                                            |
| `graphs.json`      | special ids, limits, names and shapes of the state             |

`decoding.step.advance`, traced around `step.onnx`, is the graph of a whole step: model,
rules, choice of beams, next state. It is made in milliseconds for the options of a call
and kept. The loop feeds its outputs back.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from keras_seqconv.decoding.ensemble import Ensemble
from keras_seqconv.decoding.hypotheses import (
    NOTHING,
    Hypotheses,
    Records,
    follow,
    hypotheses,
)
from keras_seqconv.decoding.next_tokens import NEVER
from keras_seqconv.decoding.options import BeamOptions, SampleOptions
from keras_seqconv.decoding.step import (
    Rows,
    Sentences,
    advance,
    begin,
    best_ended,
    map_leaves,
)
from keras_seqconv.decoding.tasks import limits_of, task_of, with_rules
from keras_seqconv.runtime.graph import Graph
from keras_seqconv.support.files import read_json

# The batch is gathered anew when at most this part of its sentences is unfinished.
_SHRINK_AT = 0.75


class StepGraph:
    """`step.onnx` as the model of a search that is being traced."""

    def __init__(self, folder: Path, prefix: str):
        import onnx

        self.folder, self.prefix = folder, prefix
        for name, value in read_json(folder / "graphs.json").items():
            setattr(self, name, value)
        self.model = onnx.load(folder / "step.onnx", load_external_data=False)

    def step(self, ids, state) -> tuple:
        feeds = {"ids": ids, **state["shared"], **state["beams"]}
        graph = ids.graph
        outputs = graph.inline(self.model, self.prefix, feeds)
        beams = {name: outputs[f"next_{name}"] for name in self.beams}
        if "attention" in outputs:
            beams["attention"] = outputs["attention"]
        return outputs["logits"], {**state, "beams": beams}
