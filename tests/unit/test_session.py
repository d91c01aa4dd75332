"""A session on the null side: what is kept, what is not obtained twice, and what an end leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from nullside import CONFIGS, Asked

from workbench.backend.null import ENVIRONMENT, Fate, Null
from workbench.commands.options import Question, SessionError, sizes_of, writable
from workbench.data.database import History, HistoryError, open_history
from workbench.data.events import Events, RunFinished, read
from workbench.data.interrupts import Interrupts
from workbench.data.record import Failure, Measured, Predicted, Record, Run

TESTS = Path(__file__).parents[1]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Pages take a second to draw and are not what is tested here."""
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given: "<p>page</p>")
    return Asked(tmp_path)


def of(outcomes, phase):
    return [o for o in outcomes if isinstance(o, Record) and o.phase == phase]


def failures(outcomes):
    return {o.case.config["block_n"]: o for o in outcomes if isinstance(o, Failure)}


def by_block(**fates):
    """Fates by block size."""
    return lambda c: fates.get(f"n{getattr(c.config, 'block_n', 0)}", Fate())


# Kept


def test_every_outcome_is_in_both_places_before_the_next_begins(asked):
    begun = []

    def fate(candidate):
        compiling = threading.current_thread() is not threading.main_thread()
        if not compiling and candidate.key not in begun:
            kept = {o.key for o in asked.logged() if not hasattr(o, "engine")}
            assert set(begun) <= kept
            assert set(begun) <= {o.key for o in asked.stored()}
            begun.append(candidate.key)
        return Fate()

    asked.sweep(fate)
    assert len(begun) == CONFIGS + 1, "with the baseline, which is asked for in the final alone"


def test_the_events_and_the_database_agree_and_the_page_is_written(asked):
    outcomes = asked.sweep()
    assert asked.code == 0
    assert asked.stored() == outcomes == asked.logged()[1:]
    (folder,) = asked.out.iterdir()
    assert {p.name for p in folder.iterdir()} == {"events.jsonl", "report.html"}
    end = read(folder / "events.jsonl").events[-1]
    assert isinstance(end, RunFinished) and end.state == "complete"
    assert end.counts["measured"] == CONFIGS and end.counts["refused"] == 1


def test_a_failure_is_kept_with_its_reason_and_ends_nothing(asked):
    outcomes = asked.sweep(
        by_block(
            n16=Fate(compile_error="ptxas gave up"),
            n32=Fate(wrong="the first wrong element is y[3]"),
            n64=Fate(raises=OSError("the pipe broke")),
        )
    )
    found = {(o.stage, o.reason) for o in outcomes if isinstance(o, Failure)}
    assert found == {
        ("refused", "128 elements are too many for one warp"),
        ("compile", "ptxas gave up"),
        ("check", "the first wrong element is y[3]"),
        ("measure", "OSError: the pipe broke"),
    }
    assert asked.stored() == outcomes
    assert len(of(outcomes, "screen")) == 2


def test_a_config_that_fails_after_its_screen_is_kept_as_a_failure(asked):
    race = asked.sweep(by_block(n16=Fate(time_s=1e-6, race="lost its process")))
    assert failures(race)[16].reason == "lost its process"
    assert not [o for o in of(race, "final") if o.case.config.get("block_n") == 16]
    final = asked.sweep(by_block(n16=Fate(time_s=1e-6, final="drifted")), fresh=True)
    assert failures(final)[16].reason == "drifted"
    assert of(final, "hot")[0].case.config["block_n"] != 16


def test_all_failures_are_still_a_sweep(asked):
    outcomes = asked.sweep(lambda c: Fate(wrong="NaN"))
    assert asked.code == 0 and len(outcomes) == CONFIGS + 1
    assert not asked.labels("final") and not asked.labels("race")


