"""Texts of TensorFlow Datasets, and what is done before it downloads anything."""

import collections
import contextlib
import difflib
import inspect
import json
import logging
import os
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from keras_seqconv.data.background import untuned
from keras_seqconv.data.rows import Chunk, Rules, to_dataset
from keras_seqconv.support.extras import require
from keras_seqconv.support.files import locked

ROWS_AT_ONCE = 1024


def builder_of(
    name: str,
    *,
    source: str | None = None,
    target: str | None = None,
    data_dir: str | os.PathLike | None = None,
):
    """The tfds builder of a name such as "wmt14_translate/de-en".

    A data set with several configurations needs one in its name, unless `source` and
    `target` fit exactly one of them. Nothing is downloaded.

    Raises:
        ImportError: without tensorflow_datasets.
        ValueError: no such data set or configuration; lists the close ones.
    """
    tfds = require("tensorflow_datasets", "tfds")
    data_dir = None if data_dir is None else os.fspath(data_dir)
    if "/" not in name and ":" not in name:
        name = _with_configuration(tfds, name, source, target)
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
        close = difflib.get_close_matches(re.split("[/:]", name)[0], known, 5, 0.6)
        raise ValueError(
            f"TensorFlow Datasets has no {name!r}"
            + (f"; close: {', '.join(close)}" if close else "")
        ) from None
    except ValueError as error:
        configs = _configurations(tfds, re.split("[/:]", name)[0])
        asked = name.partition("/")[2]
        if len(configs) > 20:
            configs = difflib.get_close_matches(asked, configs, 20, 0.3)
        known = f"; configurations: {', '.join(configs)}"
        raise ValueError(
            f"TensorFlow Datasets cannot open {name!r}{known if configs else ''} "
            f"({str(error).splitlines()[0]})"
        ) from error


def prepare(
    builder,
    *,
    manual_dir: str | os.PathLike | None = None,
    probe_timeout: float | None = 5.0,
):
    """Downloads and generates the data of a builder, unless that was done before.

    Before tfds begins to download, which it retries for minutes, the addresses that
    it is going to read and that lie nowhere on this machine are asked for an answer.
    Processes that prepare the same data wait for each other.

    Args:
        builder: a tfds builder.
        manual_dir: a folder with downloads that were fetched by hand, under the names
            that the error of this function gives.
        probe_timeout: seconds to wait for an address; None: do not ask.

    Raises:
        ConnectionError: an address cannot be reached; names each, and says how to
            supply the data by hand.
        FileNotFoundError: files are missing that only people can download.
    """
    if _is_prepared(builder):
        return
    tfds = require("tensorflow_datasets", "tfds")
    with _lock(builder):
        if _is_prepared(builder):  # by the process that held the lock
            builder.info.read_from_directory(builder.data_dir)
            return
        if probe_timeout is not None:
            _check_reachable(builder, manual_dir, probe_timeout)
        config = tfds.download.DownloadConfig(
            manual_dir=None if manual_dir is None else os.fspath(manual_dir)
        )
        try:
            if not sys.stderr.isatty():
                tfds.disable_progress_bar()  # whose lines are kilobytes in a file
            builder.download_and_prepare(download_config=config)
        except Exception as error:
            # tfds' own errors (of checksums, ...) are no OSError or ValueError.
            if not type(error).__module__.startswith("tensorflow_datasets"):
                raise
            urls = missing_urls(builder, manual_dir)
            reason = " ".join(str(error).split())
            message = _unavailable(builder, manual_dir, urls, reason)
            raise ConnectionError(message) from error


def _is_prepared(builder) -> bool:
    # tfds warns of a folder that is not there.
    folder = os.fspath(builder.data_dir)
    return ("://" in folder or os.path.isdir(folder)) and builder.is_prepared()


def text_names(builder) -> tuple[str, ...]:
    """The names of the texts of an example: languages, or "article", ...

    Raises:
        ValueError: the data set has no texts; lists its features.
    """
    feature = _translation(builder)
    names = getattr(feature, "languages", None)
    if names is None and not _variable(feature):
        text = require("tensorflow_datasets", "tfds").features.Text
        names = [key for key in feature if isinstance(feature[key], text)]
    if names is None:
        return ()
    if not names:
        raise ValueError(
            f"{builder.info.full_name} must have features that are texts. "
            f"It has: {', '.join(builder.info.features)}"
        )
    return tuple(names)


