"""Two sides against each other on the null side: what a side may be, what is kept, exit codes."""

import io
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from nightly import at_night
from null_backend import Fate, Null
from nullside import KERNEL, entries
from rich.console import Console

from workbench import catalog, cli
from workbench.commands import gate_command
from workbench.commands.compare import CompareOptions
from workbench.commands.compare_command import CompareCommand
from workbench.commands.gate import GateOptions
from workbench.commands.gate_command import GateCommand
from workbench.commands.operands import Operand, OperandError, is_run, kernel_of, operands_of
from workbench.commands.options import CommandError
from workbench.commands.report import draw
from workbench.data import exits, verdict
from workbench.data.database import open_history
from workbench.data.events import RunFinished, read
from workbench.data.record import Comparison, Failure, Ratio, Record
from workbench.revisions.changed_kernels import has_kernel, importers
from workbench.revisions.worktree import WORKING
from workbench.spec import WorkbenchError

pytestmark = pytest.mark.unit


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)


class Place:
    """A repository with a kernel in it, whose default changes from commit to commit."""

    def __init__(self, folder):
        self.folder, self.out = folder / "repository", folder / "results"
        self.url = f"sqlite:///{folder / 'history.db'}"
        self.kernel = self.folder / "toy.py"
        self.folder.mkdir()
        git(self.folder, "init", "-q", "-b", "main")
        for warps in (1, 2):
            self.write(warps)
            git(self.folder, "add", ".")
            git(self.folder, "commit", "-q", "-m", f"{warps}")
        self.console = io.StringIO()
        self.null = Null()

    def write(self, warps):
        self.kernel.write_text(
            KERNEL.replace("threads(1, 4, default=2)", f"threads(1, 4, default={warps})")
        )

    def opened(self, device, folder):
        return self.null

    def _console(self):
        return Console(file=self.console, width=240, highlight=False, markup=False)

    def compare(self, left, right, fate=lambda c: Fate(), **more):
        self.null = Null(fate, **more.pop("null", {}))
        wanted = {"kernel": (str(self.kernel),), "out": self.out, "database": self.url, **more}
        return CompareCommand(
            CompareOptions(left, right, **wanted), self._console(), self.opened
        ).go()

    def gate(self, baseline, fate=lambda c: Fate(), **more):
        self.null = Null(fate)
        wanted = {"out": self.out, "database": self.url, **more}
        return GateCommand(GateOptions(baseline, **wanted), self._console(), self.opened).go()

    def text(self):
        return self.console.getvalue()

    def events(self):
        results = [read(p) for p in sorted(self.out.glob("*/events.jsonl"))]
        assert not any(one.bad for one in results)
        return entries([e for one in results for e in one.events])

    def comparisons(self):
        results = [e for e in self.events() if isinstance(e, Comparison)]
        return sorted(results, key=lambda e: e.at)  # folders of one second are in any order


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pages take a second to draw; the one test that looks at them draws them."""
    monkeypatch.setattr("workbench.reports.compare.page", lambda *a, **more: "<p>page</p>")
    return Place(tmp_path)


def slower(config, by):
    """A fate in which configs with this value of num_warps take `by` times as long."""
    return lambda c: Fate(time_s=1e-4 * (by if vars(c.config).get("num_warps") == config else 1))


# Exit codes


@pytest.mark.parametrize(
    ("by", "code", "word"),
    [(1.0, 0, "SAME"), (0.9, 0, "FAST"), (1.05, 1, "SLOW"), (1.0105, 3, "INCONCLUSIVE")],
)
def test_the_exit_code_is_that_of_the_verdict(place, by, code, word):
    left, right = "blocks:num_warps=2", "blocks:num_warps=4"
    assert place.compare(left, right, slower(4, by)) == code
    (text,) = place.comparisons()
    assert text.verdict.word == word and word in place.text()
    assert text.left == "blocks block_n 32, 2 warps" and "4 warps" in text.right


def test_the_ratio_of_energies_stands_beside_the_verdict(place):
    def fate(candidate):
        return Fate(power_w=400.0 if candidate.config.num_warps == 4 else 500.0)

    assert place.compare("blocks:num_warps=2", "blocks:num_warps=4", fate, also="energy") == 0
    assert place.comparisons()[-1].verdict.word == "SAME"
    assert "energy  0.80" in place.text() and "energy, mJ" in place.text()
    records = [e for e in place.events() if isinstance(e, Record)]
    assert [r.timing.energy.windows for r in records] == [12, 12]
    words = [word for word, _ in place.null.requests]
    assert words.index("energy") > words.index("contest")


def test_without_energy_nothing_is_said_of_it(place):
    assert place.compare("blocks:num_warps=2", "blocks:num_warps=4") == 0
    assert "mJ" not in place.text() and "energy" not in dict(place.null.requests)


def test_energy_that_is_stopped_leaves_the_verdict(place, monkeypatch):
    def stopped(self, candidates, windows):
        raise KeyboardInterrupt

    monkeypatch.setattr("null_backend.Null.energy", stopped)
    assert place.compare("blocks:num_warps=2", "blocks:num_warps=4", also="energy") == 130
    assert place.comparisons()[-1].verdict.word == "SAME"


def test_stored_runs_have_no_energy_to_measure(place):
    run = "20261121-093000-tile_size-toy-3f2a"
    with pytest.raises(CommandError, match="compared without measuring; leave out --also energy"):
        place.compare(run, run, also="energy")


def test_the_threshold_is_the_users(place):
    assert place.compare("blocks:num_warps=2", "blocks:num_warps=4", slower(4, 1.05)) == 1
    assert (
        place.compare("blocks:num_warps=2", "blocks:num_warps=4", slower(4, 1.05), threshold=0.1)
        == 0
    )


@pytest.mark.parametrize(
    ("fate", "stage", "reason"),
    [
        (Fate(compile_error="ptxas gave up"), "compile", "ptxas gave up"),
        (Fate(wrong="the first wrong element is y[3]"), "check", "y[3]"),
        (Fate(final="lost its process"), "measure", "lost its process"),
    ],
)
def test_a_side_that_fails_is_told_and_there_is_no_verdict(place, fate, stage, reason):
    left, right = "blocks:num_warps=2", "blocks:num_warps=4"
    code = place.compare(left, right, lambda c: fate if c.config.num_warps == 4 else Fate())
    assert code == exits.COULD_NOT_RUN and reason in place.text()
    (text,) = place.comparisons()
    assert text.verdict is None
    failed = {e.key: e for e in place.events() if isinstance(e, Failure)}
    assert failed[text.right_key].stage == stage


def test_a_refused_side_is_never_compiled(place):
    code = place.compare("blocks", "blocks:block_n=128,num_warps=1")
    assert code == 2 and "too many for one warp" in place.text()
    assert not any("128" in label for what, label in place.null.requests if what == "compile")


def test_a_problem_that_does_not_fit_is_told(place):
    assert place.compare("blocks", "torch", null={"begin_error": "out of GPU memory"}) == 2
    assert "out of GPU memory" in place.text()


# Kept


def test_both_places_hold_the_same_and_the_page_is_drawn_again(tmp_path):
    place = Place(tmp_path)
    assert place.compare("blocks", "torch") == 0
    run, left, right, text, end = place.events()
    assert run.engine == "compare" and run.ceilings["dram_measured"]["value"] == 4e12
    assert isinstance(left, Record) and left.phase == right.phase == "compare"
    assert (text.left_key, text.right_key) == (left.key, right.key)
    assert text.looks == place.null.rules.looks
    assert isinstance(end, RunFinished) and end.state == "complete"
    with open_history(place.url) as history:
        assert history.outcomes(run.id) == [left, right]
        assert history.comparisons(run.id) == [text]
        assert history.find([left.key], "first_pass") == {}, "no sweep takes it for its own"
    first = (place.out / run.id / "report.html").read_text()
    for which in (run.id, str(place.out / run.id / "events.jsonl")):
        again = draw("compare", which, tmp_path / "again.html", place.url)
        assert again.read_text() == first
    assert "blocks block_n 32, 2 warps" in first and text.verdict.word in first


def test_one_config_against_itself_keeps_its_sides_apart(place):
    assert place.compare("blocks", "blocks") == 0
    (text,) = place.comparisons()
    assert text.left_key != text.right_key
    assert len([e for e in place.events() if isinstance(e, Record)]) == 2


def test_the_stored_command_asks_the_same(place):
    from workbench import cli

    place.compare("blocks", "blocks:num_warps=4")
    words = place.events()[0].command.split()
    assert words[:2] == ["workbench", "compare"]
    command = cli.typer.main.get_command(cli.app).commands["compare"]
    context = command.make_context("compare", words[2:])
    assert context.params["sizes"] == "N=1024" and context.params["kernel"] == [str(place.kernel)]


# Versions


def test_two_revisions_each_at_their_own_default(place):
    seen = []
    code = place.compare("HEAD~1", WORKING, lambda c: seen.append(c) or Fate())
    assert code == 0
    (text,) = place.comparisons()
    assert text.left.endswith("at HEAD~1") and text.right.endswith(f"at {WORKING}")
    by_key = {c.key: c for c in seen}
    left, right = by_key[text.left_key], by_key[text.right_key]
    assert (left.config.num_warps, right.config.num_warps) == (1, 2)
    assert left.version and right.version is None
    assert not place.folder.joinpath(left.version).exists(), "its checkout is gone"


def test_the_code_of_a_version_is_part_of_its_key(place):
    keys = []
    for _ in range(2):
        place.compare("HEAD~1", "HEAD", impl="blocks:num_warps=4")
        keys += [(t.left_key, t.right_key) for t in place.comparisons()[-1:]]
    assert keys[0] == keys[1] and keys[0][0] != keys[0][1]
    place.kernel.write_text(place.kernel.read_text() + "# a word more\n")
    place.compare("HEAD", WORKING, impl="blocks:num_warps=4")
    place.kernel.write_text(changed(place))
    place.compare("HEAD", WORKING, impl="blocks:num_warps=4")
    commented, other = place.comparisons()[-2:]
    assert commented.right_key == keys[0][1] != other.right_key
    assert commented.left_key == other.left_key == keys[0][0]


def changed(place):
    """The kernel's text with another launcher."""
    return place.kernel.read_text().replace("raise NotImplementedError", "return x + 0")


