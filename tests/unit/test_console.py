"""What a sweep says: one line that fits where somebody looks, plain lines where nobody does."""

import io
import os
import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_backend import Fate, Null
from nullside import Place
from rich.console import Console
from synthetic import matmul

from workbench.commands.console import ProgressLine, SweepConsole, breakdown_line, doing, plan_line
from workbench.commands.progress import ProgressLines
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.record import Record
from workbench.tuner.engine import TimeBreakdown
from workbench.tuner.finals import Step

PARTS = ("start", "wait", "check", "timed", "flush", "idle")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def seen(predicted, many=60):
    """A line after so many outcomes."""
    _, outcomes = matmul(predicted=predicted, finals=False)
    line = ProgressLine(total=324)
    for outcome in outcomes[:many]:
        line.saw(outcome)
    line.counts = {"compiled": 300, "duplicate": 120, "wrong": 3, "failed": 14, "measured": 201}
    return line


@pytest.mark.parametrize("width", [20, 60, 200])
def test_what_takes_long_is_one_line_that_goes_away(width):
    text = "1/5 matmul: 5 arms, compiled, checked and timed"
    file, pipe = io.StringIO(), io.StringIO()
    with doing(Console(file=file, force_terminal=True, width=width, _environ={}), text):
        pass
    shown = file.getvalue()
    assert "0:00  1/5 matmul"[: width - 2] in shown and shown.endswith("\x1b[2K"), "erased"
    plain = re.sub(r"\x1b\[[?0-9]*[a-zA-Z]", "", shown)
    assert max(map(len, CONTROL.sub("\n", plain).split("\n"))) < width
    with doing(Console(file=pipe, width=width), text):
        assert pipe.getvalue() == text + "\n", "one line, before the work"
    assert pipe.getvalue() == text + "\n"


@pytest.mark.parametrize("width", [20, 40, 60, 79, 100, 139, 200])
@pytest.mark.parametrize("predicted", [False, True])
def test_it_is_one_line_that_fits(width, predicted):
    drawn = seen(predicted).draw(width)
    assert drawn.cell_len <= width and "\n" not in drawn.plain
    assert drawn.plain.strip()


def test_it_says_counts_best_and_time_left():
    line = seen(predicted=False)
    line._started -= 60
    text = line.draw(200).plain
    assert "300 compiled, 120 duplicate, 3 wrong, 14 failed, 201 measured" in text
    assert re.search(r"best \d+\.\d us \(\d+x\d+x\d+, \d warps", text)
    assert re.search(r"  \d+:\d\d left$", text)
    assert text.startswith("━") and f"{line.done_count}/324" in text


def test_what_matters_least_goes_first():
    line = seen(predicted=False)
    line._started -= 60
    at_79, at_40 = line.draw(79).plain, line.draw(60).plain
    assert "best" in at_79 and "left" in at_79 and "━" not in at_79 and "warps" not in at_79
    assert "..." in at_40 and "best" in at_40 and at_40.endswith("left")


def test_a_predicted_best_is_marked():
    assert "best ~" in seen(predicted=True).draw(139).plain
    assert "~" not in seen(predicted=False).draw(139).plain


def test_the_best_is_the_fastest_in_whatever_order_they_come():
    records = sorted(
        (o for o in matmul()[1] if isinstance(o, Record) and o.phase == "first_pass"),
        key=lambda o: o.time_s,
    )  # fmt: skip
    for order in (records, records[::-1], records[3:] + records[:3]):
        line = ProgressLine(len(order))
        for outcome in order:
            line.saw(outcome)
        assert line.best == records[0]


def test_finals_outrank_the_screen():
    _, outcomes = matmul()
    line = ProgressLine(total=324)
    for outcome in outcomes:
        line.saw(outcome)
    assert isinstance(line.best, Record) and line.best.phase == "final"
    assert not line.best.case.is_baseline


def test_a_step_takes_the_place_of_the_counts():
    terminal = SweepConsole(quiet=False)
    for step, words in (
        (Step("halving", 32), "halving of 32"),
        (Step("final", 11), "final of 11"),
        (Step("hot", 1), "the winner, hot"),
    ):
        terminal.step(step)
        assert words in terminal._line.draw(79).plain


@given(st.dictionaries(st.sampled_from(PARTS), st.floats(0.05, 1e4), min_size=1), st.booleans())
def test_the_split_adds_up_and_names_each_part(seconds, paced):
    text = breakdown_line(TimeBreakdown(seconds, 1210.4 if paced else None))
    whole, *parts = re.findall(r"(\d+\.\d)(?: s:|,|;|$)", text)
    assert len(parts) == len(seconds)
    assert float(whole) == pytest.approx(sum(seconds.values()), abs=0.06)
    for (name, s), part in zip(seconds.items(), parts, strict=True):
        assert f"{name} {part}" in text and float(part) == pytest.approx(s, abs=0.06)
    assert ("1210 configs a minute to the complete table" in text) == paced


def test_known_outcomes_do_not_make_the_rest_seem_quick():
    line = ProgressLine(total=10, earlier=5)
    _, outcomes = matmul(finals=False)
    for outcome in [o for o in outcomes if isinstance(o, Record)][:5]:
        line.saw(outcome)
    line._started -= 10
    assert line._time_left() == "", "nothing has been obtained yet"


