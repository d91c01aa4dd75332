"""Sweeps on a Dask cluster of this machine: real schedulers and workers, a stand-in for a GPU."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import cluster_standin
import pytest
from cluster_hosts import PATH, TESTS, Hosts
from nullside import Place

from workbench import catalog
from workbench.backend.cluster import cluster
from workbench.backend.cluster.joining import files_hash
from workbench.backend.cluster.spread import references_text
from workbench.catalog.source import load_kernel
from workbench.commands.console import SweepConsole
from workbench.commands.options import OptionError
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.commands.workload_tune import WorkloadTuneOptions
from workbench.commands.workload_tuning import tune_workload
from workbench.data.database import open_history
from workbench.data.record import Failure, Record
from workbench.data.references import alike, apart
from workbench.data.selection import select
from workbench.reports.sweep import page
from workbench.tuner.space import Earlier

pytestmark = pytest.mark.newest
SIZES = ("N=1024", "N=2048", "N=4096", "N=8192")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pages take a second to draw and are drawn in one test alone."""
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
    place = Place(tmp_path)
    write_hashes(place)
    return place


def write_hashes(place):
    catalog.spec_of(str(place.kernel))
    (place.folder / "hashes.json").write_text(json.dumps(load_kernel(str(place.kernel)).hashes))


@pytest.fixture
def hosts(place):
    hosts = Hosts(place.folder)
    yield hosts
    hosts.end()


def sweep(place, url, sizes=SIZES, **more):
    """Sweep on a cluster. Returns the command and its exit code."""
    options = SweepOptions(
        "tile_size", str(place.kernel), sizes=sizes, out=place.out, database=place.url,
        workers=url, **more,
    )  # fmt: skip
    command = SweepCommand(
        options, SweepConsole(quiet=False), tuned_file=place.folder / "tuned.json"
    )
    return command, command.go()


def table(outcomes):
    """Times by label and phase."""
    return {(o.case.label, o.phase): o.time_s for o in outcomes if isinstance(o, Record)}


def runs(place):
    """Runs in the database with their outcomes, oldest first."""
    with open_history(place.url) as history:
        found = history.runs(limit=100)
        return sorted(((r, history.outcomes(r.id)) for r in found), key=lambda x: x[0].started)


@pytest.mark.nightly
def test_two_workers_give_the_table_of_one_and_outcomes_name_the_gpu(
    hosts, place, capsys, tmp_path
):
    for name in "01":
        hosts.own(name, sleep=0.03)
    hosts.start("0", "1", "cpu")
    command, code = sweep(place, hosts.url)
    assert code == 0
    assert list(command.tables) == list(SIZES)
    gpus = {run.gpu for run, _ in runs(place)}
    assert len(gpus) == 2 and all(" GPU " in gpu for gpu in gpus)
    for run, outcomes in runs(place):
        measured = [o for o in outcomes if isinstance(o, Record)]
        assert {o.gpu for o in measured} == {run.gpu} and run.references["copy"] == 4e12
        assert all(o.gpu == "" for o in outcomes if isinstance(o, Failure))
    printed = capsys.readouterr().out
    assert all(f"{sizes} on {socket.gethostname()} GPU" in printed for sizes in SIZES)
    assert (place.folder / "compiled-cpu").exists(), "a worker without a GPU compiled"

    (tmp_path / "alone").mkdir()
    alone = Place(tmp_path / "alone")
    for sizes in SIZES:
        outcomes = alone.sweep(cluster_standin.fate, sizes=(sizes,))
        assert table(outcomes) == table(command.tables[sizes])
    assert command.portfolio["served"].keys() == set(SIZES)


