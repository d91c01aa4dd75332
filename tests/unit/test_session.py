"""A session on the null side: what is kept, what is not obtained twice, and what an end leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from null_backend import ENVIRONMENT, Fate, Null
from nullside import CONFIGS, Place

from workbench import catalog
from workbench.commands.console import SweepConsole
from workbench.commands.options import CommandError
from workbench.commands.run import check_writable
from workbench.commands.sizes import sizes_of
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.database import History, HistoryError, open_history
from workbench.data.events import Events, RunFinished, read
from workbench.data.interrupts import Interrupts
from workbench.data.record import Failure, Measured, Predicted, Record, Run

TESTS = Path(__file__).parents[1]


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Pages take a second to draw and are not what is tested here."""
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
    return Place(tmp_path)


def folders(out):
    """The folders of runs; beside them lies an index of their pages."""
    return [path for path in out.iterdir() if path.is_dir()]


def of(outcomes, phase):
    return [o for o in outcomes if isinstance(o, Record) and o.phase == phase]


def failures(outcomes):
    return {o.case.config["block_n"]: o for o in outcomes if isinstance(o, Failure)}


def by_block(**fates):
    """Fates by block size."""
    return lambda c: fates.get(f"n{getattr(c.config, 'block_n', 0)}", Fate())


# Kept


def test_every_outcome_is_in_both_places_before_the_next_begins(context):
    begun = []

    def fate(candidate):
        compiling = threading.current_thread() is not threading.main_thread()
        if not compiling and candidate.key not in begun:
            kept = {o.key for o in context.logged() if not hasattr(o, "engine")}
            assert set(begun) <= kept
            assert set(begun) <= {o.key for o in context.stored()}
            begun.append(candidate.key)
        return Fate()

    context.sweep(fate)
    assert len(begun) == CONFIGS + 1, "with the baseline, which is asked for in the final alone"


def test_the_events_and_the_database_agree_and_the_page_is_written(context):
    outcomes = context.sweep()
    assert context.code == 0
    run, *logged = context.logged()
    assert context.stored() == outcomes == logged
    assert run.ceilings["dram_measured"]["value"] == 4e12 and "compute" in run.ceilings
    (folder,) = folders(context.out)
    assert {p.name for p in folder.iterdir()} == {"events.jsonl", "report.html"}
    end = read(folder / "events.jsonl").events[-1]
    assert isinstance(end, RunFinished) and end.state == "complete"
    assert end.counts["measured"] == CONFIGS and end.counts["refused"] == 1


def test_a_failure_is_kept_with_its_reason_and_ends_nothing(context):
    outcomes = context.sweep(
        by_block(
            n16=Fate(compile_error="ptxas gave up"),
            n32=Fate(wrong="the first wrong element is y[3]"),
            n64=Fate(raises=OSError("the pipe broke")),
        )
    )
    result = {(o.stage, o.reason) for o in outcomes if isinstance(o, Failure)}
    assert result == {
        ("refused", "128 elements are too many for one warp"),
        ("compile", "ptxas gave up"),
        ("check", "the first wrong element is y[3]"),
        ("measure", "OSError: the pipe broke"),
    }
    assert context.stored() == outcomes
    assert len(of(outcomes, "first_pass")) == 2


def test_a_config_that_fails_after_its_screen_is_kept_as_a_failure(context):
    halve = context.sweep(by_block(n16=Fate(time_s=1e-6, halve="lost its process")))
    assert failures(halve)[16].reason == "lost its process"
    assert not [o for o in of(halve, "final") if o.case.config.get("block_n") == 16]
    final = context.sweep(by_block(n16=Fate(time_s=1e-6, final="drifted")), fresh=True)
    assert failures(final)[16].reason == "drifted"
    assert of(final, "hot")[0].case.config["block_n"] != 16


def test_all_failures_are_still_a_sweep(context):
    outcomes = context.sweep(lambda c: Fate(wrong="NaN"))
    assert context.code == 2 and len(outcomes) == CONFIGS + 1
    assert not context.labels("final") and not context.labels("halve")
    context.sweep(lambda c: Fate(wrong="NaN"))
    assert context.code == 2 and not context.labels("time"), "the stored run says the same"


