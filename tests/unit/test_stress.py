"""The generators of `make stress` repeat their cases, cover all, and see what is wrong."""

import ast
import random

import pytest
from stress import hostile, kills, lines, mischief, run, stops
from stress.cases import Case, Ended, Place
from stress.server import Server

from workbench.commands.options import commands

pytestmark = pytest.mark.unit
TABLES = (mischief.RAISES, mischief.ENDS, mischief.HANGS, mischief.SPOILS, mischief.HARMLESS)
HOOKS = {
    **{name: (changes, "") for name, changes in hostile.OF_CONFIG.items()},
    **{name: (changes, "") for name, changes in hostile.OF_LAUNCH.items()},
    **hostile.OF_FILE,
}


def ended(code=0, out="", err="", hung=False, left=()):
    return Ended(code, out, err, 1.0, hung, left)


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"code": 1, "err": "Traceback (most recent call last):\n"}, "traceback"),
        ({"code": -9, "hung": True}, "hang"),
        ({"code": 4, "err": "error: a fault of the workbench itself"}, "exit"),
        ({"code": -11}, "exit"),
        ({"code": 2}, "exit"),
        ({"err": "\x1b[2J"}, "exit"),
        ({"left": ("sleep (7)",)}, "leftover"),
    ],
)
def test_what_must_not_be_is_seen(how, kind):
    assert [v.kind for v in ended(**how).faults()] == [kind]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130])
def test_what_may_be_is_none(code):
    assert not ended(code, err="error: it is so; do this.").faults()


def command_line(number, folder, seed=1):
    case = Case("lines", number, seed)
    place = Place(folder / str(seed) / str(number), Server())
    words = lines.words_of(lines.Draw(case.random(), place))
    return [word.replace(str(folder), "") for word in words]


def test_a_case_is_the_same_again(tmp_path):
    again = [command_line(n, tmp_path / "a") for n in range(30)]
    assert again == [command_line(n, tmp_path / "b") for n in range(30)]
    assert again != [command_line(n, tmp_path, seed=2) for n in range(30)]
    files = [hostile.file_of(Case("hostile", n, 1).random()) for n in range(30)]
    assert files == [hostile.file_of(Case("hostile", n, 1).random()) for n in range(30)]
    assert kills.kill_of(random.Random(1)) == kills.kill_of(random.Random(1))
    assert stops.stop_of(random.Random(1)) == stops.stop_of(random.Random(1))


def test_every_signal_comes_once_and_twice():
    drawn = [stops.stop_of(Case("stops", n, 1).random()) for n in range(stops.COUNT)]
    assert {" ".join(stop.signals) for stop in drawn} == set(stops.KINDS)
    assert {stop.group for stop in drawn if stop.signals[0] == "SIGINT"} == {False, True}


def test_every_option_of_every_command_is_drawn(tmp_path):
    words = [command_line(n, tmp_path) for n in range(1200)]
    drawn = {(" ".join(w[:n]), p) for w in words for n in (1, 2) for p in w}
    flags = {(n, p.flag) for n, c in commands().items() for p in lines.parameters(c) if p.takes}
    positional = {p.flag for c in commands().values() for p in lines.parameters(c) if p.positional}
    missing = {(name, flag) for name, flag in flags - drawn if flag not in positional}
    assert len(missing) <= len(flags) // 10, missing


@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_has_its_place_in_the_starter(hook):
    ast.parse(hostile._with("pass", *HOOKS[hook]))


def test_each_misdeed_is_python():
    for body in (body for table in TABLES for body in table.values()):
        ast.parse(body)
    for value in mischief.VALUES.values():
        ast.parse(value, mode="eval")


def test_each_odd_spec_and_line_of_device_code_has_its_place():
    for changes in hostile.SPECS.values():
        ast.parse(hostile.text_of(changes))
    abouts = {hostile.file_of(random.Random(n)).about.partition(":")[0] for n in range(300)}
    assert {*HOOKS, "device code", "the Spec", "mistake"} <= abouts


@pytest.mark.parametrize("name", ["lines", "lines/x", "nothing/1"])
def test_an_unknown_case_is_named(name):
    with pytest.raises(ValueError, match=name):
        run.cases_of([], 1, False, name)


def test_the_counts_are_those_that_are_promised():
    cases = run.cases_of(list(run.SUITES), 1, False, None)
    count = {name: sum(c.suite == name for c in cases) for name in run.SUITES}
    assert count == {"lines": 1000, "hostile": 400, "kills": 100, "stops": 200}
    assert len(set(cases)) == 1700
