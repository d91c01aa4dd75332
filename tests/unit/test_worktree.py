"""Other commits beside the user's files: where they lie, that they go, that nothing else moves."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import at_night

from workbench import catalog
from workbench.catalog.source import load_kernel
from workbench.revisions.commits import Commits
from workbench.revisions.worktree import WORKING, Repository, WorktreeError, Worktrees

pytestmark = pytest.mark.unit

KERNEL = '''"""A kernel that nothing runs."""

from dataclasses import dataclass

from scale import FACTOR
from workbench.spec import Spec, Tensor, threads

toy = Spec(
    name="toy", inputs={"x": Tensor("N")}, outputs={"y": Tensor("N")}, reference=lambda x: x,
    flops=lambda N: N, check=[{"N": 7}], bench=[{"N": 1024}],
)


@dataclass(frozen=True)
class Blocks:
    num_warps: int = threads(1, 8, default=FACTOR)


@toy.impl(Blocks)
def blocks(x, *, config):
    raise NotImplementedError
'''


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *name, *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def snapshot(folder):
    """All that git and the user's files are, but for what git keeps of worktrees."""
    files = {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and "worktrees" not in p.parts
    }
    return files, git(folder, "worktree", "list", "--porcelain"), git(folder, "branch", "-a")


@pytest.fixture
def place(tmp_path):
    """Two commits of a kernel and the module beside it, and a change that is not committed."""
    folder = tmp_path / "user's own"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "toy.py").write_text(KERNEL)
    for factor in (1, 2):
        (folder / "scale.py").write_text(f"FACTOR = {factor}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"{factor}")
    (folder / "scale.py").write_text("FACTOR = 4\n")
    (folder / "staged.py").write_text("pass\n")
    git(folder, "add", "staged.py")
    return folder


def test_a_revision_lies_elsewhere_and_goes_again(place):
    before = snapshot(place)
    with Worktrees(Repository.find(place)) as trees:
        old = trees.root("HEAD~1")
        assert (old / "scale.py").read_text() == "FACTOR = 1\n"
        assert trees.root(git(place, "rev-parse", "HEAD~1").strip()) == old
        assert place not in old.parents
        assert trees.root(WORKING) == place.resolve()
        assert trees.file("HEAD", Path("staged.py")) is None
    assert not old.exists() and not old.parent.exists()
    assert snapshot(place) == before


def test_an_error_inside_leaves_nothing_either(place):
    before = snapshot(place)
    with pytest.raises(KeyError), Worktrees(Repository.find(place)) as trees:
        old = trees.root("HEAD")
        raise KeyError
    assert not old.exists() and snapshot(place) == before


def test_a_checkout_that_was_cut_short_goes_too(place, monkeypatch):
    def half(self, revision):
        path = Worktrees.root(self, revision)
        (path / ".git").unlink()  # git no longer takes it for a worktree
        return path

    before = snapshot(place)
    with Worktrees(Repository.find(place)) as trees:
        old = half(trees, "HEAD")
    assert not old.exists() and snapshot(place) == before


OWNER = """
import signal, sys, time
# ignored in the background of a script, and under nohup
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from pathlib import Path
from workbench import cli
from workbench.commands import gate
from workbench.revisions.worktree import Repository, Worktrees

def run(options):
    with Worktrees(Repository.find(Path(sys.argv[1]))) as trees:
        print(trees.root('HEAD'), flush=True)
        time.sleep(60)

gate.run = run
raise SystemExit(cli.main(['gate', 'HEAD']))
"""


def owner(place):
    """A process that holds a checkout, and where that lies."""
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(place)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2], start_new_session=True,
    )  # fmt: skip
    old = Path(child.stdout.readline().strip())
    assert old.is_dir()
    return child, old


