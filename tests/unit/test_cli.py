"""The command line: exit codes, and errors that are one sentence."""

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from nightly import at_night
from null_backend import Null
from nullside import Place
from synthetic import softmax

from workbench import cli
from workbench.commands.parameters import completer
from workbench.commands.stored import ANY_RUN, WITH_TIME, RunKind, last_run
from workbench.data import exits
from workbench.data.database import open_history
from workbench.data.events import EventLog
from workbench.data.interrupts import CtrlC
from workbench.data.project import project_id

ROOT = Path(__file__).parents[2]
SLOW_TO_LOAD = ("torch", "triton", "numpy", "matplotlib", "jinja2", "sqlalchemy", "pandas",
                "optuna")  # fmt: skip


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
    monkeypatch.setattr(
        "workbench.commands.sweep_command.any_backend", lambda device, folder, prewarm: Null()
    )
    return Place(tmp_path)


@pytest.fixture
def stored(tmp_path):
    """A history and an events file with one run, and a bad line among the good ones."""
    run, outcomes = softmax()
    url, path = f"sqlite:///{tmp_path / 'h.db'}", tmp_path / "events.jsonl"
    with open_history(url) as history, EventLog(path) as log:
        history.add_run(run)
        log.write(run)
        for outcome in outcomes:
            history.add(outcome)
            log.write(outcome)
    with path.open("ab") as file:
        file.write(b"\xff\xfe nonsense\n")
    return url, path, run


def sentence(capsys, *arguments):
    """Run a command that must fail; gives what it says."""
    assert cli.main(list(map(str, arguments))) == 2
    text = capsys.readouterr()
    assert text.err.startswith("error: ") and text.err.count("\n") == 1, text.err
    assert "Traceback" not in text.err and text.out == ""
    return text.err.removeprefix("error: ").strip()


def sweep_words(context):
    return ("sweep", "tile_size", "--kernel", context.kernel, "--out", context.out,
            "--database", context.url)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "No such command 'nope'; see `workbench --help`"),
        (["measure"], "Missing argument"),
        (["sweep", "tile_size", "--nope"], "No such option: --nope"),
        (["sweep", "--metrics", "e.jsonl"], "option: --metrics; it is called --events-file now"),
        (["sweep", "tile_size", "--budget", "x"], "A budget of `x` cannot be read; write seconds"),
        (["sweep", "tile_size", "--budget", "-1"], "A budget of `-1` cannot be read"),
        (["sweep", "tile_size", "--search", "modle"], "There is no search 'modle'; did you mean m"),
        (["history", "--limit", "0"], "Invalid value for '--limit'"),
        (["sweep", "tile_sise"], "There is no sweep or kernel 'tile_sise'; did you mean tile_size"),
        (["sweep", "sofmax"], "There is no sweep or kernel 'sofmax'; did you mean softmax?"),
        (["sweep", "fulll", "--kernel", "copy"], "no sweep or kernel 'fulll'; did you mean full?"),
        (["sweep", "--also", "energie"], "--also takes no 'energie'; write energy or profile."),
        (["measure", "copy", "--require", "x"], "--require takes no 'x'; write idle-gpu."),
        (["sweep", "--workers", "0"], "--workers 0 is neither a number of GPUs nor the address"),
        (["profile", "--steps", "1,2", "--", "a"], "--steps 1,2 is not WAIT,WARMUP,ACTIVE; write"),
        (["history", "--export", "csv=x"], "--export takes parquet=FILE or benchmark-json=FILE"),
        (["sweep", "copy", "--kernel", "copy"], "given twice, as copy and as --kernel copy;"),
        (["sweep", "no/such.py"], "There is no kernel file no/such.py"),
        (["sweep", "full", "--kernel", "sofmax"], "There is no kernel 'sofmax'; did you mean soft"),
        (["sweep", "full", "--kernel", "no/such.py"], "There is no kernel file no/such.py"),
        (["sweep", "full", "--kernel", "no.such"], "no.such cannot be imported"),
        (["report", "swep"], "There is no report 'swep'; did you mean sweep?"),
        (["report", "sweep", "no.jsonl"], "cannot read the events file no.jsonl"),
        (["history", "--database", "nonsense"], "the history's URL cannot be understood"),
        (["new-kernel", "my-gelu"], "'my-gelu' is not a Python name"),
        (["new-kernel", "gelu", "--folder", "/no/such"], "/no/such/gelu.py cannot be written"),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "workbench.data.database.default_url", lambda: f"sqlite:///{tmp_path / 'h.db'}"
    )
    assert words in sentence(capsys, *arguments)
    assert {p.name for p in tmp_path.iterdir()} <= {"h.db", "h.db-wal", "h.db-shm"}


