"""What comparisons say of equal code, and of code that is 2 % slower.

Half of them compare a kernel with itself (A/A: each word but SAME or INCONCLUSIVE is false), half
with itself made 2 % slower by extra trips of its loop, or by 2 % more bytes (SLOW is right). All
run in one process, with correctness checked each time, as `workbench compare` does.

    python benchmarks/verdicts.py --count 100 --out verdicts.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runs import HERE, save, say, show

WORDS = ("SLOW", "FAST", "SAME", "CLOCK", "INCONCLUSIVE", "none")
FALSE = ("SLOW", "FAST", "CLOCK")  # of equal code
LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Operand:
    """One Impl at one config."""

    impl: str
    config: Mapping[str, int]


@dataclass(frozen=True)
class Pair:
    """A kernel, its left side, and what the right side may be."""

    kernel: str
    sizes: Mapping[str, int]
    left: Operand
    rights: Mapping[str, Operand]  # "A/A" or how much slower


OWN = str(HERE / "slowdown.py")
LOOP, COPY = Operand("compute", {"trips": 1600}), Operand("memory", {"percent": 0})
TILES = {"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8, "num_stages": 3}
MATMUL = Operand("tiles", {**TILES, "group_m": 8})
PAIRS = {
    "compute": Pair(
        OWN, {"N": 1 << 21}, LOOP, {"A/A": LOOP, "2 %": Operand("compute", {"trips": 1632})}
    ),
    "memory": Pair(
        OWN, {"N": 1 << 27}, COPY, {"A/A": COPY, "2 %": Operand("memory", {"percent": 2})}
    ),
    # under the power cap, whose clock wanders most; there is no 2 % to order here
    "matmul": Pair("matmul", {"M": 4096, "N": 4096, "K": 4096}, MATMUL, {"A/A": MATMUL}),
}


def compare_pair(left: Operand, right: Operand) -> dict[str, Any]:
    """One comparison, with its seconds."""
    from workbench.measurement import worker
    from workbench.measurement.candidate import Candidate, Refusal

    operands = [Candidate.create(operand.impl, operand.config) for operand in (left, right)]
    started = time.perf_counter()
    result, _ = worker.compare(*operands, LEAST_SHARE)
    seconds = time.perf_counter() - started
    if result.verdict is None:
        refused = [r.reason for r in (result.left, result.right) if isinstance(r, Refusal)]
        reason = refused[0] if refused else "gave no time"
        return {"word": "none", "reason": reason, "seconds": seconds}
    timing = result.left.timing
    return {
        "word": result.verdict.word, "seconds": seconds, "verdict": asdict(result.verdict),
        "left_s": timing.median_s,
        "sm_mhz": timing.sm_mhz,
    }  # fmt: skip


def series(name: str, pair: Pair, count: int, end_s: float, keep: Any) -> None:
    """`count` comparisons of each kind, in turn, until `end_s` on the process' clock."""
    from workbench.measurement import worker
    from workbench.measurement.protocol import Protocol

    started = time.perf_counter()
    worker.begin(worker.MeasureJob(pair.kernel, dict(pair.sizes), "bf16", Protocol()))
    say(f"{name}: begun in {time.perf_counter() - started:.1f} s")
    for number in range(count):
        for kind, right in pair.rights.items():
            if time.perf_counter() > end_s:
                say(f"{name}: its time is over after {number} of {count}")
                return
            result = compare_pair(pair.left, right)
            keep(name, kind, result)
            if number < 2 or result["word"] in ("none", "INCONCLUSIVE") or wrong(kind, result):
                say(f"{name} {kind} {number}: {text(result)}")


def wrong(kind: str, result: Mapping[str, Any]) -> bool:
    """Whether a comparison said what is not so, or missed what is."""
    return result["word"] in FALSE if kind == "A/A" else result["word"] != "SLOW"


def text(result: Mapping[str, Any]) -> str:
    """A comparison in a line."""
    if result["word"] == "none":
        return f"no verdict: {result['reason']}"
    v = result["verdict"]
    ratio, cycles = v["time"], v["cycles"]
    clock = f", cycles {cycles['low']:.4f} to {cycles['high']:.4f}" if cycles else ", no clock"
    return (
        f"{result['word']} {ratio['middle']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f}){clock}"
        f", noise {v['noise']:.4f}, {v['rounds']} rounds, {result['seconds']:.2f} s"
    )


def shares(names: Sequence[str], seconds: float) -> dict[str, float]:
    """Seconds of each series: by how many kinds it has."""
    kinds = {name: len(PAIRS[name].rights) for name in names}
    whole = sum(kinds.values())
    return {name: seconds * kinds[name] / whole for name in names}


def rows_of(result: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> list[list[Any]]:
    """One line a series and kind, then one a kind over all series."""
    rows, whole = [], {}
    for name, kinds in result.items():
        for kind, results in kinds.items():
            rows.append([name, kind, *_line(kind, results)])
            whole.setdefault(kind, []).extend(results)
    return rows + [["all", kind, *_line(kind, results)] for kind, results in whole.items()]


def _line(kind: str, results: Sequence[Mapping[str, Any]]) -> list[Any]:
    words = Counter(r["word"] for r in results)
    seconds = [r["seconds"] for r in results]
    ratios = [r["verdict"]["time"]["middle"] for r in results if r["word"] != "none"]
    lefts = [r["left_s"] for r in results if r.get("left_s")]
    return [
        len(results), sum(wrong(kind, r) for r in results), *(words[w] for w in WORDS),
        statistics.median(lefts) * 1e6 if lefts else None,
        statistics.median(ratios) if ratios else None,
        statistics.median(seconds) if seconds else None, max(seconds, default=None),
    ]  # fmt: skip


HEADS = (
    "kernel", "truth", "n", "wrong", *WORDS, "left us", "ratio", "median s", "max s",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kernels", nargs="*", default=["compute", "memory"],
        help="of compute, memory, matmul (A/A alone); the first two else",
    )  # fmt: skip
    parser.add_argument("--count", type=int, default=100, help="of each kind, over all kernels")
    parser.add_argument("--seconds", type=float, default=420.0, help="shared out over the kernels")
    parser.add_argument("--out", default="verdicts.json", help="JSON file to write")
    wanted = parser.parse_args()
    for name in wanted.kernels:
        if name not in PAIRS:
            parser.error(f"there is no {name}; name some of {', '.join(PAIRS)}")
    result: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def keep(name: str, kind: str, one: dict[str, Any]) -> None:
        results = result.setdefault(name, {}).setdefault(kind, [])
        results.append(one)
        if len(results) % 10 == 1:
            save(wanted.out, result)

    for name, seconds in shares(wanted.kernels, wanted.seconds).items():
        count = -(-wanted.count // len(wanted.kernels))
        try:
            series(name, PAIRS[name], count, time.perf_counter() + seconds, keep)
        except Exception as error:
            say(f"{name} ended: {type(error).__name__}: {error}")
    save(wanted.out, result)
    show(HEADS, rows_of(result))
    print("wrong: of A/A each word that claims a difference; of 2 % each that is not SLOW")


if __name__ == "__main__":
    main()
