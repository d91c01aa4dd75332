"""Sweeps for Apple's GPUs, from the command line: emulated, counted, predicted, never timed."""

import re

import pytest

from workbench import cli
from workbench.data.database import open_history
from workbench.data.events import KernelDispatched, OpCompleted, read
from workbench.data.record import Failure, Predicted, Record
from workbench.device.apple_model import EMULATED


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command line; returns its exit code, the outcomes, the page and the events."""
    tuned = tmp_path / "tuned.json"
    monkeypatch.setattr("workbench.commands.sweep_command.default_path", lambda: tuned)

    def go(*words):
        database = f"sqlite:///{tmp_path / 'history.db'}"
        out = tmp_path / "results"
        code = cli.main([*words, "--out", str(out), "--database", database])
        with open_history(database) as history:
            last = history.run("last")
            outcomes = history.outcomes(last.id)
        page = (out / last.id / "report.html").read_text(encoding="utf-8")
        events = list(read(out / last.id / "events.jsonl").events)
        assert not tuned.exists(), "a prediction chose a config for launches"
        return code, outcomes, page, events

    return go


SOFTMAX = ("sweep", "threadgroup", "--kernel", "softmax", "--device", "m2max", "--sizes")


def test_a_threadgroup_sweep_emulates_and_ranks_nothing(run, capsys):
    code, outcomes, page, events = run(*SOFTMAX, "M=4096,N=512", "--impl", "online")
    said = " ".join(capsys.readouterr().out.split())
    records = [o for o in outcomes if isinstance(o, Record)]
    assert code == 0 and len(records) == len(outcomes) == 6
    assert {r.case.config["threads"] for r in records} == {32, 64, 128, 256, 512, 1024}
    for record in records:
        assert isinstance(record.timing, Predicted) and record.phase == "predict"
        assert record.checked == "emulated" and record.error <= 1 and record.bits
        assert record.traffic.bytes == 3 * 4096 * 512 * 2  # x twice, y once
        assert record.timing.shortest_s < record.timing.predicted_s < record.timing.longest_s
        assert record.resources is None
    assert f"{EMULATED}. " in said and " No config will be called the fastest: " in said
    assert said.index("No config will be") < said.index("6 configs to try")
    # one SIMD-group for a row needs no threadgroup memory, and all others do
    answer = said[said.index("Begin with threads 32: 12.6 MB in sectors, predicted to take ") :]
    answer = answer.partition(" events ")[0]
    assert answer.endswith(
        "; 1 of 6 configs is on the Pareto front of the counts; threads 32 dominates the default."
    )
    assert "measured" not in said.lower() and "measured" not in page.lower()
    (software,) = re.findall(r"<dt>Software</dt><dd>(.*?)</dd>", page)
    assert "clang " in software and "triton" not in software and "ptxas" not in software
    assert EMULATED[1:] in page.replace("&#39;", "'") and page.count("any of these") >= 6
    dispatched = [e for e in events if isinstance(e, KernelDispatched)]
    assert {(e.grid, e.threads) for e in dispatched} == {
        ((4096, 1, 1), t) for t in (32, 64, 128, 256, 512, 1024)
    }
    assert all(e.registers is None and e.occupancy is None for e in dispatched)
    completed = [e for e in events if isinstance(e, OpCompleted)]
    assert completed and all(e.predicted and e.device_us is e.host_us is None for e in completed)


def test_a_chip_that_does_not_exist_is_named_as_such(capsys):
    words = ("sweep", "threadgroup", "--kernel", "softmax", "--device", "m9max")
    assert cli.main(words) == 2
    assert "no device is named 'm9max', the nearest are m" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_second_sweep_takes_the_stored_outcomes(run, monkeypatch):
    words = (*SOFTMAX, "M=64,N=128", "--impl", "lanes")
    _, first, page, _ = run(*words)
    # nothing is emulated again
    monkeypatch.setattr("workbench.backend.metal.emulated.count_task", None)
    _, second, again, _ = run(*words)
    assert [o.key for o in first] == [o.key for o in second] and page == again


@pytest.mark.nightly  # a second whole sweep, 4 s
def test_a_product_without_a_known_peak_has_a_front_and_no_time(run, capsys):
    """By hand, of tiles of 8, 16 and 32: 2 x 128^3 / tile elements are read and 128^2 written. Rows
    of 8 elements of 2 bytes are half a sector."""
    words = ("sweep", "tile_size", "--kernel", "matmul", "--device", "m4max", "--dtype", "fp16")
    code, outcomes, page, _ = run(*words, "--impl", "tiled", "--sizes", "M=128,N=128,K=128")
    said = " ".join(capsys.readouterr().out.split())
    counted = {o.case.config["tile"]: o.traffic for o in outcomes if o.traffic is not None}
    assert code == 0 and not any(isinstance(o, Record) for o in outcomes)
    assert {t: c.bytes for t, c in counted.items()} == {
        8: 2 * (2 * 2 * 128**3 // 8 + 2 * 128**2),
        16: 2 * 2 * 128**3 // 16 + 2 * 128**2,
        32: 2 * 2 * 128**3 // 32 + 2 * 128**2,
    }
    for tile, traffic in counted.items():  # two in each step
        assert traffic.all_barriers == 2 * (128 // tile) ** 3 and not traffic.edge_bytes
    assert "No times: the fp16 peak of Apple M4 Max is unknown, and arithmetic may limit" in said
    assert "Begin with tile 32: 295 kB in sectors, no predicted time (the fp16 peak of" in said
    assert "No time on this page" in page and page.count('<td class="text">front</td>') == 1


@pytest.mark.nightly  # each Impl at a bench size, 3 s
def test_measure_predicts_the_metal_impls_of_the_device(run, capsys, tmp_path):
    code, outcomes, page, _ = run(
        "measure", "softmax", "--device", "m2max", "--sizes", "M=256,N=256"
    )
    said = capsys.readouterr().out
    assert code == 0 and {o.case.backend for o in outcomes} == {"metal"}
    assert {o.case.impl for o in outcomes} == {"simd_rows", "lanes", "online"}
    assert "measured" not in page.lower() and EMULATED in said
    assert EMULATED[1:] in page.replace("&#39;", "'")
    report = tmp_path / "roofline.html"
    words = ("report", "roofline", "--device", "m2max", "--out", str(report))
    assert cli.main([*words, "--database", f"sqlite:///{tmp_path / 'history.db'}"]) == 0
    roofline = report.read_text(encoding="utf-8")
    roofline = roofline.replace("expected if measured", "")  # the head of a column
    assert "measured" not in roofline.lower() and EMULATED[1:] in roofline.replace("&#39;", "'")


BROKEN = '''
"""double: y = 2 x, by Metal kernels alone, one with a race."""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from workbench.spec import Spec, Tensor, threads

RACE = metal_kernel(
    "double_race",
    inputs="x",
    outputs="y",
    body="""
    threadgroup float held[1];
    const uint i = thread_position_in_grid.x;
    held[0] = float(x[i]);
    y[i] = T(2 * held[0]);
