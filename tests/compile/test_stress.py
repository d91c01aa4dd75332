"""The fixed sample of `make stress`: nothing that must not be happens in any of its cases."""

import pytest
from stress import run
from stress.server import Server

SEED = 9209  # a wrong result, a launcher that ends its process, a killed worker, a killed sweep
pytestmark = [pytest.mark.newest, pytest.mark.nightly]


@pytest.mark.parametrize("suite", run.SUITES)
def test_a_sample_of_the_stress_test_has_no_violation(suite, tmp_path):
    """One seed, so that it is the same everywhere; `tests/stress/run.py --seed SEED --only CASE`
    repeats a case."""
    violations = {}
    with Server() as server:
        for case in run.cases_of([suite], SEED, sample=True, only=None):
            result = run.run_case(case, server)
            if result.violations:
                violations[case.name] = result.violations, result.ran
    assert not violations
