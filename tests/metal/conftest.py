"""Launches of these tests go to the Metal device."""

from contextlib import nullcontext

import pytest

from metal_shim.kernel import metal_device


@pytest.fixture
def contexts():
    """What gives the contexts in which a case is launched: the device as it is."""
    assert metal_device(), "MLX has no Metal device here"
    return lambda: [nullcontext()]
