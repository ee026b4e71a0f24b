"""A model in ONNX Runtime, and the loop around the step of its search.

The graph of a whole step is `decoding.step.advance`, traced around the graph of the
model's step (`graph_files.py`): model, rules, choice of beams, next state. It is made
in milliseconds for the options of a call and kept. The loop feeds its outputs back.
"""

import dataclasses
import functools
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from keras_seqconv.decoding import array_ops as ops
from keras_seqconv.decoding import onnx_ops
from keras_seqconv.decoding.draws import uniforms
from keras_seqconv.decoding.ensemble import Ensemble
from keras_seqconv.decoding.hypotheses import Hypotheses, Records, follow, hypotheses
from keras_seqconv.decoding.next_tokens import NEVER
from keras_seqconv.decoding.onnx_graph import Graph, Value
from keras_seqconv.decoding.options import OF_SCORES, BeamOptions, SampleOptions
from keras_seqconv.decoding.step import (
    SHRINK_AT,
    Rows,
    SearchTask,
    Sentences,
    advance,
    begin,
    best_ended,
    map_leaves,
    rows_of,
)
from keras_seqconv.decoding.tasks import (
    check_source,
    check_tensors,
    limits_of,
    of_sentences,
    rules_of,
    task_of,
)
from keras_seqconv.runtime.graph_files import (
    ATTRIBUTES,
    quantize_graphs,
    read_graph_files,
)
from keras_seqconv.support import onnx, onnxruntime, require
from keras_seqconv.support.arguments import check_choice
from keras_seqconv.support.files import naming_file

_KEPT = 8  # graphs of steps, those made last


