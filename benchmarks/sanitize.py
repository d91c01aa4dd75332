"""Does any kernel read or write where or when it must not? Every Triton Impl at its sizes to check,
at its default config, under each tool of NVIDIA's compute-sanitizer, which must be on the path.

A barrier that not all threads reach explains many other findings, and a race many wrong addresses:
hence the order of the tools. torch's caching allocator cuts tensors from larger blocks, so that a
kernel may leave its tensor unnoticed: it is switched off.

    python benchmarks/sanitize.py --out sanitize.json
    python benchmarks/sanitize.py --tools memcheck --only softmax matmul.tiles

Exits with 1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import HERE, ROOT, Compile, fill_cache, save, say

TOOLS = ("synccheck", "racecheck", "memcheck", "initcheck")
SANITIZER = "compute-sanitizer"
MARK = "@@"  # begins the lines by which the process under test tells where it is
KEPT = 40  # lines of each finding's report
# The tool's own lines have one blank behind the bar; what explains a finding is indented.
HEADLINE = re.compile(r"^========= (\S.*)$")
NO_FINDING = re.compile(
    r"^(COMPUTE-SANITIZER|(ERROR|RACECHECK|LEAK) SUMMARY|Target application|Saved host)"
)


# In a process of its own, under a tool


def once(titles: Sequence[str], dtype: str, until: float) -> None:
    """Launch these Impls, each at every size to check; say which is begun and how it went."""
    import torch

    from workbench import catalog
    from workbench.device import hardware
    from workbench.measurement import inputs

    device = hardware.live()
    if device is None:
        raise SystemExit("torch sees no GPU here")
    for title in titles:
        if time.time() > until:
            return
        tell("begin", title)
        kernel, _, name = title.partition(".")
        launched = 0
        try:
            impl = catalog.impl_of(catalog.spec_of(kernel), name)
            kind = dtype if dtype in impl.spec.tolerance else next(iter(impl.spec.tolerance))
            for sizes in impl.spec.check:
                config = impl.default(device.limits, kind, sizes)
                if impl.rejection_reason(config, device.limits, kind, sizes) is None:
                    impl(*inputs.make(impl.spec, sizes, kind, "cuda"), config=config)
                    torch.cuda.synchronize()
                    launched += 1
        except Exception as error:
            tell("failed", f"{type(error).__name__}: {' '.join(str(error).split())}"[:200])
            torch.cuda.synchronize()  # raises where the GPU is lost: the next process goes on
        tell("end", str(launched))


def tell(word: str, what: str) -> None:
    print(f"{MARK}{word} {what}", flush=True)


# What was said


def findings(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """By Impl, what the tool reported while it ran: headlines, with what explains them."""
    results: dict[str, dict[str, Any]] = {}
    now: dict[str, Any] | None = None
    for line in lines:
        line = line.rstrip("\n")
        if line.startswith(MARK):
            word, _, what = line.removeprefix(MARK).partition(" ")
            if word == "begin":
                now = results.setdefault(
                    what, {"findings": [], "report": [], "sizes": None, "failed": None}
                )
            elif now is not None and word == "failed":
                now["failed"] = what
            elif now is not None:
                now["sizes"] = int(what)
        elif now is not None and line.startswith("========="):
            headline = HEADLINE.match(line)
            if headline and not NO_FINDING.match(headline[1]):
                now["findings"].append(headline[1])
            if now["findings"] and len(now["report"]) < KEPT:
                now["report"].append(line)
    return results


def verdict(one: Mapping[str, Any]) -> str:
    """A line on one Impl under one tool."""
    if one["findings"]:
        kinds = dict.fromkeys(re.sub(r"0x[0-9a-f]+|\d+", "#", f) for f in one["findings"])
        return f"{len(one['findings'])} findings: {'; '.join(kinds)}"[:200]
    if one["failed"]:
        return f"failed: {one['failed']}"
    if one["sizes"] is None:
        return "its process ended meanwhile"
    return f"clean at {one['sizes']} sizes" if one["sizes"] else "refused at every size"


def clean(one: Mapping[str, Any]) -> bool:
    """Whether it ran to its end and nothing was found."""
    return not one["findings"] and not one["failed"] and one["sizes"] is not None


# Here


def examine_impls(tool: str, titles: Sequence[str], context: argparse.Namespace) -> dict[str, Any]:
    """Every Impl under one tool; a new process goes on where one was lost."""
    known: dict[str, Any] = {}
    while time.time() < context.until:
        left = [title for title in titles if title not in known]
        if not left:
            break
        task = json.dumps({"titles": left, "dtype": context.dtype, "until": context.until})
        command = [
            SANITIZER, "--tool", tool, "--print-limit", "1000", "--report-api-errors", "no",
            "--target-processes", "application-only",
            sys.executable, str(HERE / "sanitize.py"), "--task", task,
        ]  # fmt: skip
        text = spoken(command, context.until + 20 - time.time())
        new = findings(text)
        if not new:
            say(f"{tool}: nothing ran: {' '.join(text[-3:])[:300]}")
            break
        for title, one in new.items():
            print(f"{tool:10} {title:40} {verdict(one)}", flush=True)
        known |= new
    return known


def spoken(command: Sequence[str], limit_s: float) -> list[str]:
    """Its lines, up to the limit."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    timer = threading.Timer(max(limit_s, 1.0), process.kill)
    timer.start()
    assert process.stdout is not None
    try:
        return list(process.stdout)
    finally:
        timer.cancel()
        process.wait()