@pytest.mark.nightly
def test_a_killed_worker_costs_its_config_and_the_problem_goes_on(hosts, place, capsys):
    hosts.own("0", dies_at="blocks block_n 64, 2 warps", sleep=0.01)
    hosts.own("1", dies_at="blocks block_n 64, 2 warps", sleep=0.01)
    (place.folder / "died-1").touch()  # only GPU 0 dies
    hosts.start("0", "1")
    command, code = sweep(place, hosts.url)
    assert code == 0
    assert list(command.tables) == list(SIZES)
    assert all(len(table(command.tables[sizes])) == len(table(command.tables[SIZES[0]]))
               for sizes in SIZES)  # fmt: skip
    (lost,) = [o for _, outcomes in runs(place) for o in outcomes
               if isinstance(o, Failure) and o.stage == "measure"]  # fmt: skip
    assert lost.cause == "crash" and "died" in lost.reason and lost.case.label.endswith("2 warps")
    assert len(runs(place)) == len(SIZES) + 1
    assert "goes on with another GPU" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_config_that_kills_two_workers_is_not_tried_again(hosts, place):
    label = "blocks block_n 64, 2 warps"
    for name in "012":
        hosts.own(name, always=label)
    hosts.start("0", "1", "2")
    command, code = sweep(place, hosts.url, sizes=SIZES[:1])
    assert code == 0
    failed = [o for o in command.outcomes if isinstance(o, Failure) and o.stage == "measure"]
    assert [(o.case.label, o.cause, o.attempts) for o in failed] == [(label, "crash", 2)]


@pytest.mark.nightly
def test_workers_that_differ_are_refused_and_the_rest_goes_on(hosts, place, capsys):
    hosts.own("1", triton="3.4.1")
    hosts.own("2", lacks=True)
    hosts.start("0", "1", "2")
    command, code = sweep(place, hosts.url)
    assert code == 0 and len(command.tables) == 4
    notes = capsys.readouterr().err
    assert re.search(r"worker 1 \(tcp.* has triton 3\.4\.1, and this process has triton 3\.", notes)
    assert (
        len(re.findall(r"worker 2 \(tcp.* has another .*toy\.py.*copy the file there", notes)) == 1
    )
    assert len({run.gpu for run, _ in runs(place)}) == 1


@pytest.mark.nightly
def test_two_models_of_gpus_are_not_ranked_together(hosts, place, capsys):
    hosts.own("1", gpu="h100")
    hosts.start("0", "1")
    _, code = sweep(place, hosts.url, sizes=SIZES[:2])
    assert code == 0
    assert capsys.readouterr().err.count("GPUs of two models are not ranked together") == 1
    assert len({run.gpu for run, _ in runs(place)}) == 1


@pytest.mark.nightly
def test_where_every_worker_is_refused_its_sentence_ends_the_command(hosts, place):
    hosts.own("0", triton="3.4.1")
    hosts.start("0")
    with pytest.raises(cluster.ClusterError, match=r"has triton 3\.4\.1"):
        sweep(place, hosts.url)


@pytest.mark.nightly
def test_gpus_whose_references_differ_are_not_ranked_together(hosts, place, capsys):
    hosts.own("0", sleep=0.03)
    hosts.own("1", sleep=0.03, factor=0.95)
    hosts.start("0", "1")
    command, code = sweep(place, hosts.url)
    captured = capsys.readouterr()
    assert code == 0 and len(command.tables) == 4
    assert "not ranked together" in captured.out
    assert "the portfolio leaves them out" in captured.err
    by_gpu = {}
    for run, _ in runs(place):
        by_gpu.setdefault(run.gpu, []).append(run)
    assert len(by_gpu) == 2
    kept = set(command.portfolio["served"])
    assert kept and len({r.gpu for r, _ in runs(place) if f"N={r.sizes['N']}" in kept}) == 1

    # what the other GPU measured is obtained again, what this one or a like one did is not
    hosts.workers.pop("1").kill()
    again, _ = sweep(place, hosts.url)
    for sizes in SIZES:
        anew = {o.gpu for o in again.tables[sizes] if isinstance(o, Record)}
        assert len(anew) == 1 and anew.pop() == again.results[0].run.gpu


@pytest.mark.nightly
def test_the_scheduler_goes_away_and_comes_back(hosts, place, capsys):
    hosts.own("0", sleep=0.1)
    hosts.start("0")

    def restart():
        wait_for(lambda: count_records(place) > 5)
        hosts.scheduler.kill()
        hosts.scheduler.wait()
        hosts.workers["0"].wait(30)  # it leaves by itself
        hosts.start_scheduler()
        hosts.start_worker("0")

    helper = threading.Thread(target=restart)
    helper.start()
    command, code = sweep(place, hosts.url, sizes=SIZES[:2])
    helper.join()
    assert code == 0 and list(command.tables) == list(SIZES[:2])
    printed = capsys.readouterr().out
    assert "does not answer; waiting" in printed and "is back" in printed
    firsts = [o for _, outcomes in runs(place) for o in outcomes if isinstance(o, Record)]
    times = {(o.case.label, o.case.sizes["N"], o.phase): o.at for o in firsts}
    again = {(o.case.label, o.case.sizes["N"], o.phase) for o in firsts if times[
        o.case.label, o.case.sizes["N"], o.phase] != o.at}  # fmt: skip
    assert not again, "nothing was measured twice"