class OnnxModel:
    """A model in ONNX Runtime, or an ensemble of several, each call in one thread.

    It replaces a model of Keras in a `Translator` or `LanguageGenerator`, and imports
    neither Keras nor TensorFlow. Several threads may search at the same time.

    Args:
        folders: with the graphs of a model each (`runtime/graph_files.py`).
        quantize: "int8" for products in 8 bits, or None.

    Raises:
        ValueError: the models have different vocabularies or special tokens, a file is
            damaged or of another format, or `quantize` is another.
        ImportError: onnx or onnxruntime is not installed.
    """

    def __init__(self, *folders: str | os.PathLike, quantize: str | None = None):
        for package in ("onnx", "onnxruntime"):
            require(package, "onnx")
        self._quantized: list = []
        check_choice("quantize", quantize, (None, "int8"))
        self._folders, self._quantize = [*map(os.path.abspath, folders)], quantize
        members = []
        for number, folder in enumerate(map(Path, folders)):
            if quantize is not None:
                # Kept as long as its weights are mapped.
                self._quantized.append(tempfile.TemporaryDirectory())
                quantize_graphs(folder, self._quantized[-1].name)
                folder = Path(self._quantized[-1].name)
            members.append(_ModelGraphs(folder, f"model_{number}_"))
        self._model = members[0] if len(members) == 1 else Ensemble(members)
        self._weights = {n: x for member in members for n, x in member.weights.items()}
        digests = [f"{x.weights_digest} {x.quantization}" for x in members]
        self.digest = ", ".join(digests)
        for name in ATTRIBUTES:
            setattr(self, name, getattr(self._model, name))
        self._programs, self._making = {}, threading.Lock()

    def __reduce__(self):
        # Sessions cannot be copied: a copy reads the folders.
        return functools.partial(OnnxModel, quantize=self._quantize), (*self._folders,)

    def beam_search_hypotheses(
        self, source_ids=None, *, prefix_ids=None, options=None, **names
    ) -> Hypotheses:
        """See `keras_seqconv.decoding.beam_search_hypotheses`; L is at most its L."""
        options = BeamOptions.of_call(options, names)
        return self._searched(options, source_ids, prefix_ids)

    def sample_hypotheses(
        self, source_ids=None, *, seed, prefix_ids=None, options=None, **names
    ) -> Hypotheses:
        """See `keras_seqconv.decoding.sample_hypotheses`; a seed for each sentence."""
        options = SampleOptions.of_call(options, names)
        return self._searched(options, source_ids, prefix_ids, seed)

    def score(
        self,
        source_ids,
        target_ids: np.ndarray,
        length_penalty: float = 1.0,
        *,
        length_penalty_kind: str = "power",
        normalize: bool = True,
    ) -> Hypotheses:
        """See `keras_seqconv.decoding.score`: a search that is forced to the targets.

        Targets are (B, T). The search goes on after one without an end token, so the
        `scores` are those of the targets' own tokens, and the rest that of the search.
        """
        check_tensors(self, {"target_ids": target_ids})
        options = BeamOptions(
            num_beams=1,
            max_length=target_ids.shape[1],
            length_penalty=length_penalty,
            length_penalty_kind=length_penalty_kind,
            normalize=normalize,
        )
        found = self.beam_search_hypotheses(
            source_ids, prefix_ids=target_ids, options=options
        )
        positional = found.positional_scores[:, :, : target_ids.shape[1]]
        own = target_ids[:, None, : positional.shape[-1]] != self.pad_id
        sums = np.where(own, positional, 0.0).sum(axis=-1)
        scores = sums / options.length_divisor(own.sum(axis=-1))
        # Where a token has no log-probability, the search has found nothing.
        return found._replace(scores=np.where(found.lengths > 0, scores, np.nan))

    def stream_ids(
        self, prefix_ids: list[int], seed: tuple[int, int], options: SampleOptions
    ) -> Iterator[int]:
        """The tokens after a prefix as they are drawn, without the end token."""
        prefix = np.array([prefix_ids or [self.pad_id]])
        steps, *_ = self._begun(options, None, prefix, [seed])  # or an error, now

        def drawn():
            for number, (_, made) in enumerate(steps):
                if not (made["next_scores"] > NEVER).any():
                    return
                if number >= len(prefix_ids):
                    yield int(made["next_ids"][0, 0])

        return drawn()

    def search_graphs(self, options: BeamOptions) -> dict:
        """The graphs of a beam search, see `keras_seqconv.export.onnx`.

        Returns:
            `onnx.ModelProto` of "start", "step" and "end", whose weights stay in the
            file that the folder has.
        """
        options.check_model(self, self.has_source)
        graph = Graph()
        source = graph.input("source_ids", "int64", (None, None))
        task, common, rows, sentences = self._before(options, {"source_ids": source})
        step, _ = _step_graph(task, common, rows, sentences)
        needed = {tensor.name for tensor in step.graph.input}
        before = _named(rows, sentences).items()
        start = graph.model({name: leaf for name, leaf in before if name in needed})
        graph, shape = Graph(), (None, options.num_beams)
        sentences = sentences._replace(
            finished=graph.input("finished", "float32", shape),
            origins=graph.input("origins", "int64", shape),
        )
        end = graph.model(best_ended(task, sentences)._asdict())
        return {"start": start, "step": step, "end": end}

    def _searched(self, options, source_ids, prefix_ids, seeds=None) -> Hypotheses:
        steps, task, rows, sentences = self._begun(
            options, source_ids, prefix_ids, seeds
        )
        count, records = len(sentences.scores), {name: [] for name in Records._fields}
        for left, made in steps:
            for name, kept in records.items():
                if name in made:
                    kept.append(_of_all(made[name], left, count))
        of_all = Records(*(np.stack(kept) if kept else () for kept in records.values()))
        best = best_ended(task, sentences)
        tokens, beams = follow(of_all.backpointers, best, task.strategy.num_beams)
        with np.errstate(invalid="ignore"):  # between hypotheses that do not exist
            results = hypotheses(task.constraints.model, best, of_all, tokens, beams)
        return results._replace(
            ids=results.ids.astype("int32"), lengths=results.lengths.astype("int32")
        )

    def _begun(self, options, source_ids, prefix_ids, seeds) -> tuple:
        """An iterator over the steps; task, rows and sentences before the first one."""
        check_source(self, source_ids)
        options.check_model(self, self.has_source)
        tensors = {"source_ids": source_ids, "prefix_ids": prefix_ids}
        tensors = {
            name: np.asarray(ids).astype("int64")
            for name, ids in tensors.items()
            if ids is not None
        }
        check_tensors(self, tensors)
        task, common, rows, sentences = self._before(options, tensors, seeds)
        sentences = sentences._replace(steps=np.zeros((), "int64"))
        program = self._program(options, common, rows, sentences)
        steps = program.steps(rows, sentences, task.strategy.num_beams)
        return steps, task, rows, sentences

    def _before(self, options, tensors: dict, seeds=None) -> tuple:
        """SearchTask and what `begin` returns, of arrays or in a graph."""
        limits, longest = limits_of(self, options, tensors)
        if seeds is not None:
            shape = int(longest) + 1, options.num_samples
            draws = [uniforms(seed, shape).T for seed in seeds]
            tensors = tensors | {"uniforms": np.concatenate(draws)}
        task = task_of(self._model, options, tensors)
        rules = rules_of(task, tensors, ops.cast(limits, "int64"))
        source = of_sentences(tensors)
        source = source if self.has_source else source[:, :0]
        state = self._model.get_initial_state(source, task.strategy.num_beams)
        return task, *begin(task, rules, state, longest + 1)

    def _program(self, options, common, rows, sentences) -> "_Program":
        """The program of a step, made once for options and kinds of tensors."""
        # A graph does not know limits, which are tensors, nor what divides scores.
        neutral = {"max_length": 10**6, "max_length_ratio": 0.0}
        if getattr(options, "stopping", "first") == "first":
            defaults = {x.name: x.default for x in dataclasses.fields(options)}
            names = defaults.keys() & {*OF_SCORES, "num_hypotheses"}
            neutral |= {name: defaults[name] for name in names}
        options = dataclasses.replace(options, **neutral)
        kinds = [(name, x.dtype, x.ndim) for name, x in _named(rows, sentences).items()]
        key = (options, *kinds)
        with self._making:
            if key not in self._programs:
                if len(self._programs) == _KEPT:
                    del self._programs[next(iter(self._programs))]
                task = task_of(self._model, options, {})
                graph = _step_graph(task, common, rows, sentences)
                self._programs[key] = _Program(*graph, self._weights)
            return self._programs[key]


