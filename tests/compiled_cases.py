"""One config as it was compiled, for tests that compare machine code."""

from dataclasses import replace

from workbench.backend.compilers import Compiler
from workbench.data.compiled_code import CompiledCode, HotLoop
from workbench.data.record import Case, Predicted, Resources

CASE = Case("matmul", "tiles", "triton", {"block_m": 128}, {"M": 4096}, "bf16", "a100")
RESOURCES = Resources(
    binary="b", registers=228, spill_bytes=0, shared_bytes=1024, threads=128, blocks_per_core=2,
    occupancy=0.125, limiter="registers", programs=1024, waves=1.0, tail=0.0, load_bits=128,
    matrix_unit="mma", compile_s=1.0,
)  # fmt: skip


def predicted(seconds):
    return Predicted(seconds, "analytic-1", seconds, 0.0, 0.0, 0.0, 0.0, "compute")


FACTS = CompiledCode("a", RESOURCES, 1, {"matrix": 64}, HotLoop(138, {"matrix": 64}, 396),
                  predicted(1e-3))  # fmt: skip

WIDER = replace(RESOURCES, registers=252)


class Pools:
    """Compilers that return the same facts for every task, and count what they compile."""

    def __init__(self, results):
        self.results, self.compiled = list(results), []

    def compile(self, tasks):
        for n, (_, job, _) in enumerate(tasks):
            self.compiled.append(job)
            result = self.results.pop(0)
            if isinstance(result, BaseException):
                raise result
            yield n, result


class FakeCompilers(Pools):
    """Two versions whose machine code differs in registers; the process is stopped after some."""

    stop_after = 99

    def __init__(self, folders):
        super().__init__([])

    def versions(self):
        return [Compiler("3.6.0", "a", None), Compiler("3.9.0", "b", None)]

    def compile(self, tasks):
        for n, (pool, job, _) in enumerate(tasks):
            if n == self.stop_after:
                raise KeyboardInterrupt
            self.compiled.append(job)
            yield n, replace(FACTS, code=str(pool), resources=WIDER if pool else RESOURCES)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass
