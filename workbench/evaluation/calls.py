"""Choose the calls by which a kernel is evaluated: sizes, values and their order are not known to
it beforehand."""

import random
from collections.abc import Sequence

from workbench.backend.checking import CheckCall
from workbench.catalog.declared import size_fault
from workbench.spec import ITEMSIZE, Sizes, Spec

HIDDEN = 2  # sizes that the Spec does not name
OFFERED = 12  # such sizes, of which the config may reject some
TRIES = 400
STEP = 16  # elements, of sizes that an Impl may not refuse
REPEATS = 3  # calls on equal inputs
# Bytes and FLOPs of problems near the sizes to time. The reference of the larger takes up to 10 s
# in fp64 on two cores, and a program 0.3 ms and more in the interpreter.
SOME, ALL = (400 << 20, 2e11), (4 << 20, 1e8)


def hidden_sizes(spec: Spec, dtype: str, seed: int) -> list[dict[str, int]]:
    """Return up to OFFERED sizes near those to check, and equal to none that the Spec names.

    Each axis of one of the sizes to check is scaled by 0.6 to 1.5 and moved by up to 3, to the
    nearest allowed extent; where an Impl may refuse that, every second one to a multiple of STEP.
    None needs more than twice the bytes of the largest size to check.
    """
    chance = random.Random(seed)
    named = [dict(sizes) for sizes in (*spec.check, *spec.bench)]
    most = 2 * max(spec.held_bytes(sizes, dtype) for sizes in spec.check)
    offered: list[dict[str, int]] = []
    for _ in range(TRIES):
        base = chance.choice(list(spec.check))
        moved = {
            axis: max(1, round(extent * chance.uniform(0.6, 1.5)) + chance.randint(-3, 3))
            for axis, extent in base.items()
        }
        sizes = spec.nearest_sizes(moved)
        if len(offered) % 2 and spec.refusable(itemsize=ITEMSIZE[dtype], **sizes):
            sizes = spec.nearest_sizes({axis: -(-n // STEP) * STEP for axis, n in moved.items()})
        if sizes in named or sizes in offered or size_fault(spec, sizes) is not None:
            continue
        if spec.held_bytes(sizes, dtype) <= most:
            offered.append(sizes)
        if len(offered) == OFFERED:
            break
    return offered


def larger_sizes(spec: Spec, dtype: str, timed: Sizes) -> list[dict[str, int]]:
    """Return the sizes to time, or the nearest below them that the interpreter and the reference
    take in seconds: first those of which some programs are run, then those for all programs."""
    results: list[dict[str, int]] = []
    for most_bytes, most_flops in (SOME, ALL):
        sizes = spec.nearest_sizes(dict(timed))
        while spec.held_bytes(sizes, dtype) > most_bytes or spec.flops(**sizes) > most_flops:
            axis = max(sizes, key=lambda name: sizes[name])
            step = min(sizes[axis] & -sizes[axis], 128)  # even tiles stay even
            half = max(step, sizes[axis] // 2 // step * step)
            smaller = spec.nearest_sizes({**sizes, axis: half})
            if smaller[axis] >= sizes[axis]:
                break
            sizes = smaller
        else:
            if size_fault(spec, sizes) is None and sizes not in results:
                results.append(sizes)
    return results


def calls_at(named: Sequence[Sizes], hidden: Sequence[Sizes], seed: int) -> tuple[CheckCall, ...]:
    """Return the calls of an evaluation in a random order: at each of the sizes on inputs of two
    seeds, at the last one of each kind on hard values, and at the first REPEATS times on the same
    inputs."""
    chance = random.Random(seed)
    first, second = chance.sample(range(1 << 31), 2)
    calls = [CheckCall.create(sizes, s) for sizes in (*named, *hidden) for s in (first, second)]
    for sizes in (*named[:1], *hidden[:1]):
        calls += [CheckCall.create(sizes, first)] * (REPEATS - 1)
    calls += [CheckCall.create(sizes, first, hard=True) for sizes in (*named[-1:], *hidden[-1:])]
    chance.shuffle(calls)
    return tuple(calls)
