"""Verify from machine code that a kernel's traffic and arithmetic variants match the kernel.

The traffic variant must load the same as the kernel and multiply nothing; the arithmetic variant
must do the kernel's arithmetic and load nothing inside its loop. Counts of instructions cannot
prove more: each variant's result is checked where it is timed.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from workbench.code.loops import Code, Counts


def dishonest(
    whole: Sequence[Code], traffic: Sequence[Code], arithmetic: Sequence[Code]
) -> list[str]:
    """Return a sentence for each claim of the variants that their machine code does not confirm.
    Empty where the traffic and the arithmetic variant match the kernel (`whole`)."""
    for name, codes in (("whole", whole), ("traffic", traffic), ("arithmetic", arithmetic)):
        if not codes:
            return [f"The machine code of the {name} was not read"]
        if unread := [code for code in codes if not code.readable]:
            return [f"The machine code of the {name} is not known: {unread[0].unknown[0]}"]
    c, a, b = sum_codes(whole), sum_codes(traffic), sum_codes(arithmetic)
    return [*_traffic_faults(c, a), *_arithmetic_faults(c, b)]


def sum_codes(codes: Sequence[Code]) -> Code:
    """Return the facts of several launches added up, as if they were one."""
    return Code(
        codes[0].arch,
        sum(code.loops for code in codes),
        _sum_counts([code.whole for code in codes]),
        _sum_counts([code.loop_counts for code in codes]),
        tuple(dict.fromkeys(text for code in codes for text in code.unknown)),
    )


def _sum_counts(counts: Sequence[Counts]) -> Counts:
    kinds = dict.fromkeys(kind for each in counts for kind in each.loads)
    return Counts(
        {kind: sum(each.loads.get(kind, 0) for each in counts) for kind in kinds},
        *(
            sum(getattr(each, name) for each in counts)
            for name in ("stores", "shared_loads", "matrix", "vector", "special")
        ),
    )


def _traffic_faults(whole: Code, traffic: Code) -> Iterable[str]:
    if traffic.whole.matrix:
        yield f"The traffic variant has {traffic.whole.matrix} matrix instructions"
    place, theirs, its = loads_of(whole, traffic)
    if not same_loads(theirs, its):
        yield (
            f"The traffic variant's loads {place} are not the kernel's: {loads_text(its)} against "
            f"{loads_text(theirs)}"
        )
    if whole.whole.stores and not traffic.whole.stores:
        yield "The traffic variant stores nothing"


def loads_of(whole: Code, variant: Code) -> tuple[str, Mapping[str, int], Mapping[str, int]]:
    """Return where loads are compared, the kernel's loads and the variant's loads there. They are
    compared inside loops, or in all where the kernel's loops have none."""
    if whole.loop_counts.loads:
        return "inside its loop", whole.loop_counts.loads, variant.loop_counts.loads
    return "outside loops", whole.whole.loads, variant.whole.loads


def same_loads(whole: Mapping[str, int], variant: Mapping[str, int]) -> bool:
    """Return whether a variant has the loads of the whole kernel: the same kinds and as many of
    each, or the same whole multiple of all where its loop is unrolled and the kernel's is not."""
    if whole.keys() != variant.keys():
        return False
    times = {Fraction(variant[kind], whole[kind]) for kind in whole}
    return not times or (len(times) == 1 and times.pop().denominator == 1)


def _arithmetic_faults(whole: Code, arithmetic: Code) -> Iterable[str]:
    if count := arithmetic.loop_counts.global_loads:
        yield f"The arithmetic variant has {count} global loads inside its loop"
    inside = whole.loop_counts.matrix + whole.loop_counts.vector + whole.loop_counts.special > 0
    theirs, its = (
        (whole.loop_counts, arithmetic.loop_counts) if inside else (whole.whole, arithmetic.whole)
    )
    for name, least in (("matrix", 1.0), ("special", 1.0), ("vector", 0.9)):
        wanted, there = getattr(theirs, name), getattr(its, name)
        if there < least * wanted:
            where = "inside its loop" if inside else "in all"
            has = f"{there} {name} instructions {where}"
            yield f"The arithmetic variant has {has}, the kernel {wanted}"


def loads_text(loads: Mapping[str, int]) -> str:
    """Return loads as text: `12 of async 128 bits, 2 of 32 bits`."""
    return (
        ", ".join(
            f"{count} by {kind}" if not kind[-1].isdigit() else f"{count} of {kind} bits"
            for kind, count in loads.items()
        )
        or "none"
    )