@pytest.mark.parametrize(
    "number",
    at_night((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda n: n == signal.SIGINT),
)
def test_a_signal_leaves_nothing(place, number):
    before = snapshot(place)
    child, old = owner(place)
    os.killpg(child.pid, number)
    assert child.wait(30) == 128 + number
    child.stdout.close()
    assert not old.exists() and not old.parent.exists() and snapshot(place) == before


@pytest.mark.nightly
def test_the_next_checkout_removes_those_of_a_kill_9_and_no_living_ones(place):
    before = snapshot(place)
    dead, of_dead = owner(place)
    living, of_living = owner(place)
    os.killpg(dead.pid, signal.SIGKILL)
    dead.wait(30)
    assert of_dead.is_dir()
    with Worktrees(Repository.find(place)) as trees:
        trees.root("HEAD")
        assert not of_dead.parent.exists() and of_living.is_dir()
    os.killpg(living.pid, signal.SIGTERM)
    living.wait(30)
    for child in (dead, living):
        child.stdout.close()
    assert snapshot(place) == before


def test_folders_of_others_are_left_alone(place, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "workbench-mine").mkdir()
    (tmp_path / "workbench-mine" / "notes").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "owner.lock").touch()
    (tmp_path / "workbench-link").symlink_to(tmp_path / "other")
    with Worktrees(Repository.find(place)) as trees:
        trees.root("HEAD")
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if place not in p.parents}
    assert left - {place.name} == {
        "workbench-mine", "workbench-mine/notes", "other", "other/owner.lock", "workbench-link",
    }  # fmt: skip


# Links


def linked(place, target):
    """The revision has `link.py` that leads to this target, and `scale.py` says 2."""
    (place / "link.py").symlink_to(target)
    git(place, "add", "link.py")
    git(place, "commit", "-q", "-m", "link")


@pytest.mark.parametrize("how", ["absolute", "through a link", "by the folder above", "relative"])
def test_a_link_of_a_revision_leads_to_the_files_of_the_revision(place, tmp_path, how):
    (place / "scale.py").write_text("FACTOR = 2\n")
    (tmp_path / "alias").symlink_to(place)
    linked(place, {
        "absolute": place / "scale.py",
        "through a link": tmp_path / "alias" / "scale.py",
        "by the folder above": Path("..") / place.name / "scale.py",
        "relative": "scale.py",
    }[how])  # fmt: skip
    (place / "scale.py").write_text("FACTOR = 4\n")
    with Worktrees(Repository.find(place)) as trees:
        path = trees.file("HEAD", Path("link.py"))
        assert path.read_text() == "FACTOR = 2\n"
        assert place.resolve() not in path.resolve().parents


def test_a_folder_that_is_a_link_leads_into_the_checkout(place):
    (place / "real").mkdir()
    (place / "real" / "part.py").write_text("old\n")
    (place / "folder").symlink_to(place / "real")
    git(place, "add", "real", "folder")
    git(place, "commit", "-q", "-m", "folder")
    (place / "real" / "part.py").write_text("new\n")
    with Worktrees(Repository.find(place)) as trees:
        assert trees.file("HEAD", Path("folder/part.py")).read_text() == "old\n"


def test_a_link_out_of_the_repository_leads_where_it_led(place, tmp_path):
    (tmp_path / "outside.py").write_text("outside\n")
    linked(place, "../outside.py")
    with Worktrees(Repository.find(place)) as trees:
        assert trees.file("HEAD", Path("link.py")).read_text() == "outside\n"


@pytest.mark.parametrize("target", ["nowhere.py", "/no/where.py", "link.py"])
def test_a_link_that_leads_nowhere_is_told(place, target):
    linked(place, target)
    with Worktrees(Repository.find(place)) as trees:
        with pytest.raises(WorktreeError, match="leads nowhere"):
            trees.file("HEAD", Path("link.py"))
        assert trees.file("HEAD", Path("absent.py")) is None


def test_a_file_that_still_leads_into_the_work_tree_is_refused(place):
    with Worktrees(Repository.find(place)) as trees:
        link = trees.root("HEAD") / "scale.py"
        link.unlink()
        link.symlink_to(place / "scale.py")
        with pytest.raises(WorktreeError, match="in the work tree, so it is not a file of that"):
            trees.file("HEAD", Path("scale.py"))