def direction(
    builder, source: str | None, target: str | None
) -> tuple[str | None, str]:
    """Names of the source and the target text; no source for a single text.

    By default the order of the data set's supervised keys ("de", "en").

    Raises:
        ValueError: a name that it does not have, or no name where it must be chosen.
    """
    names = text_names(builder)
    default = tuple(builder.info.supervised_keys or ())[:2]
    if len(default) != 2 or not all(isinstance(key, str) for key in default):
        default = ()
    if len(set(names)) == 1 and source is None:
        return None, target or names[0]
    return complete_direction(builder.info.full_name, names, default, source, target)


def complete_direction(
    what: str,
    names: tuple[str, ...],
    default: tuple[str, ...],
    source: str | None,
    target: str | None,
) -> tuple[str, str]:
    """Source and target: both as in `default`, or the other of two names.

    Raises:
        ValueError: not two different ones of `names` (if these are known).
    """
    if source is None and target is None and len(default) == 2:
        source, target = default
    elif len(pair := default or names) == 2 and (source or target) in pair:
        other = pair[1 - pair.index(source or target)]
        source, target = source or other, target or other
    unknown = [n for n in (source, target) if n is None or (names and n not in names)]
    if unknown or source == target:
        listed = ", ".join(names) if names else "any (the data set does not list them)"
        if source is target is None and len(names) == 2:
            one, other = (
                f"`source_language`={a} `target_language`={b}"
                for a, b in (names, names[::-1])
            )
            listed += f". Nothing says which is translated: give {one} or {other}"
        raise ValueError(
            "`source_language` and `target_language` must be two languages of "
            f"{what}: {listed}. Received: {source!r} and {target!r}"
        )
    return source, target


def from_tfds(
    builder,
    split: str,
    *,
    source: str | None,
    target: str,
    on_error: str = "raise",
    counts: collections.Counter | None = None,
):
    """The texts of a prepared data set, always in the same order.

    A line break inside a text, with the blanks around it, becomes one blank: what
    comes after (files, word counts, tokenizers) takes a text to be one line.

    Args:
        builder: a tfds builder.
        split: such as "train" or "train[:1%]".
        source: name of the source text; None: a single text, for language models.
        target: name of the target text.
        on_error: as of `keras_seqconv.data.files.from_files`.
        counts: likewise; "untranslated" are examples without one of the two languages
            in data sets whose languages vary, which are left out without an error.

    Returns:
        A tf.data.Dataset of {"source": (), "target": ()} strings, or {"target": ()}.

    Raises:
        ValueError: an unknown split, at once; otherwise as of `from_files`.
    """
    tfds = require("tensorflow_datasets", "tfds")
    rules = Rules(on_error)
    what = f"{builder.info.full_name}, split {split}"
    read = tfds.ReadConfig(try_autocache=False)  # it would hold all in memory
    with _split_errors(builder, split):
        examples = builder.as_dataset(
            split=split, shuffle_files=False, read_config=read
        )
    keys = [key for key in (source, target) if key is not None]
    texts = _texts(builder, examples, keys)
    variable = _variable(_translation(builder))

    def one_pass(own) -> Iterator[list[list[bytes]]]:
        start = 0
        for columns in untuned(texts).as_numpy_iterator():
            columns = [column.tolist() for column in columns]
            numbers = list(range(start, start + len(columns[0])))
            start += len(numbers)
            if variable:
                columns, numbers = _translated(columns, numbers, own)
            chunk = Chunk(
                columns,
                lambda column, row, numbers=numbers: (
                    f"{what}, {keys[column]} of example {numbers[row]:,},"
                ),
            )
            yield rules.apply(chunk, own)

    names = ("source", "target")[-len(keys) :]
    return to_dataset(one_pass, names, counts, what)


def size(builder, split: str) -> int | None:
    """Number of examples of a split or of a part of one; None with mocked data.

    Raises:
        ValueError: an unknown split.
    """
    if not builder.info.splits:
        return None
    with _split_errors(builder, split):
        return builder.info.splits[split].num_examples


@contextlib.contextmanager
def _split_errors(builder, split: str):
    try:
        yield
    except (ValueError, KeyError, AssertionError) as error:
        raise ValueError(
            f"`split` must be a split of {builder.info.full_name}, or part of one such "
            f'as "train[:1%]": {", ".join(builder.info.splits)}. '
            f"Received: split={split!r} ({str(error).splitlines()[-1]})"
        ) from error


