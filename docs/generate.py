"""Write docs/kernels/: one page a kernel, from its file and from what was measured; the table of
rules in docs/evaluate.md; the functions in docs/api.md; the schema of `--json` in
docs/result.schema.json; of `workbench.ops` the types and the measured ranking; and the types of the
API's commands.

    python docs/generate.py            write them
    python docs/generate.py --check    exit 1 where one is not what it would be

Times are those of `benchmarks/data/kernels_h200.json` and `kernels_h100.json` (see the README
beside them).
"""

from __future__ import annotations

import argparse
import inspect
import json
import lzma
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import workbench
import workbench.api
from workbench import catalog
from workbench.api import commands
from workbench.device.calibration import IMPLS, numbers_text
from workbench.measurement.rules import RULES
from workbench.ops.text import stub
from workbench.spec import AUTO, Impl, Spec, Tensor, label, sizes_text, values

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import kernels  # noqa: E402
import ops_choice  # noqa: E402
from result_schema import result_schema  # noqa: E402

PAGES = ROOT / "docs" / "kernels"
OPS = ROOT / "workbench" / "ops"
CALLS = ROOT / "workbench" / "api" / "commands.pyi"
EVALUATE = ROOT / "docs" / "evaluate.md"
DATA = ROOT / "benchmarks" / "data"
MEASURED = [DATA / "kernels_h200.json", DATA / "kernels_h100.json"]
DRAWN = DATA / "ops_choice_h100.json.xz"
API = ROOT / "docs" / "api.md"
RESULT = ROOT / "docs" / "result.schema.json"
ARGUMENT = r"^    ([\w, ]+): (.*(?:\n        .*)*)"  # one of a docstring


