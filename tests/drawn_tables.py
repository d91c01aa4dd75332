"""Tables of what pure functions return for drawn arguments, with all edges among them.

    python tests/drawn_tables.py      writes `tests/golden/tables/` anew

Each line of a table is a call and its result. Whoever changes a rule, the declared work of a kernel
or the model writes them anew and reads the difference that the failing test printed.
"""

from __future__ import annotations

import gzip
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import drawn_choices
import drawn_data
import drawn_device
import drawn_experiments
import drawn_figures
import drawn_numbers
import drawn_printed
import drawn_reports
import drawn_traces
import torch
from drawn_launches import launch_lines, planned_lines
from table_text import text_of

from workbench import catalog
from workbench.code.code_match import compare_code
from workbench.code.code_reading import MachineCode, code_of_assembly
from workbench.code.flow import dominators, flow_graph, loop_levels, reachable
from workbench.code.hot_loop import hot_loop
from workbench.code.kinds import (
    access_of,
    amd_kind,
    group_of,
    is_amd,
    matrix_flops,
    sass_kind,
)
from workbench.code.listing import read_sass
from workbench.code.live import amd_live, registers_of
from workbench.code.loops import code_of_amdgcn, code_of_sass
from workbench.code.mix import mix_of
from workbench.code.partitions import specialisation
from workbench.code.sass_registers import register_use
from workbench.commands.traces import trace_run
from workbench.compile.facts import bytes_in_flight, code_facts, next_step
from workbench.data.code_facts import CodeFacts, Marked
from workbench.device.cost_model import guess_seconds, guesses
from workbench.device.hardware import Device, find_device
from workbench.measurement.correctness import PreparedProblem
from workbench.reports.figures.code import flow_dot, flow_svg, live_svg
from workbench.spec import ConfigError, Impl, Sizes, Spec, label, sizes_text, values
from workbench.traces.readers import read
from workbench.traces.readers.inputs.source import ReadError
from workbench.traces.rules import CodeRule, KernelRule, code_rules, kernel_rules
from workbench.traces.trace_summary import summarise

FOLDER = Path(__file__).resolve().parent / "golden" / "tables"
ROWS = 40  # of one Impl, and of one rule
DEFAULTS = 60  # drawn sizes of one Impl
VALUES = 3  # sizes of a kernel whose values are looked at
GPUS = ("h200", "b200", "a100", "rtx4090", "mi300x", "rx7900xtx", "mi250x")
MACS = ("m1", "m2max", "m5")


# What a kernel declares


def impls(kernel: str) -> list[Impl]:
    """Return the Impls of a kernel that have configs."""
    return [impl for impl in catalog.spec_of(kernel).impls if impl.backend in ("triton", "metal")]


def kernel_table(kernel: str) -> Iterator[str]:
    """Yield the values of a kernel's check, and what each of its Impls refuses, chooses, declares,
    launches and is predicted to take."""
    yield from checked_values(catalog.spec_of(kernel))
    for impl in impls(kernel):
        yield from chosen_defaults(impl)
        dice = random.Random(impl.title)
        for number in range(ROWS):
            device = find_device(dice.choice(GPUS if impl.backend == "triton" else MACS))
            dtype = dice.choice(sorted(impl.spec.tolerance))
            sizes = drawn_sizes(impl, dice)
            yield f"{impl.title} {device.name} {dtype} {sizes_text(sizes)}"
            yield from declared(impl, device, dtype, sizes, None if number % 2 else dice)


def chosen_defaults(impl: Impl) -> Iterator[str]:
    """Yield the default of an Impl at sizes around powers of two, where it follows from them."""
    dice = random.Random(f"defaults of {impl.title}")
    for _ in range(DEFAULTS if impl.auto else 0):
        device = find_device(dice.choice(GPUS if impl.backend == "triton" else MACS))
        dtype = dice.choice(sorted(impl.spec.tolerance))
        sizes = {axis: max(1, (1 << dice.randrange(15)) + dice.choice((-1, 0, 0, 0, 1)))
                 for axis in impl.spec.axes}  # fmt: skip
        sizes = impl.spec.nearest_sizes(sizes)
        try:
            chosen = label(values(impl.default(device.limits, dtype, sizes)))
        except ConfigError as error:
            chosen = str(error)
        yield f"{impl.name} {device.name} {dtype} {sizes_text(sizes)}: {chosen}"


def checked_values(spec: Spec) -> Iterator[str]:
    """Yield what is in the inputs and in the expected outputs of the smallest sizes to check."""
    dtype = sorted(spec.tolerance)[-1]
    by_bytes = sorted(spec.check, key=lambda sizes: spec.bytes(sizes, dtype))
    for number, sizes in enumerate(by_bytes[:VALUES]):
        problem = PreparedProblem.make(spec, sizes, dtype, "cpu", number)
        yield f"{spec.name} {dtype} {sizes_text(sizes)} {spec.bytes(sizes, dtype)} B"
        yield from (f"  {values_text(x)}" for x in (*problem.inputs, *problem.expected_outputs))


def values_text(x: torch.Tensor) -> str:
    """Return the form of a tensor, its mean size, and some of its elements."""
    flat = x.double().flatten()
    some = flat[:: max(1, len(flat) // 7)][:8].tolist()
    mean = float(flat.nan_to_num(0, 0, 0).abs().mean())
    return f"{x.dtype} {tuple(x.shape)} {text_of((mean, some))}"


def drawn_sizes(impl: Impl, dice: random.Random) -> dict[str, int]:
    """Return sizes of the Spec, or some near them that its axes allow."""
    sizes = dict(dice.choice([*impl.spec.check, *impl.spec.bench]))
    if dice.random() < 0.5:
        axis = dice.choice(sorted(sizes) or [""])
        sizes = {a: e * dice.choice((2, 3, 8)) if a == axis else e for a, e in sizes.items()}
    return impl.spec.nearest_sizes(sizes)


def declared(
    impl: Impl, device: Device, dtype: str, sizes: Sizes, dice: random.Random | None
) -> Iterator[str]:
    """Yield what an Impl says of its default, or of a drawn config, and what it launches."""
    try:
        config = impl.default(device.limits, dtype, sizes)
        if dice is not None:
            point = {name: dice.choice(few) for name, few in sorted(impl.choices().items())}
            config = impl.resolved_config(impl.config_of(point), device.limits, dtype, sizes)
    except ConfigError as error:
        yield f"  {error}"
        return
    text = label(values(config))
    if reason := impl.rejection_reason(config, device.limits, dtype, sizes):
        yield f"  {text}: refused: {reason}"
        return
    works = impl.work_of(config, device.limits, dtype, sizes)
    if impl.backend == "metal":
        yield f"  {text}: {text_of(works)}"
        yield from (f"    {line}" for line in planned_lines(impl, config, dtype, sizes))
        return
    found = text_of(guesses(impl, config, device, dtype, sizes))
    seconds = guess_seconds(impl, config, device, dtype, sizes)
    yield f"  {text}: {text_of(works)} {found} {seconds:.6g} s"
    yield from (f"    {line}" for line in launch_lines(impl, config, device, dtype, sizes))


# Rules, at the limits of each and beside them


def around(limits: Sequence[float]) -> list[float]:
    """Return 0, 1 and each limit, a little less and a little more."""
    each = [limit * by for limit in limits for by in (0.999, 1.0, 1.001)]
    return [0.0, 1.0, *dict.fromkeys(each)]


def counters_table(name: str, rule: KernelRule) -> Iterator[str]:
    """Yield what a rule of counters says of drawn metrics, at its limits."""
    dice, at = random.Random(name), around(list(rule.thresholds.values()))
    names = sorted({*rule.needs, *MORE, "duration"})
    held = 0
    for _ in range(ROWS * 20):
        metrics = {n: dice.choice(AMOUNTS.get(n, at)) for n in names}
        for each in sorted(MORE - {*rule.needs}):  # what a rule looks up where it is known
            if dice.random() < 0.2:
                del metrics[each]
        result = rule.evaluate(metrics, rule.thresholds)
        held += result is not None
        if result is not None and held <= ROWS:
            yield f"{text_of(sorted(metrics.items()))}"
            yield f"  {text_of(result)}"
    yield f"{held} of {ROWS * 20}"


# Metrics that a rule looks up where they are known, and those that are no shares
MORE = {
    "alu_pipe", "compute_throughput", "conversion_share", "copied_share", "dram_throughput",
    "l1_throughput", "l2_throughput", "masked_share", "matrix_pipe", "plain_clock_high",
    "plain_clock_low", "sm_clock", "special_share", "traffic_ratio", "xu_pipe",
}  # fmt: skip
CLOCKS = (1.0e9, 1.03e9, 1.0301e9, 0.97e9, 0.96e9)
BYTES = (1e8, 1.03e8, 1.031e8, 1.25e8, 1.26e8, 134217728, 134217729, 3e8)
FLOP = (0.0, 1e9, 1.25e9, 3.2e9, 1e11)
AMOUNTS: dict[str, Sequence[float]] = {
    **dict.fromkeys(("plain_clock", "plain_clock_low", "plain_clock_high", "sm_clock"), CLOCKS),
    **dict.fromkeys(("least_bytes", "least_bytes_read", "dram_bytes", "dram_read_bytes",
                     "dram_written_bytes"), BYTES),
    **dict.fromkeys(("matrix_flop", "vector_flop", "declared_flop"), FLOP),
    "duration": (1e-5, 2e-4),
    "programs": (1, 131, 132, 133, 264), "cores": (132,), "waves": (0.5, 1.0, 1.01, 2.5),
    "lanes_active": (23.9, 24.0, 24.1, 32.0), "memory_lanes": (15.9, 16.0, 16.1, 32.0),
    "product": (0.0, 1.0), "traffic_ratio": (1.0, 1.499, 1.5, 1.501, 4.0),
}  # fmt: skip


def code_table(name: str, rule: CodeRule) -> Iterator[str]:
    """Yield what a rule of machine code says of drawn facts that it can be evaluated on."""
    dice = random.Random(name)
    for _ in range(ROWS * 8):
        facts = drawn_facts(dice, rule)
        if result := rule.evaluate(facts, rule.thresholds):
            yield text_of(facts)
            yield f"  {text_of(result)}"


def drawn_facts(dice: random.Random, rule: CodeRule) -> CodeFacts:
    """Return facts whose numbers lie at the limits of a rule, or beside them; those that it needs
    are known."""
    limits = list(rule.thresholds.values())
    whole = [0, 1, 2, 3, 64, 400, *{int(n) + k for n in limits if n > 1 for k in (-1, 0, 1)}]
    shares = around([n for n in limits if n <= 1])

    def marked() -> Marked:
        count = dice.choice(whole)
        return Marked(count, ("mine.py:3", "mine.py:7")[: dice.randrange(3)] if count else ())

    perhaps = {
        "staged_loads": marked(),
        "async_loads": dice.choice((0, 0, 1)),
        "stages": dice.choice((1, 2, 3)),
        "product": dice.choice(("", "its name says product")),
        "dtype": dice.choice(("fp32", "bf16", "fp64")),
        "registers": dice.choice((64, 255)),
        "shared_bytes": dice.choice((0, 60_000, 232_448, 232_449)),
        "shared_limit": 232_448,
        "occupancy": dice.choice(shares),
        "limiter": dice.choice(("registers", "shared memory", "warps")),
        "next_step": dice.choice(("", "fewer registers: 0.5")),
        "waves": dice.choice((0.9, 1.0, 1.1, 2.5)),
        "in_flight": dice.choice(shares),
        "warnings": (("C7510", "One."), ("C7509", "Two."))[: dice.randrange(3)],
        "overlaps": (("load", "product", 2), ("load", "store", 1))[: dice.randrange(3)],
    }
    known = {k: v for k, v in perhaps.items() if k in rule.needs or dice.random() < 0.6}
    return CodeFacts(
        function="f",
        target="h200",
        arch=dice.choice(("sm_75", "sm_80", "sm_90", "sm_100", "gfx942")),
        instructions=dice.choice(whole),
        matrix=dice.choice((0, 0, 1, 2)),
        spills=marked(),
        fp64=marked(),
        divisions=marked(),
        accesses=marked(),
        narrow={width: marked() for width in (1, 2, 4, 16)},
        arithmetic=marked(),
        load_bytes=dice.choice(whole),
        **known,
    )


# Machine code


def golden_code(name: str) -> MachineCode:
    """Return the code of a golden listing."""
    text = gzip.decompress((CODE / name).read_bytes()).decode()
    if ".amdgcn" in name:
        return code_of_assembly(text, None)
    listing = read_sass(text)
    graph, parts = flow_graph(listing), partial(specialisation, listing)
    target = re.search(r"_(\d+)\.", name)
    arch = f"sm_{target[1]}" if target else "sm_90"
    return MachineCode(listing.functions[0], arch, listing, graph, text, None, None,
                       partitions=parts(graph))  # fmt: skip


def listing_table(name: str) -> Iterator[str]:
    """Yield blocks, loops, mixes, registers, partitions and facts of a golden listing."""
    code = golden_code(name)
    ops, graph = code.listing.instructions, code.graph
    yield f"{code.name} {code.arch}: {text_of(mix_of(ops, code.arch))}"
    yield f"hot loop {text_of(hot_loop(code.listing, graph, code.arch))}"
    yield f"dominators {dominators(graph)}"
    yield f"levels {text_of([sorted(each) for each in loop_levels(code.listing)[1]])}"
    after = {block.number: block.successors for block in graph.blocks}
    for block in graph.blocks:
        own = ops[block.start : block.end]
        yield f"{text_of(block)} reaches {sorted(reachable(after, block.successors, block.number))}"
        yield f"  {text_of(mix_of(own, code.arch))}"
    for loop in graph.all_loops():
        yield text_of(loop)
    yield text_of(code.partitions)
    yield text_of(code_facts(code, "h200"))
    amd = is_amd(code.arch)
    for op in {op.opcode: op for op in ops}.values():
        registers = registers_of(op) if amd else register_use(op)
        kind = amd_kind(op) if amd else sass_kind(op)
        parts = (group_of(op, code.arch), access_of(op, code.arch), matrix_flops(op), kind)
        yield f"{op.opcode} {op.operands}: {text_of(parts)} {text_of(registers)}"
    yield text_of(amd_live(code.listing, graph)) if amd else "live registers are nvdisasm's"
    kinds = code_of_amdgcn if amd else code_of_sass
    yield text_of(kinds(gzip.decompress((CODE / name).read_bytes()).decode(), code.arch))


def flow_table(name: str) -> Iterator[str]:
    """Yield the control flow of a golden listing, and registers live in it, as they are drawn."""
    code = golden_code(name)
    live = tuple(n % 7 for n in range(len(code.listing.instructions)))
    yield from flow_dot(code).splitlines()
    for drawn in (flow_svg(code), live_svg(replace(code, live=live, registers=9))):
        yield from str(drawn).replace("><", ">\n<").splitlines()


def differences_table() -> Iterator[str]:
    """Yield what is said of pairs of golden listings."""
    codes = [golden_code(path.name) for path in LISTINGS]
    for before, after in itertools.pairwise(codes):
        yield text_of(compare_code(before, after))


def steps_table() -> Iterator[str]:
    """Yield what would let more warps fit, and the bytes in flight, for drawn resources."""
    dice = random.Random(3)
    for _ in range(ROWS * 4):
        device = find_device(dice.choice(GPUS))
        impl = dice.choice(impls(dice.choice(("softmax", "matmul", "layer_norm"))))
        sizes, dtype = drawn_sizes(impl, dice), dice.choice(sorted(impl.spec.tolerance))
        point = {name: dice.choice(few) for name, few in sorted(impl.choices().items())}
        config = impl.resolved_config(impl.config_of(point), device.limits, dtype, sizes)
        for known in guesses(impl, config, device, dtype, sizes):
            facts = drawn_facts(dice, code_rules()["few_warps"])
            yield f"{device.name} {text_of(known)}"
            yield f"  {next_step(known, device)!r} {text_of(bytes_in_flight(facts, known, device))}"


# What is concluded from the files of profilers


def trace_table(folder: str) -> Iterator[str]:
    """Yield what is found in each golden trace of a folder, and the longest kernels."""
    for path in sorted((FOLDER.parent / "traces" / folder).rglob("*.*")):
        try:
            summary = summarise(read([path]))
        except ReadError as error:
            yield f"{path.name}: {str(error).replace(str(FOLDER.parent), '')}"
            continue
        kept = trace_run(summary, "read", path.name, "read", "run")
        yield f"{path.name}: {kept.run.device}, {summary.trace.tool} {summary.trace.notes}"
        for finding in kept.findings:
            yield f"  {text_of(replace(finding, at=''))}"
        for profile in kept.profiles[:20]:
            yield f"  {text_of(replace(profile, at=''))}"


CODE = FOLDER.parent / "code"
LISTINGS = sorted([*CODE.glob("*.nvdisasm_g*.txt.gz"), *CODE.glob("*.amdgcn.gz")])
TRACES = sorted(path.name for path in (FOLDER.parent / "traces").iterdir() if path.is_dir())
TABLES: dict[str, Callable[[], Iterator[str]]] = {
    **{f"rule_{n}": partial(counters_table, n, rule) for n, rule in kernel_rules().items()},
    **{f"rule_{n}": partial(code_table, n, rule) for n, rule in code_rules().items()},
    **{f"code_{path.name.removesuffix('.gz')}": partial(listing_table, path.name)
       for path in LISTINGS},
    **{f"flow_{path.name.removesuffix('.gz')}": partial(flow_table, path.name)
       for path in LISTINGS},
    **drawn_numbers.TABLES,
    **drawn_experiments.TABLES,
    **drawn_traces.TABLES,
    **drawn_figures.TABLES,
    **drawn_data.TABLES,
    **drawn_device.TABLES,
    **drawn_reports.TABLES,
    **drawn_choices.TABLES,
    **drawn_printed.TABLES,
    "code_differences": differences_table,
    "code_steps": steps_table,
    **{f"trace_{name}": partial(trace_table, name) for name in TRACES},
    **{f"kernel_{name}": partial(kernel_table, name)
       for name in (*catalog.kernel_names(), *catalog.names_in(catalog.VARIANTS))},
}  # fmt: skip


def stored() -> list[str]:
    """Return the names of the tables that are stored; a new kernel or rule has none yet."""
    return sorted(path.name.removesuffix(".txt.gz") for path in FOLDER.glob("*.txt.gz"))


def golden(name: str) -> list[str]:
    """Return the lines of a stored table. Raises OSError where it is not there."""
    return gzip.decompress((FOLDER / f"{name}.txt.gz").read_bytes()).decode().split("\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, table in TABLES.items():
        content = gzip.compress("\n".join(table()).encode(), mtime=0)
        (FOLDER / f"{name}.txt.gz").write_bytes(content)


if __name__ == "__main__":
    main()
