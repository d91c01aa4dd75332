"""On the GPU that is here every deception is rejected, also by the rules that only a GPU shows, and
every kernel of the library is correct."""

import pytest
from cheats import CHEATS, SPEC, Cheat

from workbench import catalog
from workbench.backend.live import Live
from workbench.backend.sanitizing import call_of, sanitize_call, sanitizer_refusal
from workbench.device import hardware
from workbench.evaluation.evaluator import Evaluator, Processes
from workbench.evaluation.submission import Wanted
from workbench.evaluation.times import measured_times
from workbench.evaluation.verdict import fail_rules, verdict_of
from workbench.measurement.candidate import Refusal

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)

LOOP_S = 10.0  # which the endless loop costs
SIZES = {"M": 8192, "N": 4096}


@pytest.fixture(scope="module")
def machine():
    processes, live = Processes(), Live(None)
    yield processes, live
    processes.close()
    live.close()


def verdict(machine, kernel, spec, dtype="fp32", timed=None, limit_s=120.0, seed=11):
    """The verdict of all rules but the sanitizer's."""
    processes, live = machine
    wanted = Wanted(kernel, None, {}, dtype)
    evaluator = Evaluator(processes, wanted, spec, live.device, seed, limit_s)
    facts = evaluator.facts(timed)
    submission = evaluator.describe(facts)
    if isinstance(submission, Refusal):
        return verdict_of(fail_rules(submission))
    compiled, checked = evaluator.compile(submission, facts), evaluator.check(submission, facts)
    assert not isinstance(compiled, Refusal), compiled
    results = [*checked.results]
    if verdict_of(results).broken_rule is None:
        results += measured_times(live, submission, facts, compiled, kernel, dtype)[0]
    return verdict_of(results, checked.error)


@pytest.mark.alone
@pytest.mark.parametrize("cheat", CHEATS, ids=lambda c: c.name)
def test_a_deception_is_rejected_by_its_rule(cheat, machine, tmp_path):
    path = cheat.write(tmp_path)
    machine[0].checks.restart()  # the last file may have spoiled its process
    limit_s = LOOP_S if "loop" in cheat.name else 120.0
    spec = str(path) if cheat.own else str(SPEC)
    result = verdict(machine, str(path), spec, timed=SIZES, limit_s=limit_s)
    broken = {r.rule: r.reason for r in result.rules if r.state == "broken"}
    assert result.word == "rejected" and broken.keys() & set(cheat.rules), broken


@pytest.mark.alone
def test_the_honest_kernel_is_correct(machine, tmp_path):
    path = Cheat("honest", (), {}).write(tmp_path)
    machine[0].checks.restart()
    result = verdict(machine, str(path), str(SPEC), timed=SIZES)
    assert result.word == "correct"
    assert {r.rule for r in result.rules if r.state != "kept"} == {"sanitizer"}


@pytest.mark.skipif(sanitizer_refusal() is not None, reason="compute-sanitizer cannot run here")
def test_the_sanitizer_accepts_a_right_kernel(machine, tmp_path):
    path = str(Cheat("honest", (), {}).write(tmp_path))
    wanted = Wanted(path, None, {}, "fp32")
    evaluator = Evaluator(machine[0], wanted, str(SPEC), machine[1].device, 11, 120.0)
    described = evaluator.describe(evaluator.facts(SIZES))
    sizes = {"M": 33, "N": 77}
    call = call_of(path, described.title, described.impl, described.config, sizes, "fp32")
    result = sanitize_call(call)
    assert result.state == "kept", result.reason


@pytest.mark.alone
@pytest.mark.parametrize("kernel", catalog.kernel_names())
def test_no_kernel_of_the_library_is_refused(kernel, machine):
    spec = catalog.spec_of(kernel)
    machine[0].checks.restart()
    dtype = next(
        d
        for d in spec.tolerance
        if spec.impls[0].rejection_reason(
            spec.impls[0].default(machine[1].device.limits, d, spec.bench[0]),
            machine[1].device.limits,
            d,
            spec.bench[0],
        )
        is None
    )
    result = verdict(machine, kernel, kernel, dtype)
    assert result.word == "correct", result.broken_rule
