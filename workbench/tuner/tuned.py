"""Keep the winners of a sweep in the tuned cache, which launches use."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.catalog.source import code_hash
from workbench.data.plain import Damage
from workbench.data.record import Measured, Outcome, Predicted, Record, Run, group_by
from workbench.data.selection import bit_classes, config_key, ranking, relevant, same_bits, select
from workbench.data.tuned_cache import Entry, TunedError, changing, default_path, plain_entry
from workbench.spec import Limits, Spec, values


def entries_of(
    run: Run,
    outcomes: Sequence[Outcome],
    sources: Mapping[str, str],
    defaults: Mapping[str, Mapping[str, int]] | None = None,
) -> list[Entry]:
    """Return the best config of each Impl as an entry: in a measured run by the final benchmark
    alone, in a predicted run marked as predicted. That of the fastest Impl is marked so.

    `sources` is the `code_hash` of each Impl, by name, and `defaults` its default config, with
    whose bits those of the best are compared.
    """
    every = relevant(run, outcomes)
    mine = group_by((o for o in every if not o.case.is_baseline), lambda o: o.case.impl)
    stand = [o for o in ranking(every) if isinstance(o, Record)]
    # Of all Impls: a sweep of one takes in the launch that is the fastest so far, of any Impl.
    whole = select(replace(run, impls={impl: {} for impl in mine}), outcomes)
    selections = {s.winner.case.impl: s for s in (select(run, outcomes), whole) if s.winner}
    results = []
    for impl, own in sorted(mine.items()):
        chosen = selections.get(impl) or select(replace(run, impls={impl: {}}), outcomes)
        won = chosen.winner
        if won is None or (won.is_measured and won.phase != "final"):
            continue
        ties = tuple(_numbers(r.case.config) for r in chosen.ties if r.case.impl == impl)
        configs = len({config_key(o.case) for o in own})
        entry = _entry(run, won, sources.get(impl, ""), configs, ties)
        entry = replace(entry, fastest=won is whole.winner)
        results.append(replace(entry, **_bits(won, own, stand, (defaults or {}).get(impl))))
    return results


def _bits(
    won: Record, mine: Sequence[Outcome], stand: Sequence[Record], default: Mapping[str, int] | None
) -> dict[str, Any]:
    """Return the fields of an entry on bits. `mine` are the outcomes of its Impl, `stand` one
    record of each config of the run, as its page shows them."""
    records = [o for o in mine if isinstance(o, Record)]
    bits = None if default is None else dict(default)
    of_default = [r for r in records if r.default or dict(r.case.config) == bits]
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


def _numbers(config: Mapping[str, int]) -> dict[str, int]:
    """Return a config with plain integers in place of those that print as words."""
    plain = (
        v if isinstance(v, bool) or not isinstance(v, int) else int(v) for v in config.values()
    )
    return dict(zip(config, plain, strict=True))


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
        config=_numbers(won.case.config),
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


def remember(
    run: Run,
    outcomes: Sequence[Outcome],
    spec: Spec | None = None,
    path: Path | None = None,
    limits: Limits | None = None,
) -> list[Entry]:
    """Keep the best config of each Impl of a finished sweep. Returns the entries that are stored.

    With `limits` of the device the bits of each are compared with those of its Impl's default, else
    only where that is the run's. Raises TunedError where the tuned cache cannot be read or written;
    and, after the others are kept, for a config with a knob that is not a whole number.
    """
    spec = spec or catalog.spec_of(run.source)
    named = {outcome.case.impl for outcome in outcomes}  # others have no hash yet: 0.1 s each
    sources = {impl.name: code_hash(impl) for impl in spec.impls if impl.name in named}
    result = entries_of(run, outcomes, sources, _defaults(run, spec, limits))
    if not result:
        return []
    usable, damages = list[Entry](), list[Damage]()
    for entry in result:
        try:
            plain_entry(entry)
            usable.append(entry)
        except Damage as damage:
            damages.append(damage)
    with changing(path or default_path()) as tuned:
        for entry in usable:
            tuned.add(entry)
    if damages:
        raise TunedError(
            f"A winner is not kept: {damages[0]}; launches without a config cannot use it."
        )
    return usable


def _defaults(run: Run, spec: Spec, limits: Limits | None) -> dict[str, dict[str, int]]:
    """Return the default config of each Impl on this device, by name."""
    if limits is None:
        return {}
    own = [impl for impl in spec.impls if impl.backend == "triton"]
    return {i.name: values(i.default(limits, run.dtype, run.sizes)) for i in own}
