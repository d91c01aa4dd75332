"""Registers or shared memory leave room for few warps."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.code_facts import CodeFacts
from workbench.data.units import percent
from workbench.rules import CodeRule, Diagnosis, count, share

LIMITERS = ("registers", "shared memory")


def evaluate(facts: CodeFacts, limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel of which few warps fit. Matrix instructions hide their waits
    by stages instead of warps, and a grid of less than a wave does not fill the places anyway."""
    fits = facts.occupancy or 0.0
    if fits >= limits["occupancy"] or facts.limiter not in LIMITERS:
        return None
    if facts.matrix or (facts.waves or 0.0) < limits["waves"]:
        return None
    return Diagnosis(
        f"{percent(fits)} of the warps that a core can hold fit, for {facts.limiter}: "
        f"{facts.registers} registers a thread, {(facts.shared_bytes or 0) / 1024:.4g} KiB of "
        "shared memory a block.",
        (
            share("theoretical occupancy, share", fits, kind="computed"),
            count("registers", facts.registers or 0, "registers", kind="computed"),
            count("shared memory of a block", facts.shared_bytes or 0, "B", kind="computed"),
        ),
        facts.next_step or "Use a smaller tile.",
        "medium",
    )


RULE = CodeRule(
    "few warps fit",
    219,
    ("occupancy", "limiter", "registers", "shared_bytes", "waves", "next_step"),
    evaluate,
    {"occupancy": 0.5, "waves": 1.0},
    source="limits of the device file, as cuda_occupancy.h computes them",
)