def test_duplicates_are_told_and_not_timed(asked):
    outcomes = asked.sweep(lambda c: Fate(binary=f"of {c.case.config.get('block_n')}"))
    screens = of(outcomes, "screen")
    assert len(screens) == CONFIGS and len(asked.labels("time")) == 4
    for record in screens:
        if record.same_as is not None:
            assert record.same_as["block_n"] == record.case.config["block_n"]
            assert record.same_as != record.case.config
    assert sum(r.same_as is None for r in screens) == 4
    assert asked.session.counts["duplicate"] == CONFIGS - 4
    assert all(r.same_as is None for r in of(outcomes, "final"))


def test_a_duplicate_of_a_wrong_config_is_wrong_too(asked):
    outcomes = asked.sweep(lambda c: Fate(binary="one", wrong="NaN"))
    assert sum(isinstance(o, Failure) and o.stage == "check" for o in outcomes) == CONFIGS


# Measured and predicted


def test_finals_are_for_measured_sides(asked):
    outcomes = asked.sweep(lambda c: Fate(time_s=1e-4 / getattr(c.config, "block_n", 1)))
    finals = of(outcomes, "final")
    assert all(isinstance(o.timing, Measured) for o in outcomes if isinstance(o, Record))
    assert sum(o.case.is_baseline for o in finals) == 1
    assert sum(o.default for o in finals) == 1, "the default is in the final though it is slow"
    (hot,) = of(outcomes, "hot")
    assert hot.case.config["block_n"] == 128 and hot.timing.regime == "hot"


def test_a_predicted_time_stays_predicted_and_has_no_final(asked):
    outcomes = asked.sweep(predicts=True)
    records = [o for o in outcomes if isinstance(o, Record)]
    assert len(records) == CONFIGS
    assert all(isinstance(o.timing, Predicted) and o.phase == "predict" for o in records)
    assert not {"race", "final", "hot"} & {what for what, _ in asked.null.asked}
    assert all(isinstance(o.timing, Predicted) for o in asked.stored() if isinstance(o, Record))
    measured = asked.sweep()
    assert len(asked.labels("time")) == CONFIGS, "a prediction never stands for a measurement"
    assert all(isinstance(o.timing, Measured) for o in measured if isinstance(o, Record))


# Not obtained twice


@pytest.mark.parametrize("predicts", [False, True])
def test_a_finished_sweep_run_again_asks_for_nothing(asked, predicts):
    first = asked.sweep(predicts=predicts)
    assert asked.null.begun == 1
    again = asked.sweep(predicts=predicts)
    assert again == first and asked.null.asked == [] and asked.null.begun == 0
    assert len(list(asked.out.iterdir())) == 1, "the earlier run is the answer"
    (page,) = asked.out.glob("*/report.html")
    page.unlink()
    asked.sweep(predicts=predicts)
    assert page.is_file(), "drawn again where it is missing"


def test_what_several_runs_obtained_becomes_a_run_of_its_own(asked):
    asked.sweep(predicts=True, only=True)
    asked.sweep(predicts=True)
    outcomes = asked.sweep(predicts=True, only=True)
    assert asked.null.asked == [] and asked.null.begun == 0
    assert len({o.run for o in outcomes}) == 1 and len(list(asked.out.iterdir())) == 3


def test_new_configs_are_obtained_alone(asked):
    asked.sweep(predicts=True, only=True)
    before = set(asked.labels("time"))
    outcomes = asked.sweep(predicts=True)
    assert before and not before & set(asked.labels("time"))
    assert len(before) + len(asked.labels("time")) == CONFIGS
    assert len(of(outcomes, "predict")) == CONFIGS


def test_a_new_config_that_is_better_gets_a_new_final(asked):
    def faster_with_4_warps(candidate):
        return Fate(time_s=1e-4 / getattr(candidate.config, "num_warps", 1))

    asked.sweep(faster_with_4_warps, only=True)
    outcomes = asked.sweep(faster_with_4_warps)
    assert len(asked.labels("final")) > 0
    assert of(outcomes, "hot")[0].case.config["num_warps"] == 4


