"""Commands on a Mac, rehearsed: the backend is that of a Mac, on a clock of its own, and what the
calls are said to take follows from their bytes and FLOPs. No GPU takes part."""

import subprocess
from dataclasses import dataclass

import pytest

from metal_shim.rehearsal import REHEARSED, RehearsalCall, RehearsalDriver, SameProcess
from workbench.backend.metal.metal import MetalLive
from workbench.commands.ceilings import CeilingsOptions
from workbench.commands.ceilings_command import CeilingsCommand
from workbench.commands.console import console_for
from workbench.commands.experiment import ExperimentOptions
from workbench.commands.experiment_command import ExperimentCommand
from workbench.commands.gate import GateOptions
from workbench.commands.gate_command import GateCommand
from workbench.commands.measure import MeasureOptions
from workbench.commands.measure_command import MeasureCommand
from workbench.commands.options import CommandError
from workbench.data.database import open_history
from workbench.data.record import Record
from workbench.experiments import (
    Context,
    ExperimentError,
    Variant,
    VariantResult,
    intensity,
    lora_rank,
    memory_vs_compute,
)
from workbench.experiments.analysis import ceilings
from workbench.measurement import metal_worker

RATE, PEAK = 3.6e11, 1.2e13  # 0.9 of the bandwidth and 0.88 of the peak that an M2 Max is stated


@dataclass
class RoofDriver(RehearsalDriver):
    """Each call takes what its bytes and FLOPs take at these rates."""

    slower: float = 1.0

    def prepare(self, impl, config, inputs, cold_bytes):
        spec, sizes = impl.spec, {}
        for x, tensor in zip(inputs, spec.inputs.values(), strict=True):
            named = zip(tensor.axes.split(), x.shape, strict=True)
            sizes |= {axis: extent for axis, extent in named if axis in spec.axes}
        dtype = {4: "fp32", 2: "fp16"}[inputs[0].element_size()]
        bytes_, flops = spec.bytes(sizes, dtype), spec.flops(**sizes)
        call_s = self.slower * max(bytes_ / RATE, flops / PEAK)
        return RehearsalCall(self, call_s, f"{impl.title} {spec.name}")


def backend_of(driver=None):
    return MetalLive(None, mac=REHEARSED, driver=driver or RoofDriver(), process=SameProcess())


@pytest.fixture(autouse=True)
def at_the_sizes_to_check_alone(monkeypatch):
    """The emulator is slow at the sizes to time."""
    monkeypatch.setattr(metal_worker, "CHECKED_BYTES", 0)
    monkeypatch.setattr(metal_worker, "_results", {})