def test_each_operand_has_the_code_of_its_own_version_in_its_key(place):
    """The file as it is stays the same: what differs is the revision on the left."""
    text = []
    place.kernel.write_text(changed(place))
    git(place.folder, "commit", "-qam", "another launcher")
    for revision in ("HEAD~1", "HEAD"):
        place.compare(revision, WORKING, impl="blocks:num_warps=4")
        text += place.comparisons()[-1:]
    assert text[0].left_key != text[1].left_key and text[0].right_key == text[1].right_key


def test_a_revision_without_the_file_is_told(place):
    new = place.folder / "younger.py"
    new.write_text(KERNEL.replace('name="toy"', 'name="younger"'))
    with pytest.raises(OperandError, match=r"HEAD has no file younger\.py"):
        place.compare("HEAD", WORKING, kernel=(str(new),))


# What a side may be


SPEC = catalog.spec_of("matmul")


def test_an_impl_is_found_with_and_without_its_kernel():
    left, right = operands_of(("tiles", "matmul.tiles"), None, SPEC, None)
    assert left == right == Operand("tiles")


@given(st.dictionaries(st.sampled_from(["block_m", "num_warps"]), st.integers(0, 10**8)))
def test_knobs_come_back_as_said(knobs):
    text = "tiles:" + ",".join(f"{k}={v}" for k, v in knobs.items()) if knobs else "tiles"
    left, _ = operands_of((text, "tiles"), None, SPEC, None)
    assert left.knobs == knobs


@given(st.text(max_size=12))
def test_whatever_is_said_is_a_side_or_one_sentence(words):
    try:
        left, _ = operands_of((f"tiles:{words}", "tiles"), None, SPEC, None)
    except OperandError as error:
        assert "\n" not in str(error).replace(words, "")
    else:
        assert left.impl == "tiles" and left.knobs


def test_an_unknown_knob_and_an_unknown_impl_name_the_nearest(place):
    with pytest.raises(OperandError, match="num_warps"):
        place.compare("blocks:num_warp=4", "blocks")
    with pytest.raises(OperandError, match="did you mean blocks"):
        place.compare("block", "blocks")


def test_sides_of_two_kernels_are_refused():
    assert kernel_of("softmax.rows", "rows", None) == "softmax"
    assert kernel_of("tiles", "persistent", None) == "matmul"
    assert kernel_of("v1.2", "HEAD", "mine.py") == "mine.py"
    with pytest.raises(OperandError, match="two kernels"):
        kernel_of("softmax.rows", "matmul.tiles", None)


def test_run_ids_are_told_from_impls_and_revisions():
    assert is_run("20261121-093000-tile_size-matmul-3f2a") and is_run("20261121-093000")
    assert not is_run("tiles") and not is_run("2026112") and not is_run("HEAD~20261121-0930001")


def test_without_a_gpu_the_sentence_says_what_is_needed(place, monkeypatch):
    monkeypatch.setattr("workbench.commands.comparison.gpu_present", lambda: False)
    wanted = CompareOptions("blocks", "torch", kernel=(str(place.kernel),), out=place.out)
    with pytest.raises(CommandError, match="needs a GPU"):
        CompareCommand(wanted, place._console()).go()
    assert not place.out.exists()


# Stored runs


def test_stored_runs_are_at_best_suspected(place):
    from workbench.commands.console import SweepConsole
    from workbench.commands.sweep import SweepOptions
    from workbench.commands.sweep_command import SweepCommand

    runs = []
    for by in (1.0, 1.2):
        null = Null(lambda c, by=by: Fate(time_s=1e-4 * by))
        wanted = SweepOptions("tile_size", str(place.kernel), out=place.out, database=place.url,
                         fresh=True)  # fmt: skip
        session = SweepCommand(
            wanted, SweepConsole(quiet=True), lambda device, folder, null=null: null,
            tuned_file=place.out / "tuned.json",
        )  # fmt: skip
        session.go()
        runs.append(session.outcomes[0].run)
    assert place.compare(*runs) == 3, "slower, but only suspected"
    assert "suspected slow" in place.text().lower()
    assert place.compare(runs[0], runs[0]) == 0
    for pair in ((runs[0], "blocks"), ("blocks", runs[0])):
        with pytest.raises(OperandError, match=f"{runs[0]} is a stored run, and blocks is not"):
            place.compare(*pair)


def test_two_predicted_runs_are_set_beside_each_other_without_a_verdict(place):
    run, outcomes = synthetic.softmax(predicted=True, device="h200")
    record = next(o for o in outcomes if isinstance(o, Record))
    with open_history(place.url) as history:
        for name, by in (("20260101-000000-a", 1.0), ("20260101-000001-b", 0.5)):
            history.add_run(replace(run, id=name))
            timing = replace(record.timing, predicted_s=4e-5 * by)
            history.add(replace(record, run=name, timing=timing))
    assert place.compare("20260101-000000-a", "20260101-000001-b") == 3
    text = " ".join(place.text().split())
    assert "Right over left 0.500x, predicted, so no verdict." in text
    assert "times the predicted" in text and text.index("~40") < text.index("right: ")


# The gate


def test_the_gate_takes_every_impl_and_size_and_the_worst_code(place, tmp_path):
    summary = tmp_path / "gate.json"
    kernels = (str(place.kernel),)
    assert place.gate("HEAD~1", kernel=kernels, json=summary) == 0
    fine = json.loads(summary.read_text())
    assert fine["exit_code"] == 0 and len(fine["comparison"]["parts"]) == 1
    assert fine["comparison"]["word"] == "SAME"
    assert fine["comparison"]["parts"][0]["verdict"]["word"] == "SAME"
    assert place.gate("HEAD~1", slower(2, 1.05), kernel=kernels, json=summary) == 1
    document = json.loads(summary.read_text())
    (slow,) = document["comparison"]["parts"]
    assert slow["verdict"]["word"] == "SLOW" and slow["exit_code"] == 1
    warps = {r["key"]: r["case"]["config"]["num_warps"] for r in document["runs"][0]["measured"]}
    assert warps[slow["before"]] == 1 and warps[slow["after"]] == 2
    assert {e.engine for e in place.events() if hasattr(e, "engine")} == {"gate"}
    comment = tmp_path / "gate.md"
    assert place.gate("HEAD~1", slower(2, 1.05), kernel=kernels, markdown=comment) == 1
    assert "### Kernel Workbench: slower" in comment.read_text()
    assert "| SLOW | toy." in comment.read_text()
    with pytest.raises(CommandError, match="--json and --markdown both name"):
        place.gate("HEAD~1", kernel=kernels, markdown=summary, json=summary)


def played_apart(plain):
    """What a child process sends, changed by `plain`, without the process."""
    return lambda task: plain(json.loads(json.dumps(task())))


@pytest.mark.parametrize(
    ("plain", "code", "text"),
    [
        (lambda sent: sent, 1, "### Kernel Workbench: slower"),
        (lambda sent: None, 2, "the measurement did not end"),
        # a comparison that was to come and did not
        (lambda sent: {**sent, "run": {**sent["run"], "comparisons": []}}, 2, "is missing"),
        (lambda sent: {**sent, "run": None, "nothing": "no kernel can be timed"}, 2, "is missing"),
    ],
)
def test_a_gate_decides_on_what_its_measuring_process_sends(
    place, monkeypatch, tmp_path, plain, code, text
):
    comment = tmp_path / "gate.md"
    wanted = {"out": place.out, "database": place.url, "kernel": (str(place.kernel),)}
    command = GateCommand(
        GateOptions("HEAD~1", markdown=comment, **wanted),
        place._console(),
        lambda device, folder: Null(slower(2, 1.05)),
        is_apart=True,
    )
    monkeypatch.setattr("workbench.commands.gate_command.apart", played_apart(plain))
    monkeypatch.setattr("workbench.commands.gate_command.contain_workers", nullcontext)
    monkeypatch.setattr(sys, "path", list(sys.path))
    expected = [("toy", "blocks", {"N": 1024})]
    monkeypatch.setattr(GateCommand, "_check", lambda self, *places: expected)
    assert command.go() == code
    assert text in comment.read_text()


def test_what_a_child_sends_is_a_result_an_error_or_nothing(monkeypatch):
    """The supervisor runs it in a process of its own; here it is the same one."""
    monkeypatch.setattr(gate_command, "supervise", lambda command, tell: command())
    assert gate_command.apart(lambda: {"a": [1]}) == {"a": [1]}

    def fails():
        raise WorkbenchError("no such thing; do this.")

    with pytest.raises(CommandError, match="no such thing; do this"):
        gate_command.apart(fails)
    monkeypatch.setattr(gate_command, "supervise", lambda command, tell: 0)  # os._exit(0)
    assert gate_command.apart(dict) is None


# What a kernel's file becomes, by how it stood at the baseline and how it stands now: the exit code
# of a gate over it alone.
BROKEN = KERNEL.replace("from workbench.spec", "from nowhere")
REFUSES = KERNEL.replace("    if N % 16:\n", "    if N:\n")
STATES = {
    "same": (KERNEL, KERNEL, 0),
    "slow": (KERNEL, KERNEL, 1),
    "open": (KERNEL, KERNEL, 3),
    "close": (KERNEL, KERNEL, 1),  # alone
    "broken": (KERNEL, BROKEN, 2),
    "broken_before": (BROKEN, KERNEL, 2),
    "fails_now": (KERNEL, KERNEL, 2),
    "refused_now": (KERNEL, REFUSES, 2),
    "refused_before": (REFUSES, KERNEL, 2),
    "refused": (REFUSES, REFUSES, 0),
    "refuse_fails": (KERNEL, REFUSES.replace("if N:", "if N / 0:"), 2),
    "new": (None, KERNEL, 0),
}
TIMES = {"slow": 1.05, "open": 1.0105, "close": 1.01105}
WORSE = ("slow", "open", "broken", "refused_now", "fails_now")
SUITES = [
    *((state,) for state in ("same", "slow", "broken", "refused_now", "refused", "new")),
    *(("same", state) for state in STATES if state not in ("same", "close")),
    *itertools.combinations(WORSE, 2),
    ("open", "same", "refused"), ("new", "refused"), ("same", "open", "fails_now"),
    ("broken", "open", "slow"), ("new", "broken_before", "same"),
]  # fmt: skip


def named(text, name):
    return text.replace('name="toy"', f'name="{name}"')


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A repository with a kernel for each state, as they stood at the baseline."""
    folder = tmp_path_factory.mktemp("suite") / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", "--template=")
    for name, (before, _, _) in STATES.items():
        if before is not None:
            (folder / f"{name}.py").write_text(named(before, name))
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "baseline")
    return folder


def fated(candidate):
    """A side that is as slow, or fails, as its kernel's name says; the baseline is as ever."""
    kernel = candidate.case.kernel
    if candidate.version is not None:
        return Fate()
    error = "it no longer compiles" if kernel == "fails_now" else None
    return Fate(time_s=1e-4 * TIMES.get(kernel, 1), compile_error=error)


def gated(suite, tmp_path, monkeypatch, names):
    """A gate over these kernels, each as it has become: its exit code and its summary."""
    monkeypatch.setattr("workbench.reports.compare.page", lambda *a, **more: "<p>page</p>")
    here = shutil.copytree(suite, tmp_path / "repository")
    for name in names:
        (here / f"{name}.py").write_text(named(STATES[name][1], name) + "# as it is now\n")
    monkeypatch.chdir(here)
    summary = tmp_path / "gate.json"
    question = GateOptions(
        "HEAD", out=tmp_path / "results", database=f"sqlite:///{tmp_path / 'history.db'}",
        json=summary,
    )  # fmt: skip
    text = Console(file=io.StringIO(), width=240)
    code = GateCommand(question, text, lambda device, folder: Null(fated)).go()
    return code, json.loads(summary.read_text())


@pytest.mark.parametrize(("names", "code"), [(("close",), 1), (("close", "same"), 3)])
def test_what_is_slow_alone_may_not_be_among_several(suite, tmp_path, monkeypatch, names, code):
    """p is 0.04: enough for one comparison and, by Holm, too little for one of two."""
    result, text = gated(suite, tmp_path, monkeypatch, names)
    assert result == text["exit_code"] == code
    words = {c["case"]["kernel"]: c["verdict"]["word"] for c in text["comparison"]["parts"]}
    assert words["close"] == ("SLOW" if code == 1 else "INCONCLUSIVE")


def by_day(names):
    """Every third suite, and no pair of what is worse."""
    return SUITES.index(names) % 3 == 0 and (len(names) != 2 or not set(names) <= set(WORSE))


@pytest.mark.parametrize("names", at_night(SUITES, by_day))
def test_the_worst_of_a_suite_is_its_exit_code_whatever_stands_beside_it(
    suite, tmp_path, monkeypatch, names
):
    codes = {STATES[name][2] for name in names}
    worst = next(code for code in (1, 2, 3, 0) if code in codes)
    code, text = gated(suite, tmp_path, monkeypatch, names)
    assert code == text["exit_code"] == worst
    left_out = {"broken", "broken_before", "refused", "new"}
    compared = [c["case"]["kernel"] for c in text["comparison"]["parts"]]
    assert compared == sorted(name for name in names if name not in left_out)
    assert [c["exit_code"] for c in text["comparison"]["parts"]] == [STATES[n][2] for n in compared]


def test_a_size_that_both_sides_refuse_fails_no_gate(place):
    wider = place.kernel.read_text().replace('bench=[{"N": 1024}]', 'bench=[{"N": 1024}, {"N": 7}]')
    place.kernel.write_text(wider)
    assert place.gate("HEAD", kernel=(str(place.kernel),)) == 0
    assert "toy.blocks at N=7: N must be a multiple of 16" in place.text()
    assert len(place.comparisons()) == 1


def test_by_default_the_gate_takes_what_changed(place, monkeypatch):
    monkeypatch.chdir(place.folder)
    assert place.gate("HEAD") == 0 and "no kernel's file has changed" in place.text()
    place.write(4)
    (place.folder / "helper.py").write_text("x = 1\n")
    assert place.gate("HEAD") == 0
    (text,) = place.comparisons()
    assert "at HEAD" in text.left and text.right.endswith(f"at {WORKING}")


def test_removed_kernels_and_impls_are_listed_and_fail_nothing(place, monkeypatch):
    monkeypatch.chdir(place.folder)
    text = place.kernel.read_text()
    for name in ("gone.py", "emptied.py", "moved.py", "helper.py"):
        (place.folder / name).write_text(text if name != "helper.py" else "x = 1\n")
    git(place.folder, "add", "-A")
    git(place.folder, "commit", "-q", "-m", "more")
    (place.folder / "gone.py").unlink()
    (place.folder / "emptied.py").write_text("x = 1\n")
    (place.folder / "moved.py").rename(place.folder / "there.py")
    (place.folder / "helper.py").unlink()
    comment = place.folder / "comment.md"
    assert place.gate("HEAD", markdown=comment) == 0
    for name in ("gone.py", "emptied.py", "moved.py"):
        assert f"left out  {name}: removed since HEAD" in place.text()
    assert "helper.py" not in place.text() and "- gone.py: removed" in comment.read_text()
    assert "new since HEAD" in place.text()

    place.kernel.write_text(text.replace("def blocks(", "def other("))
    place.gate("HEAD", kernel=(str(place.kernel),))
    assert "toy.blocks: removed since HEAD" in place.text()


@pytest.mark.parametrize("name", ["toy", "game"])
def test_a_renamed_kernel_is_compared_with_what_it_was(place, monkeypatch, name):
    """Renamed are the file and, or not, its Spec."""
    monkeypatch.chdir(place.folder)
    git(place.folder, "mv", place.kernel.name, "game.py")
    renamed = place.folder / "game.py"
    renamed.write_text(renamed.read_text().replace('name="toy"', f'name="{name}"'))
    assert place.gate("HEAD") == 0
    assert len(place.comparisons()) == 1
    assert "left out" not in place.text()


module_names = st.sampled_from(["a", "b", "c", "d", "e"])


@given(st.dictionaries(module_names, st.sets(module_names)), st.sets(module_names, min_size=1))
def test_what_a_change_reaches_is_the_closure_of_the_imports(tmp_path_factory, imports, changed):
    folder = tmp_path_factory.mktemp("modules")
    forms = (
        "import {}",
        "from {} import f",
        "from .{} import (\n    f,\n)",
        "from p import (\n {},\n)",
    )
    for name, imported in imports.items():
        lines = [forms[n % 4].format(each) for n, each in enumerate(sorted(imported))]
        (folder / f"{name}.py").write_text("\n".join(lines) + "\n")
    reached = set(changed)
    while more := {n for n, of in imports.items() if of & reached} - reached:
        reached |= more
    files = {Path(f"{name}.py") for name in imports}
    result = importers(folder, files, [Path(f"{name}.py") for name in changed])
    assert {file.stem for file in result} == (reached & imports.keys()) - changed


def test_a_new_kernel_is_left_out_and_a_broken_one_fails(place, monkeypatch):
    monkeypatch.chdir(place.folder)
    (place.folder / "younger.py").write_text(KERNEL.replace('name="toy"', 'name="younger"'))
    assert place.gate("HEAD") == 0
    assert "younger: new since HEAD" in place.text() and not place.comparisons()
    (place.folder / "older.py").write_text(KERNEL.replace("from workbench.spec", "from nowhere"))
    assert place.gate("HEAD") == 2 and "cannot be imported" in place.text()


def test_a_suite_is_corrected_for_its_number(monkeypatch):
    from workbench.data.verdict import holm_verdicts

    wide = verdict.verdict(Ratio(1.02, 1.0101, 1.031), None, 0.01, 0.0, 24)
    one = Comparison("r", "", "k", {}, "bf16", "a", "b", "1", "2", wide, looks=3)
    none = Comparison("r", "", "k", {}, "bf16", "a", "b", "1", "2", None)
    assert [c.verdict.word for c in holm_verdicts([one])] == ["SLOW"]
    many = holm_verdicts([one, none, *[one] * 20])
    assert many[1].verdict is None and {c.verdict.word for c in many if c.verdict} == {
        "INCONCLUSIVE"
    }


def test_ctrl_c_keeps_what_was_held(place, monkeypatch):
    calls = []

    def stops(self, left, right, context):
        calls.append(left)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, left, right, context)

    real = Null.compare
    monkeypatch.setattr(Null, "compare", stops)
    text = place.kernel.read_text().replace('[{"N": 1024}]', '[{"N": 1024}, {"N": 2048}]')
    place.kernel.write_text(text)
    assert place.gate("HEAD", kernel=(str(place.kernel),)) == 130
    assert len(place.comparisons()) == 1
    assert place.events()[-1].state == "interrupted"
    assert subprocess.run(
        ["git", "-C", str(place.folder), "worktree", "list"], capture_output=True, text=True
    ).stdout.count("\n") == 1  # fmt: skip


def test_a_comparison_that_is_stopped_has_no_code_of_a_verdict(place, monkeypatch):
    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Null, "compare", stops)
    assert place.compare("HEAD~1", "HEAD") == 130
    assert not place.comparisons() and place.events()[-1].state == "interrupted"


def test_an_unknown_baseline_is_told_before_any_work(place):
    with pytest.raises(Exception, match="names no commit"):
        place.gate("no-such", kernel=(str(place.kernel),))
    assert not place.out.exists() and place.null.begun == 0


def test_what_holds_a_kernel():
    assert has_kernel(KERNEL)
    assert not has_kernel(f"TEXT = '''{KERNEL.replace(chr(39) * 3, '')}'''")
    assert not has_kernel("def f(:")
    assert has_kernel(KERNEL.encode()) and not has_kernel(b"\xff\xfe\0")
    assert has_kernel(KERNEL + "\ndef f(:"), "one that cannot be parsed any more"
    assert not has_kernel("(" * 100_000) and not has_kernel("x = '\0'")


# Whatever lies in the repository


def odd_files(folder):
    """Untracked files that are no Python text, or that cannot be read."""
    os.mkfifo(folder / "fifo.py")
    (folder / "to_fifo.py").symlink_to(folder / "fifo.py")
    (folder / "to_device.py").symlink_to("/dev/zero")
    (folder / "nowhere.py").symlink_to(folder / "absent.py")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    (folder / "folder.py").mkdir()
    (folder / "folder.py" / "inner.py").write_bytes(b"\xff\xfe\0")
    (folder / "line\nbreak.py").write_text("pass\n")
    (folder / os.fsdecode(b"not \xff UTF-8.py")).write_text("pass\n")
    with (folder / "huge.py").open("wb") as file:
        file.truncate(1 << 40)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(folder / "socket.py"))


@pytest.fixture
def inside(place, monkeypatch):
    """As a user stands in his repository, whose changed files a gate takes."""
    monkeypatch.chdir(place.folder)
    return place


def test_odd_files_in_the_repository_do_not_keep_a_gate_from_its_work(inside):
    place = inside
    odd_files(place.folder)
    place.write(4)
    assert place.gate("HEAD", slower(4, by=1.1)) == 1
    left = [line for line in place.text().splitlines() if line.startswith("left out")]
    assert {line.split(":")[0].removeprefix("left out  ") for line in left} == {
        "to_fifo.py", "to_device.py", "nowhere.py", "loop.py", "huge.py",
    }  # fmt: skip
    assert all("it cannot be read (" in line for line in left)


def test_a_gate_with_a_kernel_of_an_odd_name(inside):
    place = inside
    for name in ("line\nbreak.py", os.fsdecode(b"not \xff.py")):
        odd = place.folder / name
        odd.write_text(KERNEL)
        git(place.folder, "add", "-A")
        git(place.folder, "commit", "-q", "-m", "odd")
        odd.write_text(KERNEL.replace("threads(1, 4, default=2)", "threads(1, 4, default=4)"))
        assert place.gate("HEAD", slower(4, by=1.1)) == 1
        git(place.folder, "checkout", "-q", ".")


@pytest.mark.parametrize("how", ["fifo", "nowhere", "huge", "unparsable", "exits", "device"])
def test_a_tracked_kernel_that_cannot_be_read_any_more_fails(inside, how):
    place = inside
    place.kernel.unlink()
    if how == "fifo":
        place.kernel.symlink_to(place.folder / "pipe")
        os.mkfifo(place.folder / "pipe")
    elif how in ("nowhere", "device"):
        place.kernel.symlink_to("/dev/zero" if how == "device" else "absent")
    elif how == "huge":
        with place.kernel.open("wb") as file:
            file.truncate(1 << 40)
    else:
        place.kernel.write_text(
            KERNEL + {"exits": "raise SystemExit(0)", "unparsable": "def f(:"}[how]
        )
    assert place.gate("HEAD") == 2
    assert "left out  toy.py: " in place.text() and "Nothing to compare" in place.text()


@pytest.mark.parametrize("to", ["absolute", "relative"])
def test_a_baseline_that_is_a_link_into_the_work_tree_reads_no_working_file(place, to):
    """A regression would read SAME: both operands would be the file as it is."""
    real = place.folder / "real.py"
    place.kernel.rename(real)
    place.kernel.symlink_to(real if to == "absolute" else "real.py")
    git(place.folder, "add", "-A")
    git(place.folder, "commit", "-q", "-m", "link")
    real.write_text(real.read_text().replace("default=2)", "default=4)"))
    assert place.gate("HEAD", slower(4, by=1.1), kernel=(str(place.kernel),)) == 1


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "-0.01", "1", "1e300", "wide"])
@pytest.mark.parametrize("words", [["gate", "HEAD"], ["compare", "tiles", "persistent"]])
def test_a_threshold_is_a_share(words, value, capsys):
    assert cli.main([*words, f"--threshold={value}"]) == 2
    text = capsys.readouterr().err
    assert "threshold" in text and text.count("\n") == 1


@given(st.floats())
def test_a_threshold_that_is_no_share_is_refused_wherever_it_is_taken(value):
    one = Ratio(1.0, 0.999, 1.001)
    if 0 <= value < 1:
        assert GateOptions("HEAD", threshold=value).threshold == value
        verdict.verdict(one, None, value, 0.0, 1)
    else:
        for make in (
            lambda: GateOptions("HEAD", threshold=value),
            lambda: CompareOptions("a", "b", threshold=value),
            lambda: verdict.verdict(one, None, value, 0.0, 1),
        ):
            with pytest.raises(WorkbenchError):
                make()