def _texts(builder, examples, keys):
    """Batches of the texts, a tuple with one vector for each of `keys`."""
    tf = require("tensorflow", "mt")
    feature = _translation(builder)
    nested = [k for k, f in builder.info.features.items() if f is feature]
    variable = _variable(feature)

    def choose(example):
        for key in nested:
            example = example[key]
        if not variable:
            return tuple(example[key] for key in keys)
        known = [example["translation"][example["language"] == key] for key in keys]
        return tuple(tf.strings.reduce_join(texts[:1]) for texts in known)

    def clean(*columns):
        breaks = r"[ \t]*[\r\n][ \t\r\n]*"
        columns = [tf.strings.regex_replace(column, breaks, " ") for column in columns]
        return tuple(tf.strings.strip(column) for column in columns)

    texts = examples.map(choose, num_parallel_calls=tf.data.AUTOTUNE)
    return texts.batch(ROWS_AT_ONCE).map(clean, num_parallel_calls=tf.data.AUTOTUNE)


def _translated(columns, numbers, counts):
    rows = [i for i in range(len(numbers)) if all(column[i] for column in columns)]
    counts["untranslated"] += len(numbers) - len(rows)
    columns = [[column[i] for i in rows] for column in columns]
    return columns, [numbers[i] for i in rows]


def _translation(builder):
    """The features that hold the texts: nested ones, or those of the example."""
    features = require("tensorflow_datasets", "tfds").features
    kinds = (features.Translation, features.TranslationVariableLanguages)
    whole = builder.info.features
    if isinstance(whole, kinds):
        return whole
    nested = [whole[key] for key in whole if isinstance(whole[key], kinds)]
    return nested[0] if nested else whole


def _variable(feature) -> bool:
    features = require("tensorflow_datasets", "tfds").features
    return isinstance(feature, features.TranslationVariableLanguages)


def _configurations(tfds, name: str) -> list[str]:
    try:
        return list(tfds.builder_cls(name).builder_configs)
    except (ValueError, tfds.core.DatasetNotFoundError):
        return []


def _with_configuration(tfds, name: str, source, target) -> str:
    """The name, with the configuration that fits the languages."""
    configs = _configurations(tfds, name)
    if len(configs) < 2:
        return name
    fitting = [c for c in configs if set(re.split("-|_to_", c)) == {source, target}]
    if len(fitting) != 1:
        raise ValueError(
            f"`name` must say which configuration of {name}, such as "
            f"{name}/{configs[0]}: {', '.join(configs[:40])}"
            + (", ..." if len(configs) > 40 else "")
        )
    return f"{name}/{fitting[0]}"


@contextlib.contextmanager
def _lock(builder):
    """One process at a time: two would generate twice, and one fail at the end."""
    root = os.fspath(builder.data_dir_root)
    if "://" in root:
        yield
        return
    Path(root).mkdir(parents=True, exist_ok=True)
    with locked(Path(root) / f".{builder.name}.lock"):
        yield


# Downloads


def _check_reachable(builder, manual_dir, timeout: float):
    urls = missing_urls(builder, manual_dir)
    failures = failing_urls(urls, timeout)
    if failures:
        reasons = collections.defaultdict(list)
        for url, why in failures.items():
            reasons[why].append(url)
        reason = "; ".join(f"{', '.join(u)}: {why}" for why, u in reasons.items())
        raise ConnectionError(_unavailable(builder, manual_dir, urls, reason))


def _unavailable(builder, manual_dir, urls: list[str], reason: str) -> str:
    """Why there is no data, and what to do about it."""
    infos = builder.url_infos or {}
    files = [infos[url].filename for url in urls if url in infos]
    ways = [
        f"copy the prepared data set from another machine to {builder.data_dir}",
        "give the data_dir that holds it",
        "give the text as files instead, a folder with "
        + ", ".join(f"train.{name}" for name in text_names(builder)[:2]),
    ]
    if files and len(files) == len(urls):
        ways.insert(
            0,
            f"put the files {', '.join(files)}, fetched elsewhere, into "
            f"{manual_dir or 'a folder'} and give it as manual_dir",
        )
    return (
        f"{builder.info.full_name} is not prepared in {builder.data_dir_root}, and "
        f"what it is made from cannot be downloaded: {reason}. What helps: "
        + "; or ".join(ways)
    )


def missing_urls(builder, manual_dir: str | os.PathLike | None = None) -> list[str]:
    """The addresses that preparing would download from, in order.

    They come from the builder's own code, run with a stand-in for the download
    manager; code that needs the downloaded files to name further ones stops there.

    Raises:
        FileNotFoundError: the builder says that files must be downloaded by hand.
    """
    downloads = Path(builder.data_dir_root) / "downloads"
    manual = Path(manual_dir) if manual_dir is not None else downloads / "manual"
    recorder = _Recorder(downloads, manual)
    split_generators = builder._split_generators  # what every builder overrides
    extra = list(inspect.signature(split_generators).parameters)[1:]
    try:
        split_generators(recorder, **dict.fromkeys(extra))
    except AssertionError as error:
        # tfds' way to say that files must be put there by hand.
        if "manual" in str(error):
            raise FileNotFoundError(" ".join(str(error).split())) from error
    except Exception as error:
        logging.debug("stopped after %d downloads: %s", len(recorder.urls), error)
    infos = builder.url_infos or {}
    cached = _cached_urls(downloads)
    return [
        url
        for url in dict.fromkeys(recorder.urls)
        if url not in cached
        and not (
            url in infos
            and infos[url].filename
            and (manual / infos[url].filename).exists()
        )
    ]