def test_duplicates_are_told_and_not_timed(context):
    outcomes = context.sweep(lambda c: Fate(binary=f"of {c.case.config.get('block_n')}"))
    screens = of(outcomes, "first_pass")
    assert len(screens) == CONFIGS and len(context.labels("time")) == 4
    for record in screens:
        if record.same_as is not None:
            assert record.same_as["block_n"] == record.case.config["block_n"]
            assert record.same_as != record.case.config
    assert sum(r.same_as is None for r in screens) == 4
    assert sum(r.same_as is not None for r in screens) == CONFIGS - 4
    assert all(r.same_as is None for r in of(outcomes, "final"))
    (log,) = context.out.glob("*/events.jsonl")
    counts = read(log).events[-1].counts
    assert (counts["compiled"], counts["duplicate"]) == (CONFIGS, CONFIGS - 4)


def test_a_duplicate_of_a_wrong_config_is_wrong_too(context):
    outcomes = context.sweep(lambda c: Fate(binary="one", wrong="NaN"))
    assert sum(isinstance(o, Failure) and o.stage == "check" for o in outcomes) == CONFIGS


# Measured and predicted


def test_finals_are_for_measured_sides(context):
    outcomes = context.sweep(lambda c: Fate(time_s=1e-4 / getattr(c.config, "block_n", 1)))
    finals = of(outcomes, "final")
    assert all(isinstance(o.timing, Measured) for o in outcomes if isinstance(o, Record))
    assert sum(o.case.is_baseline for o in finals) == 1
    assert sum(o.default for o in finals) == 1, "the default is in the final though it is slow"
    (hot,) = of(outcomes, "hot")
    assert hot.case.config["block_n"] == 128 and hot.timing.regime == "hot"


def test_a_predicted_time_stays_predicted_and_has_no_final(context):
    outcomes = context.sweep(predicts=True)
    records = [o for o in outcomes if isinstance(o, Record)]
    assert len(records) == CONFIGS
    assert all(isinstance(o.timing, Predicted) and o.phase == "predict" for o in records)
    assert not {"halve", "final", "hot"} & {what for what, _ in context.null.requests}
    assert all(isinstance(o.timing, Predicted) for o in context.stored() if isinstance(o, Record))
    measured = context.sweep()
    assert len(context.labels("time")) == CONFIGS, "a prediction never stands for a measurement"
    assert all(isinstance(o.timing, Measured) for o in measured if isinstance(o, Record))


# compute-sanitizer


def test_what_the_sanitizer_does_not_accept_cannot_win(context, monkeypatch):
    monkeypatch.setattr("workbench.commands.sweep_command.check_sanitizer", lambda *_: None)
    race = by_block(n16=Fate(time_s=1e-6, sanitized="racecheck at N=64: 3 errors"))
    without = context.sweep(race)
    assert of(without, "hot")[0].case.config["block_n"] == 16 and not context.labels("sanitize")
    outcomes = context.sweep(race, require="sanitizer")
    assert not context.labels("time"), "the first pass is known"
    words = [word for word, _ in context.null.requests]
    assert words.index("sanitize") < words.index("final")
    lost = failures(outcomes)[16]
    assert (lost.stage, lost.reason) == ("check", "racecheck at N=64: 3 errors")
    assert not [o for o in of(outcomes, "final") if o.case.config.get("block_n") == 16]
    assert of(outcomes, "hot")[0].case.config["block_n"] != 16
    asked, finals = set(context.labels("sanitize")), set(context.labels("final"))
    assert len(finals - asked) == 1, "the library's version is not asked for"
    assert {name.split(",")[0] for name in asked - finals} == {"blocks block_n 16"}


def test_a_sweep_without_the_sanitizer_says_so_at_once(context):
    with pytest.raises(CommandError, match="--require sanitizer is not possible"):
        context.sweep(require="sanitizer")
    assert context.null.requests == []


# Energy


