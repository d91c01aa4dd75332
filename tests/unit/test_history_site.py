"""The site of the history, on made runs with planted steps: series, files, hostile names."""

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from made_history import KERNEL_FILE, commits, fill, measured_run, noisy, repository

from workbench import cli
from workbench.commands import site_command as module
from workbench.commands.site_command import MARKER, SiteError, check_place, write_folder
from workbench.data.database import open_history
from workbench.device.error_band import device_words
from workbench.reports.history_site import file_of
from workbench.revisions.series import EVERYTHING, Collected, CommitOrder, add_views

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A repository of 40 commits and a branch."""
    folder = tmp_path_factory.mktemp("made") / "repo"
    repository(folder, 40, branch_at=30, on_branch=12)
    return folder


class Place:
    def __init__(self, folder, repo):
        self.folder, self.repo = folder, repo
        self.url = f"sqlite:///{folder / 'h.db'}"
        self.out = folder / "site"

    def fill(self, time_of, hashes=None, **more):
        with open_history(self.url) as history:
            fill(history, commits(self.repo) if hashes is None else hashes, time_of, **more)

    def site(self, *words):
        told = self.folder / "site.json"
        code = cli.main(["site", str(self.out), "--database", self.url, "--json", str(told),
                         "--repository", str(self.repo), *words])  # fmt: skip
        assert code == 0
        return json.loads(told.read_text())

    def page(self, kernel="toy"):
        return (self.out / file_of(kernel)).read_text()

    def data(self, kernel="toy"):
        text = self.page(kernel).split('<script type="application/json" id="data">')[1]
        return json.loads(text.split("</script>")[0])


@pytest.fixture
def place(tmp_path, made, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, made)


def stepped(at, share=1.04, level_s=30e-6, seed=0):
    return lambda n: noisy(level_s, n, 0.005, seed) * (share if n >= at else 1)


def test_a_planted_step_is_listed_with_the_commits_between_and_what_changed(place):
    hashes = commits(place.repo)
    with open_history(place.url) as history:
        for n in range(0, 40, 2):  # every other commit was measured
            run, outcomes = measured_run(
                n, hashes[n], stepped(20)(n), triton="3.6.0" if n < 20 else "3.9.0",
                source=str(place.repo / KERNEL_FILE),
            )  # fmt: skip
            history.import_run([run, *outcomes])
    (change,) = [c for c in place.site()["changes"] if "main" in c["branches"]]
    assert (change["before"], change["after"]) == (hashes[18], hashes[20])
    assert change["direction"] == "slower" and change["ratio"] == pytest.approx(1.04, abs=0.01)
    assert (
        change["low"] < 1.04 < change["high"] and "triton 3.6.0 to 3.9.0" in change["differences"]
    )
    page = place.page()
    assert "main 19" in page and "main 20" in page and "2 commits between" in page
    assert "main 18" in page, "the first commit is between none, but a point of the curve"
    assert f"{KERNEL_FILE}: not changed" in page
    index = (place.out / "index.html").read_text()
    assert "1 regression and 0 improvements on main" in index


def test_an_improvement_is_marked_as_one(place):
    place.fill(stepped(20, 1 / 1.05))
    directions = {c["direction"] for c in place.site()["changes"]}
    assert directions == {"faster"}
    assert "0 regressions and 1 improvement on main" in (place.out / "index.html").read_text()


def test_points_are_in_the_order_of_the_history_whatever_the_order_of_the_runs(place):
    hashes = commits(place.repo)
    with open_history(place.url) as history:
        for day, n in enumerate(sorted(range(40), key=lambda n: (n * 17) % 40)):
            run, outcomes = measured_run(day, hashes[n], stepped(25)(n))
            history.import_run([run, *outcomes])
    (change,) = [c for c in place.site()["changes"] if "main" in c["branches"]]
    assert change["after"] == hashes[25]
    data = place.data()
    (series,) = data["series"]
    assert [data["commits"][p[0]][2] for p in series["points"]] == [f"main {n}" for n in range(40)]


def test_branches_have_their_own_steps(place):
    main, feature = commits(place.repo), commits(place.repo, "feature")
    place.fill(stepped(99))
    place.fill(stepped(4), hashes=feature[31:], first=100)
    changes = place.site()["changes"]
    assert [c["branches"] for c in changes] == [["feature"]] and changes[0]["after"] == feature[35]
    data = place.data()
    assert data["branches"] == ["main", "feature"]
    (series,) = data["series"]
    names = {b: [data["commits"][series["points"][n][0]][2] for n in series["views"][str(k)][0]]
             for k, b in enumerate(data["branches"])}  # fmt: skip
    assert names["main"] == [f"main {n}" for n in range(40)] and main
    assert names["feature"] == [f"main {n}" for n in range(31)] + [
        f"feature {n}" for n in range(12)
    ]


def test_without_a_repository_points_are_in_the_order_of_their_times(place, tmp_path):
    place.fill(stepped(20))
    place.repo = tmp_path
    told = place.site()
    assert [c["branches"] for c in told["changes"]] == [[EVERYTHING]]
    assert any("no filter of branches" in note for note in told["notes"])
    assert 'name="branch"' not in (place.out / "index.html").read_text()


def test_runs_without_a_commit_are_points_of_their_own(place, tmp_path):
    place.repo = tmp_path
    place.fill(stepped(12), hashes=[None] * 24)
    (change,) = place.site()["changes"]
    assert change["after"] == "run-0012-toy-bf16-11"


def test_several_runs_of_a_commit_are_one_point(place):
    hashes = commits(place.repo)
    with open_history(place.url) as history:
        for n, time_s in enumerate((30e-6, 31e-6, 35e-6)):
            run, outcomes = measured_run(n, hashes[0], time_s)
            history.import_run([run, *outcomes])
    place.site()
    (series,) = place.data()["series"]
    (point,) = series["points"]
    assert point[2] == 31e-6 and len(point[8]) == 3
    assert point[3] == pytest.approx(30e-6 * 0.999) and point[4] == pytest.approx(35e-6 * 1.001)


def test_the_ratio_to_a_library_removes_what_the_machine_adds(place):
    """The machine is exchanged at commit 20, the kernel becomes slower at commit 28."""
    hashes = commits(place.repo)
    with open_history(place.url) as history:
        for n in range(40):
            machine = (1.03 if n >= 20 else 1) * noisy(1, n, 0.004, 3)
            time_s = noisy(30e-6, n, 0.002) * machine * (1.05 if n >= 30 else 1)
            library_s = noisy(33e-6, n, 0.002, 4) * machine
            run, outcomes = measured_run(n, hashes[n], time_s, library_s=library_s)
            history.import_run([run, *outcomes])
    changes = [c for c in place.site()["changes"] if "main" in c["branches"]]
    ours = [c for c in changes if c["which"] != "library"]
    assert [(c["after"], c["direction"], c["sought_in"]) for c in ours] == [
        (hashes[30], "slower", "ratio")
    ]
    assert [c["after"] for c in changes if c["which"] == "library"] == [hashes[20]]


def test_a_step_of_the_library_alone_is_no_regression(place):
    hashes = commits(place.repo)
    with open_history(place.url) as history:
        for n in range(40):
            machine = noisy(1, n, 0.02, 3)
            library_s = noisy(33e-6, n, 0.002, 4) * machine * (0.95 if n >= 20 else 1)
            run, outcomes = measured_run(
                n, hashes[n], noisy(30e-6, n, 0.002) * machine, library_s=library_s
            )
            history.import_run([run, *outcomes])
    ours = [c for c in place.site()["changes"] if c["which"] != "library"]
    assert ours and {c["direction"] for c in ours} == {"library"}
    assert "0 regressions" in (place.out / "index.html").read_text()


def test_what_cannot_be_compared_is_never_one_series(place):
    hashes = commits(place.repo)
    with open_history(place.url) as history:
        for n in range(24):
            kind = {"protocol": "p4-000002"} if n >= 12 else {}
            run, outcomes = measured_run(n, hashes[n], stepped(12, 1.5)(n), **kind)
            history.import_run([run, *outcomes])
    assert place.site()["changes"] == []
    assert len(place.data()["series"]) == 2


def test_finals_come_before_first_passes_and_these_are_marked(place):
    hashes = commits(place.repo)
    with open_history(place.url) as history:
        for n in range(6):
            for kernel, phases in (("both", ("final", "first_pass")), ("only", ("first_pass",))):
                for phase in phases:
                    run, outcomes = measured_run(n, hashes[n], 3e-5, kernel=kernel, phase=phase)
                    run = replace(run, id=f"{run.id}-{phase}")
                    outcomes = [replace(o, run=run.id) for o in outcomes]
                    history.import_run([run, *outcomes])
    place.site()
    assert ["final benchmark" in s["title"] for s in place.data("both")["series"]] == [True]
    assert ["first pass" in s["title"] for s in place.data("only")["series"]] == [True]
    assert "rows, first pass" in (place.out / "index.html").read_text()


def test_predictions_are_on_no_curve_and_marked_where_they_are_all_there_is(place):
    run, outcomes = synthetic.softmax(predicted=True)
    with open_history(place.url) as history:
        history.import_run([run, *outcomes])
    told = place.site()
    assert told["series"] == 0
    page, index = place.page("softmax"), (place.out / "index.html").read_text()
    assert "All times on this page are predicted" in page and "Nothing was measured" in index
    assert "only-predicted" in index and "(predicted)" in index and "~" in index
    error = device_words("h200", "softmax")
    assert page.count(error) == index.count(error) == 1


def test_a_changed_work_tree_is_hollow_and_takes_no_part_in_steps(place):
    hashes = commits(place.repo)
    place.fill(stepped(20))
    with open_history(place.url) as history:
        for n in range(40):
            run, outcomes = measured_run(n, hashes[n], 60e-6, dirty=True)
            run = replace(run, id=f"{run.id}-dirty")
            history.import_run([run, *[replace(o, run=run.id) for o in outcomes]])
    told = place.site()
    assert [c["after"] for c in told["changes"] if "main" in c["branches"]] == [hashes[20]]
    (series,) = place.data()["series"]
    assert sum(p[1] & 1 for p in series["points"]) == 40
    assert any("40 points are of work trees" in note for note in told["notes"])


def test_a_copy_of_an_earlier_runs_time_is_counted_once(place):
    hashes = commits(place.repo)
    with open_history(place.url) as history:
        run, outcomes = measured_run(0, hashes[0], 30e-6)
        history.import_run([run, *outcomes])
        later = measured_run(9, hashes[9], 30e-6)[0]
        history.import_run([later, *[replace(o, run=later.id) for o in outcomes]])
    told = place.site()
    assert len(place.data()["series"][0]["points"]) == 1
    assert any("took over from earlier ones" in note for note in told["notes"])


def test_runs_link_to_their_pages_where_these_exist(place):
    place.fill(stepped(20))
    page = place.folder / "results" / "run-0003-toy-bf16-11" / "report.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>page</p>")
    place.site()
    linked = [link for _, link in place.data()["runs"] if link]
    assert linked == ["../../results/run-0003-toy-bf16-11/report.html"]
    assert (place.out / "kernels" / linked[0]).resolve() == page


# Hostile and damaged


EVIL = ["<script>alert(1)</script>", "../../../escape", "a&b\"'<", "CON", "é" * 300, "Toy", "toy"]


def test_names_of_the_database_are_text_and_slugs(place):
    with open_history(place.url) as history:
        for n, name in enumerate(EVIL):
            run, outcomes = measured_run(n, None, 30e-6, kernel=name, device=f"<b>{name}")
            run = replace(run, id=f"run-{n}")
            outcomes = [replace(o, run=run.id) for o in outcomes]
            history.import_run([run, *outcomes])
    place.site()
    files = [p.relative_to(place.out) for p in place.out.rglob("*.html")]
    assert len(files) == 1 + len(EVIL) and {f.parent.name for f in files} == {"", "kernels"}
    assert len({str(f).lower() for f in files}) == len(files), "also where case does not count"
    for file in place.out.rglob("*.html"):
        text = file.read_text()
        assert (
            "<script>alert" not in text
            and "<b>" + EVIL[2] not in text
            and "</script>alert" not in text
        )
    assert not (place.folder.parent / "escape").exists()


def test_damaged_rows_are_counted_and_the_rest_is_shown(place):
    place.fill(stepped(20))
    with closing(sqlite3.connect(place.folder / "h.db")) as db, db:
        ids = [row[0] for row in db.execute("SELECT id FROM outcomes ORDER BY id LIMIT 4")]
        for wrong, row in zip(('{"type":', "[]", '{"type":"Record"}', "x"), ids, strict=True):
            db.execute("UPDATE outcomes SET payload = ? WHERE id = ?", (wrong, row))
        db.execute("UPDATE runs SET started_epoch_s = 'soon' WHERE id LIKE 'run-0030%'")
        db.execute("INSERT INTO outcomes (digest, key, run, kernel, impl, backend, dtype, device,"
                   " sizes, config, phase, predicted, time_s, at, at_epoch_s, payload)"
                   " VALUES ('d','k','r','t','i','triton','bf16','d','{','{}','first_pass',0,1.0,"
                   " 'now',0,'{}')")  # fmt: skip
    told = place.site()
    assert len(told["changes"]) >= 1
    assert any(note.startswith("6 rows of the history") for note in told["notes"])


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_site_did_not_write_is_not_replaced(place, capsys, what):
    place.fill(stepped(20), hashes=commits(place.repo)[:2])
    if what == "folder":
        place.out.mkdir()
        (place.out / "thesis.tex").write_text("years of work")
    elif what == "file":
        place.out.write_text("years of work")
    else:
        (place.folder / "mine").mkdir()
        place.out.symlink_to(place.folder / "mine")
    assert cli.main(["site", str(place.out), "--database", place.url]) == 2
    assert "did not write, and would be replaced" in capsys.readouterr().err
    assert what != "folder" or (place.out / "thesis.tex").exists()


def test_a_site_replaces_its_older_self_whole(place):
    place.fill(stepped(20), hashes=commits(place.repo)[:2], kernel="gone")
    place.site()
    assert (place.out / file_of("gone")).exists() and (place.out / MARKER).exists()
    (place.folder / "h.db").unlink()
    place.fill(stepped(20), hashes=commits(place.repo)[:2])
    place.site()
    assert not (place.out / file_of("gone")).exists() and (place.out / file_of("toy")).exists()
    assert [p.name for p in place.folder.iterdir() if p.name.startswith(".workbench")] == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no space"), ValueError("a fault")])
def test_what_stops_it_leaves_the_old_site(tmp_path, error):
    out = tmp_path / "site"
    write_folder(out, [("index.html", "old")])

    def pages():
        yield "index.html", "new"
        raise error

    with pytest.raises(
        SiteError if isinstance(error, OSError) else (KeyboardInterrupt, ValueError)
    ):
        write_folder(out, pages())
    assert (out / "index.html").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["site"]


def test_a_folder_that_appeared_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "site"

    def pages():
        yield "index.html", "new"
        out.mkdir()
        (out / "mine").touch()

    with pytest.raises(SiteError):
        write_folder(out, pages())
    assert [p.name for p in out.iterdir()] == ["mine"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SiteError, match="cannot be written"):
        write_folder(tmp_path / "file" / "site", [("index.html", "")])


def test_a_swap_that_fails_puts_the_old_site_back(tmp_path, monkeypatch):
    out = tmp_path / "site"
    write_folder(out, [("index.html", "old")])
    real = Path.rename

    def rename(self, target):
        if self.name == "new":
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(SiteError, match="no space left"):
        write_folder(out, [("index.html", "new")])
    assert (out / "index.html").read_text() == "old"


def test_an_empty_database_gives_a_page_that_says_so(place):
    place.site()
    assert "holds no time that could be shown" in (place.out / "index.html").read_text()
    check_place(place.out)


def test_without_ruptures_one_sentence_and_no_folder(place, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ruptures", None)
    monkeypatch.setattr(module, "require_ruptures", lambda: _missing())
    assert cli.main(["site", str(place.out), "--database", place.url]) == 2
    assert "kernel-workbench[site]" in capsys.readouterr().err and not place.out.exists()


def _missing():
    from workbench.revisions.change_points import SiteMissing

    raise SiteMissing("ruptures is not installed: pip install 'kernel-workbench[site]'.")


def test_the_default_and_the_best_config_are_two_series_where_they_differ():
    run, outcomes = synthetic.matmul()
    collected = Collected({})
    for outcome in outcomes:
        if getattr(outcome, "phase", "") == "final":
            collected.add(outcome)
    series = collected.series(CommitOrder())
    kinds = {(s.key.impl, s.key.which) for s in series}
    assert ("tiles", "best") in kinds and ("cublas", "library") in kinds
    for each in series:
        add_views(each, CommitOrder())
        assert list(each.views) == [EVERYTHING] and len(each.points) == 1
    best = {s.key.impl: s.points[0].time.middle for s in series if s.key.which == "best"}
    default = {s.key.impl: s.points[0].time.middle for s in series if s.key.which == "default"}
    assert all(default[impl] >= best[impl] for impl in default) and run.kernel == "matmul"


def test_the_golden_database_of_the_first_version_gives_a_site(tmp_path, monkeypatch):
    import gzip

    golden = Path(__file__).parents[1] / "golden" / "stored" / "history.db.gz"
    monkeypatch.chdir(tmp_path)
    with gzip.open(golden) as packed, (tmp_path / "h.db").open("wb") as file:
        shutil.copyfileobj(packed, file)
    assert cli.main(["site", "site", "--database", f"sqlite:///{tmp_path / 'h.db'}"]) == 0
    assert (tmp_path / "site" / file_of("matmul")).exists()
