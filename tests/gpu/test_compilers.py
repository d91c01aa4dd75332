"""Two versions of Triton measured against each other on the GPU that is here.

Needs a second Triton beside the environment, which `make test` puts there.
"""

import pytest
from compiled_cases import CASE

from workbench import catalog
from workbench.backend.compilers import FactsJob, folders_beside, installed_version
from workbench.backend.version_timing import VersionTimer, VersionTimes
from workbench.catalog.source import code_hash
from workbench.data.record import Case
from workbench.device import hardware
from workbench.spec import values

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
OLDER = "3.6.0"


def job(kernel, impl, sizes):
    device = hardware.live()
    chosen = catalog.impl_of(catalog.spec_of(kernel), impl)
    config = values(chosen.default(device.limits, "bf16", sizes))
    case = Case(kernel, impl, CASE.backend, config, sizes, "bf16", device.name)
    return FactsJob(kernel, case, code_hash(chosen))


@pytest.mark.alone
def test_the_same_version_in_three_processes_takes_the_same_time():
    with VersionTimer((None, None), print) as timer:
        assert timer.device().name == hardware.live().name
        result = timer.compare(job("copy", "blocks", {"N": 1 << 26}), 0.05)
    assert isinstance(result, VersionTimes), result
    known = result.verdict
    assert known.word == "SAME" and known.time.low <= 1.02 and known.time.high >= 0.98
    # each time is of the windows of its own process
    assert result.after.timing.median_s / result.before.timing.median_s == pytest.approx(1, abs=0.1)


@pytest.mark.alone
def test_two_versions_have_a_verdict():
    folder = next((f for f in folders_beside(OLDER) if (f / "triton").is_dir()), None)
    if folder is None or installed_version() == OLDER:
        pytest.skip(f"Triton {OLDER} is not beside the environment")
    with VersionTimer((folder, None), print) as timer:
        timer.device()
        result = timer.compare(job("matmul", "tiles", {"M": 4096, "N": 4096, "K": 4096}), 0.01)
    assert isinstance(result, VersionTimes), result
    assert 0.3 < result.verdict.time.middle < 3 and result.verdict.rounds >= 2