class _ModelGraphs:
    """The graphs of one model; what `graphs.json` says of it are attributes."""

    def __init__(self, folder: Path, prefix: str):
        self._folder, self._prefix = folder, prefix
        notes, self._step, weights = read_graph_files(folder)
        with naming_file(folder / "graphs.json", "is damaged"):
            for name in (*ATTRIBUTES, "weights_digest", "quantization"):
                setattr(self, name, notes[name])
        self.weights = {f"{prefix}{name}": x for name, x in weights.items()}
        with naming_file(folder / "start.onnx", "is damaged"):
            self._start = _session(str(folder / "start.onnx"))
        self._outputs = [output.name for output in self._start.get_outputs()]

    def get_initial_state(self, source, num_beams: int) -> dict:
        """The state before the first step, by name; `source` may be in a graph."""
        name = self._start.get_inputs()[0].name
        if isinstance(source, Value):
            start = onnx.load(self._folder / "start.onnx", load_external_data=False)
            made = source.graph.inline(start, self._prefix, {name: source})
            sentences = onnx_ops.arange(onnx_ops.shape(source)[0])
        else:
            made = self._start.run(self._outputs, {name: source.astype("int32")})
            made = dict(zip(self._outputs, made, strict=True))
            sentences = np.arange(len(source))
        order = ops.repeat(sentences, num_beams, axis=0)
        state: dict = {"shared": {}, "beams": {}}
        for name, leaf in made.items():
            part = name.partition("_")[0]
            if part == "beams" and len(leaf.shape):
                leaf = ops.take(leaf, order, axis=0)
            state[part][name] = leaf
        return state

    def step(self, ids, state: dict) -> tuple:
        """Adds `step.onnx` to the graph of which `ids` are a value."""
        feeds = {"ids": ids, **state["shared"], **state["beams"]}
        outputs = ids.graph.inline(self._step, self._prefix, feeds)
        beams = {name: outputs[f"next_{name}"] for name in state["beams"]}
        if "attention" in outputs:
            beams["attention"] = outputs["attention"]
        return outputs["logits"], {**state, "beams": beams}