def _cached_urls(downloads: Path) -> set[str]:
    """What tfds has downloaded before: it notes the address beside each file."""
    urls = set()
    for note in downloads.rglob("*.INFO"):
        if note.with_suffix("").exists():
            with contextlib.suppress(ValueError, OSError):
                urls.update(json.loads(note.read_text()).get("urls", ()))
    return urls


class _Recorder:
    """Stands in for tfds' download manager: notes addresses, downloads nothing."""

    def __init__(self, downloads: Path, manual: Path):
        self.urls = []
        self.download_dir = downloads
        self._manual = manual

    @property
    def manual_dir(self):
        if not self._manual.exists():
            raise AssertionError(
                f"Files that must be downloaded by hand are expected in {self._manual} "
                "(argument manual_dir), a manual directory that does not exist."
            )
        return self._path(self._manual)

    def download(self, urls):
        return self._each(urls, note=True)

    def download_and_extract(self, urls):
        return self._each(urls, note=True)

    def extract(self, paths, **_):
        return self._each(paths, note=False)

    def iter_archive(self, path):
        return iter(())

    def _each(self, value, note):
        if isinstance(value, dict):
            return {key: self._each(item, note) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._each(item, note) for item in value]
        url = getattr(value, "url", value)  # tfds.download.Resource
        if note:
            self.urls.append(str(url))
        return self._path(self.download_dir / "not-downloaded")

    def _path(self, path: Path):
        from etils import epath  # tfds gives these to builders, and depends on it

        return epath.Path(path)


def failing_urls(urls: list[str], timeout: float) -> dict[str, str]:
    """Asks addresses for an answer, without downloading.

    Hosts are asked at the same time, the addresses of a host one after the other
    (statmt.org refuses parallel requests) until it does not answer at all.

    Args:
        urls: of http, https or ftp; others are taken to be reachable.
        timeout: seconds for one answer; the whole takes at most three times as long.
            Addresses not asked by then count as reachable if their host answered.

    Returns:
        {address: why not} of those that failed.
    """
    hosts = collections.defaultdict(list)
    for url in urls:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in ("http", "https", "ftp"):
            hosts[parts.scheme, parts.netloc].append(url)
    answers = {}
    threads = []
    for group in hosts.values():
        # A daemon, because looking up a name cannot be given a time limit.
        thread = threading.Thread(
            target=_ask_host, args=(group, timeout, answers), daemon=True
        )
        thread.start()
        threads.append(thread)
    end = time.monotonic() + 3 * timeout
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    answers = dict(answers)  # late threads write no more into this one
    for group in hosts.values():
        if not any(url in answers for url in group):
            answers.update(dict.fromkeys(group, f"no answer in {3 * timeout:g} s"))
    return {url: answers[url] for url in urls if answers.get(url)}


def _ask_host(urls: list[str], timeout: float, answers: dict):
    for number, url in enumerate(urls):
        try:
            answers[url] = _ask(url, timeout)
        except OSError as error:  # requests' errors are OSErrors
            reason = f"{type(error).__name__}: {_innermost(error)}"
            for same_host in urls[number:]:
                answers[same_host] = reason
            return


def _ask(url: str, timeout: float) -> str | None:
    """None when the address answers well, otherwise why not."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "ftp":
        socket.create_connection((parts.hostname, parts.port or 21), timeout).close()
        return None
    import requests  # as tfds does: the same proxies, certificates and name

    answer = requests.head(url, timeout=timeout, allow_redirects=True)
    if answer.status_code >= 400:  # some servers know no HEAD
        first_byte = {"Range": "bytes=0-0"}
        with requests.get(
            url, timeout=timeout, stream=True, headers=first_byte
        ) as answer:
            pass
    if answer.status_code < 400:
        return None
    return f"HTTP {answer.status_code} {answer.reason}"


def _innermost(error: BaseException) -> str:
    """The plain reason inside requests' nested errors."""
    reason = getattr(error, "reason", None) or (error.args[0] if error.args else None)
    if isinstance(reason, BaseException) and reason is not error:
        return _innermost(reason)
    return re.sub(r"^.*?(>|\)): ", "", str(error))
