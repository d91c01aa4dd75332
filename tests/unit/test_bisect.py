"""The search for the commit that made a kernel slower, in made repositories on the null side."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import at_night
from null_backend import Fate, Null
from nullside import KERNEL
from rich.console import Console

from workbench import cli
from workbench.commands.bisect import BisectOptions
from workbench.commands.bisect_command import BisectCommand
from workbench.commands.options import CommandError
from workbench.data.database import open_history
from workbench.revisions.bisection import Bisection, Decision
from workbench.revisions.worktree import Repository, WorktreeError, Worktrees

pytestmark = pytest.mark.unit


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *name, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def snapshot(folder):
    """All that git and the user's files are, but for what git keeps of worktrees, and bytecode."""
    files = {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not {"worktrees", "objects", "__pycache__"} & set(p.parts)
    }
    files.pop(".git/packed-refs", None)  # git writes an empty one when it deletes any ref
    return (
        files,
        git(folder, "for-each-ref"),
        git(folder, "worktree", "list", "--porcelain"),
        git(folder, "branch", "-a"),
    )


class Place:
    """A repository with a commit for each text of the launcher; `n` is the number of a commit."""

    def __init__(self, folder):
        self.folder, self.out = folder / "repository", folder / "results"
        self.kernel = self.folder / "toy.py"
        self.url = f"sqlite:///{folder / 'history.db'}"
        self.folder.mkdir()
        git(self.folder, "init", "-q", "-b", "main", "--template=")
        self.commits = []
        self.console = io.StringIO()
        self.json = folder / "result.json"
        self.null = Null()

    def commit(self, text, subject=None):
        self.kernel.write_text(text)
        git(self.folder, "add", ".")
        git(self.folder, "commit", "-q", "--allow-empty", "-m",
            subject or f"number {len(self.commits)}")  # fmt: skip
        self.commits.append(git(self.folder, "rev-parse", "HEAD"))

    def numbered(self, many, text=lambda n: KERNEL):
        for n in range(many):
            self.commit(text(n).replace("raise NotImplementedError", f"return x + {n}"))

    def number(self, candidate):
        return self.commits.index(
            next(c for c in self.commits if f"/{c[:12]}/" in str(candidate.version))
        )

    def bisect(self, fate, good=0, bad=-1, **more):
        self.null = Null(fate)
        wanted = {"out": self.out, "database": self.url, "json": self.json, **more}
        options = BisectOptions(str(self.kernel), self.commits[good], self.commits[bad], **wanted)
        console = Console(file=self.console, width=240, highlight=False, markup=False)
        code = BisectCommand(options, console, lambda device, folder: self.null).go()
        return code, json.loads(self.json.read_text())

    @property
    def text(self):
        return self.console.getvalue()

    def timed(self):
        return sum(word == "contest" for word, _ in self.null.requests) // 4


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.reports.compare.page", lambda *a, **more: "<p>page</p>")
    return Place(tmp_path)


def slow_from(place, first, by=1.05):
    """A fate in which the commits from this one on take longer."""
    return lambda c: Fate(time_s=1e-4 * (by if place.number(c) >= first else 1))


@pytest.mark.parametrize("first", at_night((1, 9, 11), {1, 11}.__contains__))
def test_the_planted_commit_is_located(place, first):
    place.numbered(12)
    before = snapshot(place.folder)
    code, result = place.bisect(slow_from(place, first))
    assert code == 0
    assert result["candidates"] == [place.commits[first]]
    assert result["first_bad"]["subject"] == f"number {first}"
    assert "1 file changed, 1 insertion" in result["first_bad"]["kernel_file"]
    assert f"{place.commits[first]} is the first bad commit" in place.text
    assert place.timed() <= 5, "the two ends, and a binary search of 11"
    assert snapshot(place.folder) == before
    with open_history(place.url) as history:
        run = history.run("last")
        assert run.engine == "bisect" and len(history.comparisons(run.id)) == place.timed()
        keys = [o.key for o in history.outcomes(run.id)]
        assert len(keys) == len(set(keys)), "each time beside the one that it was compared with"


def test_each_step_is_told_with_its_verdict_and_what_is_left(place):
    place.numbered(8)
    place.bisect(slow_from(place, 5))
    lines = [
        line for line in place.text.splitlines() if "steps left" in line or "step left" in line
    ]
    assert lines and all("of GOOD's time" in line for line in lines)
    assert any("bad" in line and "1.0500" in line and "SLOW" in line for line in lines)
    assert "0 steps left" in lines[-1]