def test_energy_is_asked_for_last_and_kept_with_the_finals(context):
    outcomes = context.sweep(also="energy")
    words = [word for word, _ in context.null.requests]
    assert words.index("energy") > max(n for n, w in enumerate(words) if w in ("final", "hot"))
    assert context.labels("energy") == context.labels("final")
    finals = of(context.stored(), "final")
    assert finals == of(outcomes, "final") and len(finals) == len(context.labels("final"))
    for record in finals:
        energy = record.timing.energy
        assert energy.joules == pytest.approx(100e-6 * 500, rel=0.01) and energy.windows == 6
    assert all(o.timing.energy is None for o in of(outcomes, "first_pass") + of(outcomes, "hot"))


def test_energy_changes_no_time(context):
    without = context.sweep()
    times = {(o.key, o.phase): o.timing.samples_s for o in without if isinstance(o, Record)}
    outcomes = context.sweep(also="energy")
    assert context.labels("time") == [], "the first pass is known"
    assert set(context.labels("energy")) == set(context.labels("final")) != set()
    again = {(o.key, o.phase): o.timing.samples_s for o in outcomes if isinstance(o, Record)}
    assert again == times
    context.sweep(also="energy")
    assert context.null.requests == [], "a sweep whose finals have their energy is complete"
    context.sweep()
    assert context.null.requests == []


def test_an_energy_that_cannot_be_had_is_a_sentence_and_costs_no_time(context, capsys):
    outcomes = context.sweep(lambda c: Fate(no_energy="no counter here"), also="energy")
    finals = of(outcomes, "final")
    assert finals and {o.timing.no_energy for o in finals} == {"no counter here"}
    assert "No energy: no counter here." in capsys.readouterr().out
    context.sweep(also="energy")
    assert context.labels("energy"), "it is tried again"


def test_the_console_says_which_takes_least(context, capsys):
    def fate(candidate):
        slow = getattr(candidate.config, "num_warps", 0) == 4
        return Fate(time_s=101e-6, power_w=300.0) if slow else Fate()

    context.sweep(fate, also="energy")
    text = capsys.readouterr().out
    least = r"Least energy: blocks block_n \d+, 4 warps, 30\.\d+ mJ a call: (39|40) % less"
    assert re.search(least, " ".join(text.split()))


def test_energy_that_is_stopped_leaves_the_times(context, monkeypatch):
    def stopped(self, candidates, windows):
        raise KeyboardInterrupt

    monkeypatch.setattr("null_backend.Null.energy", stopped)
    outcomes = context.sweep(also="energy")
    assert context.code == 130 and of(outcomes, "final") and of(outcomes, "hot")
    assert context.stored() == outcomes


def test_a_prediction_has_no_energy(context):
    with pytest.raises(CommandError, match="energy has no prediction; leave out --also energy"):
        context.sweep(also="energy", predicts=True)
    assert context.null.requests == [] and context.null.closed


# Not obtained twice


@pytest.mark.parametrize("predicts", [False, True])
def test_a_finished_sweep_run_again_asks_for_nothing(context, predicts):
    first = context.sweep(predicts=predicts)
    assert context.null.begun == 1
    again = context.sweep(predicts=predicts)
    assert again == first and context.null.requests == [] and context.null.begun == 0
    assert len(folders(context.out)) == 1, "the earlier run is the answer"
    (page,) = context.out.glob("*/report.html")
    page.unlink()
    context.sweep(predicts=predicts)
    assert page.is_file(), "drawn again where it is missing"


def test_of_two_predicted_sweeps_at_once_the_second_takes_over_what_the_first_did(
    context, monkeypatch
):
    """A sweep of other sizes, of another database or afresh waits for nobody."""
    locks, backends = [], []

    @contextmanager
    def waiting(lock, on_wait):
        locks.append(lock)
        if len(locks) == 1:
            backends.append(context.null)
            context.sweep(predicts=True)  # the other process
        yield

    monkeypatch.setattr("workbench.commands.sweep_command.hold_lock", waiting)
    outcomes = context.sweep(predicts=True)
    assert len(of(outcomes, "predict")) == CONFIGS and backends[0].requests == []
    assert len(locks) == 2 and locks[0] == locks[1] and "the sweep of toy" in locks[0].title
    context.sweep(predicts=True, fresh=True)
    context.sweep(predicts=False)
    assert len(locks) == 2
    context.sweep(predicts=True, sizes=("N=2048",))
    assert locks[2] != locks[0]


