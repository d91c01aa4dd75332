"""The command line: `workbench COMMAND`, or `python -m workbench COMMAND`.

A command and its options are a file of `commands/`, which is found by the name of the command.
"""

import codecs
import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Annotated, Any

import typer

from workbench.commands.console import say
from workbench.commands.options import COMMANDS, Options, module_of, options_of
from workbench.commands.parameters import add_commands, skip_conversions
from workbench.data.bytecode import keep_bytecode, prewarm_bytecode
from workbench.data.exits import COULD_NOT_RUN, INTERNAL, INTERRUPTED, stopped_by
from workbench.data.interrupts import STOPS, Interrupts
from workbench.data.parts import named_parts
from workbench.spec import WorkbenchError


def _print_version(wanted: bool) -> None:
    if wanted:
        from workbench import __version__

        typer.echo(f"workbench {__version__}")
        raise typer.Exit


RENAMED = {"--metrics": "--events-file", "--counters": "--metrics"}

# What `workbench` alone prints: one command for each question, to be copied.
BEGIN = """\
Kernel Workbench: which configuration, how far from the limit, why, and did my change help?

  workbench sweep softmax --device h200 --budget 20    the best config, without a GPU too; a page
  workbench new-kernel my_gelu                         a working kernel file, to be changed
  workbench tune mine.py:kernel --arg ... --grid ...   your own @triton.jit function
  workbench diagnose softmax --device h200             where its time goes
  workbench compare HEAD~1 WORKING --kernel mine.py    did my change help?

All commands: workbench --help. Words complete with Tab after: workbench --install-completion."""


def workbench(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
            metavar="",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Print the traceback of an error; after any command.", metavar=""
        ),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            help="Run the command on this machine, over ssh; after any command.",
            metavar="USER@HOST[:PYTHON]",
        ),
    ] = None,
) -> None:
    """Find the fastest configuration of a kernel, how far it is from the limit and why, and whether
    a change helped."""
    if context.invoked_subcommand is None:
        typer.echo(BEGIN)


def _run(options: Options) -> int:
    from workbench.data.environment import gpu_shown  # `--help` does not need it

    keep_bytecode()  # before the slow imports
    if not options.TAKES_PROGRAM:  # whose program would inherit it
        # The model's matrices are small, and threads that wait for each other beside twenty busy
        # processes are slow: 2.3 s for 0.6.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    find_modules_here(options.IMPORTS_HERE)
    with prewarm_bytecode() if gpu_shown() else nullcontext(), named_parts():
        code: int = module_of(options.COMMAND).run(options)
    return code


@cache
def app_of(shown: str | None = None) -> typer.Typer:
    """Return the command line, of the command `shown` if it is one; with all options without it."""
    app = typer.Typer(name="workbench", add_completion=True, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(workbench)
    add_commands(app, _run, shown)
    return app


@cache
def _parser(shown: str | None) -> Any:
    """Return the parser of what `app_of` returns."""
    parser = typer.main.get_command(app_of(shown))
    skip_conversions(parser)
    return parser


def __getattr__(name: str) -> Any:
    """Return `app`, the whole command line, which is built at its first use."""
    if name == "app":
        return app_of()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code, one of `data.exits`: 2 after an error, which is printed
    in one sentence, 4 after a fault of the workbench itself, 128 and the number after a signal."""
    _open_closed_streams()
    _print_anything()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = _take_debug(words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # one that cannot show µ shows a question mark
            stream.reconfigure(errors="replace")
    with Interrupts(STOPS) as stops:
        try:
            host = _take_host(words)
            code = _run_on(host, words) if host is not None else _run_here(words)
            sys.stdout.flush()  # here, where an error of it is caught
        except KeyboardInterrupt:
            code = _report_stop()
        except SystemExit as error:  # Typer's, where it meets a closed pipe
            code = _closed_pipe() if _is_closed_pipe(error.__context__) else error.code
        except Exception as error:
            code = _print_error(error, debug, stops.number is not None)
    if code == INTERRUPTED:
        code = stops.exit_code
        # If a KeyboardInterrupt once passed through an `exec` of a string (dataclasses use one),
        # CPython ends itself by SIGINT instead of this exit code, unless another `exec` follows.
        exec("")
    return int(code or 0)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command in a process of its own, and the help in this one, as it runs no code of the
    user. Returns the exit code; see `main` and `backend.supervisor`."""
    _open_closed_streams()
    _print_anything()
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = words[: words.index("--")] if "--" in words else words
    if not words or {"--help", "--version"} & set(own):
        return main(words)
    from workbench.backend.supervisor import supervise

    return supervise(lambda: main(words), partial(say, err=True))


def _take_debug(words: list[str]) -> bool:
    """Remove `--debug` from a command line, wherever it stands; return whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"] + words[end:]
    given = len(kept) < len(words)
    words[:] = kept
    return given


def _take_host(words: list[str]) -> str | None:
    """Remove `--on HOST` from the words of a command line, wherever it stands, and return the host;
    None where it is not there. Raises CommandError where no host follows."""
    end = words.index("--") if "--" in words else len(words)
    places = [n for n in range(end) if words[n] == "--on" or words[n].startswith("--on=")]
    if not places:
        return None
    _, equals, host = words[places[0]].partition("=")
    many = 1 if equals else 2
    host = host if equals else "".join(words[places[0] + 1 : places[0] + 2])
    del words[places[0] : places[0] + many]
    return host


def _run_on(host: str, words: Sequence[str]) -> int:
    from workbench.commands.on import run_on

    return run_on(host, words)


def _run_here(words: list[str]) -> Any:
    names = (" ".join(words[:number]) for number in (1, 2))
    command = next((options_of(name) for name in names if name in COMMANDS), None)
    if command is not None and command.TAKES_PROGRAM and "--" in words:
        # doubled: the parser takes one of them for the end of the options, and hands on the other
        words.insert(words.index("--"), "--")
    shown = command.COMMAND if command is not None else " ".join(words[:1]) or None
    return _parser(shown).main(args=words, prog_name="workbench", standalone_mode=False)


def _open_closed_streams() -> None:
    """Connect streams that were closed before the start (`>&-`) to the null device. Python has None
    for them, and a pipe or a database would get their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _print_anything() -> None:
    """Let output in an encoding that lacks a character, such as ASCII, show a like one or `?`,
    instead of failing."""
    codecs.register_error("workbench", _substitute)
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="workbench")


_LIKE = {"\xb5": "u", "\xd7": "x", "\u2013": "-", "\u2014": "-", "\u2026": "..."}


def _substitute(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for characters that cannot be encoded, and where the text goes on."""
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(_LIKE.get(letter, "?") for letter in lost), error.end


def find_modules_here(imports: bool) -> None:
    """Let `--kernel package.module` be in the current folder, if this process `imports` from there.
    Raises WorkbenchError where that folder is gone."""
    try:
        here = os.getcwd()
    except OSError:
        raise WorkbenchError("The current folder was deleted; change to another one.") from None
    if imports and "" not in sys.path and here not in sys.path:
        sys.path.append(here)


def _report_stop() -> int:
    print("stopped", file=sys.stderr)
    return INTERRUPTED


def _is_closed_pipe(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _closed_pipe() -> int:
    """End quietly where a closed pipe (`| head`) wants no more output, as by SIGPIPE."""
    _drop_output()
    return stopped_by(13)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would fail again as it ends


_FULL = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "your quota is full; free some of it",
    errno.EFBIG: "a file would be larger than the system allows; raise the limit: ulimit -f",
}


def _print_error(error: Exception, debug: bool, stopped: bool) -> int:
    """Print an error as one sentence. Returns the exit code: that of a fault of the workbench for
    one that is not foreseen, whose traceback is written to a file, or printed with `--debug`; that
    of Ctrl-C for one that came after the command was `stopped`."""
    # Typer's errors are click's in older releases and its own in newer ones, hence no isinstance.
    if type(error).__name__ == "Abort":
        return _report_stop()
    if debug:
        import traceback  # 8 ms, as in `_kept_traceback`

        traceback.print_exception(error)
    if (sentence := getattr(error, "format_message", None)) is not None:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "workbench"
        text = " ".join(sentence().split()).rstrip(".")
        if new := RENAMED.get(old := getattr(error, "option_name", "")):
            text = f"No such option: {old}; it is called {new} now"
        say(f"error: {text}; see `{command} --help`", err=True)
    elif isinstance(error, WorkbenchError):
        say(f"error: {' '.join(str(error).splitlines())}", err=True)
    elif _is_closed_pipe(error):
        return _closed_pipe()
    elif isinstance(error, OSError) and error.errno in _FULL:
        _drop_output()
        say(f"error: the output cannot be written ({_FULL[error.errno]}).", err=True)
    elif isinstance(error, OSError) and error.filename is not None:
        reason = (error.strerror or type(error).__name__).lower()
        say(f"error: {error.filename} cannot be used ({reason}); check that file.", err=True)
    elif stopped:  # a package whose import was interrupted fails at its next use
        return _report_stop()
    else:
        say(f"error: {_internal(error, debug)}", err=True)
        return INTERNAL
    return COULD_NOT_RUN


def _internal(error: Exception, debug: bool) -> str:
    """Return the sentence on a fault of the workbench, and keep its traceback in a file."""
    first = (str(error).strip().splitlines() or [""])[0][:200]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    place = "its traceback is above" if debug else _kept_traceback(error)
    return f"a fault of the workbench itself ({what}); {place}: please report it."


def _kept_traceback(error: Exception) -> str:
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="workbench-fault-", suffix=".txt", delete=False, errors="replace"
        ) as file:
            file.write(text)
    except OSError:
        return "run the command again with --debug to see its traceback"
    return f"its traceback is in {file.name}"