@pytest.mark.nightly
def test_a_scheduler_that_does_not_come_back_leaves_what_was_measured(
    hosts, place, capsys, monkeypatch
):
    hosts.own("0", sleep=0.1)
    hosts.start("0")
    monkeypatch.setattr(cluster.Cluster.reconnect, "__defaults__", (1.0,))
    monkeypatch.setattr(cluster, "CONNECT_S", 1.0)
    threading.Thread(
        target=lambda: (wait_for(lambda: count_records(place) > 5), hosts.scheduler.kill())
    ).start()
    _, code = sweep(place, hosts.url, sizes=SIZES[:2])
    assert code == 130
    assert "did not come back within 1 s" in capsys.readouterr().out
    ((run, outcomes),) = runs(place)
    assert sum(isinstance(o, Record) for o in outcomes) > 5
    with open_history(place.url) as history:
        assert history.state(run.id) == "interrupted"


@pytest.mark.nightly
def test_a_killed_command_lets_go_of_the_gpus_of_its_cluster(hosts, place):
    """Its scheduler drops the actors, which hold the GPUs' locks: another command can begin."""
    hosts.own("0", sleep=0.2)
    hosts.start("0")
    program = (
        "import sys; from pathlib import Path; import test_cluster as t\n"
        "from nullside import Place\n"
        "p = Place(Path(sys.argv[1])); t.sweep(p, sys.argv[2])"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", program, str(place.folder), hosts.url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([PATH, str(TESTS / "unit")])},
        stdout=subprocess.DEVNULL,
    )
    wait_for(lambda: count_records(place) > 2)
    first.kill()
    first.wait()
    hosts.own("0")
    _, code = sweep(place, hosts.url, sizes=SIZES[:1])
    assert code == 0


def count_records(place):
    return sum(p.read_text().count('"type":"Record"') for p in place.out.glob("*/events.jsonl"))


def wait_for(condition, limit_s=60.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


# A cluster of the command's own


@pytest.fixture
def local(place):
    """A command with `--workers 2` that is in the midst of its work."""
    for name in "01":
        (place.folder / f"cluster-{name}.json").write_text('{"sleep": 0.3}')
    words = [str(TESTS / "cluster_program.py"), "sweep", "tile_size", "--workers", "2"]
    words += ["--kernel", str(place.kernel), "--out", str(place.out), "--database", place.url]
    words += [word for sizes in SIZES for word in ("--sizes", sizes)]
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": PATH, "STANDIN": str(place.folder)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(lambda: count_records(place) > 3)
        yield process
    finally:
        for pid in of_group(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def of_group(group):
    """Processes of a process group that are no zombies."""
    listed = subprocess.run(["ps", "-eo", "pid,pgid,stat"], capture_output=True, text=True).stdout
    rows = [line.split() for line in listed.splitlines()[1:]]
    return [int(pid) for pid, of, state in rows if int(of) == group and state[0] != "Z"]


@pytest.mark.nightly
def test_ctrl_c_stores_what_there_is_and_leaves_no_process(local, place):
    assert len(of_group(local.pid)) >= 3
    os.killpg(local.pid, signal.SIGINT)  # as a terminal does
    printed, _ = local.communicate(timeout=60)
    assert local.returncode == 130, printed
    assert "Traceback" not in printed
    assert of_group(local.pid) == []
    for run, outcomes in runs(place):
        assert any(isinstance(o, Record) for o in outcomes)
        assert not [o for o in outcomes if isinstance(o, Failure) and o.stage == "measure"]
        with open_history(place.url) as history:
            assert history.state(run.id) == "interrupted"


@pytest.mark.nightly
def test_a_killed_command_leaves_no_worker(local):
    local.kill()
    local.wait()
    wait_for(lambda: of_group(local.pid) == [], 15.0)


# Refused before any work


def options(**more):
    return SweepOptions("tile_size", "copy", **more)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"workers": 2, "device": "h200"}, "nothing is measured; leave out --device or --workers"),
        (
            {"workers": "tcp://a:1", "require": "sanitizer"},
            "leave out --require sanitizer or",
        ),
        ({"workers": "tcp://a:1", "also": "profile"}, "leave out --also profile or --workers"),
    ],
)
def test_options_that_exclude_each_other_are_said(more, sentence):
    with pytest.raises(OptionError, match=sentence):
        SweepCommand(options(**more), SweepConsole(True)).go()