def test_fresh_obtains_all_again(asked):
    asked.sweep()
    asked.sweep(fresh=True)
    assert len(asked.labels("time")) == CONFIGS and asked.labels("final")


@pytest.mark.parametrize(
    ("fate", "again"),
    [
        (Fate(wrong="NaN"), False),
        (Fate(compile_error="no"), False),
        (Fate(raises=RuntimeError("lost")), True),
    ],
)
def test_a_lost_process_is_asked_again_a_wrong_answer_is_not(asked, fate, again):
    asked.sweep(by_block(n16=fate), predicts=True)
    asked.sweep(by_block(n16=fate), predicts=True)
    assert bool(asked.labels("time")) is again


def test_other_sizes_dtypes_and_sources_are_other_results(asked):
    asked.sweep(predicts=True)
    for change in ({"sizes": ("N=2048",)}, {"dtype": "fp16"}):
        asked.sweep(predicts=True, **change)
        assert len(asked.labels("time")) == CONFIGS
    asked.kernel.write_text(asked.kernel.read_text() + "# changed\n")
    asked.sweep(predicts=True)
    assert len(asked.labels("time")) == CONFIGS


# Several sizes, and what is remembered


def test_several_sizes_are_a_run_each_and_a_portfolio(asked, capsys):
    def fate(candidate):
        """The best block is a sixteenth of N; the largest is nearly as good everywhere."""
        n, block = candidate.case.sizes["N"], candidate.case.config.get("block_n", 0)
        return Fate(time_s=1e-5 * (1 if block == n // 16 else 1.01 if block == 128 else 2), noise=0)

    asked.sweep(fate, sizes=("N=1024", "N=512"))
    assert asked.code == 0 and len(list(asked.out.glob("*/events.jsonl"))) == 2
    (file,) = asked.out.glob("portfolio-toy-*.json")
    found = json.loads(file.read_text())
    assert len(found["members"]) == 1 and "block_n 128" in found["members"][0]
    assert [s["ratio"] for s in found["served"].values()] == pytest.approx([1.01, 1.01])
    assert "1 config serves 2 sizes within 3 % of each one's best" in capsys.readouterr().out


def test_the_winner_is_remembered_and_is_the_incumbent_of_the_next(asked):
    def fate(warps):
        return lambda c: Fate(time_s=1e-4 * (1 + abs(c.case.config.get("num_warps", 9) - warps)))

    asked.sweep(fate(4), fresh=True)
    assert asked.session.tuned_file.is_file()
    asked.sweep(fate(1), fresh=True)
    first, second = sorted((e for e in asked.logged() if isinstance(e, Run)),
                           key=lambda run: bool(run.incumbents))  # fmt: skip
    assert first.incumbents == {} and second.incumbents["blocks"]["num_warps"] == 4
    assert [o for o in of(asked.stored(), "final") if o.case.config.get("num_warps") == 4]


def test_a_damaged_file_of_winners_costs_no_answer(asked, capsys):
    (asked.folder / "tuned.json").write_text("{")
    outcomes = asked.sweep()
    assert asked.code == 0 and of(outcomes, "final")
    assert "note: " in capsys.readouterr().err
    assert (asked.folder / "tuned.json").read_text() == "{"


def test_an_incumbent_is_what_was_found_for_just_this(asked):
    """Not for other sizes or another dtype, and a predicted winner for predictions alone."""

    def incumbents(**more):
        before = {e.id for e in asked.logged() if isinstance(e, Run)}
        asked.sweep(fresh=True, **more)
        (new,) = [e for e in asked.logged() if isinstance(e, Run) and e.id not in before]
        return {name: dict(config) for name, config in new.incumbents.items()}

    assert incumbents() == {}
    for other in ({"sizes": ("N=2048",)}, {"dtype": "fp16"}, {"predicts": True}):
        assert incumbents(**other) == {}
    tuned = json.loads((asked.folder / "tuned.json").read_text())["entries"]
    (ours,) = (
        e for e in tuned
        if (e["sizes"], e["dtype"], e["predicted"]) == ({"N": 1024}, "bf16", False)
    )  # fmt: skip
    assert incumbents() == {"blocks": ours["config"]}


# Refused before any work


@pytest.mark.parametrize(
    ("others", "said"), [(1, "1 other process uses this"), (2, "2 other processes use this GPU")]
)
def test_strict_refuses_a_gpu_that_others_use(asked, monkeypatch, others, said):
    busy = replace(ENVIRONMENT, others_on_gpu=others)
    monkeypatch.setattr("workbench.backend.null.ENVIRONMENT", busy)
    assert said in refusal(asked, strict=True)
    asked.sweep()
    assert asked.code == 0, "without it they are counted in the result"
    alone = replace(ENVIRONMENT, others_on_gpu=0)
    monkeypatch.setattr("workbench.backend.null.ENVIRONMENT", alone)
    asked.sweep(strict=True)
    assert asked.code == 0


def refusal(asked, **more):
    with pytest.raises(Exception) as told:
        asked.sweep(**more)
    assert not asked.out.exists(), "nothing half-written"
    assert asked.null.asked == []
    return f"{type(told.value).__name__}: {told.value}"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sweep": "tile_sise"}, "SessionError: There is no sweep 'tile_sise'; did you mean tile"),
        ({"kernel": "matmull"}, "CatalogError: There is no kernel 'matmull'; did you mean matmul"),
        ({"impls": ("block",)}, "CatalogError: There is no impl of toy 'block'; did you mean bloc"),
        ({"impls": ("torch",)}, "SessionError: toy.torch is no Triton kernel"),
        ({"dtype": "bf61"}, "SessionError: There is no dtype 'bf61'; did you mean bf16 or f"),
        ({"sizes": ("M=3",)}, "SessionError: There is no axis of toy 'M'. Known: N."),
        ({"sizes": ("N=x",)}, "SessionError: N=x is not a positive whole number; write --sizes N="),
        ({"sizes": ("N=0",)}, "SessionError: N=0 is not a positive"),
        ({"sizes": ("N=²",)}, "SessionError: N=² is not a positive"),
        ({"sizes": (f"N={'9' * 9999}",)}, "SessionError: --sizes N=999"),
        ({"sizes": ("N=1500",)}, "NothingToSweep: No config of "),
        ({"sweep": "pipeline", "only": True, "sizes": ("N=7",)}, "NothingToSweep: No config of "),
        ({"begin_error": "out of GPU memory"}, "SessionError: The GPU could not take N=1024 (out"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_a_sentence(asked, more, words):
    assert refusal(asked, **more).startswith(words)


def test_a_missing_axis_is_named():
    with pytest.raises(SessionError, match="lacks K, N; write --sizes M=4096,N=4096,K=4096"):
        sizes_of(matmul_like(), "M=3")


def matmul_like():
    from workbench.spec import Spec, Tensor

    return Spec(
        "matmul", {"a": Tensor("M K"), "b": Tensor("K N")}, {"c": Tensor("M N")}, lambda a, b: a,
        lambda M, N, K: 2 * M * N * K, [], [{"M": 4096, "N": 4096, "K": 4096}],
    )  # fmt: skip


def test_places_that_cannot_be_written_are_refused_at_the_start(asked, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for more, option in (
        ({"out": file}, "--out"),
        ({"out": file / "deeper"}, "--out"),
        ({"metrics": file / "events.jsonl"}, "--metrics"),
        ({"metrics": tmp_path}, "--metrics"),
    ):
        said = refusal(asked, **more)
        assert said.startswith("SessionError: ") and option in said
    assert file.read_text() == "mine"


def test_writable_leaves_nothing_behind(tmp_path):
    writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_database_is_refused_at_the_start_and_left_alone(asked, tmp_path):
    (tmp_path / "history.db").write_bytes(os.urandom(5000))
    before = (tmp_path / "history.db").read_bytes()
    assert refusal(asked).startswith("HistoryError: ")
    assert (tmp_path / "history.db").read_bytes() == before


def test_no_compiler_is_said(monkeypatch, tmp_path):
    from workbench.commands.options import ready

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SessionError, match="Triton is not installed"):
        ready()


def test_a_database_that_fails_half_way_loses_nothing_of_the_events(asked, monkeypatch):
    add, times = History.add, []

    def fails_at_the_fifth(self, outcome):
        times.append(outcome)
        if len(times) == 5:
            raise HistoryError("the disk is full")
        add(self, outcome)

    monkeypatch.setattr(History, "add", fails_at_the_fifth)
    with pytest.raises(HistoryError):
        asked.sweep()
    assert asked.null.closed
    assert len(asked.stored()) == 4 and len(asked.logged()) == 6
    assert list(asked.out.glob("*/report.html")), "the page shows what there is"


def test_the_command_repeats_the_question():
    asked = Question(
        "tile_size", "my kernels/a.py", ("x", "y"), ("N=3", "N=5"), "fp16", "h200", True, "30s"
    )  # fmt: skip
    assert asked.command == (
        "python -m workbench.sweep tile_size --kernel 'my kernels/a.py' --impl x --impl y"
        " --sizes N=3 --sizes N=5 --dtype fp16 --device h200 --budget 30s --only"
    )


# Ends


def start(asked, many):
    """A sweep in a process of its own, which hangs behind so many configs."""
    command = [sys.executable, TESTS / "nullside.py", asked.kernel, asked.out, asked.url, many]
    return subprocess.Popen(
        [*map(str, command)], cwd=TESTS.parent, env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for(asked, many, child, limit_s=120.0):
    """Until so many configs have been timed."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and child.poll() is None:
        found = [read(p) for p in asked.out.glob("*/events.jsonl")] or [Events([], [])]
        if sum(isinstance(e, Record) for e in found[0].events) >= many:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {many} records came: {child.communicate()}")


def test_kill_9_loses_the_config_under_way_at_most(asked):
    child = start(asked, 4)
    wait_for(asked, 4, child)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    found = [read(p) for p in asked.out.glob("*/events.jsonl")]
    logged = [e.key for e in found[0].events if isinstance(e, Record)]
    stored = [o.key for o in asked.stored() if isinstance(o, Record)]
    assert len(logged) == 4 and len(logged) - len(stored) in (0, 1)
    with open_history(asked.url) as history:
        assert history.state(history.run("last").id) == "running"
    outcomes = asked.sweep()
    assert len(asked.labels("time")) == CONFIGS - len(stored)
    assert len(of(outcomes, "screen")) == CONFIGS


def test_ctrl_c_keeps_all_so_far_and_writes_the_page(asked):
    child = start(asked, 3)
    wait_for(asked, 3, child)
    os.kill(child.pid, signal.SIGINT)
    said, complained = child.communicate(timeout=120)
    assert child.returncode == 130, complained
    assert "Traceback" not in complained and "report  " in said
    assert re.search(r"Stopped after \d of 11 configs; the same command obtains the rest", said)
    (folder,) = asked.out.iterdir()
    assert "<html" in (folder / "report.html").read_text()
    events = read(folder / "events.jsonl").events
    assert isinstance(events[-1], RunFinished) and events[-1].state == "interrupted"
    logged = [o for o in asked.logged() if isinstance(o, (Record, Failure))]
    assert logged == asked.stored() and len(logged) == 3 + 1, "and what was refused"
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)  # it was a group of its own, and nobody of it is left


def test_a_run_that_was_stopped_is_gone_on_with_and_one_that_ended_is_told_again(
    asked, monkeypatch
):
    """Stopped before its last step, when each config had its time already."""

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Null, "hot", stopped)
        first = asked.sweep()
    assert asked.code == 130 and of(first, "final")
    second = asked.sweep()
    assert asked.code == 0 and not {o.run for o in first} & {o.run for o in second}
    third = asked.sweep()
    assert asked.code == 0 and {o.run for o in third} == {o.run for o in second}


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