""",
)
PLAIN = metal_kernel(
    "double_plain",
    inputs="x",
    outputs="y",
    body="""
    const uint i = thread_position_in_grid.x;
    y[i] = T(FACTOR * float(x[i]));
""",
)
double = Spec(
    name="double",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=lambda x: 2 * x,
    flops=lambda N: N,
    check=[{"N": 1}, {"N": 200}],
    bench=[{"N": 65536}],
)


@dataclass(frozen=True)
class Elements:
    threads: int = threads(32, 64, default=32)


@double.impl(Elements, backend="metal")
def race(x, *, config):
    return RACE(x, like=x, grid=(x.shape[0], 1, 1), group=config.threads, T=x.dtype)


@double.impl(Elements, backend="metal")
def wrong(x, *, config):
    grid = (x.shape[0], 1, 1)
    return PLAIN(x, like=x, grid=grid, group=config.threads, T=x.dtype, FACTOR=3)


@double.impl(Elements, backend="metal")
def right(x, *, config):
    grid = (x.shape[0], 1, 1)
    return PLAIN(x, like=x, grid=grid, group=config.threads, T=x.dtype, FACTOR=2)


@double.impl(Elements, backend="metal")
def nothing(x, *, config):
    return x.new_empty(x.shape)


@double.impl(Elements, backend="metal")
def wide(x, *, config):
    grid = (x.shape[0], 1, 1)
    return PLAIN(x, like=x, grid=grid, group=config.threads * 64, T=x.dtype, FACTOR=2)
'''


def test_what_is_wrong_has_a_sentence_and_no_time(run, tmp_path, capsys):
    """Kernels of a user's own file of Metal Impls alone: a race, a wrong result, no launch, too
    many threads. A sweep for another device names an Apple GPU."""
    path = tmp_path / "double.py"
    path.write_text(BROKEN)
    code, outcomes, _, _ = run(
        "sweep", "threadgroup", "--kernel", str(path), "--device", "m1", "--dtype", "fp32"
    )
    by_impl = {}
    for outcome in outcomes:
        by_impl.setdefault(outcome.case.impl, []).append(outcome)
    assert code == 0 and all(isinstance(o, Record) for o in by_impl["right"])
    failed = {
        name: (o[0].stage, o[0].reason) for name, o in by_impl.items() if isinstance(o[0], Failure)
    }
    assert failed["race"][0] == "check" and "race on threadgroup memory" in failed["race"][1]
    assert failed["wrong"][0] == "check"
    assert failed["nothing"] == (
        "refused",
        "the launcher of double.nothing does not launch a Metal kernel",
    )
    assert failed["wide"][0] == "refused" and "2048 threads in a threadgroup" in failed["wide"][1]
    assert cli.main(["sweep", "block_size", "--kernel", str(path), "--device", "h200"]) == 2
    assert "name an Apple GPU, as in --device m2max" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("left", "right", "word", "code"),
    [
        ("lanes", "online", "INCONCLUSIVE", 3),
        pytest.param("online", "online:threads=256", "SAME", 0, marks=pytest.mark.nightly),
        ("rows", "online", "No verdict", 2),
    ],
)
def test_two_operands_are_compared_without_a_mac(run, capsys, left, right, word, code):
    """By equal launches or by intervals, which overlap here; a Triton kernel is refused."""
    result, outcomes, page, _ = run(
        "compare", left, right, "--kernel", "softmax", "--device", "m2max", "--sizes", "M=64,N=128"
    )
    said = " ".join(capsys.readouterr().out.split())
    assert result == code and word in said and EMULATED in said
    assert "measured" not in said.lower() and "measured" not in page.lower()
    assert all(o.checked == "emulated" for o in outcomes if isinstance(o, Record))


def test_without_a_compiler_one_sentence_names_the_package(run, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("metal_shim.compiler.CANDIDATES", ())
    monkeypatch.setattr("metal_shim.compiler._zig", lambda: None)
    words = [*SOFTMAX, "M=64,N=128", "--out", str(tmp_path), "--database", "sqlite://"]
    assert cli.main(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "apt-get install clang-19" in said and "Traceback" not in said


def test_only_what_emulates_asks_for_a_compiler(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("metal_shim.compiler.CANDIDATES", ())
    monkeypatch.setattr("metal_shim.compiler._zig", lambda: None)
    place = ("--out", str(tmp_path), "--database", "sqlite://")
    expected = ("experiment", "expected", "--kernel", "copy", "--device", "m2max")
    assert cli.main([*expected, "--time", "40us", *place]) == 0 and cli.main(["devices"]) == 0
    capsys.readouterr()
    for words in (
        ("measure", "softmax", "--device", "m2max"),
        ("experiment", "lora_rank", "--device", "m2max"),
    ):
        assert cli.main([*words, *place]) == 2
        assert "apt-get install clang-19" in " ".join(capsys.readouterr().err.split())


@pytest.mark.nightly  # a fourth whole sweep, 2 s
def test_a_part_without_a_metal_impl_is_listed_and_the_terms_decide(run, capsys):
    words = ("experiment", "memory_vs_compute", "--kernel", "softmax", "--device", "m2max")
    code, outcomes, page, _ = run(*words, "--sizes", "M=16384,N=2048", "--dtype", "fp32")
    said = " ".join(capsys.readouterr().out.split())
    times = [o for o in outcomes if isinstance(o, Record)]
    assert code == 0 and len(times) == 3 and len(outcomes) == 5
    assert {o.checked for o in times} == {"emulated"}
    assert "softmax_traffic.rows is a Triton kernel, and Apple M2 Max runs Metal kernels" in said
    assert "predicted: memory-bound" in said and "arithmetic" in said
    assert "measured" not in said.lower() and "measured" not in page.lower()
    assert EMULATED in said and EMULATED[1:] in page.replace("&#39;", "'")
    assert "Traffic" in page and "Assumed" in page


@pytest.mark.nightly  # a third whole sweep, 3 s
def test_what_intervals_do_not_separate_is_not_ranked(run, capsys):
    words = ("experiment", "quantization_overhead", "--device", "m2max", "--sizes")
    code, outcomes, page, _ = run(*words, "M=1,N=256,K=256")
    said = " ".join(capsys.readouterr().out.split())
    assert code == 0 and "the model cannot tell" in said and "the model cannot tell" in page
    assert "calls on cached data are not predicted" in said
    assert "a library's own version has no prediction" in said
    assert "measured" not in said.lower() and "measured" not in page.lower()
    assert {o.case.backend for o in outcomes if isinstance(o, Record)} == {"metal"}


def test_an_experiment_that_needs_a_gpu_and_a_gate_refuse(capsys, tmp_path):
    place = ("--out", str(tmp_path), "--database", "sqlite://")
    assert cli.main(["experiment", "launch_overhead", "--device", "m2max", *place]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "launch_overhead needs a GPU" in said and "lora_rank" in said
    gate = ("gate", "HEAD", "--kernel", "softmax", "--device", "m2max", "--out", str(tmp_path))
    assert cli.main([*gate]) == 2
    assert "gate --device compares machine code" in " ".join(capsys.readouterr().err.split())
