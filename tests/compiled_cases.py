"""One config as it was compiled, for tests that compare machine code."""

from dataclasses import replace

from workbench.backend.compilers import Compiler
from workbench.code.compared_pair import ComparedPair, code_change
from workbench.data.compiled_code import CodeVersions, CompiledCode, HotLoop
from workbench.data.environment import UNKNOWN
from workbench.data.record import Case, Comparison, Failure, Predicted, Record, Resources, Run
from workbench.reports.versions import CodeChanges

CASE = Case("matmul", "tiles", "triton", {"block_m": 128}, {"M": 4096}, "bf16", "a100")
RESOURCES = Resources(
    binary="b", registers=228, spill_bytes=0, shared_bytes=1024, threads=128, blocks_per_core=2,
    occupancy=0.125, limiter="registers", programs=1024, waves=1.0, tail=0.0, load_bits=128,
    matrix_unit="mma", compile_s=1.0,
)  # fmt: skip
RUN, AT = "20261123-120000-compare-code-0000", "2026-11-23T12:00:00+00:00"


def predicted(seconds):
    return Predicted(seconds, "analytic-1", seconds, 0.0, 0.0, 0.0, 0.0, "compute")


MILLISECOND = predicted(1e-3)


def outcome(code, resources=RESOURCES, timing=MILLISECOND, case=CASE):
    """The outcome of compiled code: a failure where no time is predicted of it."""
    if timing is None:
        reason = "no prediction: it has no figure"
        return Failure(case, "k", RUN, AT, "measure", reason, resources, code=code)
    return Record(case, "k", RUN, AT, "code", timing, 1, 1, "not here", None, resources, code=code)


def failed(reason, case=CASE):
    return Failure(case, "k", RUN, AT, "compile", reason)


FACTS = outcome(CompiledCode("a", 1, {"matrix": 64}, HotLoop(138, {"matrix": 64}, 396)))


def other(digest="b", timing=MILLISECOND, loop=FACTS.code.loop, **resources):
    """FACTS with other machine code."""
    code = replace(FACTS.code, digest=digest, loop=loop)
    return outcome(code, replace(RESOURCES, **resources), timing)


def paired(case, before, after, *more, tuned="", commit="", **named):
    """The pair of two outcomes, each of this case; a text is a failure's reason."""
    both = [replace(failed(o) if isinstance(o, str) else o, case=case) for o in (before, after)]
    names = "before", "after", *(o.key for o in both)
    about = RUN, AT, case.kernel, case.sizes, case.dtype
    entry = Comparison(*about, *names, None, by="code", tuned=tuned, commit=commit)
    return ComparedPair(entry, *both, code_change(*both, *more, **named))


def timed(pair, verdict=None, reason=""):
    """The pair by code of which a GPU gave a verdict, or a reason why it has none."""
    entry = replace(pair.comparison, by="time", verdict=verdict, reason=reason)
    return replace(pair, timed_pair=ComparedPair(entry, pair.before, pair.after))


def changes(
    title, before, after, devices, pairs, left_out, command, at, seconds, interrupted=False, of=0,
    unchanged=0, checks=(),
):  # fmt: skip
    """What a run of `compare --triton` or of `gate --device` compared."""
    reasons = tuple(text for text, many in left_out for _ in range(many))
    rest = of, unchanged, reasons, tuple(checks)
    versions = CodeVersions(before, after, tuple(devices), 0.01, *rest)
    engine = "gate" if title == "Changed kernels" else "compare"
    run = Run(id=RUN, engine=engine, name="", command=command, started=at, device="",
              predicted=True, environment=UNKNOWN, kind="code", versions=versions)  # fmt: skip
    return CodeChanges(run, pairs, seconds, interrupted)


class Pools:
    """Compilers that return these results for the tasks, and count what they compile."""

    def __init__(self, results):
        self.results, self.compiled = list(results), []

    def compile(self, tasks):
        for n, task in enumerate(tasks):
            self.compiled.append(task.job)
            result = self.results.pop(0)
            if isinstance(result, BaseException):
                raise result
            yield n, task.outcome(result)


class FakeCompilers(Pools):
    """Two versions whose machine code differs in registers; the process is stopped after some."""

    stop_after = 99

    def __init__(self, folders):
        super().__init__([])

    def versions(self):
        return [Compiler("3.6.0", "a", None), Compiler("3.9.0", "b", None)]

    def compile(self, tasks):
        for n, task in enumerate(tasks):
            if n == self.stop_after:
                raise KeyboardInterrupt
            self.compiled.append(task.job)
            yield n, task.outcome(other(str(task.pool), registers=252 if task.pool else 228))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass
