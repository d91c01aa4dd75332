"""Enumerate the configs of a sweep: every config of the Impls, rejected or kept, each with a
key."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from workbench.backend.libraries import library_impls
from workbench.backend.protocol import Problem
from workbench.backend.refusal import refusal_of
from workbench.catalog.source import code_hash, file_hash
from workbench.compile import Compiled
from workbench.data.clock import timestamp
from workbench.data.record import Case, Failure, Outcome, Phase, Record, Run, group_by, key_of
from workbench.device.correction import kernels_for
from workbench.device.cost_model import guess_seconds
from workbench.device.hardware import Device
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.protocol import Protocol
from workbench.spec import Impl, Knob, WorkbenchError, sizes_text, values
from workbench.sweeps import Sweep
from workbench.tuner.choice import LaunchChoice


@dataclass(frozen=True)
class Plan:
    """Plan of a sweep: candidates to try and configs rejected beforehand."""

    run: Run
    problem: Problem
    sweep: Sweep
    candidates: list[Candidate]
    failures: list[Failure]
    baselines: list[Candidate]
    left_out: int = 0  # legal configs that the model ranked below the requested `most`
    launches: tuple[str, ...] = ()  # keys of what launches without a config run, the first first


@dataclass(frozen=True)
class Earlier:
    """Outcomes that the database already holds, by key: they are not obtained again."""

    first: Mapping[str, Outcome] = field(default_factory=dict)
    final: Mapping[str, Outcome] = field(default_factory=dict)
    hot: Mapping[str, Outcome] = field(default_factory=dict)
    previous_best: frozenset[str] = frozenset()  # keys of configs that were found best before
    # at which the search stopped in the run that tried all of these; None where it did not
    chance_left: float | None = None


class NothingToSweep(WorkbenchError, ValueError):
    """No config can be tried; the message says why in one sentence."""


def plan_sweep(
    run: Run,
    problem: Problem,
    sweep: Sweep,
    impls: Sequence[Impl],
    device: Device,
    protocol: str,
    *,
    only: bool = False,
    most: int = 0,
    launches: Sequence[LaunchChoice] = (),
) -> Plan:
    """Return the plan of a sweep: enumerate, reject, and keep the `most` (0: all) that the model
    ranks best.

    `only` keeps the knobs of `sweep.tune` at their default. `launches` are what launches without a
    config run today, the one that `workbench.ops` takes first. The sweep compares its winner with
    that one. It takes part whatever is swept, and so do those of the Impls that are swept. Raises
    NothingToSweep where no config is legal.
    """
    knobs = tuple(sweep.vary) + (() if only else tuple(sweep.tune))
    factory = RecordFactory(run, problem, protocol)
    legal: list[Candidate] = []
    refused: list[Failure] = []
    libraries = [
        factory.candidate(i, i.config(), False)
        for i in library_impls(problem.spec, device, run.predicted)
    ]
    baselines = [c for c in libraries if refusal_of(c, problem, device) is None]
    today = {c.impl.name: c.config for c in launches}
    first = launches[0].impl if launches else impls[0]
    swept = {impl.name for impl in impls}
    for impl in (*impls, *(() if first.name in swept else (first,))):
        default = impl.default(device.limits, problem.dtype, problem.sizes)
        launched = today.get(impl.name, default)
        space = (*impl.space(default, knobs), default) if impl.name in swept else ()
        for config in dict.fromkeys((*space, launched)):
            candidate = factory.candidate(
                impl, config, impl.name == first.name and config == launched
            )
            refusal = refusal_of(candidate, problem, device)
            if refusal is None:
                legal.append(candidate)
            else:
                refused.append(factory.failure(candidate, Refusal("refused", refusal)))
    if not legal:
        raise NothingToSweep(_nothing(problem, refused, knobs))
    legal = predict(legal, problem, device)
    launched_of = {c.impl.name: c.key for c in legal if c.config == today.get(c.impl.name)}
    keys = tuple(launched_of[name] for name in today if name in launched_of)
    some = thin(legal, most, sweep.vary, keys)
    return Plan(run, problem, sweep, some, refused, baselines, len(legal) - len(some), keys)


def predict(legal: list[Candidate], problem: Problem, device: Device) -> list[Candidate]:
    """Return the candidates with what the model predicts before compiling, corrected by the
    device's calibration where it has one. Impls without times are corrected, too: one that is as
    fast as another would come later otherwise."""
    kernel = next(kernels_for(problem.spec, device, problem.dtype, problem.sizes), None)
    if kernel is None:
        return [replace(c, predicted_s=expected_s(c, problem, device)) for c in legal]
    places = [kernel.estimate_resources(c.impl, c.config, device, problem.sizes) for c in legal]
    predictions = [place for place in places if place is not None]
    corrected = iter(kernel.seconds(predictions, device, problem.dtype))
    return [
        replace(c, predicted_s=expected_s(c, problem, device) if p is None else next(corrected))
        for c, p in zip(legal, places, strict=True)
    ]


def _nothing(problem: Problem, refused: Sequence[Failure], knobs: Sequence[Knob]) -> str:
    if not refused:
        words = " or ".join(k.__name__ for k in knobs)
        return f"{problem.kernel} declares no knob of the kind {words}; try the sweep `full`."
    reasons = [f.reason for f in refused]
    usual = max(set(reasons), key=reasons.count)
    sizes = sizes_text(problem.sizes)
    remedy = "correct it" if usual.startswith("`refuse` of") else "name other sizes with --sizes"
    return (
        f"No config of {problem.kernel} can take {sizes} in {problem.dtype} on "
        f"{refused[0].case.device}: {usual}; {remedy}."
    )


def thin(
    legal: Sequence[Candidate], most: int, vary: Sequence[Knob], launches: Sequence[str] = ()
) -> list[Candidate]:
    """Return at most `most` candidates: for each value of the varied knobs the best ranked, taken
    in turn, so that every value is tried. The default and `launches`, by key, always stay."""
    if not most or len(legal) <= most:
        return list(legal)
    ranked = sorted(legal, key=lambda c: c.predicted_s)
    groups = group_by(ranked, lambda candidate: group_of(candidate, vary))
    result = [c for c in ranked if c.default or c.key in launches]
    always, depth = {c.key for c in result}, 0
    while len(result) < most:
        layer = [g[depth] for g in groups.values() if len(g) > depth and g[depth].key not in always]
        result += layer[: most - len(result)]
        depth += 1
    keys_in = {c.key for c in result}
    return [c for c in legal if c.key in keys_in]


def group_of(candidate: Candidate, vary: Sequence[Knob]) -> tuple[Any, ...]:
    """Return the name of the Impl and the values of the varied knobs."""
    words = {k.__name__ for k in vary}
    knobs = candidate.impl.knobs()
    config = values(candidate.config).items()
    return (candidate.impl.name, *(v for k, v in config if knobs[k] in words))


def expected_s(candidate: Candidate, problem: Problem, device: Device) -> float:
    """Return the seconds that the model predicts before compiling; infinite if it cannot."""
    return guess_seconds(candidate.impl, candidate.config, device, problem.dtype, problem.sizes)


@dataclass(frozen=True)
class RecordFactory:
    """Create candidates, records and failures with the keys of one run and problem."""

    run: Run
    problem: Problem
    protocol: str
    # of code and file, by launcher: two versions of an Impl have one name
    _hashes: dict[Any, tuple[str, str]] = field(default_factory=dict, init=False)

    def candidate(self, impl: Impl, config: Any, default: bool) -> Candidate:
        """Return the candidate of a config. Raises ValueError where a field of it is AUTO: such a
        config is another one at other sizes, and must be resolved first."""
        if impl.is_open(config):
            raise ValueError(f"{impl.title}: {config} is not resolved")
        case = Case(
            impl.spec.name,
            impl.name,
            impl.backend,
            values(config),
            dict(self.problem.sizes),
            self.problem.dtype,
            self.run.device,
        )
        versions = self.run.environment.versions
        software = {
            "torch": versions.get("torch", ""),
            "triton": versions.get("triton", ""),
            "driver": self.run.environment.driver or "",
        }
        code, file = self._hashes_of(impl)
        older = key_of(case, source=file, protocol=_older_protocol(self.protocol), **software)
        if settings := _code_settings(self.run.environment.settings):
            software["settings"], older = settings, ""  # schema 1 did not tell them apart
        key = key_of(case, source=code, protocol=self.protocol, **software)
        return Candidate(case, key, impl, config, default, code, older)

    def _hashes_of(self, impl: Impl) -> tuple[str, str]:
        """Return the hashes of an Impl's code and file, read once: a plan has thousands of
        configs."""
        if impl.launch not in self._hashes:
            self._hashes[impl.launch] = code_hash(impl), file_hash(impl)
        return self._hashes[impl.launch]

    def failure(
        self, candidate: Candidate, refusal: Refusal, compiled: Compiled | None = None
    ) -> Failure:
        """Return the failure of a candidate, with its resources if it was compiled."""
        return Failure(
            candidate.case,
            candidate.key,
            self.run.id,
            timestamp(),
            refusal.stage,
            refusal.reason,
            compiled.resources if compiled else None,
            candidate.default,
            cause=refusal.cause,
            attempts=refusal.attempts,
            traffic=compiled.traffic if compiled else None,
            gpu="" if refusal.stage == "refused" else self.run.gpu,
        )

    def outcome(
        self,
        candidate: Candidate,
        result: Timed | Refusal,
        phase: Phase,
        compiled: Compiled | None,
        same_as: Candidate | None = None,
        winner_s: float | None = None,
    ) -> Outcome:
        """Return the record of a timed candidate, or its failure. `same_as` is the candidate that
        was timed in its place, which has the same machine code, `winner_s` is `Record.winner_s`."""
        if isinstance(result, Refusal):
            return self.failure(candidate, result, compiled)
        assert result.timing is not None, "a duplicate has the time of its leader"
        spec, problem = self.problem.spec, self.problem
        at = problem.sizes, problem.dtype
        moved = spec.bytes(*at) if result.moved_bytes is None else result.moved_bytes
        written = min(moved, spec.bytes_written(*at))
        return Record(
            case=candidate.case,
            key=candidate.key,
            run=self.run.id,
            at=timestamp(),
            phase=phase,
            timing=result.timing,
            flops=spec.flops(**problem.sizes),
            bytes=moved,
            bytes_read=moved - written,
            bytes_written=written,
            checked=result.check,
            error=result.error,
            resources=compiled.resources if compiled else None,
            default=candidate.default,
            same_as=values(same_as.config) if same_as else None,
            seed=result.seed,
            bits=result.bits,
            repeats=result.repeats,
            traffic=compiled.traffic if compiled else None,
            gpu=self.run.gpu,
            winner_s=winner_s,
            checked_programs=result.programs,
        )


def _code_settings(settings: Mapping[str, str]) -> str:
    """Return the settings of the compiler that are part of a key; workers unset the interpreter's
    and choose it themselves."""
    result = {k: v for k, v in settings.items() if k != "TRITON_INTERPRET"}
    return json.dumps(result, sort_keys=True) if result else ""


@cache
def _older_protocol(protocol: str) -> str:
    """Return the name of a protocol in keys of schema 1; the model's name is the same in both."""
    usual = Protocol()
    return usual.older_id if protocol == usual.id else protocol