def page(name: str, measured: Sequence[Mapping[str, Any]]) -> str:
    """The page of one kernel, with its times on each device where it was measured."""
    spec = catalog.spec_of(name)
    module = sys.modules[spec.reference.__module__]
    parts = [
        f"# {name}", inspect.getdoc(module) or "",
        f"From [workbench/kernels/{name}.py](../../workbench/kernels/{name}.py).",
        "## Inputs and outputs", "\n".join(tensors(spec)),
        "## Implementations", "\n".join(impls(spec)),
        "## Cost", "\n".join(costs(spec)),
    ]  # fmt: skip
    tables = [(device["said"], rows) for device in measured if (rows := times(name, device))]
    if tables:
        parts.append("## Measured")
    for heading, rows in tables:
        parts += [str(heading), "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def tensors(spec: Spec) -> Iterator[str]:
    yield from ("| tensor | axes | dtype |", "|---|---|---|")
    for kind, some in (("", spec.inputs), ("output ", spec.outputs)):
        for name, tensor in some.items():
            yield f"| {kind}`{name}` | {axes(tensor)} | {tensor.dtype or 'as tested'} |"
    if spec.extents:
        yield ""
        yield " ".join(
            f"`{axis}` is "
            + (
                f"one of {', '.join(map(str, e.choices))}."
                if e.choices
                else f"a multiple of {e.multiple}."
            )
            for axis, e in spec.extents.items()
        )
    yield ""
    yield f"Tested in {', '.join(spec.tolerance)}."


def axes(tensor: Tensor) -> str:
    return " x ".join(f"`{axis}`" for axis in tensor.axes.split())


def impls(spec: Spec) -> Iterator[str]:
    yield from ("| Impl | is | knobs | default |", "|---|---|---|---|")
    for impl in spec.impls:
        words = (inspect.getdoc(impl.launch) or "the library's own").splitlines()
        where = "Metal: " if impl.backend == "metal" else ""
        yield f"| `{impl.name}` | {where}{' '.join(words)} | {knobs(impl)} | {defaults(impl)} |"


def knobs(impl: Impl) -> str:
    return "; ".join(
        f"`{name}` {', '.join(map(str, choices))}" for name, choices in impl.choices().items()
    )


def defaults(impl: Impl) -> str:
    if impl.backend == "torch":
        return ""
    parts = [declared_config(impl, impl.config())]
    known: dict[str, list[str]] = {}
    for at, config in impl.defaults.items():
        known.setdefault(declared_config(impl, config), []).append(at)
    return "; ".join([*parts, *(f"{', '.join(at)}: {text}" for text, at in known.items())])


def declared_config(impl: Impl, config: Any) -> str:
    """A default as the file has it: the values that it names, then what the sizes decide."""
    open_ = [name for name in impl.auto if getattr(config, name) == AUTO]
    named = {name: value for name, value in values(config).items() if name not in open_}
    parts = [label(named)] if named else []
    return ", ".join([*parts, *([f"{' and '.join(open_)} by the sizes"] if open_ else [])])


def costs(spec: Spec) -> Iterator[str]:
    dtype = "bf16" if "bf16" in spec.tolerance else next(iter(spec.tolerance))
    yield f"| sizes, {dtype} | FLOP | least bytes | FLOP per byte |"
    yield "|---|---|---|---|"
    for sizes in spec.bench:
        flops, moved = spec.flops(**sizes), spec.bytes(sizes, dtype)
        at = sizes_text(sizes, " ") or "one"
        yield f"| {at} | {flops:.3g} | {moved:.3g} | {flops / moved:.2g} |"


def times(name: str, measured: Mapping[str, Any]) -> list[str]:
    """One line a size that was timed: ours, the libraries', the best public one."""
    goals = [g for g in kernels.GOALS if g.kernel == name and g.name in measured.get("cases", {})]
    if not goals:
        return []
    lines = kernels.peers()
    table = ["| " + " | ".join(kernels.HEADS) + " |", "|---" * len(kernels.HEADS) + "|"]
    for goal in goals:
        cells = kernels.cells(goal, measured["cases"][goal.name], lines)
        table.append("| " + " | ".join(map(cell, cells)) + " |")
    return table


def cell(value: Any) -> str:
    """Four digits of a number; a dash for nothing."""
    return f"{value:.4g}" if isinstance(value, float) else str(value or "-")


def index(names: list[str]) -> str:
    lines = ["# Kernels", "", "One page per kernel, generated from its file.", ""]
    for name in names:
        spec = catalog.spec_of(name)
        first, *_ = (inspect.getdoc(sys.modules[spec.reference.__module__]) or "").split("\n\n")
        sentence = re.split(r"(?<=[^.]\.) ", " ".join(first.split()))[0].rstrip(":")
        lines.append(f"- [{name}]({name}.md): {sentence}")
    return "\n".join(lines) + "\n"


def rules() -> str:
    """The page of `evaluate`, with its table of rules as they are now."""
    head, _, rest = EVALUATE.read_text().partition("<!-- rules -->")
    _, _, tail = rest.partition("<!-- /rules -->")
    lines = ["| rule | requires | stops | shown by |", "|---|---|---|---|"]
    for rule in RULES:
        where = "a GPU" if rule.gpu else "a CPU"
        lines.append(f"| `{rule.name}` | {rule.requires} | {rule.stops} | {where} |")
    return f"{head}<!-- rules -->\n{chr(10).join(lines)}\n<!-- /rules -->{tail}"


def rank_impls(measured: Sequence[Mapping[str, Any]]) -> str:
    """The times of the Impls of each measured case: what operations choose by. All devices are of
    one architecture, and the last one that measured a case counts."""
    cases_of = {n: c for device in measured for n, c in device["cases"].items()}
    names = ", ".join(file.name for file in (*MEASURED, DRAWN))
    lines = [f"# source: benchmarks/data: {names}", "kernel,sizes,dtype,impl,phase,median_us"]
    for goal in kernels.GOALS:
        if (case := cases_of.get(goal.name)) is None:
            continue
        ours = [i.name for i in catalog.spec_of(goal.kernel).impls if i.backend == "triton"]
        final = {n: f["us"] for n, f in case["final"].items() if n in ours}
        rest = {
            n: us for n, us in case.get("first_pass", {}).items() if n in ours and n not in final
        }
        sizes = dict(goal.sizes)
        lines += impl_lines(goal.kernel, sizes, goal.dtype, "final", final)
        lines += impl_lines(goal.kernel, sizes, goal.dtype, "first_pass", rest)
    return "\n".join([*lines, *drawn_lines()]) + "\n"


def impl_lines(
    kernel: str, sizes: Mapping[str, int], dtype: str, phase: str, times: Mapping[str, float]
) -> Iterator[str]:
    """A line for each Impl, the fastest first."""
    for impl in sorted(times, key=times.__getitem__):
        yield f"{kernel},{numbers_text(sizes)},{dtype},{impl},{phase},{times[impl]:.3f}"


def drawn_lines() -> Iterator[str]:
    """The Impls at sizes that were drawn, each by the time of the config that runs where nothing is
    tuned if that was timed, else by its best."""
    for problem in json.loads(lzma.decompress(DRAWN.read_bytes())):
        if problem["sizes"].get("D", 0) > 128:  # before `ping_pong` took such heads
            continue
        timed = [one for one in problem["times"] if one["phase"] == "first_pass"]
        times = dict[str, float]()
        for choice in ops_choice.untuned_choices(problem):
            ours = [one for one in timed if one["impl"] == choice.impl.name]
            if ours:
                usual = [one for one in ours if one["config"] == dict(values(choice.config))]
                times[choice.impl.name] = min(one["us"] for one in usual or ours)
        if len(times) > 1:
            at = (problem["kernel"], problem["sizes"], problem["dtype"])
            yield from impl_lines(*at, "first_pass", times)


def functions() -> str:
    """The page of the API, with its functions as they are now."""
    head, _, rest = API.read_text().partition("<!-- functions -->")
    _, _, tail = rest.partition("<!-- /functions -->")
    names = [name for name in workbench.api.__all__ if name[0].islower()]
    parts = [function(name) for name in names if callable(getattr(workbench, name))]
    return f"{head}<!-- functions -->\n{chr(10).join(parts)}<!-- /functions -->{tail}"


def function(name: str) -> str:
    """A function of the API: its parameters, the first paragraph of its docstring, and a row for
    each argument."""
    call = getattr(workbench, name)
    text = inspect.getdoc(call) or ""
    first, _, rest = text.partition("\n\n")
    arguments = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", rest, flags=re.S | re.M)
    rows = ["| argument | meaning |", "|---|---|"]
    for names, words in re.findall(ARGUMENT, arguments[1] if arguments else "", flags=re.M):
        if names not in ("out", "database", "progress"):  # the page says once what these are
            rows.append(f"| `{names}` | {' '.join(words.split())} |")
    signature = inspect.signature(call)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    shown = signature.replace(parameters=plain, return_annotation=signature.empty)
    line = f"### wb.{name}\n\n`wb.{name}{shown}`\n\n{' '.join(first.split())}\n"
    return f"{line}\n{chr(10).join(rows)}\n" if rows[2:] else line


def calls_stub() -> str:
    """The types of the functions of the API that are commands, as ruff formats them."""
    functions = [vars(commands)[name] for name in workbench.api.__all__ if name in vars(commands)]
    calls = [f for f in functions if inspect.isfunction(f)]
    results = [inspect.signature(f).return_annotation for f in calls]
    head = [
        "# Written by docs/generate.py from the options of the commands; do not edit.\n",
        "from collections.abc import Sequence",
        "from pathlib import Path\n",
        f"from workbench.api import {', '.join(sorted(['Result', *results]))}",
        "from workbench.api.arguments import ManySizes, OneSize, Words",
        "from workbench.commands.evaluate import Sanitizer",
        "from workbench.commands.field import Also, Idle",
        "from workbench.commands.profile import Recorded",
        "from workbench.commands.sweep import Requirement",
    ]
    text = "\n".join([*head, *map(call_stub, calls)])
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(CALLS), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout


def call_stub(call: Callable[..., Any]) -> str:
    """A function of the API as a type checker reads it."""
    signature = inspect.signature(call)
    plain = [
        f"{'*' * (p.kind is p.VAR_POSITIONAL)}{p.name}: {p.annotation}"
        + ("" if p.default is p.empty else f" = {p.default!r}")
        for p in signature.parameters.values()
    ]
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        plain.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    text = textwrap.indent(inspect.getdoc(call) or "", "    ").lstrip()
    line = f"def {call.__name__}({', '.join(plain)},) -> {signature.return_annotation}:"
    return f'{line}\n    """{text}\n    """'


def all_pages() -> dict[Path, str]:
    measured = [json.loads(file.read_text()) for file in MEASURED]
    names = list(catalog.kernel_names())
    pages = {PAGES / f"{name}.md": page(name, measured) for name in names}
    pages |= {PAGES / "README.md": index(names), EVALUATE: rules(), API: functions()}
    pages[RESULT] = json.dumps(result_schema(), indent=1) + "\n"
    specs = {name: catalog.spec_of(name) for name in names}
    return {
        **pages,
        OPS / "__init__.pyi": stub(specs),
        CALLS: calls_stub(),
        IMPLS / "sm_90.csv": rank_impls(measured),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    pages = all_pages()
    stale = [p for p, text in pages.items() if not p.is_file() or p.read_text() != text]
    stale += [p for p in PAGES.glob("*.md") if p not in pages]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what its kernel says; run docs/generate.py")
        return bool(stale)
    PAGES.mkdir(exist_ok=True)
    for path in stale:
        if path in pages:
            path.write_text(pages[path])
        else:
            path.unlink()
    print(f"{len(pages)} pages, {len(stale)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