def test_a_commit_that_fails_is_skipped(place):
    place.numbered(12)
    broken = {5: Fate(compile_error="ptxas gave up"), 6: Fate(wrong="y[3] is wrong")}
    slow = slow_from(place, 9)
    code, result = place.bisect(lambda c: broken.get(place.number(c), slow(c)))
    assert code == 0 and result["candidates"] == [place.commits[9]]
    skipped = {s["commit"]: s["reason"] for s in result["steps"] if s["mark"] == "skip"}
    assert skipped and all("gave up" in r or "y[3]" in r for r in skipped.values())


def test_a_commit_that_cannot_be_imported_is_skipped(place):
    def text(n):
        return KERNEL if n != 4 else KERNEL.replace("from workbench.spec", "from nowhere")

    place.numbered(9, text)
    code, result = place.bisect(slow_from(place, 6))
    assert code == 0 and result["candidates"] == [place.commits[6]]
    (step,) = [s for s in result["steps"] if s["mark"] == "skip"]
    assert step["commit"] == place.commits[4] and "cannot be loaded" in step["reason"]


def test_where_only_skipped_commits_are_left_all_of_them_are_named(place):
    place.numbered(8)
    slow = slow_from(place, 4)
    fate = lambda c: Fate(wrong="no") if place.number(c) in (3, 4) else slow(c)  # noqa: E731
    code, result = place.bisect(fate)
    assert code == 3
    assert set(result["candidates"]) == {place.commits[n] for n in (3, 4, 5)}
    assert "one of 3" in place.text


def test_an_undecided_commit_is_compared_once_more_and_then_skipped(place):
    place.numbered(4)
    times = {1: 1.0105, 2: 1.0105, 3: 1.05}
    code, result = place.bisect(lambda c: Fate(time_s=1e-4 * times.get(place.number(c), 1)))
    assert code == 3 and set(result["candidates"]) == set(place.commits[1:])
    assert place.timed() == 1 + 2 * len(result["steps"])
    assert all("INCONCLUSIVE" in step["reason"] for step in result["steps"])


@pytest.mark.parametrize(("by", "code"), [(1.0, 2), (0.9, 2), (1.0105, 3)])
def test_where_bad_is_not_slower_nothing_is_searched(place, by, code):
    place.numbered(6)
    result, document = place.bisect(slow_from(place, 3, by))
    assert result == code == document["exit_code"]
    assert "is not slower than GOOD" in place.text and "steps" not in document


def test_code_that_is_goods_or_bads_is_not_measured_again(place):
    place.numbered(7)
    for n in range(7, 12):
        place.commit(place.kernel.read_text() + f"# a comment more, {n}\n")
    code, result = place.bisect(slow_from(place, 6))
    assert code == 0 and result["candidates"] == [place.commits[6]]
    reasons = [step["reason"] for step in result["steps"]]
    assert "the code and the config of BAD" in reasons


def test_commits_beside_the_kernel_are_not_measured(place):
    place.commit(KERNEL)
    for n in range(6):
        (place.folder / "notes.txt").write_text(f"{n}\n")
        place.commit(KERNEL, f"notes {n}")
    place.commit(KERNEL.replace("raise NotImplementedError", "return x + 1"), "slower")
    code, result = place.bisect(slow_from(place, 7))
    assert code == 0 and result["first_bad"]["subject"] == "slower"
    assert place.timed() == 1, "the two ends alone"


def test_a_default_that_changes_is_located(place):
    for n in range(8):
        place.commit(
            KERNEL.replace(
                "threads(1, 4, default=2)", f"threads(1, 4, default={4 if n > 4 else 2})"
            )
            + f"# {n}\n"
        )
    code, result = place.bisect(
        lambda c: Fate(time_s=1e-4 * (1.1 if c.config.num_warps == 4 else 1))
    )
    assert code == 0 and result["candidates"] == [place.commits[5]]


@pytest.mark.parametrize("which", [0, -1])
def test_ends_that_cannot_be_loaded_are_told(place, which):
    broken = KERNEL.replace("from workbench.spec", "from nowhere")
    place.commit(broken if which == 0 else KERNEL)
    place.commit(KERNEL.replace("raise NotImplementedError", "return x + 1"))
    place.commit(broken if which == -1 else KERNEL.replace("return x\n", "return x + 0\n"))
    place.kernel.write_text(KERNEL)
    code, document = place.bisect(lambda c: Fate())
    assert code == document["exit_code"] == 2
    assert "cannot be compared with GOOD" in place.text and "cannot be loaded" in place.text


def test_bad_that_gives_no_time_is_told(place):
    place.numbered(3)
    code, _ = place.bisect(lambda c: Fate(wrong="y is wrong") if place.number(c) == 2 else Fate())
    assert code == 2 and "cannot be compared with GOOD" in place.text and "y is wrong" in place.text


def test_good_that_gives_no_time_is_one_sentence(place):
    place.numbered(3)
    with pytest.raises(CommandError, match=r"GOOD .* cannot be measured at N=1024 \(y is wrong\)"):
        place.bisect(lambda c: Fate(wrong="y is wrong") if place.number(c) == 0 else Fate())


def test_ends_that_are_no_line_of_commits_are_refused(place):
    place.numbered(3)
    repository = Repository.find(place.folder)
    with pytest.raises(WorktreeError, match="not an ancestor"):
        Bisection.check(repository, "HEAD", "HEAD~1")
    with pytest.raises(WorktreeError, match="the same commit"):
        Bisection.check(repository, "HEAD", "main")
    with pytest.raises(WorktreeError, match="names no commit"):
        Bisection.check(repository, "HEAD~9", "main")


def test_the_users_own_bisection_goes_on(place):
    place.numbered(8)
    git(place.folder, "bisect", "start", place.commits[-1], place.commits[0])
    before = snapshot(place.folder)
    log = git(place.folder, "bisect", "log")
    code, result = place.bisect(slow_from(place, 3))
    assert code == 0 and result["candidates"] == [place.commits[3]]
    assert git(place.folder, "bisect", "log") == log and snapshot(place.folder) == before


def test_ctrl_c_keeps_what_was_compared_and_leaves_no_worktree(place, monkeypatch):
    place.numbered(8)
    before = snapshot(place.folder)
    real, calls = Null.compare, []

    def stops(self, *operands):
        calls.append(operands)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *operands)

    monkeypatch.setattr(Null, "compare", stops)
    code, _ = place.bisect(slow_from(place, 5))
    assert code == 130 and snapshot(place.folder) == before
    with open_history(place.url) as history:
        assert len(history.comparisons(history.run("last").id)) == 2
        assert history.state(history.run("last").id) == "interrupted"


OWNER = """
import sys, time
from pathlib import Path
from workbench import cli
from workbench.commands import bisect
from workbench.revisions.bisection import Bisection
from workbench.revisions.worktree import Repository, Worktrees

def run(options):
    repository = Repository.find(Path(sys.argv[1]))
    good, bad = Bisection.check(repository, 'HEAD~9', 'HEAD')
    def waits(commit):
        trees.root(commit)
        print(commit, flush=True)
        time.sleep(60)
    with Worktrees(repository) as trees:
        Bisection(repository, trees.root(good), good, bad).search(waits, print)

bisect.run = run
raise SystemExit(cli.main(['bisect', 'toy.py', 'HEAD~9', 'HEAD']))
"""


@pytest.mark.nightly
def test_sigterm_leaves_no_worktree(place):
    place.numbered(10)
    before = snapshot(place.folder)
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place.folder)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2], start_new_session=True,
    )  # fmt: skip
    assert child.stdout.readline().strip() in place.commits
    assert len(git(place.folder, "worktree", "list").splitlines()) == 3
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait(30) == 128 + signal.SIGTERM
    child.stdout.close()
    assert snapshot(place.folder) == before


def test_side_branches_are_searched_too(place):
    place.numbered(3)
    git(place.folder, "checkout", "-q", "-b", "side", place.commits[1])
    (place.folder / "notes.txt").write_text("side\n")
    place.commit(KERNEL.replace("raise NotImplementedError", "return x + 99"), "slow on the side")
    culprit = place.commits[-1]
    git(place.folder, "checkout", "-q", "main")
    git(place.folder, "merge", "-q", "-X", "theirs", "-m", "merge", "side")
    place.commits.append(git(place.folder, "rev-parse", "HEAD"))
    slow = {culprit, place.commits[-1]}
    fate = lambda c: Fate(time_s=1e-4 * (1.1 if place.commits[place.number(c)] in slow else 1))  # noqa: E731
    code, result = place.bisect(fate)
    assert code == 0 and result["candidates"] == [culprit]


@pytest.mark.parametrize("skips", [set(), {3, 4}, {1, 2, 3, 4, 5, 6}])
def test_git_chooses_and_the_candidates_are_those_between(place, skips):
    place.numbered(8)
    repository = Repository.find(place.folder)
    with Worktrees(repository) as trees:
        good, bad = place.commits[0], place.commits[-1]
        search = Bisection(repository, trees.root(good), good, bad)

        def decide(commit):
            n = place.commits.index(commit)
            return Decision("skip" if n in skips else "bad" if n >= 5 else "good", "")

        candidates = [place.commits.index(c) for c in search.search(decide, lambda *_: None)]
    expected = {frozenset(): [5], frozenset({3, 4}): [5, 4, 3]}
    assert candidates == expected.get(frozenset(skips), [7, 6, 5, 4, 3, 2, 1])


def test_without_a_repository_the_sentence_says_so(tmp_path, capsys):
    (tmp_path / "toy.py").write_text(KERNEL)
    assert cli.main(["bisect", str(tmp_path / "toy.py"), "HEAD~1", "HEAD"]) == 2
    assert "in no git repository" in capsys.readouterr().err
