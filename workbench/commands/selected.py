"""The Impls and configs of one problem that `measure` and `profile` take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.backend.libraries import library_impls
from workbench.backend.protocol import Backend, Problem
from workbench.commands.operands import Operand
from workbench.commands.problem import own_impls
from workbench.data.tuned_cache import Entry, Tuned
from workbench.spec import Impl, Spec
from workbench.tuner.choice import tuned_entry


@dataclass
class Selected:
    """The Impls to measure, each with its config: as requested, else tuned, else the default."""

    operands: Sequence[Operand]
    cache: Tuned
    backend: Backend

    def names(self, spec: Spec) -> list[str]:
        """Return the names of the requested Impls; without any, of all that run on the device."""
        return [o.impl or "" for o in self.operands] or [
            i.name for i in own_impls(spec, self.backend.device.backend)
        ]

    def configs(self, problem: Problem) -> Iterator[tuple[Impl, Any, str]]:
        """Yield each Impl, its config and where the config is from; library baselines come last."""
        spec, limits = problem.spec, self.backend.device.limits
        for operand in self.operands or [Operand(name) for name in self.names(spec)]:
            impl, config = operand.choose(spec, limits, problem.dtype, problem.sizes)
            origin = "as requested" if operand.knobs else "default"
            if not operand.knobs and (entry := self._tuned_entry(impl, problem)) is not None:
                config, origin = impl.config_of(entry.config), f"tuned {entry.at[:10]}"
            yield impl, config, origin
        wanted = {operand.impl for operand in self.operands}
        for impl in library_impls(spec, self.backend.device, self.backend.predicts):
            if impl.name in wanted or self.backend.predicts:
                continue
            config = impl.config()
            if impl.rejection_reason(config, limits, problem.dtype, problem.sizes) is None:
                yield impl, config, "library"

    def _tuned_entry(self, impl: Impl, problem: Problem) -> Entry | None:
        if self.backend.predicts or impl.backend != "triton":
            return None
        at = impl, self.backend.device, problem.dtype, problem.sizes
        return tuned_entry(self.cache, *at, self.backend.environment.versions)
