"""Run a Python program as if it ran alone, and record it with a profiler that lives in its process.

Started by the path of this file, in the interpreter of the program: `python recorder.py torch
--folder F -- step.py args`. It needs the standard library; a file beside it holds each profiler.
"""

import argparse
import atexit
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MEETING = "workbench_recorder"  # name in sys.modules; `workbench.step` calls its `step`
STATUS = "recording.json"  # what became of the recording, for the process that started this one


def main() -> None:
    """Run the program of the command line and record it. Ends as the program ends."""
    end = sys.argv.index("--")
    options, program = _options(sys.argv[1:end]), sys.argv[end + 1 :]
    recording = _recording(options)
    host = Host(options.folder, recording)
    sys.modules[MEETING] = meeting = types.ModuleType(MEETING)
    meeting.step = host.step  # type: ignore[attr-defined]
    atexit.register(host.leave)  # before the program's own, so it runs after them
    _end_before_exit(host)
    if recording.MODULE:
        sys.meta_path.insert(0, _sibling("after_import").AfterImport(recording.MODULE, host.begin))
    else:
        host.begin()
    try:
        _run(program)
    except SystemExit:
        raise
    except BaseException as error:
        host.keep_error(error)
        error.with_traceback(_own_frames(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("tool", choices=("torch", "proton"))
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("wait", "warmup", "active"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("shapes", "memory", "stacks", "stepping"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--data", choices=("tree", "trace", "inside"), default="tree")
    options = parser.parse_args(words)
    options.folder = options.folder.absolute()  # the program may change the current folder
    return options


def _recording(options: argparse.Namespace) -> Any:
    """Return the recording of a tool, from the file beside this one."""
    return _sibling(f"{options.tool}_recording").RECORDING(options)


def _sibling(name: str) -> Any:
    """Return the module of a file beside this one."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"{MEETING}_{name}", path)
    assert spec is not None and spec.loader is not None  # a path of a Python file always has both
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The program


def _run(words: Sequence[str]) -> None:
    """Run `script.py args`, `-m module args` or `-c code args` as `__main__`."""
    if words[0] == "-m":
        sys.argv[:], sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv[:], sys.path[0] = ["-c", *words[2:]], ""
        _execute(words[1], "<string>", None)
    elif not os.path.isfile(words[0]):  # a folder with a __main__.py
        sys.argv[:] = words
        del sys.path[0]  # `run_path` puts the folder there
        runpy.run_path(words[0], run_name="__main__")
    else:
        sys.argv[:], sys.path[0] = words, os.path.dirname(os.path.realpath(words[0]))
        with open(words[0], "rb") as file:
            source = file.read()
        path = os.path.abspath(words[0])
        _execute(source, path, path)


def _execute(source: str | bytes, name: str, file: str | None) -> None:
    """Execute code in a new `__main__`, which stays, as threads and exit handlers use it."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=__builtins__, __spec__=None, __loader__=None)
    if file is not None:
        module.__dict__.update(__file__=file, __cached__=None)
    sys.modules["__main__"] = module
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)


def _own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without the frames of this file and of runpy."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


# The recording


class Host:
    """Begins and ends the recording of this process, and writes what became of it."""

    def __init__(self, folder: Path, recording: Any) -> None:
        self._folder, self._recording = folder, recording
        self._process = os.getpid()  # forked ones record nothing
        self._state = "unused"
        self._steps = 0
        self._error: BaseException | None = None
        self._fault = ""

    def begin(self) -> None:
        """Begin to record."""
        if self._state == "unused" and self._is_here():
            self._state = "recording"
            self._write()
            self._call_profiler(self._recording.begin)

    def step(self) -> None:
        """Count a step, and begin or end to record at it."""
        if self._is_here() and self._state != "ended":
            self._steps += 1
            if self._state == "recording":
                self._call_profiler(self._recording.step)

    def keep_error(self, error: BaseException) -> None:
        """Keep the exception that ended the program."""
        self._error = error

    def end(self) -> None:
        """Stop to record, and write all files; once, and undisturbed by Ctrl-C."""
        if self._state == "ended" or os.getpid() != self._process:
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        began, self._state = self._state == "recording", "ended"
        if began:
            self._call_profiler(self._recording.end)
        self._write("ended" if began else "unused")

    def leave(self) -> None:
        """End to record as the process ends. After Ctrl-C, end by that signal as Python does."""
        self.end()
        if isinstance(self._error, KeyboardInterrupt) and os.getpid() == self._process:
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(self._process, signal.SIGINT)

    def _is_here(self) -> bool:
        """Return whether this is the process and the thread that began."""
        main = threading.current_thread() is threading.main_thread()
        return main and os.getpid() == self._process

    def _call_profiler(self, action: Callable[[], None]) -> None:
        """Call the profiler. Its errors are kept: they are none of the program's."""
        try:
            action()
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            self._fault = self._fault or f"{type(error).__name__}: {first}"[:300]

    def _write(self, state: str = "recording") -> None:
        status = {
            "state": state,
            "steps": self._steps,
            "fault": self._fault,
            "exception": type(self._error).__name__ if self._error is not None else "",
            **self._recording.facts(),
        }
        draft = self._folder / f"{STATUS}.tmp"
        try:
            draft.write_text(json.dumps(status), encoding="utf-8")
            draft.replace(self._folder / STATUS)
        except OSError as error:
            print(f"The recording cannot be written ({error}).", file=sys.stderr)


def _end_before_exit(host: Host) -> None:
    """Let `os._exit` write the recording first; it skips all exit handlers."""
    leave = os._exit

    def end_and_leave(status: int) -> Any:
        host.end()
        leave(status)

    os._exit = end_and_leave


if __name__ == "__main__":
    main()
