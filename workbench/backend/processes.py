"""What both sides share: a pool that compiles, and how its failures are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from typing import Any

from workbench import catalog
from workbench.backend.protocol import Candidate, Problem, Refusal
from workbench.compile import Compiled, CompileError, compile_config
from workbench.hardware import Device
from workbench.record import Stage
from workbench.spec import Sizes, values
from workbench.workers import LOST, Workers

COMPILE_TIMEOUT_S = 60.0


def compile_task(
    kernel: str, impl: str, config: Mapping[str, int], sizes: Sizes, dtype: str, device: Device
) -> Compiled | Refusal:
    """Runs in a worker."""
    made = catalog.impl_of(catalog.spec_of(kernel), impl)
    try:
        return compile_config(made, made.config(**config), sizes, dtype, device)
    except CompileError as error:
        return Refusal("compile", str(error))


def compile_all(
    pool: Workers, problem: Problem, candidates: Sequence[Candidate], device: Device,
    timeout_s: float = COMPILE_TIMEOUT_S,
) -> Iterator[tuple[Candidate, Compiled | Refusal]]:  # fmt: skip
    """Compile in parallel; answers in the order in which they come."""
    futures: dict[Future[Any], Candidate] = {}
    for candidate in candidates:
        task = (problem.kernel, candidate.impl.name, values(candidate.config), problem.sizes)
        future = pool.submit(compile_task, *task, problem.dtype, device, timeout_s=timeout_s)
        futures[future] = candidate
    try:
        for future in as_completed(futures):
            yield futures[future], outcome_of(future, "compile")
    finally:
        for future in futures:
            future.cancel()


def outcome_of(future: Future[Any], stage: Stage) -> Any:
    """A task's result, or a Refusal that names what happened to its process."""
    try:
        return future.result()
    except LOST as error:
        return Refusal(stage, f"the {stage} {error}")
    except Exception as error:
        return Refusal(stage, f"{type(error).__name__}: {error}")
