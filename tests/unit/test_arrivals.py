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