def _step_graph(task: SearchTask, common, rows: Rows, sentences: Sentences) -> tuple:
    """The graph of a step for such tensors: `onnx.ModelProto`, names of its outputs."""
    graph = Graph()
    names = iter(_named(rows, sentences))

    def value(leaf):
        name, shape = next(names), [None] * len(leaf.shape)
        if name in ("scores", "finished", "origins"):
            shape[-1] = task.strategy.num_beams
        return graph.input(name, np.dtype(leaf.dtype).name, shape)

    before = map_leaves(value, (rows, sentences))
    *after, records = advance(task, common, *before)
    inputs, outputs = _named(*before), {}
    for name, value in _named(*after).items():
        if name in inputs and value is not inputs[name]:
            outputs[f"next_{name}"] = value
    outputs |= _named(records)
    return graph.model(outputs), [*outputs]


class _Program:
    """The graph of a step of the search in a session, and the loop around it."""

    def __init__(self, model, outputs: list[str], weights: dict):
        self._outputs = outputs
        names = {weight.name for weight in model.graph.initializer}
        weights = {name: x for name, x in weights.items() if name in names}
        self._session = _session(model.SerializeToString(), weights)
        self._inputs = [tensor.name for tensor in self._session.get_inputs()]

    def steps(self, rows: Rows, sentences: Sentences, num_beams: int) -> Iterator:
        """Steps until all sentences have ended; those that have, leave the batch.

        The arrays `finished` and `origins` of `sentences` are those of the end, then.

        Yields:
            Numbers of the sentences (b,) of a step, and its outputs by name.
        """
        feeds, of_sentences = _named(rows, sentences), {*_named(sentences)}
        feeds = {name: feeds[name] for name in self._inputs}
        left = np.arange(len(sentences.scores))
        while len(left):
            made = self._session.run(self._outputs, feeds)
            made = dict(zip(self._outputs, made, strict=True))
            yield left, made
            for name in self._inputs:
                feeds[name] = made.get(f"next_{name}", feeds[name])
            unfinished = feeds["scores"].max(axis=1) > NEVER
            if np.count_nonzero(unfinished) > SHRINK_AT * len(left):
                continue
            sentences.finished[left] = feeds["finished"]
            sentences.origins[left] = feeds["origins"]
            places = np.flatnonzero(unfinished)
            order = rows_of(places, num_beams)
            for name, value in feeds.items():
                if value.ndim:
                    feeds[name] = value[places if name in of_sentences else order]
            left = left[places]


def _session(model: str | bytes, weights: dict | None = None):
    """A session of one thread: small products are not faster in several.

    weights: arrays for the tensors outside of the file, by name.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if weights:
        values = map(onnxruntime.OrtValue.ortvalue_from_numpy, weights.values())
        options.add_external_initializers([*weights], [*values])
    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"]
    )


def _named(*fields) -> dict:
    """Leaves of named tuples by name: that of the field, or the path inside of it."""

    def add(path, part):
        if isinstance(part, dict):
            part = part.items()
        elif isinstance(part, tuple | list):
            part = enumerate(part)
        else:
            leaves["_".join(map(str, path[1:] or path))] = part
            return
        for name, inner in part:
            add((*path, name), inner)

    leaves: dict = {}
    for part in fields:
        add((), part._asdict())
    return leaves


def _of_all(values: np.ndarray, left: np.ndarray, count: int) -> np.ndarray:
    """Values of some sentences, with zeros for the `count` others."""
    if len(left) == count:
        return values
    of_all = np.zeros((count, *values.shape[1:]), values.dtype)
    of_all[left] = values
    return of_all