class Waiting(Null):
    """A backend that waits for the GPU while another process sweeps on it."""

    def __init__(self, meanwhile):
        super().__init__()
        self._meanwhile = meanwhile

    def begin(self, problem, candidates=()):
        self._meanwhile()
        return super().begin(problem, candidates)


def swept_while(context, meanwhile, **more):
    """A sweep that waits for its GPU until `meanwhile` is done; the backend and the outcomes."""
    null = Waiting(meanwhile)
    command = SweepCommand(
        SweepOptions(**{**context.words(), **more}), SweepConsole(quiet=False),
        lambda device, folder: null, tuned_file=context.folder / "tuned.json",
    )  # fmt: skip
    assert command.go() == 0
    return null, command.outcomes


def timed(null):
    return [label for word, label in null.requests if word == "time"]


@pytest.mark.parametrize("search", [{}, {"search": "random"}, {"search": "model"}])
@pytest.mark.parametrize("theirs", [{}, {"only": True}, {"budget": "3"}])
def test_what_another_process_obtained_meanwhile_is_not_obtained_again(
    context, capsys, theirs, search
):
    other = []
    null, outcomes = swept_while(
        context, lambda: other.append((context.sweep(**theirs), context.labels("time"))), **search
    )
    ((first, before),) = other
    own = timed(null)
    assert before and not set(before) & set(own), "nothing is timed twice"
    assert len(before) + len(own) == CONFIGS, "and nothing is left out"
    assert len({o.key for o in of(outcomes, "first_pass")}) == CONFIGS
    assert {o.key for o in of(first, "first_pass")} <= {o.key for o in of(outcomes, "first_pass")}
    (run,) = {o.run for o in outcomes}
    with open_history(context.url) as history:
        assert history.outcomes(run) == outcomes
    assert f"{len(before)} more were obtained by another process." in capsys.readouterr().out


def test_a_sweep_that_another_process_finished_meanwhile_measures_nothing(context):
    null, outcomes = swept_while(context, context.sweep)
    assert [w for w, _ in null.requests] == [] and of(outcomes, "final") and of(outcomes, "hot")


def test_fresh_obtains_all_whatever_others_did_meanwhile(context):
    null, _ = swept_while(context, context.sweep, fresh=True)
    assert len(timed(null)) == CONFIGS


def test_what_several_runs_obtained_becomes_a_run_of_its_own(context):
    context.sweep(predicts=True, only=True)
    context.sweep(predicts=True)
    outcomes = context.sweep(predicts=True, only=True)
    assert context.null.requests == [] and context.null.begun == 0
    assert len({o.run for o in outcomes}) == 1 and len(folders(context.out)) == 3


def test_a_run_of_more_configs_is_not_shown_for_fewer_and_measures_nothing(context):
    context.sweep(predicts=True)
    outcomes = context.sweep(predicts=True, budget="3")
    assert len(of(outcomes, "predict")) == 3 and context.null.requests == []


def test_new_configs_are_obtained_alone(context):
    context.sweep(predicts=True, only=True)
    before = set(context.labels("time"))
    outcomes = context.sweep(predicts=True)
    assert before and not before & set(context.labels("time"))
    assert len(before) + len(context.labels("time")) == CONFIGS
    assert len(of(outcomes, "predict")) == CONFIGS


def test_a_new_config_that_is_better_gets_a_new_final(context):
    def faster_with_4_warps(candidate):
        return Fate(time_s=1e-4 / getattr(candidate.config, "num_warps", 1))

    context.sweep(faster_with_4_warps, only=True)
    outcomes = context.sweep(faster_with_4_warps)
    assert len(context.labels("final")) > 0
    assert of(outcomes, "hot")[0].case.config["num_warps"] == 4


def test_fresh_obtains_all_again(context):
    context.sweep()
    context.sweep(fresh=True)
    assert len(context.labels("time")) == CONFIGS and context.labels("final")