def test_more_workers_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(cluster, "gpus_of_host", lambda: ["0"])
    with pytest.raises(cluster.ClusterError, match=r"more GPUs than this host shows \(1\)"):
        SweepCommand(options(workers=2), SweepConsole(True)).go()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [("somewhere", "write --workers 2, or --workers tcp://"), ("tcp://127.0.0.1:9", "not answer")],
)
def test_a_scheduler_that_is_none_is_said(url, sentence, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_S", 0.5)
    with pytest.raises((cluster.ClusterError, OptionError), match=sentence):
        SweepCommand(options(workers=url), SweepConsole(True)).go()


def test_without_dask_a_sentence_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(cluster.ClusterError, match=r"pip install 'kernel-workbench\[cluster\]'"):
        SweepCommand(options(workers=2), SweepConsole(True)).go()


@pytest.mark.nightly
def test_the_extra_is_imported_by_no_other_command():
    code = "import sys, workbench.commands.sweep_command, workbench.commands.workload_tuning; "
    code += "print([m for m in ('distributed', 'dask') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Small parts


def test_the_page_names_the_gpus_and_their_references(tmp_path):
    place = Place(tmp_path)
    outcomes = place.sweep(cluster_standin.fate)
    first, second = "node3 GPU 1 (1f2e3d4c)", "node4 GPU 0 (5b6a7988)"
    run = replace(place.session.run, gpu=first, references=cluster_standin.REFERENCES)
    winner = select(run, outcomes).winner
    named = [replace(o, gpu=first if o.key == winner.key else second) for o in outcomes]
    html = page(run, named)
    assert f"{first}; other configs on {second}" in html
    assert "copy 4 TB/s, product 600 TFLOP/s; times of GPUs that differ" in html
    assert "node3" not in page(place.session.run, outcomes)


def test_times_of_gpus_without_references_or_with_others_are_obtained_again(tmp_path):
    from workbench.tuner.resume import _drop_unlike_gpus

    place = Place(tmp_path)
    outcomes = place.sweep(cluster_standin.fate)
    known = Earlier({o.key: o for o in outcomes})
    own = cluster_standin.REFERENCES
    with open_history(place.url) as history:
        stored = history.run("last")
        run = replace(stored, references=own)
        kept = _drop_unlike_gpus(history, run, known).first
        assert kept and all(isinstance(o, Failure) for o in kept.values())
        near = replace(stored, id=f"{stored.id[:-4]}beef", references={**own, "copy": 4.1e12})
        history.add_run(near)
        known = Earlier({o.key: replace(o, run=near.id) for o in outcomes})
        assert _drop_unlike_gpus(history, run, known) == known


def test_references_within_three_percent_are_alike():
    first = {"copy": 4e12, "product": 6e14}
    assert alike(first, {"copy": 4.1e12, "product": 6e14})
    assert not alike(first, {"copy": 4e12, "product": 5.7e14})
    assert apart(first, {"copy": 4e12, "product": 5.7e14}) == pytest.approx(0.0526, abs=1e-3)
    assert not alike({}, {}) and not alike(first, {"copy": 4e12}), "unknown is not alike"
    assert references_text(first) == "copy 4 TB/s, product 600 TFLOP/s"


def test_gpus_of_a_host_are_those_that_are_visible(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cluster.gpus_of_host() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert cluster.gpus_of_host() == ["3", "5"]
    assert len(files_hash()) == 16


def test_workload_tune_takes_the_same_options():
    wanted = WorkloadTuneOptions(("run.workload",), workers=2, device="h200")
    with pytest.raises(OptionError, match="leave out --device or --workers"):
        tune_workload(wanted)