def titles_of(words: Sequence[str]) -> list[str]:
    """`softmax.rows` and so on, of every kernel whose file fits the format."""
    from workbench import catalog

    titles = []
    for name in catalog.kernel_names():
        try:
            impls = catalog.spec_of(name).impls
        except catalog.CatalogError as error:
            say(str(error))
            continue
        titles += [impl.title for impl in impls if impl.backend == "triton"]
    return [t for t in titles if not words or any(w in t for w in words)]


def prewarm(titles: Sequence[str], context: argparse.Namespace) -> None:
    """Compile everything in many processes: under a tool it would take longer."""
    from workbench import catalog

    wanted = []
    for title in titles:
        kernel, _, name = title.partition(".")
        spec = catalog.spec_of(kernel)
        dtype = context.dtype if context.dtype in spec.tolerance else next(iter(spec.tolerance))
        wanted += [Compile(kernel, name, dict(sizes), dtype) for sizes in spec.check]
    say(f"compiling {len(wanted)} launches")
    fill_cache(wanted, context.processes, context.seconds / 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=TOOLS)
    parser.add_argument("--only", nargs="*", default=[], help="Impls whose titles hold these words")
    parser.add_argument("--dtype", default="bf16", help="where a kernel takes it, or its first")
    parser.add_argument("--seconds", type=float, default=570.0, help="for everything")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--out", default="sanitize.json", help="JSON file to write")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.task:
        once(**json.loads(wanted.task))
        return
    if shutil.which(SANITIZER) is None:
        raise SystemExit(f"{SANITIZER} is not on the path; it comes with the CUDA toolkit")
    wanted.until = time.time() + wanted.seconds
    titles = titles_of(wanted.only)
    prewarm(titles, wanted)
    known: dict[str, Any] = {}
    for tool in wanted.tools:
        known[tool] = examine_impls(tool, titles, wanted)
        save(wanted.out, known)
    bad = [f"{tool} {t}" for tool, by in known.items() for t, one in by.items() if not clean(one)]
    late = [f"{tool} {t}" for tool, by in known.items() for t in titles if t not in by]
    print(f"not clean: {', '.join(bad) or 'nothing'}")
    print(f"not run: {', '.join(late) or 'nothing'}; the whole in {Path(wanted.out).name}")
    sys.exit(1 if bad or late else 0)


if __name__ == "__main__":
    main()
