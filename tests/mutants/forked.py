"""The plugin of pytest that tries changes: tests are collected once, and a fork runs those of one
change.

A fork costs some 50 ms, a start of pytest with torch and Triton some seconds. In the fork the file
is changed on the disk, for what starts processes, and so is the code of its functions that are
loaded. What other modules computed from them as they were imported stays as it was.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType

from draw import Change

LIMIT_S = 30.0  # beyond what the tests take without a change
SLOWER = 4.0  # than they were, on a machine that has other work


def pytest_runtestloop(session) -> bool:
    """Try the changes of the file that CHANGES names, and append each verdict to VERDICTS."""
    if session.config.option.collectonly or "CHANGES" not in os.environ:
        return False
    items = {item.nodeid: item for item in session.items}
    tree = Path.cwd()
    for job in json.loads(Path(os.environ["CHANGES"]).read_text(encoding="utf-8")):
        change = Change(**job["change"] | {"function": tuple(job["change"]["function"])})
        some = [items[name] for name in job["tests"] if name in items]
        started = time.monotonic()
        limit_s = LIMIT_S + SLOWER * job["seconds"]
        failed = tried(change, tree, some, limit_s)
        row = {"mutant": change.name, "group": os.environ["GROUP"], "killed_by": failed,
               "seconds": time.monotonic() - started, "unsound": None}  # fmt: skip
        again = [items[name] for name in [(failed or "").partition(" - ")[0]] if name in items]
        if failed and forked(again or some, limit_s):  # some: it did not end, or the fork died
            row |= {"killed_by": None, "unsound": f"without any change, too: {failed}"}
        with open(os.environ["VERDICTS"], "a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
    return True


def tried(change: Change, tree: Path, items: list, limit_s: float) -> str | None:
    """Return the first test that fails with the change and its error; None where all pass."""
    path = tree / change.file
    before, times = path.read_bytes(), path.stat()
    change.planted(tree)
    try:
        code = codes(path)
        return forked(items, limit_s, lambda: exchange(path, code))
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # its bytecode is valid again


def codes(path: Path) -> dict[tuple[str, int], CodeType]:
    """Return the code of each function of a file, by its name and its first line."""

    def within(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from within(constant)

    whole = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    return {(code.co_qualname, code.co_firstlineno): code for code in within(whole)}


@cache  # the parent runs no test, so that nothing is added
def loaded() -> dict[str, list[FunctionType]]:
    """Return the functions that are loaded, by the file that they are from."""
    found = gc.get_objects()
    gc.freeze()  # a collection in a fork would copy what the forks share
    result = defaultdict(list)
    for one in found:
        if type(one) is FunctionType:  # isinstance asks torch's proxies, which warn
            result[os.path.abspath(one.__code__.co_filename)].append(one)
    return result


def exchange(path: Path, code: dict[tuple[str, int], CodeType]) -> None:
    """Give the loaded functions of a file their new code."""
    for function in loaded().get(str(path), []):
        own = function.__code__
        if new := code.get((own.co_qualname, own.co_firstlineno)):
            function.__code__ = new


def forked(items: list, limit_s: float, first=lambda: None) -> str | None:
    """Return the first of the tests that fails in a fork, and its error; None where all pass."""
    loaded()
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    told = folder / "failed"
    if (child := os.fork()) == 0:
        os.setsid()
        os.environ["XDG_DATA_HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        try:
            first()
            told.write_text(first_failure(items) or "", encoding="utf-8")
        finally:
            os._exit(0)
    end = time.monotonic() + limit_s
    while (done := os.waitpid(child, os.WNOHANG)[0]) == 0 and time.monotonic() < end:
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done:
        os.waitpid(child, 0)
    text = told.read_text(encoding="utf-8") if told.exists() else None
    shutil.rmtree(folder, ignore_errors=True)
    if text is None:
        return "the process ended" if done else f"no end within {limit_s:.0f} s"
    return text or None


def first_failure(items: list) -> str | None:
    """Run tests up to the first that fails. Returns its name and error, or None."""
    failed: list[str] = []

    class Listener:
        def pytest_runtest_logreport(self, report) -> None:
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                message = crash.message.splitlines()[0] if crash and crash.message else "failed"
                failed.append(f"{report.nodeid} - {message}")

    if not items:
        return None
    items[0].config.pluginmanager.register(Listener())
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if failed:
            return failed[0]
    return None
