"""What `tuned --code` prints launches the kernels' own functions: the same machine code comes out."""

import pytest
from kernel_cases import applicable, dtypes_of, triton_impls

from workbench.commands.tuned_code import code
from workbench.compile import compile_launches
from workbench.compile.launches import captured
from workbench.data.tuned_cache import Entry
from workbench.device.hardware import DEVICES
from workbench.spec import values

pytestmark = [pytest.mark.compile, pytest.mark.newest]

DEVICE = DEVICES["h200"]


def entry_of(impl, sizes, dtype):
    config = impl.default(DEVICE.limits, dtype, sizes)
    at = (config, sizes, dtype)
    head = (impl.spec.name, impl.name, values(config), sizes, dtype, DEVICE.name)
    tail = (False, 1e-6, 1e-6, 1e-6, "cold, sustained", "p4", "r", "2026-01-01T00:00:00+00:00", 3)
    return Entry(*head, "2.13.0", "3.9.0", "aa", *tail), at


def least(impl):
    """The first size to check that the Impl accepts, and a dtype."""
    for sizes in (*impl.spec.check, *impl.spec.bench):
        for dtype in dtypes_of(impl.spec):
            if applicable(impl, sizes, dtype):
                return sizes, dtype
    raise AssertionError(f"{impl.title} accepts nothing")