@dataclass
class Place:
    folder: object

    @property
    def given(self):
        url = f"sqlite:///{self.folder / 'history.db'}"
        return {"out": self.folder / "out", "database": url}

    def ceilings(self, driver=None):
        options = CeilingsOptions(**self.given)
        return CeilingsCommand(options, console_for(options), lambda: backend_of(driver)).go()

    def measure(self, kernel, sizes):
        options = MeasureOptions(kernel, impl=("simd_rows",), sizes=(sizes,), dtype=("fp32",),
                                 **self.given)  # fmt: skip
        opener = lambda device, folder: backend_of()  # noqa: E731
        return MeasureCommand(options, console_for(options), opener, self.folder / "tuned").go()

    def experiment(self, name, **more):
        """Run an experiment; returns its run with the outcomes and findings."""
        options = ExperimentOptions(name, **more, **self.given)
        opener = lambda device, folder: backend_of()  # noqa: E731
        command = ExperimentCommand(options, console_for(options), opener, self.folder / "tuned")
        assert command.go() == 0
        return command.recorder

    def runs(self, engine):
        with open_history(self.given["database"]) as history:
            return [history.run(run.id) for run in history.runs(engine=engine)]

    def page(self, name):
        (page,) = (self.folder / "out").glob(f"*{name}*/*.html")
        return page.read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which the ceilings of a Mac were measured."""
    place = Place(tmp_path_factory.mktemp("mac"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metal_worker, "CHECKED_BYTES", 0)
        assert place.ceilings() == 0
    return place


def test_ceilings_of_a_mac_are_measured_stored_and_used(place, capsys):
    (run,) = place.runs("ceilings")
    assert run.device == "m2max" and not run.predicted
    values = {name: c["value"] for name, c in ceilings.usable(run.ceilings).items()}
    assert values == {
        "dram_read_measured": pytest.approx(RATE, rel=0.01),
        "dram_copy_measured": pytest.approx(RATE, rel=0.01),
        "compute_fp32_measured": pytest.approx(PEAK, rel=0.01),
    }
    page = place.page("ceilings")
    assert "SM clock" not in page and "read_only.simd_chunks" in page
    assert "host to device" not in page
    assert place.measure("softmax", "M=1024,N=1024") == 0
    (after,) = place.runs("measure")
    assert ceilings.usable(after.ceilings) == ceilings.usable(run.ceilings)


def test_a_rate_above_what_is_stated_is_no_ceiling_of_a_mac(tmp_path):
    """Times below the roofline bound of a stated bandwidth are refused; a computed peak bounds no
    time, but it bounds the ceiling."""
    place = Place(tmp_path)
    assert place.ceilings(RoofDriver(slower=0.4)) == 2
    (run,) = place.runs("ceilings")
    assert not ceilings.usable(run.ceilings)
    reasons = {name: c["reason"] for name, c in run.ceilings.items() if "reason" in c}
    for name in ("dram_read_measured", "dram_copy_measured"):
        assert "below the roofline bound" in reasons[name]
    assert "more than 1.05 cannot be" in reasons["compute_fp32_measured"]


def all_measured(recorder):
    """Whether each time of a run was measured on the clock of the rehearsal, and none predicted."""
    times = [o for o in recorder.outcomes if isinstance(o, Record)]
    return times and all(o.is_measured and o.timing.method == "eval" for o in times)


@pytest.mark.parametrize(
    ("kernel", "sizes", "word", "ceiling"),
    [("read_only", "N=4194304", "memory-bound", "of measured DRAM"),
     ("compute_only", "N=1048576", "compute-bound", "of measured fp32 arithmetic")],
)  # fmt: skip
def test_memory_vs_compute_on_a_mac_has_its_ceilings(place, kernel, sizes, word, ceiling):
    recorder = place.experiment("memory_vs_compute", kernel=kernel, dtype="fp32", sizes=sizes)
    (finding,) = recorder.findings
    assert all_measured(recorder) and finding.word == word and ceiling in finding.sentence
    least = {row.name: row.value for row in finding.evidence if "at its ceiling" in row.name}
    (record,) = (o for o in recorder.outcomes if isinstance(o, Record))
    assert max(least.values()) == pytest.approx(record.time_s, rel=0.02)
    context = Context(kernel, None, "fp32", backend_of().device, predicts=False)
    variant = Variant("whole: x", kernel, record.case.impl, {}, "fp32")
    (without,) = memory_vs_compute.analyse(context, {"whole: x": VariantResult(variant, record)})
    assert "No ceiling was measured on this Mac" in without.caveats[0]


@pytest.mark.nightly
def test_quantization_overhead_on_a_mac_has_mlx_beside_it(tmp_path):
    recorder = Place(tmp_path).experiment("quantization_overhead", sizes="M=1,N=4096,K=2048")
    (finding,) = recorder.findings
    assert all_measured(recorder) and finding.word == "faster"
    assert "matvec.mlx" in " ".join(finding.caveats) and "torch" not in " ".join(finding.caveats)
    (overhead,) = [row for row in finding.evidence
                   if row.name.startswith("overhead") and row.group == "cold calls"]  # fmt: skip
    assert overhead.kind == "measured" and overhead.value == pytest.approx(-0.72, abs=0.01)


def test_the_knee_of_a_mac_is_where_its_ceilings_meet(tmp_path, monkeypatch):
    monkeypatch.setattr(intensity, "ELEMENTS", 1 << 20)
    recorder = Place(tmp_path).experiment("intensity")
    (finding,) = recorder.findings
    knee = float(finding.word.removeprefix("knee at ").removesuffix(" FLOP/B"))
    assert all_measured(recorder) and knee == pytest.approx(PEAK / RATE, rel=0.05)


@pytest.mark.nightly
def test_lora_rank_on_a_mac_has_mlx_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(lora_rank, "RANKS", (4, 64))
    at = {"kernel": "lora", "sizes": "M=64,K=1024,N=1024,r=4"}
    recorder = Place(tmp_path).experiment("lora_rank", **at)
    (finding,) = recorder.findings
    assert all_measured(recorder) and finding.word == "flat in rank"
    impls = {o.case.impl for o in recorder.outcomes}
    assert "mlx" in impls and "torch" not in impls


@pytest.mark.parametrize("name", ["launch_overhead", "cpu_vs_gpu", "tile_size"])
def test_other_experiments_are_refused_on_a_mac(tmp_path, name):
    with pytest.raises(ExperimentError, match=r"one of .*lora_rank") as raised:
        Place(tmp_path).experiment(name)
    assert name in str(raised.value)


OWN = '''
"""double: y = 2 x, by a Metal kernel."""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from workbench.spec import Spec, Tensor, threads

ELEMENTS = metal_kernel(
    "double_elements",
    inputs="x",
    outputs="y",
    body="""
    const uint i = thread_position_in_grid.x;
    y[i] = T(2 * float(x[i]));
