"""Judge the submissions of a folder, one after the other on each GPU.

Each is judged by `workbench evaluate` in a process of its own: a crash or a hang costs that one.
The queue lies in the database, so that after a kill it goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from workbench.commands.console import console_for, say_result
from workbench.commands.options import CommandError
from workbench.commands.result import write_result
from workbench.commands.run import gpu_present
from workbench.commands.serve_tools import environment
from workbench.data.database import open_history
from workbench.data.environment import gpus_of_host
from workbench.data.exits import INTERRUPTED, PASSED, UNDECIDED
from workbench.data.submissions import TRIES, QueuedSubmission, Submissions

if TYPE_CHECKING:
    from workbench.commands.serve import ServeOptions

SUFFIXES = (".py", ".json")
POLL_S = 2.0  # with --wait, between two looks at the folder
END_S = 10.0  # for an evaluation that is stopped to end its processes
STEP_S = 0.2


def run(options: ServeOptions) -> int:
    """Run the queue. Returns its exit code: 3 where a submission has no verdict. Raises
    CommandError where nobody is named to judge."""
    assert options.jobs is not None
    if not options.jobs.is_dir():
        raise CommandError(f"There is no folder {options.jobs}; put submissions into it.")
    if (options.spec is None) == (options.task is None):
        raise CommandError("Name who judges: --spec KERNEL or --task TASK.")
    with open_history(options.database) as history:
        queue = _Queue(options, Submissions(history))
        with suppress(KeyboardInterrupt):
            queue.work()
            while options.wait:
                time.sleep(POLL_S)
                queue.work()
        results = queue.results()
    counts = Counter(one.verdict or "without a verdict" for one in results)
    text = ", ".join(f"{count} {word}" for word, count in counts.items())
    say_result(console_for(options), f"{len(results)} submissions" + (f": {text}" if text else ""))
    rows = [{n: v for n, v in asdict(one).items() if n != "key"} for one in results]
    code = PASSED if all(one.verdict for one in results) else UNDECIDED
    code = INTERRUPTED if queue.is_stopped and not options.wait else code
    return write_result(options, "serve", code, submissions=rows)


@dataclass(frozen=True)
class _Slot:
    """Where evaluations run one after the other: a GPU, or this machine without one."""

    gpu: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the environment of an evaluation there."""
        more = {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": self.gpu}
        return {**environment(), **more}


def slots(options: ServeOptions) -> list[_Slot]:
    """Return a slot for each GPU, or one."""
    if options.device is not None or not gpu_present():
        return [_Slot()]
    return [_Slot(gpu) for gpu in gpus_of_host()] or [_Slot()]


class _Queue:
    """The submissions of one folder that one judge judges."""

    def __init__(self, options: ServeOptions, stored: Submissions) -> None:
        self._options, self._stored = options, stored
        self._console = console_for(options)
        self._lock = threading.Lock()  # of the database and of the console
        self._over: dict[str, QueuedSubmission] = {}  # in this process: a submission may write rows
        self._keys: dict[str, str] = {}  # by name, of the newest content
        self.is_stopped = False

    def _files(self) -> Iterator[tuple[str, Path]]:
        folder = self._options.jobs
        assert folder is not None
        for path in sorted(folder.iterdir()):
            if path.suffix in SUFFIXES and path.is_file() and not path.name.startswith("."):
                yield path.name, path

    def _key(self, name: str, path: Path) -> str:
        options = self._options
        trusted = options.task or Path(str(options.spec))
        files = sorted(trusted.rglob("*")) if trusted.is_dir() else [trusted]
        digests = [hashlib.sha256(f.read_bytes()).hexdigest() for f in files if f.is_file()]
        parts = [name, hashlib.sha256(path.read_bytes()).hexdigest(), str(options.spec), *digests]
        parts += [str(options.dtype), str(options.device)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def work(self) -> None:
        """Judge what is not judged yet. Raises KeyboardInterrupt after Ctrl-C."""
        self._keys = {name: self._key(name, path) for name, path in self._files()}
        with self._lock:
            self._stored.add(QueuedSubmission(key, name) for name, key in self._keys.items())
            known = self._stored.get(self._keys.values())
        todo: SimpleQueue[QueuedSubmission] = SimpleQueue()
        for key in self._keys.values():
            one = self._over.get(key) or _recover(known[key])
            if one.is_over:
                self._over[key] = one
            else:
                todo.put(one)
        if todo.empty():
            return
        threads = [
            threading.Thread(target=self._drain, args=(slot, todo)) for slot in slots(self._options)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(STEP_S)
        except KeyboardInterrupt:
            self.is_stopped = True
            for thread in threads:
                thread.join()
            raise

    def _drain(self, slot: _Slot, todo: SimpleQueue[QueuedSubmission]) -> None:
        while not self.is_stopped:
            try:
                one = todo.get_nowait()
            except Empty:
                return
            self._put(one := replace(one, state="running", tries=one.tries + 1))
            begin = time.monotonic()
            result = self._evaluate(one, slot)
            if self.is_stopped:
                self._put(replace(one, state="waiting", tries=one.tries - 1))
                return
            result = replace(result, seconds=time.monotonic() - begin)
            self._put(result)
            if result.is_over:
                self._over[result.key] = result
                details = " ".join(filter(None, (result.rule, result.reason)))
                with self._lock:
                    say_result(
                        self._console, f"{result.name}: {result.verdict or 'failed'} {details}"
                    )
            else:
                todo.put(result)

    def _put(self, one: QueuedSubmission) -> None:
        with self._lock:
            self._stored.put(one)

    def _evaluate(self, one: QueuedSubmission, slot: _Slot) -> QueuedSubmission:
        """Return a submission with its verdict, or with why there is none."""
        options = self._options
        assert options.jobs is not None
        with TemporaryDirectory() as folder:
            path = Path(folder) / "verdict.json"
            words = ["evaluate", str(options.jobs / one.name), f"--json={path}", "--quiet"]
            for name in ("spec", "task", "dtype", "device"):
                if (value := getattr(options, name)) is not None:
                    words.append(f"--{name}={value}")
            code, last = self._process(words, slot, Path(folder))
            try:
                content = json.loads(path.read_bytes())
                word, rule, reason = (content[name] for name in ("verdict", "rule", "reason"))
            except (OSError, ValueError, KeyError, TypeError):
                return replace(one, state="failed", reason=last or f"exit code {code}")
        return replace(one, state="judged", verdict=word, rule=rule, reason=reason)

    def _process(self, words: Sequence[str], slot: _Slot, folder: Path) -> tuple[int, str]:
        """Run an evaluation. Returns its exit code and its last line, or why it was stopped."""
        with (folder / "output").open("w+b") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "workbench", *words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=slot.environment(), start_new_session=True,
            )  # fmt: skip
            until = time.monotonic() + self._options.limit
            while process.poll() is None and time.monotonic() < until and not self.is_stopped:
                time.sleep(STEP_S)
            late = process.poll() is None
            if late:
                _end(process)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind
            if late:
                return -1, f"it took longer than {self._options.limit:g} s"
            output.seek(0)
            lines = output.read()[-4000:].decode("utf-8", "replace").split("\n")
        texts = [line.strip() for line in lines if line.strip()]
        return process.returncode, texts[-1][:300] if texts else ""

    def results(self) -> list[QueuedSubmission]:
        """Return every submission of the folder as it is now."""
        with self._lock:
            known = self._stored.get(self._keys.values())
        return [self._over.get(key) or known[key] for key in self._keys.values() if key in known]


def _recover(one: QueuedSubmission) -> QueuedSubmission:
    """Return a stored submission as the queue finds it when it begins."""
    if one.state == "running" and one.tries >= TRIES:
        return replace(one, state="failed", reason="the queue was killed while it was judged")
    return replace(one, state="waiting") if one.state == "running" else one


def _end(process: subprocess.Popen[bytes]) -> None:
    """End an evaluation, which ends its own processes if it is given the time."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