def test_names_of_any_bytes_are_listed(place):
    names = [b"line\nbreak.py", b"not \xff UTF-8.py", b"tab\t.py", "ü.py".encode(), b"-x.py"]
    for name in names:
        (place / os.fsdecode(name)).write_text("pass\n")
    listed = {os.fsencode(p) for p in Repository.find(place).changed_since("HEAD")}
    assert set(names) <= listed
    git(place, "add", ".")
    git(place, "commit", "-q", "-m", "odd names")
    with Worktrees(Repository.find(place)) as trees:
        assert all(trees.file("HEAD", Path(os.fsdecode(n))) for n in names)


def test_inside_a_git_hook_the_users_index_stays_his(place, monkeypatch):
    monkeypatch.setenv("GIT_INDEX_FILE", str(place / ".git" / "index"))
    monkeypatch.setenv("GIT_DIR", str(place / ".git"))
    index = (place / ".git" / "index").read_bytes()
    with Worktrees(Repository.find(place)) as trees:
        assert (trees.root("HEAD~1") / "scale.py").read_text() == "FACTOR = 1\n"
        assert (place / ".git" / "index").read_bytes() == index
    assert (place / ".git" / "index").read_bytes() == index


def test_hooks_of_the_repository_are_not_run(place):
    hook = place / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    with Worktrees(Repository.find(place)) as trees:
        assert not (trees.root("HEAD") / "hooked").exists()


@pytest.mark.parametrize("revision", ["no-such", "--help", "HEAD:toy.py", "HEAD^{tree}", ""])
def test_what_is_no_commit_is_said_to_be_none(place, revision):
    repository = Repository.find(place)
    assert repository.commit(revision) is None
    with pytest.raises(WorktreeError, match="names no commit"):
        repository.full_hash(revision)


@pytest.mark.parametrize("revision", ["HEAD~1", "v1", "origin/side"])
def test_the_remedy_of_a_shallow_clone_brings_the_commit(place, tmp_path, revision):
    git(place, "tag", "v1", "HEAD~1")
    git(place, "branch", "side", "HEAD~1")
    shallow = tmp_path / "shallow clone"
    git(tmp_path, "clone", "-q", "--depth", "1", place.as_uri(), str(shallow))
    with pytest.raises(WorktreeError, match="shallow clone") as refused:
        Repository.find(shallow).full_hash(revision)
    command = str(refused.value).partition("fetch the rest: ")[2].rstrip(".")
    subprocess.run(shlex.split(command), cwd=shallow, check=True, capture_output=True)
    assert Repository.find(shallow).full_hash(revision) == Repository.find(place).full_hash("v1")


def test_a_folder_without_git_is_told(tmp_path):
    with pytest.raises(WorktreeError, match="no git repository"):
        Repository.find(tmp_path)


def test_a_file_elsewhere_is_told(place, tmp_path):
    with pytest.raises(WorktreeError, match="outside"):
        Repository.find(place).relative_path(tmp_path / "other.py")


def test_what_changed_is_what_differs_and_what_is_new(place):
    (place / "new.py").write_text("pass\n")
    (place / "notes.txt").write_text("no Python\n")
    changed = {str(p) for p in Repository.find(place).changed_since("HEAD")}
    assert changed == {"scale.py", "staged.py", "new.py"}
    (place / "toy.py").unlink()
    assert Path("toy.py") not in Repository.find(place).changed_since("HEAD"), "it is gone"


def test_a_renamed_file_is_found_by_the_name_that_it_had(place):
    git(place, "mv", "toy.py", "game.py")
    text = (place / "game.py").read_text()
    (place / "game.py").write_text(text + "\n# changed\n")
    (place / "new.py").write_text("pass\n")
    with Worktrees(Repository.find(place)) as trees:
        assert trees.file("HEAD~1", Path("game.py")).read_text() == text
        assert trees.file("HEAD", Path("new.py")) is None
        assert trees.file(WORKING, Path("toy.py")) is None


