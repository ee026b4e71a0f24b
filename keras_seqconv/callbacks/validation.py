"""Validation during `fit`, at ends of epochs and between them."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from keras import ops

from keras_seqconv.callbacks.counting import CountingCallback
from keras_seqconv.replicas import for_replicas
from keras_seqconv.support.arguments import check_boolean, check_positive_integer
from keras_seqconv.support.extras import require


class _Validation(CountingCallback):
    """When to validate; what that means is `_results`.

    Results go into the logs that the callbacks after this one get, with the seconds
    they took added to "val_seconds". A training that is already ending when this
    callback is called (`StopAtUpdate` comes before it) is validated once more.
    """

    def __init__(self, every_updates: int | None, every_epoch: bool):
        super().__init__()
        if every_updates is not None:
            check_positive_integer("every_updates", every_updates)
        self.every_updates = every_updates
        self.every_epoch = check_boolean("every_epoch", every_epoch)
        self._waits = False
        self._latest, self._validated = {}, None

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._waits, self._validated = False, None

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self._waits = self.due(self.every_updates) or self._waits
        # At the last batch of an epoch: in `on_epoch_end`.
        if self.stopping or (self._waits and not self.last_batch):
            self._validate(logs)

    def on_epoch_end(self, epoch, logs=None):
        wanted = self.epoch_complete and (self.every_epoch or self._waits)
        if wanted or self._validated == self.update:
            self._validate(logs)

    def _validate(self, logs):
        logs = {} if logs is None else logs
        self._waits = False
        if self.update != self._validated:
            start = time.perf_counter()
            with _undisturbed(self.model):
                self._latest = self._results()
            self._validated = self.update
            seconds = time.perf_counter() - start
            logs["val_seconds"] = float(logs.get("val_seconds", 0.0)) + seconds
        logs.update(self._latest)

    def _results(self) -> dict[str, float]:
        raise NotImplementedError


class Validate(_Validation):
    """Runs `model.evaluate` and puts its results, as val_*, into the logs.

    What `fit(validation_data=...)` does at ends of epochs, also between them. The
    callbacks after it in the list (see `ordered`) see the results.

    Args:
        data: what `model.evaluate` takes, a `tf.data.Dataset` for example, or a stream
            with a method `once() -> dataset`.
        every_updates: updates between two validations, or None.
        every_epoch: whether to validate at the end of each epoch. (The last update of
            `StopAtUpdate` is validated in any case.)
        steps: batches, or None for all.
    """

    def __init__(
        self,
        data,
        *,
        every_updates: int | None = None,
        every_epoch: bool = True,
        steps: int | None = None,
    ):
        super().__init__(every_updates, every_epoch)
        self._data = data.once() if hasattr(data, "once") else data
        self._steps = steps

    def _results(self) -> dict[str, float]:
        with warnings.catch_warnings():
            # Of data without a known number of batches. All of it is meant.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            results = self.model.evaluate(
                for_replicas(self.model, self._data),
                steps=self._steps,
                verbose=0,
                return_dict=True,
            )
        return {f"val_{name}": float(value) for name, value in results.items()}


class ValidationBLEU(_Validation):
    """Translates, and puts sacreBLEU's score into the logs as val_bleu.

    Args:
        translator: has `translate(texts, **search) -> texts`, as
            `Translator(model, source_tokenizer, target_tokenizer)` with the model in
            training, or is such a function itself.
        sources: texts.
        references: one for each.
        every_updates, every_epoch: as of `Validate`.
        max_sentences: the first so many are translated, None: all.
        search: keyword arguments of `translate`, {"num_beams": 1} for example.

    Attributes: `signature` of sacreBLEU, after the first score; `translations`, the
    last ones.

    Raises:
        ImportError: sacreBLEU is missing: pip install 'keras-seqconv[mt]'.
        ValueError: sources and references differ in number, or there are none.
    """

    def __init__(
        self,
        translator: Callable,
        sources: Sequence[str],
        references: Sequence[str],
        *,
        every_updates: int | None = None,
        every_epoch: bool = True,
        max_sentences: int | None = None,
        search: dict | None = None,
    ):
        super().__init__(every_updates, every_epoch)
        if len(sources) != len(references) or not len(sources):
            raise ValueError(
                "`sources` and `references` must have the same number of texts, at "
                f"least one. Received: {len(sources)} and {len(references)}"
            )
        if max_sentences is not None:
            check_positive_integer("max_sentences", max_sentences)
        require("sacrebleu", "mt")
        self._translate = getattr(translator, "translate", translator)
        self._sources = list(sources)[:max_sentences]
        self._references = list(references)[:max_sentences]
        self._search = dict(search or {})
        self.signature = None
        self.translations = []

    def _results(self) -> dict[str, float]:
        self.translations = self._translate(self._sources, **self._search)
        metric = require("sacrebleu", "mt").BLEU()
        score = metric.corpus_score(self.translations, [self._references])
        self.signature = str(metric.get_signature())
        return {"val_bleu": score.score}


@contextlib.contextmanager
def _undisturbed(model) -> Iterator[None]:
    """Random states and the sums of the epoch's metrics are afterwards as they were."""
    kept = [v for v in model.variables if v.path.endswith("seed_generator_state")]
    kept += model.metrics_variables
    values = [ops.convert_to_numpy(variable).copy() for variable in kept]
    try:
        yield
    finally:
        for variable, value in zip(kept, values, strict=True):
            variable.assign(value)
