"""Registers or shared memory leave room for few warps."""

from workbench.data.code_facts import CodeFacts
from workbench.data.units import percent
from workbench.traces.rules import CodeRule, Diagnosis, Values, count, share

LIMITERS = ("registers", "shared memory")


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel of which few warps fit. Matrix instructions hide their waits
    by stages instead of warps, a few warps that load much each keep DRAM busy, and a grid of less
    than a wave does not fill the places anyway."""
    fits = facts.occupancy or 0.0
    if fits >= limits["occupancy"] or facts.limiter not in LIMITERS:
        return None
    if facts.matrix or (facts.waves or 0.0) < limits["waves"]:
        return None
    busy = facts.in_flight or 0.0
    if busy >= limits["in_flight"]:
        return None
    return Diagnosis(
        f"{percent(fits)} of the warps that a core can hold fit, for {facts.limiter}: "
        f"{facts.registers} registers a thread, {(facts.shared_bytes or 0) / 1024:.4g} KiB of "
        "shared memory a block; their loads are too few to keep DRAM busy.",
        (
            share("theoretical occupancy, share", fits, kind="computed"),
            share("requested bytes over those that keep DRAM busy", busy, kind="computed"),
            count("registers", facts.registers or 0, "registers", kind="computed"),
            count("shared memory of a block", facts.shared_bytes or 0, "B", kind="computed"),
        ),
        facts.next_step or "Use a smaller tile.",
        "medium",
    )


RULE = CodeRule(
    "few warps fit",
    219,
    ("occupancy", "limiter", "registers", "shared_bytes", "waves", "next_step", "in_flight"),
    evaluate,
    {"occupancy": 0.5, "in_flight": 1.0, "waves": 1.0},
    source="limits of the device file; Little's law with the latency of docs/model.md",
)
