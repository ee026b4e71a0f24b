"""Nothing runs in the background once Python is ending."""

import threading
import time

import pytest

from keras_seqconv.data import background


@pytest.fixture
def calls(monkeypatch):
    """As of a process that is still to end."""
    fresh = background._Calls()
    monkeypatch.setattr(background, "_CALLS", fresh)
    monkeypatch.setattr(background.atexit, "register", lambda function: None)
    return fresh


def test_end_waits_for_the_call_that_runs_and_refuses_others(calls):
    started, results = threading.Event(), []

    @background.guarded
    def slow(value):
        started.set()
        time.sleep(0.3)
        results.append(value)

    thread = threading.Thread(target=slow, args=(5,))
    thread.start()
    started.wait()
    calls.close()
    assert results == [5]
    with pytest.raises(RuntimeError, match="Python is ending"):
        slow(6)
    thread.join()


def test_generators_end_and_are_refused_likewise(calls):
    generate = background.guarded_generator(lambda: iter([1, 2, 3]))
    assert list(generate()) == [1, 2, 3]
    items = generate()
    assert next(items) == 1
    calls.close()
    with pytest.raises(RuntimeError, match="Python is ending"):
        next(items)


def test_errors_of_the_function_come_through(calls):
    @background.guarded
    def wrong():
        raise KeyError("x")

    with pytest.raises(KeyError):
        wrong()
    calls.close()  # and it does not count as running