def test_an_unknown_device_is_met_with_the_nearest(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.commands.run.require_triton", lambda: None)
    context = Place(tmp_path)
    assert "nearest are h200" in sentence(capsys, *sweep_words(context), "--device", "h20")
    assert not context.out.exists()


def test_no_compiler_is_one_sentence(capsys, tmp_path, monkeypatch):
    context = Place(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("workbench.catalog.names_in", lambda package: ["tile_size"])
    monkeypatch.setattr("workbench.catalog.module_of", lambda *_: kernel_module(context))
    assert "Triton is not installed" in sentence(capsys, *sweep_words(context))


def kernel_module(context, compiled=None):
    """The kernel as a module, by hand: `find_spec` is taken away in that test."""
    import types

    module = sys.modules.setdefault("toy_by_hand", types.ModuleType("toy_by_hand"))
    module.__file__ = str(context.kernel)
    if not hasattr(module, "toy"):
        exec(compile(context.kernel.read_text(), context.kernel, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(
    "closed", at_night([">&-", "2>&-", "<&-", "<&- >&- 2>&-"], {"<&- >&- 2>&-"}.__contains__)
)
def test_streams_that_are_closed_are_none_of_anybodys(closed, tmp_path):
    """Nothing that is printed goes into a file or a pipe that got the closed one's descriptor."""
    words = "-m workbench history --database nonsense"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" {words} {closed}', sys.executable],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert ("the history's URL" in done.stderr) == ("2>&-" not in closed)


@pytest.fixture
def broken(monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("ours\nand more")

    monkeypatch.setattr("workbench.commands.new_kernel.write_kernel", fails)


def test_a_fault_of_ours_is_one_sentence_and_keeps_its_traceback(
    broken, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["new-kernel", "mine"]) == exits.INTERNAL
    text = capsys.readouterr().err
    place = re.fullmatch(
        r"error: a fault of the workbench itself \(ZeroDivisionError: ours\); "
        r"its traceback is in (.*\.txt): please report it\.\n", text,
    )  # fmt: skip
    assert 'raise ZeroDivisionError("ours' in Path(place[1]).read_text()


def test_what_fails_after_ctrl_c_is_no_fault_of_ours(monkeypatch, capsys):
    """An import that Ctrl-C ended leaves a package in parts, which fails at its next use."""

    def interrupted(*_):
        try:
            signal.raise_signal(signal.SIGINT)
        except CtrlC:
            raise AttributeError("module 'numpy' has no attribute 'iterable'") from None

    monkeypatch.setattr("workbench.commands.new_kernel.write_kernel", interrupted)
    assert cli.main(["new-kernel", "mine"]) == exits.INTERRUPTED
    assert capsys.readouterr().err == "stopped\n"


def test_debug_prints_the_traceback_wherever_it_stands(broken, capsys):
    for words in (["--debug", "new-kernel", "mine"], ["new-kernel", "mine", "--debug"]):
        assert cli.main(words) == exits.INTERNAL
        text = capsys.readouterr().err
        assert "Traceback" in text and "its traceback is above" in text


def test_a_fault_whose_traceback_finds_no_place_is_still_one_sentence(
    broken, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert cli.main(["new-kernel", "mine"]) == exits.INTERNAL
    assert "run the command again with --debug" in capsys.readouterr().err


def test_the_exit_codes_are_the_documented_ones():
    page = (ROOT / "docs" / "commands.md").read_text()
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    known = {v for k, v in vars(exits).items() if k.isupper()}
    assert codes == known | {exits.stopped_by(n) for n in (1, 13, 15)}


def test_a_file_that_the_system_refuses_is_one_sentence(monkeypatch, capsys):
    def refused(*_):
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("workbench.commands.new_kernel.write_kernel", refused)
    text = sentence(capsys, "new-kernel", "mine")
    assert text == "/some/file cannot be used (permission denied); check that file."


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EFBIG, "ulimit -f"), (errno.EDQUOT, "quota"), (errno.ENOSPC, "the disk is full")],
)
def test_a_file_that_may_not_grow_is_one_sentence(monkeypatch, capsys, number, words):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("workbench.commands.new_kernel.write_kernel", refused)
    monkeypatch.setattr(cli, "_drop_output", lambda: None)
    text = sentence(capsys, "new-kernel", "mine")
    assert text.startswith("the output cannot be written") and words in text


def test_a_terminal_without_the_letters_shows_others():
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "history", "--prune", "--older-than", "µ"], cwd=ROOT,
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith(b"error: --older-than ? is not a date")


def test_a_deleted_current_folder_is_one_sentence(tmp_path):
    code = (
        "import os, sys\nfrom workbench import cli\nos.chdir(sys.argv[1])\nos.rmdir(sys.argv[1])\n"
        "raise SystemExit(cli.main(['devices']))"
    )
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "gone")], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and re.fullmatch(r"error: The current folder was.*\n", done.stderr)


def test_a_sweep_from_the_command_line(context, capsys):
    assert cli.main(list(map(str, [*sweep_words(context), "--quiet"]))) == 0
    text = capsys.readouterr()
    assert text.err == "" and text.out.count("\n") == 2 and str(context.out) in text.out


@pytest.mark.parametrize(
    ("sweep", "kernel", "words"),
    [
        ("tile_size", "KERNEL", ["KERNEL"]),
        ("full", "KERNEL", ["full", "--kernel", "KERNEL"]),
        ("pipeline", "matmul", ["pipeline", "--budget", "3"]),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("tile_size", "KERNEL", ["--kernel", "KERNEL"]),
                ("tile_size", "copy", ["copy"]),
                ("tile_size", "matmul", ["--budget", "3"]),
            )
        ),
    ],
)
def test_the_first_word_is_a_kernel_or_a_sweep(context, monkeypatch, sweep, kernel, words):
    """The processes that start early import that kernel, and the stored command repeats the run."""
    early = []
    monkeypatch.setattr("workbench.backend.prewarm.begin_prewarm", early.append)
    named = [str(context.kernel) if word == "KERNEL" else word for word in words]
    places = ["--out", str(context.out), "--database", context.url, "--quiet"]
    path = str(context.kernel) if kernel == "KERNEL" else kernel
    assert cli.main(["sweep", *named, *places]) == 0
    with open_history(context.url) as history:
        run = history.run("last")
    assert early == [path]
    assert run.command.startswith(f"python -m workbench.sweep {sweep} --kernel {path} --sizes ")
    repeated = shlex.split(run.command.removeprefix("python -m workbench."))
    assert cli.main([*repeated, *places]) == 0
    with open_history(context.url) as history:
        assert history.run("last") == run, "it is shown again"


def test_ctrl_c_before_the_first_outcome_is_130(context, capsys, monkeypatch):
    def interrupted(*_, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.commands.sweep_command.any_backend", interrupted)
    assert cli.main(list(map(str, sweep_words(context)))) == 130
    assert capsys.readouterr().err.strip() in ("", "stopped")  # some Typers say it, some do not
    assert not context.out.exists()


def test_a_damaged_events_file_gives_its_good_lines(stored, tmp_path, capsys):
    _, path, run = stored
    page = tmp_path / "page.html"
    assert cli.main(["report", "sweep", str(path), "--out", str(page)]) == 0
    assert "report  " in capsys.readouterr().out and "softmax" in page.read_text()
    fresh = f"sqlite:///{tmp_path / 'new.db'}"
    assert cli.main(["history", "--load", str(path), "--database", fresh]) == 0
    text = capsys.readouterr().out
    assert "1 lines unreadable" in text and "line 8: not UTF-8" in text
    with open_history(fresh) as history:
        assert len(history.outcomes(run.id)) == 6


def test_the_file_of_a_kernel_names_its_results(stored, tmp_path, capsys):
    """Its help takes path/to/mine.py; nothing matched one."""
    url, _, run = stored
    file = tmp_path / "mine.py"
    file.write_text((ROOT / "workbench/kernels/softmax.py").read_text())
    assert cli.main(["history", str(file), "--database", url]) == 0
    by_file = capsys.readouterr().out
    assert cli.main(["history", "softmax", "--database", url]) == 0
    assert by_file == capsys.readouterr().out and run.id[:12] in by_file
    words = ["--kernel", str(file), "--out", str(tmp_path / "page.html"), "--database", url]
    assert cli.main(["report", "roofline", *words]) == 0


def test_a_report_of_a_stored_run(stored, tmp_path, capsys):
    url, _, run = stored
    page = str(tmp_path / "page.html")
    for which in ("last", run.id, run.id[:20]):
        assert cli.main(["report", "sweep", which, "--out", page, "--database", url]) == 0
    capsys.readouterr()
    assert "holds no run 'nosuch'" in sentence(
        capsys, "report", "sweep", "nosuch", "--database", url
    )
    (tmp_path / "file").touch()
    assert "cannot be written" in sentence(
        capsys, "report", "sweep", "last", "--database", url, "--out", tmp_path / "file" / "p.html"
    )


@pytest.mark.parametrize("command", [("history",), ("report", "sweep")])
def test_a_damaged_database_is_one_sentence(command, tmp_path, capsys):
    (tmp_path / "h.db").write_bytes(os.urandom(4000))
    before = (tmp_path / "h.db").read_bytes()
    text = sentence(capsys, *command, "--database", f"sqlite:///{tmp_path / 'h.db'}")
    assert "move that file away" in text
    assert (tmp_path / "h.db").read_bytes() == before


def test_new_kernel_says_what_to_try(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "my kernels"
    folder.mkdir()
    assert cli.main(["new-kernel", "my_gelu", "--folder", str(folder)]) == 0
    text = capsys.readouterr().out
    assert f"workbench sweep '{folder / 'my_gelu.py'}'" in text
    assert "exists" in sentence(capsys, "new-kernel", "my_gelu", "--folder", folder)


def test_alone_it_says_what_to_begin_with(capsys):
    assert cli.main([]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert len(lines) == 5 and all(line.startswith("  workbench ") for line in lines)
    assert max(map(len, lines)) <= 100


SHARED = {"out", "events_file", "events", "quiet", "json", "database", "help"}
MOST_OPTIONS = 12  # of a command, beside those that all share


def test_a_command_has_few_options_of_its_own():
    def every(group, before=()):
        for name, command in group.commands.items():
            yield " ".join((*before, name)), command
            if hasattr(command, "commands"):
                yield from every(command, (*before, name))

    named = {
        name: [p.name for p in command.params if p.param_type_name == "option"]
        for name, command in every(typer.main.get_command(cli.app))
    }
    own = {name: [o for o in options if o not in SHARED] for name, options in named.items()}
    assert len(own) > 20 and len(own["sweep"]) == MOST_OPTIONS
    assert not {name: options for name, options in own.items() if len(options) > MOST_OPTIONS}


def test_help_has_panels_and_each_command_stands_in_one(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert [word for word in re.findall("\u256d\u2500 ([A-Z][a-z ]+) \u2500", text)] == [
        "Options", "Tune", "Understand", "Check a change", "Look back", "This machine",
    ]  # fmt: skip
    assert cli.main(["sweep", "--help"]) == 0
    text = capsys.readouterr().out
    parts = re.split("\u256d\u2500 (?:More options|Files and output) ", text)
    assert "--budget" in parts[0] and "--require" in parts[1] and "--json" in parts[2]


@pytest.mark.parametrize(
    "command, name, typed, words",
    [
        ("sweep", "name", "so", ["softmax"]),
        ("sweep", "name", "ti", ["tile_size"]),
        ("sweep", "name", "min", ["mine.py"]),
        ("measure", "device", "h2", ["h200"]),
        ("diagnose", "targets", "2026", ["20261127-2-b", "20261126-1-a"]),
        ("report", "runs", "la", ["last"]),
        ("compare", "left", "x", []),
    ],
)
def test_words_complete(tmp_path, monkeypatch, command, name, typed, words):
    (tmp_path / "mine.py").touch()
    for run in ("20261126-1-a", "20261127-2-b"):
        (tmp_path / "results" / run).mkdir(parents=True)
        (tmp_path / "results" / run / "events.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert completer(command, name)(typed) == words
    assert completer("sweep", "budget") is None


# As programs

COMMANDS = [name for name in typer.main.get_command(cli.app).commands if "-" not in name]


def program(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_the_version_is_the_packages():
    from workbench import __version__

    assert program("workbench", "--version").stdout == f"workbench {__version__}\n"


PROGRAMS = [("workbench.sweep",), *[("workbench", name) for name in COMMANDS]]
FIRST = (("workbench.sweep",), ("workbench", "sweep"), ("workbench", "measure"))


@pytest.mark.parametrize("words", at_night(PROGRAMS, FIRST.__contains__))
def test_every_command_has_its_help(words):
    """In a process of its own. `python -m workbench.sweep` is the one module that is promised
    besides the package."""
    done = program(*words, "--help")
    name = words[-1].rpartition(".")[2]
    assert done.returncode == 0 and f"workbench {name}" in done.stdout, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_its_help_and_refuses_a_wrong_option(name, capsys):
    assert cli.main([name, "--help"]) == 0
    assert f"workbench {name}" in capsys.readouterr().out
    assert cli.main([name, "--nope"]) == 2
    assert re.fullmatch(r"error: No such option.*\n", capsys.readouterr().err)


def test_help_loads_nothing_that_takes_long():
    """Half of what it took before these were left for later; `python -X importtime` lists more."""
    code = (
        "import sys\nfrom workbench import cli\nassert cli.main(['--help']) == 0\n"
        f"print(*[m for m in {SLOW_TO_LOAD} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stderr.split() == [], done.stderr


def test_a_module_in_the_current_folder_can_be_named(tmp_path, capsys, monkeypatch):
    """Python puts the folder of the `workbench` script on its path, not the current one."""
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
    monkeypatch.setattr(
        "workbench.commands.sweep_command.any_backend", lambda device, folder, prewarm: Null()
    )
    context = Place(tmp_path)
    (tmp_path / "pack_of_mine").mkdir()
    context.kernel.rename(tmp_path / "pack_of_mine" / "toy.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    context.kernel = "pack_of_mine.toy"
    assert cli.main(list(map(str, sweep_words(context)))) == 0


def test_the_default_threshold_is_the_protocols():
    """It stands twice: the help must not import the protocol."""
    from workbench.commands.compare import CompareOptions
    from workbench.commands.gate import GateOptions
    from workbench.measurement.protocol import Protocol

    usual = Protocol().requested_threshold
    assert CompareOptions("a", "b").threshold == GateOptions("HEAD").threshold == usual


def test_output_that_cannot_be_written_is_one_sentence_and_a_closed_pipe_none():
    command = [sys.executable, "-m", "workbench", "devices"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and re.fullmatch(r"error: .*disk is full.*\n", done.stderr)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (exits.stopped_by(13), "")


def test_last_is_the_last_run_of_its_kind_in_this_project(tmp_path, monkeypatch, capsys):
    """Not a newer run of another kind, without a time, or of another project."""
    url, here, there = f"sqlite:///{tmp_path / 'h.db'}", tmp_path / "here", tmp_path / "there"
    (here / ".git").mkdir(parents=True)
    (here / "inside").mkdir()
    there.mkdir()
    run, outcomes = softmax()
    mine, others = project_id(here / "inside"), project_id(there)
    assert mine == project_id(here) != others
    runs = [("a", "sweep", mine, True), ("b", "sweep", mine, False), ("c", "measure", mine, True),
            ("d", "sweep", others, True), ("e", "compare", mine, False)]  # fmt: skip
    with open_history(url) as history:
        for n, (name, engine, project, timed) in enumerate(runs):
            one = replace(run, id=f"{name}-run", engine=engine, project=project,
                          started=f"2026-11-2{n}T09:30:00+00:00")  # fmt: skip
            history.add_run(one)
            for o in outcomes if timed else ():
                history.add(replace(o, run=one.id))
    monkeypatch.chdir(here / "inside")
    with open_history(url) as history:
        assert last_run(history, RunKind("sweep", lambda _, r: r.engine == "sweep")).id == "b-run"
        assert last_run(history, WITH_TIME).id == "c-run"
    assert "no run with a profile or predicted times of this project" in sentence(
        capsys, "diagnose", "last", "--database", url
    )
    monkeypatch.chdir(there)
    with open_history(url) as history:
        assert last_run(history, ANY_RUN).id == "d-run"


SHADOWS = ("random", "queue", "copy", "token", "socket", "struct", "tempfile")


def test_a_file_here_is_not_taken_for_a_module_of_python(tmp_path):
    """`python -m` puts the current folder first, where `types.py` ends Python itself."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    command = [sys.executable, "-m", "workbench", "devices"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "h200" in done.stdout, done.stderr