@pytest.mark.parametrize(
    ("fate", "again"),
    [
        (Fate(wrong="NaN"), False),
        (Fate(compile_error="no"), False),
        (Fate(raises=RuntimeError("lost")), True),
    ],
)
def test_a_lost_process_is_asked_again_a_wrong_answer_is_not(context, fate, again):
    context.sweep(by_block(n16=fate), predicts=True)
    context.sweep(by_block(n16=fate), predicts=True)
    assert bool(context.labels("time")) is again


def test_other_sizes_dtypes_and_sources_are_other_results(context):
    context.sweep(predicts=True)
    for change in ({"sizes": ("N=2048",)}, {"dtype": "fp16"}):
        context.sweep(predicts=True, **change)
        assert len(context.labels("time")) == CONFIGS
    changed = context.kernel.read_text().replace("raise NotImplementedError", "return x + 0")
    context.kernel.write_text(changed)
    context.sweep(predicts=True)
    assert len(context.labels("time")) == CONFIGS


def test_a_config_that_is_no_longer_refused_is_tried(context):
    """The refusal that is stored was for what the kernel said then."""
    context.sweep(predicts=True)
    text = context.kernel.read_text()
    context.kernel.write_text(text.replace("config.block_n == 128 and", "config.block_n > 128 and"))
    del sys.modules[catalog.module_of(str(context.kernel)).__name__]  # as in another process
    outcomes = context.sweep(predicts=True)
    assert len(context.labels("time")) == 1
    assert not any(isinstance(o, Failure) for o in outcomes)


# Several sizes, and what is remembered


def test_several_sizes_are_a_run_each_and_a_portfolio(context, capsys):
    def fate(candidate):
        """The best block is a sixteenth of N; the largest is nearly as good everywhere."""
        n, block = candidate.case.sizes["N"], candidate.case.config.get("block_n", 0)
        return Fate(time_s=1e-5 * (1 if block == n // 16 else 1.01 if block == 128 else 2), noise=0)

    context.sweep(fate, sizes=("N=1024", "N=512"))
    assert context.code == 0 and len(list(context.out.glob("*/events.jsonl"))) == 2
    (file,) = context.out.glob("portfolio-toy-*.json")
    result = json.loads(file.read_text())
    assert len(result["members"]) == 1 and "block_n 128" in result["members"][0]
    assert [s["ratio"] for s in result["served"].values()] == pytest.approx([1.01, 1.01])
    assert "1 config serves 2 sizes within 3 % of each one's best" in capsys.readouterr().out


def test_the_winner_is_remembered_and_is_the_incumbent_of_the_next(context):
    def fate(warps):
        return lambda c: Fate(time_s=1e-4 * (1 + abs(c.case.config.get("num_warps", 9) - warps)))

    context.sweep(fate(4), fresh=True)
    assert context.session.tuned_file.is_file()
    context.sweep(fate(1), fresh=True)
    first, second = sorted((e for e in context.logged() if isinstance(e, Run)),
                           key=lambda run: bool(run.previous_best))  # fmt: skip
    assert first.previous_best == {} and second.previous_best["blocks"]["num_warps"] == 4
    assert [o for o in of(context.stored(), "final") if o.case.config.get("num_warps") == 4]


def test_a_damaged_file_of_winners_costs_no_answer(context, capsys):
    (context.folder / "tuned.json").write_text("{")
    outcomes = context.sweep()
    assert context.code == 0 and of(outcomes, "final")
    assert "note: " in capsys.readouterr().err
    assert (context.folder / "tuned.json").read_text() == "{"


def test_an_incumbent_is_what_was_found_for_just_this(context):
    """Not for other sizes or another dtype, and a predicted winner for predictions alone."""

    def previous_best(**more):
        before = {e.id for e in context.logged() if isinstance(e, Run)}
        context.sweep(fresh=True, **more)
        (new,) = [e for e in context.logged() if isinstance(e, Run) and e.id not in before]
        return {name: dict(config) for name, config in new.previous_best.items()}

    assert previous_best() == {}
    for other in ({"sizes": ("N=2048",)}, {"dtype": "fp16"}, {"predicts": True}):
        assert previous_best(**other) == {}
    tuned = json.loads((context.folder / "tuned.json").read_text())["entries"]
    (ours,) = (
        e for e in tuned
        if (e["sizes"], e["dtype"], e["predicted"]) == ({"N": 1024}, "bf16", False)
    )  # fmt: skip
    assert previous_best() == {"blocks": ours["config"]}


# Refused before any work


@pytest.mark.parametrize(
    ("others", "text"), [(1, "1 other process uses this"), (2, "2 other processes use this GPU")]
)
def test_strict_refuses_a_gpu_that_others_use(context, monkeypatch, others, text):
    busy = replace(ENVIRONMENT, others_on_gpu=others)
    monkeypatch.setattr("null_backend.ENVIRONMENT", busy)
    assert text in refusal(context, require="idle-gpu")
    context.sweep()
    assert context.code == 0, "without it they are counted in the result"
    alone = replace(ENVIRONMENT, others_on_gpu=0)
    monkeypatch.setattr("null_backend.ENVIRONMENT", alone)
    context.sweep(require="idle-gpu")
    assert context.code == 0


def refusal(context, **more):
    with pytest.raises(Exception) as text:
        context.sweep(**more)
    assert not context.out.exists(), "nothing half-written"
    assert context.null.requests == []
    return f"{type(text.value).__name__}: {text.value}"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"name": "tile_sise"}, "CommandError: There is no sweep 'tile_sise'; did you mean tile"),
        ({"kernel": "matmull"}, "CatalogError: There is no kernel 'matmull'; did you mean matmul"),
        ({"impl": ("block",)}, "CatalogError: There is no impl of toy 'block'; did you mean bloc"),
        ({"impl": ("torch",)}, "CommandError: toy.torch is not a Triton kernel"),
        ({"dtype": "bf61"}, "CommandError: There is no dtype 'bf61'; did you mean bf16 or f"),
        ({"sizes": ("M=3",)}, "CommandError: There is no axis of toy 'M'. Known: N."),
        ({"sizes": ("N=x",)}, "CommandError: N=x is not a positive whole number; write --sizes N="),
        ({"sizes": ("N=0",)}, "CommandError: N=0 is not a positive"),
        ({"sizes": ("N=²",)}, "CommandError: N=² is not a positive"),
        ({"sizes": (f"N={'9' * 9999}",)}, "CommandError: --sizes N=999"),
        ({"sizes": ("N=1500",)}, "NothingToSweep: No config of "),
        ({"name": "pipeline", "only": True, "sizes": ("N=7",)}, "NothingToSweep: No config of "),
        ({"begin_error": "out of GPU memory"}, "CommandError: The GPU could not take N=1024 (out"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_a_sentence(context, more, words):
    assert refusal(context, **more).startswith(words)


def test_a_missing_axis_is_named():
    with pytest.raises(CommandError, match="lacks K, N; write --sizes M=4096,N=4096,K=4096"):
        sizes_of(matmul_like(), "M=3")


def matmul_like():
    from workbench.spec import Spec, Tensor

    return Spec(
        "matmul", {"a": Tensor("M K"), "b": Tensor("K N")}, {"c": Tensor("M N")}, lambda a, b: a,
        lambda M, N, K: 2 * M * N * K, [], [{"M": 4096, "N": 4096, "K": 4096}],
    )  # fmt: skip


def test_places_that_cannot_be_written_are_refused_at_the_start(context, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for more, option in (
        ({"out": file}, "--out"),
        ({"out": file / "deeper"}, "--out"),
        ({"events_file": file / "events.jsonl"}, "--events-file"),
        ({"events_file": tmp_path}, "--events-file"),
    ):
        text = refusal(context, **more)
        assert text.startswith("CommandError: ") and option in text
    assert file.read_text() == "mine"


def test_writable_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_database_is_refused_at_the_start_and_left_alone(context, tmp_path):
    (tmp_path / "history.db").write_bytes(os.urandom(5000))
    before = (tmp_path / "history.db").read_bytes()
    assert refusal(context).startswith("HistoryError: ")
    assert (tmp_path / "history.db").read_bytes() == before


def test_no_compiler_is_said(monkeypatch, tmp_path):
    from workbench.commands.run import require_triton

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CommandError, match="Triton is not installed"):
        require_triton()


def test_a_database_that_fails_half_way_loses_nothing_of_the_events(context, monkeypatch):
    add, times = History.add, []

    def fails_at_the_fifth(self, outcome):
        times.append(outcome)
        if len(times) == 5:
            raise HistoryError("the disk is full")
        add(self, outcome)

    monkeypatch.setattr(History, "add", fails_at_the_fifth)
    with pytest.raises(HistoryError):
        context.sweep()
    assert context.null.closed
    assert len(context.stored()) == 4 and len(context.logged()) == 6
    assert list(context.out.glob("*/report.html")), "the page shows what there is"


def test_the_command_repeats_the_question():
    context = SweepOptions(
        "tile_size", "my kernels/a.py", ("x", "y"), ("N=3", "N=5"), "fp16", "h200", True, "30s",
        also="profile,energy,profile", require=("idle-gpu",), workers=2,
    )  # fmt: skip
    assert context.command == (
        "python -m workbench.sweep tile_size --kernel 'my kernels/a.py' --impl x --impl y"
        " --sizes N=3 --sizes N=5 --dtype fp16 --device h200 --only --budget 30s"
        " --also profile,energy --require idle-gpu"
    )


# Ends


def start(context, many):
    """A sweep in a process of its own, which hangs behind so many configs."""
    command = [
        sys.executable,
        TESTS / "nullside.py",
        context.kernel,
        context.out,
        context.url,
        many,
    ]
    return subprocess.Popen(
        [*map(str, command)], cwd=TESTS.parent, env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for(context, many, child, limit_s=120.0):
    """Until so many configs have been timed."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and child.poll() is None:
        result = [read(p) for p in context.out.glob("*/events.jsonl")] or [Events([], [])]
        if sum(isinstance(e, Record) for e in result[0].events) >= many:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {many} records came: {child.communicate()}")


def test_kill_9_loses_the_config_under_way_at_most(context):
    child = start(context, 4)
    wait_for(context, 4, child)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    results = [read(p) for p in context.out.glob("*/events.jsonl")]
    logged = [e.key for e in results[0].events if isinstance(e, Record)]
    stored = [o.key for o in context.stored() if isinstance(o, Record)]
    assert len(logged) == 4 and len(logged) - len(stored) in (0, 1)
    with open_history(context.url) as history:
        assert history.state(history.run("last").id) == "running"
    outcomes = context.sweep()
    assert len(context.labels("time")) == CONFIGS - len(stored)
    assert len(of(outcomes, "first_pass")) == CONFIGS


def test_ctrl_c_keeps_all_so_far_and_writes_the_page(context):
    child = start(context, 3)
    wait_for(context, 3, child)
    os.kill(child.pid, signal.SIGINT)
    text, complained = child.communicate(timeout=120)
    assert child.returncode == 130, complained
    assert "Traceback" not in complained and "report  " in text
    assert re.search(r"Stopped after \d of 11 configs; the same command obtains the rest", text)
    (folder,) = folders(context.out)
    assert "<html" in (folder / "report.html").read_text()
    events = read(folder / "events.jsonl").events
    assert isinstance(events[-1], RunFinished) and events[-1].state == "interrupted"
    logged = [o for o in context.logged() if isinstance(o, (Record, Failure))]
    assert logged == context.stored() and len(logged) == 3 + 1, "and what was refused"
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)  # it was a group of its own, and nobody of it is left


def test_a_run_that_was_stopped_is_gone_on_with_and_one_that_ended_is_told_again(
    context, monkeypatch
):
    """Stopped before its last step, when each config had its time already."""

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Null, "hot", stopped)
        first = context.sweep()
    assert context.code == 130 and of(first, "final")
    second = context.sweep()
    assert context.code == 0 and not {o.run for o in first} & {o.run for o in second}
    third = context.sweep()
    assert context.code == 0 and {o.run for o in third} == {o.run for o in second}


def test_ctrl_c_waits_until_both_places_have_the_outcome():
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        with interrupts.later():
            signal.raise_signal(signal.SIGINT)
            done.append("events")
            done.append("database")
        done.append("more")
    assert done == ["events", "database"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGINT)
