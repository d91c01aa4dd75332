"""Keep the winners of a sweep in the tuned cache, which launches use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.data.record import Failure, Measured, Outcome, Predicted, Record, Run
from workbench.data.tuned_cache import Entry, TunedError, changing, default_path, unusable
from workbench.source import code_hash, file_hash
from workbench.spec import Impl, Limits, Spec, values
from workbench.tuner.selection import (
    bit_classes,
    comparable_times,
    config_key,
    ranking,
    relevant,
    same_bits,
    select,
)


def sources_of(impl: Impl) -> tuple[str, str]:
    """Return the hashes of an Impl in keys of the tuned cache: of its code, and of its file as in
    schema 1."""
    return code_hash(impl), file_hash(impl)


def entries_of(
    run: Run,
    outcomes: Sequence[Outcome],
    sources: Mapping[str, str],
    defaults: Mapping[str, Mapping[str, int]] | None = None,
) -> list[Entry]:
    """Return the winner of each Impl as an entry: in a measured run by the final benchmark alone,
    in a predicted run marked as predicted.

    `sources` is the `code_hash` of each Impl, by name, and `defaults` its default config, with
    whose bits those of the winner are compared. An Impl of which only the default was in the final
    benchmark, where defaults always are, has no entry if another of its configs was faster in the
    first pass.
    """
    results = []
    stand = [o for o in ranking(relevant(run, outcomes)) if isinstance(o, Record)]
    for impl in sorted({o.case.impl for o in outcomes if not o.case.is_baseline}):
        mine = [o for o in relevant(run, outcomes) if o.case.impl == impl]
        text = select(run, mine)
        if text.winner is None or (text.winner.measured and not _reached(mine)):
            continue
        ties = tuple(dict(r.case.config) for r in text.ties)
        bits = _bits(text.winner, mine, stand, (defaults or {}).get(impl))
        entry = _entry(run, text.winner, sources.get(impl, ""), text.configs, ties)
        results.append(replace(entry, **bits))
    return results


def _bits(
    won: Record,
    mine: Sequence[Outcome],
    stand: Sequence[Record],
    default: Mapping[str, int] | None,
) -> dict[str, Any]:
    """Return the fields of an entry on bits. `mine` are the outcomes of its Impl, `stand` one
    record of each config of the run, as its page shows them."""
    records = [o for o in mine if isinstance(o, Record)]
    wanted = None if default is None else dict(default)
    of_default = [r for r in records if r.default or dict(r.case.config) == wanted]
    own = [r for r in records if config_key(r.case) == config_key(won.case)]
    fields: dict[str, Any] = {"repeats": won.repeats}
    if of_default:
        fields["same_bits_as_default"] = same_bits(own, of_default)
    classes, mark = bit_classes(stand), (won.seed, won.bits or "")
    if mark in classes:
        fields |= {
            "bits_class": classes[mark],
            "bits_classes": sum(seed == won.seed for seed, _ in classes),
            "bits_configs": sum((r.seed, r.bits) == mark and not r.case.is_baseline for r in stand),
        }
    return fields


def _entry(
    run: Run, won: Record, source: str, configs: int, ties: tuple[Mapping[str, int], ...]
) -> Entry:
    t, software = won.timing, run.environment.versions
    low_s, high_s, regime, protocol = (
        (None, None, "", t.model)
        if isinstance(t, Predicted)
        else (t.low_s, t.high_s, f"{t.regime}, {t.state}", t.protocol)
    )
    return Entry(
        kernel=run.kernel,
        impl=won.case.impl,
        config=dict(won.case.config),
        sizes=dict(run.sizes),
        dtype=run.dtype,
        device=run.device,
        torch=software.get("torch", ""),
        triton=software.get("triton", ""),
        source=source,
        predicted=not isinstance(t, Measured),
        time_s=won.time_s,
        low_s=low_s,
        high_s=high_s,
        regime=regime,
        protocol=protocol,
        run=run.id,
        at=won.at,
        configs=configs,
        ties=ties,
        same_bits_as=run.same_bits_as,
    )


_ALONE = "was not in one final benchmark with the default, so nothing says that it is faster"


def _met_default(entry: Entry, outcomes: Sequence[Outcome]) -> bool:
    """Return whether a measured winner was timed in the same final benchmark as the default of its
    Impl, or is it. A default that failed cannot be, and any config that works replaces it."""
    own = [o for o in outcomes if o.case.impl == entry.impl and not o.case.is_baseline]
    finals = [o for o in own if isinstance(o, Record) and o.phase == "final"]
    won = [r for r in finals if dict(r.case.config) == dict(entry.config)]
    contested = {(r.run, r.gpu) for r in finals if r.default}
    failed = any(isinstance(o, Failure) and o.default for o in own)
    return entry.predicted or failed or any((r.run, r.gpu) in contested for r in won)


def _reached(outcomes: Sequence[Outcome]) -> bool:
    """Return whether an Impl came into the final benchmark by its times, not by its default
    alone."""
    records = [o for o in ranking(outcomes) if isinstance(o, Record)]
    finals = [r for r in records if r.phase == "final"]
    if not finals or any(not r.default for r in finals):
        return bool(finals)
    right = {config_key(r.case) for r in records}
    screens = [r for key, r in comparable_times(outcomes).items() if key in right]
    return all(r.time_s >= d.time_s for d in screens if d.default for r in screens)


def remember(
    run: Run,
    outcomes: Sequence[Outcome],
    spec: Spec | None = None,
    path: Path | None = None,
    limits: Limits | None = None,
) -> list[Entry]:
    """Keep the winners of a finished sweep. Returns the entries that are now stored. With `limits`
    of the device the bits of each are compared with those of its Impl's default, else only where
    that is the run's. Raises TunedError where the tuned cache cannot be read or written; and, after
    the others are kept, for a winner that cannot be kept: one whose knob is no whole number, or
    that was in no final benchmark together with its Impl's default.

    An older entry stays if a narrower sweep did worse: it tried fewer configs, and its time lies
    wholly above the older one under the same protocol, so it never tried the better config.
    """
    spec = spec or catalog.spec_of(run.source)
    sources = {impl.name: code_hash(impl) for impl in spec.impls}
    result = entries_of(run, outcomes, sources, _defaults(run, spec, limits))
    if not result:
        return []
    reasons = {e.impl: reason for e in result if (reason := unusable(asdict(e))) is not None}
    reasons |= {e.impl: _ALONE for e in result if not _met_default(e, outcomes)}
    with changing(path or default_path()) as tuned:
        for entry in result:
            if entry.impl in reasons:
                continue
            old = tuned.entries.get(entry.key)
            if old is None or not _missed(entry, old):
                tuned.add(entry)
        stored = [e for e in result if tuned.entries.get(e.key) == e]
    if reasons:
        impl, reason = next(iter(reasons.items()))
        raise TunedError(
            f"The winner of {run.kernel}.{impl} is not kept: it {reason}; launches without a "
            "config cannot use it."
        )
    return stored


def _defaults(run: Run, spec: Spec, limits: Limits | None) -> dict[str, dict[str, int]]:
    """Return the default config of each Impl on this device, by name."""
    if limits is None:
        return {}
    own = [impl for impl in spec.impls if impl.backend == "triton"]
    return {i.name: values(i.default(limits, run.dtype, run.sizes)) for i in own}


def _missed(new: Entry, old: Entry) -> bool:
    if old.high_s is None or new.low_s is None:
        return False
    alike = (old.protocol, old.regime) == (new.protocol, new.regime)
    return alike and new.configs < old.configs and old.high_s < new.low_s
