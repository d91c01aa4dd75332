"""What comes from elsewhere arrives whole, in order, and with its error."""

import threading

import pytest

from workbench.backend.arrivals import Arrivals


def test_all_arrive_in_order_and_are_taken_before_anybody_waits():
    taken = threading.Event()

    def source():
        yield from range(100)
        taken.set()

    arrivals = Arrivals(source())
    assert taken.wait(10), "nobody has asked for one yet"
    assert list(arrivals) == list(range(100))


def test_an_error_comes_after_what_came_before_it():
    def source():
        yield 1
        raise OSError("the pipe broke")

    arrivals = iter(Arrivals(source()))
    assert next(arrivals) == 1
    with pytest.raises(OSError, match="the pipe broke"):
        next(arrivals)


def test_what_nobody_waits_for_any_more_is_closed():
    closed, go = threading.Event(), threading.Event()

    def source():
        try:
            yield 1
            go.wait(10)
            yield 2
            yield 3
        finally:
            closed.set()

    arrivals = iter(Arrivals(source()))
    assert next(arrivals) == 1
    arrivals.close()
    go.set()
    assert closed.wait(10)