def printed(context, quiet, terminal=False, width=80, null=None, **environment):
    """What a whole sweep writes."""
    out = io.StringIO()
    speaker = SweepConsole(quiet)
    speaker.console = Console(
        file=out, width=width, force_terminal=terminal, highlight=False, markup=False,
        _environ={"TERM": "xterm-256color", **environment},
    )  # fmt: skip
    speaker.console.soft_wrap = not terminal
    session = SweepCommand(
        SweepOptions(**context.words()),
        speaker,
        lambda device, folder: null or Null(lambda c: Fate(takes_s=0.02)),
    )
    assert session.go() == 0
    return out.getvalue()


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # where nothing is tuned
    return Place(tmp_path)


def test_no_control_characters_where_nobody_looks(context):
    text = printed(context, quiet=False)
    assert not CONTROL.search(text)
    lines = text.splitlines()
    assert lines[0].startswith("Times are measured on h200")
    assert lines[1] == "toy, N = 1024, bf16; sweep tile_size"
    assert lines[2] == "11 configs to try, 1 refused beforehand"
    assert lines[3].startswith("So far, of 8 configs: blocks block_n ")
    assert lines[4] == "11 measured, 1 refused"
    assert lines[-2].startswith("events  ") and lines[-1].startswith("report  ")
    assert len(lines) == 8, text


def test_lines_of_progress_where_no_terminal_is(context, monkeypatch):
    monkeypatch.setattr("workbench.commands.console.EVERY_S", 0.02)
    text = printed(context, quiet=False)
    lines = re.findall(r"^0:0\d  (\d+)/11  .+$", text, flags=re.M)
    assert lines and sorted(map(int, lines)) == list(map(int, lines)) and not CONTROL.search(text)
    assert "/11  " not in printed(context, quiet=True)
    before = threading.active_count()
    shown = []
    lines = ProgressLines(lambda: "so far", shown.append, 0.01)
    while len(shown) < 2:
        time.sleep(0.01)
    lines.end()
    many = len(shown)
    time.sleep(0.03)
    assert set(shown) == {"so far"} and len(shown) == many and threading.active_count() == before


def test_a_prediction_recommends_once_before_the_end(context, monkeypatch):
    monkeypatch.setattr("workbench.commands.sweep_command.FIRST_CONFIGS", 4)
    text = printed(context, quiet=False, null=Null(lambda c: Fate(), predicts=True))
    (line,) = [line for line in text.splitlines() if line.startswith("First recommendation")]
    assert "after 4 of 11 configs" in line and "predicted" in line and "extend" not in line
    first, last = text.index(line), text.index("11 predicted")
    assert first < last
    assert "First" not in printed(context, quiet=False), "it is finished"


def test_a_measured_sweep_names_the_best_so_far_and_only_better_ones_later(context, monkeypatch):
    monkeypatch.setattr("workbench.commands.sweep_command.SO_FAR_CONFIGS", 3)
    monkeypatch.setattr("workbench.commands.sweep_command.SO_FAR_S", 0.0)
    null = Null(lambda c: Fate(time_s=1e-4 / getattr(c.config, "block_n", 1)))
    text = printed(context, quiet=False, null=null)
    lines = [line for line in text.splitlines() if line.startswith("So far")]
    assert lines[0].startswith("So far, of 3 configs: ")
    times = [float(line.split()[-2]) for line in lines]
    assert len(lines) > 1 and times == sorted(times, reverse=True) and len(set(lines)) == len(lines)
    assert "So far" not in printed(context, quiet=True)


def test_a_measured_sweep_or_a_short_one_has_no_first_recommendation(context, monkeypatch):
    assert "First" not in printed(context, False, null=Null(lambda c: Fate(), predicts=True))
    monkeypatch.setattr("workbench.commands.sweep_command.FIRST_CONFIGS", 4)
    assert "First" not in printed(context, False)


def test_quiet_says_the_answer_and_the_page(context):
    lines = printed(context, quiet=True).splitlines()
    assert len(lines) == 2 and "the default" in lines[0] and lines[1].startswith("report  ")


def test_what_launches_took_is_the_default_and_then_the_tuned_config(context, monkeypatch):
    words = {**context.words(), "fresh": True}
    monkeypatch.setattr(type(context), "words", lambda self: words)
    answers = [printed(context, quiet=True).splitlines()[0] for _ in range(2)]
    assert "the default" in answers[0] and "the tuned config" in answers[1], answers


def test_on_a_terminal_the_line_is_redrawn_in_place_and_taken_away(context):
    text = printed(context, quiet=False, terminal=True)
    assert "\x1b[2K" in text and "measured" in text
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\r", "\n"))
    assert all(len(line) <= 80 for line in shown.splitlines() if os.sep not in line)


def test_no_color_is_respected(context):
    text = printed(context, quiet=False, terminal=True, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;)[0-9;]*m", text)


def test_a_dumb_terminal_gets_no_bar(context):
    assert not CONTROL.search(re.sub(r"\x1b\[[0-9;]*m", "", printed(
        context, quiet=False, terminal=True, TERM="dumb")))  # fmt: skip


def test_the_first_line_says_whether_a_gpu_took_part():
    assert plan_line(matmul(predicted=True)[0]).startswith("Times are predicted: no GPU took part.")
    assert plan_line(matmul()[0]).startswith("Times are measured on ")