""",
)
double = Spec(
    name="double",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=lambda x: 2 * x,
    flops=lambda N: N,
    check=[{"N": 1}, {"N": 200}],
    bench=[{"N": 4194304}],
)


@dataclass(frozen=True)
class Elements:
    threads: int = threads(32, 64, default=32)


@double.impl(Elements, backend="metal")
def elements(x, *, config):
    return ELEMENTS(x, like=x, grid=(x.shape[0], 1, 1), group=config.threads, T=x.dtype)
'''


@dataclass
class ConfigDriver(RoofDriver):
    """Threadgroups of 64 take a fifth longer."""

    def prepare(self, impl, config, inputs, cold_bytes):
        call = super().prepare(impl, config, inputs, cold_bytes)
        return RehearsalCall(self, call.call_s * (1.2 if config.threads == 64 else 1.0), call.name)


@pytest.mark.parametrize(("default", "word", "code"), [(32, "SAME", 0), (64, "SLOW", 1)])
def test_gate_on_a_mac_compares_a_file_with_its_baseline(tmp_path, capsys, default, word, code):
    """Of the user's own repository: the default config of the work tree against that of HEAD."""
    path = tmp_path / "repository" / "double.py"
    path.parent.mkdir()
    path.write_text(OWN)
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*name, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=path.parent, check=True)
    path.write_text(OWN.replace("default=32", f"default={default}"))
    options = GateOptions("HEAD", kernel=(str(path),), dtype="fp32", **Place(tmp_path).given)
    opener = lambda device, folder: backend_of(ConfigDriver())  # noqa: E731
    assert GateCommand(options, console_for(options), opener).go() == code
    assert word in capsys.readouterr().out


def test_gate_on_a_mac_names_the_command_for_a_built_in_kernel(tmp_path):
    options = GateOptions("HEAD", kernel=("softmax",), **Place(tmp_path).given)
    command = GateCommand(options, console_for(options), lambda device, folder: backend_of())
    with pytest.raises(CommandError, match=r"workbench compare LEFT RIGHT --kernel softmax"):
        command.go()
