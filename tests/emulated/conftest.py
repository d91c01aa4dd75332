"""Launches of these tests are emulated, in each of the schedules."""

import pytest

from metal_shim.emulate import SCHEDULES, EmulationOptions, emulation


@pytest.fixture
def contexts():
    """What gives the contexts in which a case is launched."""
    return lambda: [emulation(EmulationOptions(schedule)) for schedule in SCHEDULES]