def test_commits_before_a_rename_touch_the_file_too(place):
    """What the site lists between two measured commits."""
    git(place, "reset", "-q", "--hard")
    hashes = [git(place, "rev-parse", "HEAD").strip()]
    for command in (("rm", "-q", "scale.py"), ("mv", "toy.py", "game.py")):
        if command[0] == "mv":
            (place / "toy.py").write_text((place / "toy.py").read_text() + "\n# changed\n")
            git(place, "commit", "-qam", "touched")
        git(place, *command)
        git(place, "commit", "-qam", command[0])
        hashes.append(git(place, "rev-parse", "HEAD").strip())
    commits = Commits.read(Repository.find(place), hashes)
    between = commits.interval(hashes[0], hashes[-1], "game.py")
    touched = {one.subject: one.touches for one in between.commits}
    assert touched == {"rm": False, "touched": True, "mv": True}
    assert "2 insertions" in between.file and "deletion" not in between.file


# Two versions in one process


@pytest.fixture
def ranking_there(place, monkeypatch):
    """As a user stands in his repository, whose modules are then found from there."""
    monkeypatch.syspath_prepend(str(place))
    modules = set(sys.modules)
    yield place
    for name in set(sys.modules) - modules:
        if "scale" in name or "toy" in name:
            del sys.modules[name]


def warps(spec):
    return spec.impls[0].config().num_warps


@pytest.mark.parametrize("order", [("HEAD~1", "HEAD", WORKING), (WORKING, "HEAD~1", "HEAD")])
def test_each_version_has_the_modules_of_its_own_checkout(ranking_there, order):
    expected = {"HEAD~1": 1, "HEAD": 2, WORKING: 4}
    path = list(sys.path)
    with Worktrees(Repository.find(ranking_there)) as trees:
        specs = {r: catalog.version_of(trees.file(r, Path("toy.py"))) for r in order}
        assert {r: warps(s) for r, s in specs.items()} == expected
        assert warps(catalog.version_of(trees.file("HEAD", Path("toy.py")))) == 2
    assert sys.path == path


@pytest.mark.parametrize("order", [("HEAD", WORKING), (WORKING, "HEAD")])
def test_a_worker_that_imported_the_baseline_first_does_not_mix_the_versions(ranking_there, order):
    """A gate would else compile the working kernel with the module of the baseline, and call it the
    same."""
    kernel = str(ranking_there / "toy.py")
    with Worktrees(Repository.find(ranking_there)) as trees:
        versions = {r: None if r == WORKING else str(trees.file(r, Path("toy.py"))) for r in order}
        result = {r: warps(load_kernel(kernel, version).spec) for r, version in versions.items()}
    assert result == {"HEAD": 2, WORKING: 4}


def test_a_package_of_folders_alone_is_of_its_checkout_too(ranking_there):
    place = ranking_there
    for factor in (8, 1):
        (place / "parts").mkdir(exist_ok=True)
        (place / "parts" / "scale_it.py").write_text(f"FACTOR = {factor}\n")
        text = KERNEL.replace("from scale import FACTOR", "from parts.scale_it import FACTOR")
        (place / "toy.py").write_text(text)
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", "parts")
    with Worktrees(Repository.find(place)) as trees:
        assert warps(catalog.version_of(trees.file("HEAD", Path("toy.py")))) == 1
        assert warps(catalog.version_of(trees.file("HEAD~1", Path("toy.py")))) == 8


def test_the_workbench_itself_is_never_loaded_twice(ranking_there):
    from workbench import spec

    with Worktrees(Repository.find(ranking_there)) as trees:
        result = catalog.version_of(trees.file("HEAD", Path("toy.py")))
    assert isinstance(result, spec.Spec) and sys.modules["workbench.spec"] is spec
