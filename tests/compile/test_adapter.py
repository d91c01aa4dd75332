"""A user's function tuned for a GPU that is not here: three lines of the user's code, a winner."""

import importlib
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
from nightly import nightly

import workbench as wb
from workbench import tune
from workbench.adapted import autotuned
from workbench.adapted.call import word_numbers
from workbench.adapted.travel import AdaptedError
from workbench.adapted.write import numbers_of
from workbench.catalog import spec_of
from workbench.commands import tune_function as command
from workbench.commands.options import OptionError
from workbench.commands.tune import FunctionOptions
from workbench.compile import capture_launches, compile_config
from workbench.data.database import open_history
from workbench.data.record import Failure
from workbench.device.hardware import device_named
from workbench.spec import label

pytestmark = pytest.mark.compile

ROOT = Path(__file__).parents[2]
N = 1000
KERNELS = """
import triton
from nightly import nightly
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 256) for w in (1, 4)]


def fill(args):
    args["out_ptr"].fill_(3.0)


def pruned(configs, named, **kwargs):
    return [c for c in configs if c.num_warps == 4]


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i, i < n), tl.load(y_ptr + i, i < n)
    tl.store(out_ptr + i, x + y, i < n)


@triton.jit
def wrong(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i, i < n), tl.load(y_ptr + i, i < n)
    tl.store(out_ptr + i, x - y, i < n)


@triton.autotune(
    CONFIGS, key=["n"], reset_to_zero=["out_ptr"], prune_configs_by={"early_config_prune": pruned}
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def accumulated(x_ptr, out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + i, tl.load(x_ptr + i) if EVEN else tl.load(x_ptr + i, i < n), i < n)
"""


def cover(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A function that writes a user's module and imports it as a user would."""

    def module(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        names.append(name)
        return importlib.import_module(name)

    names = []
    yield module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def kernels(imported):
    """A user's module."""
    return imported("users_kernels", KERNELS)


def places(folder):
    return {"device": "h200", "out": folder / "results", "quiet": True,
            "database": f"sqlite:///{folder / 'history.db'}"}  # fmt: skip


def last(folder):
    with open_history(f"sqlite:///{folder / 'history.db'}") as history:
        return history.outcomes(history.run("last").id)


def test_a_jit_function_is_tuned_and_a_second_time_from_the_history(kernels, tmp_path):
    x, y, out = torch.randn(N), torch.randn(N), torch.full((N,), 7.0)
    reference = {"reference": lambda x, y, out, n: x + y}
    wanted = {"grid": cover, **places(tmp_path), **reference}
    best = tune(kernels.add, (x, y, out, N), configs=kernels.CONFIGS[:3], **wanted)
    assert best.config in kernels.CONFIGS and best.predicted and best.page.is_file()
    assert best.kwargs == best.config.all_kwargs()
    assert torch.equal(out, torch.full((N,), 7.0)), "the user's tensor is not written to"
    first = last(tmp_path)
    assert not any(isinstance(o, Failure) for o in first) and len(first) == 3
    again = tune(kernels.add, (x, y, out, N), configs=kernels.CONFIGS, **wanted)
    second = last(tmp_path)
    assert {o.key for o in first} < {o.key for o in second}, "a longer list asks for the new alone"
    assert again.kernel != best.kernel and again.page.is_file()


@nightly
def test_the_result_of_tuning_is_that_of_a_sweep(kernels, tmp_path):
    given = (torch.randn(N), torch.randn(N), torch.empty(N), N)
    result = tune(kernels.add, given, grid=cover, configs=kernels.CONFIGS, **places(tmp_path))
    assert isinstance(result, wb.SweepResult)
    assert dict(result.best.config).items() <= result.kwargs.items()
    assert len(result.frame()) == len(kernels.CONFIGS) and result.plot() is not None
    assert result.kernel.is_file() and result.checked and result.page.is_file()
    *_, last_line = str(result).splitlines()
    assert last_line.startswith(f"{result.kwargs}: ~") and "s predicted" in last_line
    assert result.sentence in repr(result) and " at 0x" not in repr(result) + str(result)
    assert result.sentence.split(":")[0] in result._repr_html_()


LISTED = """
import triton
import triton.language as tl


def touch(args):
    args["out_ptr"].fill_(0.0)


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, ROUNDS: tl.constexpr):
    for turn in range(1 if ROUNDS is None or ROUNDS == 1 else 3 if ROUNDS == "three" else 2):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x, y = tl.load(x_ptr + i, i < n), tl.load(y_ptr + i, i < n)
        tl.store(out_ptr + i, x + y, i < n)


CONFIGS = [
    triton.Config({"BLOCK": 64, "ROUNDS": "three"}, num_warps=1),
    triton.Config({"BLOCK": 64, "ROUNDS": "two"}, num_warps=1),
    triton.Config({"BLOCK": 64, "ROUNDS": None}, num_warps=1),
    triton.Config({"BLOCK": 64, "ROUNDS": None}, num_warps=1, maxnreg=16),
    triton.Config({"BLOCK": 64, "ROUNDS": None}, num_warps=1, pre_hook=touch),
]
"""


@pytest.fixture
def listed(imported):
    """A module whose configs have words, None, an option and a hook."""
    return imported("listed_kernels", LISTED)


NUMBERS = [triton.Config({"BLOCK": b, "ROUNDS": r}) for b in (64, 256) for r in (1, 2)]
ORDERS = ((0, 1, 2, 3), (0,), (1, 0, 1), (3, 2))


@pytest.mark.parametrize(
    ("configs", "orders"), [(NUMBERS, ORDERS), pytest.param(None, (*ORDERS, (4, 2)), marks=nightly)]
)
def test_one_of_the_configs_that_were_given_wins_whatever_was_tuned_before(
    listed, tmp_path, configs, orders
):
    """A second call with a part of the list once ended in ValueError, as the run of the whole list
    was shown again; and the time of another config was taken where only numbers were equal."""
    given = (torch.randn(N), torch.randn(N), torch.empty(N), N)
    wanted = {"grid": cover, "reference": lambda x, y, out, n: x + y, **places(tmp_path)}
    configs, binaries = configs or listed.CONFIGS, {}
    for order in orders:
        some = [configs[n] for n in order]
        result = tune(listed.add, given, configs=some, **wanted)
        assert any(result.config is config for config in some), order
        assert len(result.records) == len(set(order)), order
        numbers = numbers_of(some)
        for record in result.records:
            place = order[numbers.index(dict(record.case.config))]
            assert record.default == (place == order[0]), "the first is the default"
            binary = record.resources.binary
            assert binaries.setdefault(place, binary) == binary, (order, place)
    assert len({binaries[n] for n in range(4)}) == 4, "so that a mistaken one is seen"


@nightly  # 8 s; the day has the numbers of words themselves
def test_words_of_knobs_print_as_they_are_when_a_stored_run_is_shown_again(listed, tmp_path):
    given = (torch.randn(N), torch.randn(N), torch.empty(N), N)
    wanted = {"grid": cover, "reference": lambda x, y, out, n: x + y, **places(tmp_path)}
    first, again = (tune(listed.add, given, configs=listed.CONFIGS, **wanted) for _ in range(2))
    labels = [[r.case.label for r in result.records] for result in (first, again)]
    assert labels[0] == labels[1] and any("three" in label for label in labels[0])
    assert first.sentence == again.sentence


def test_a_reference_finds_what_agreement_does_not(kernels, tmp_path):
    given = (torch.randn(N), torch.randn(N), torch.empty(N), N)
    wanted = {"grid": cover, "configs": kernels.CONFIGS[:1], **places(tmp_path)}
    tune(kernels.wrong, given, **wanted)
    with pytest.raises(AdaptedError, match=r"wrong result.*report.html"):
        tune(kernels.wrong, given, reference=lambda x, y, out, n: x + y, **wanted)


def test_an_autotuned_function_gets_no_prediction_into_its_cache(kernels, tmp_path, monkeypatch):
    x, out = torch.randn(N), torch.randn(N)
    before = {**vars(kernels.accumulated)}
    best = tune(kernels.accumulated, (x, out, N), grid=cover, **places(tmp_path))
    assert not kernels.accumulated.cache and vars(kernels.accumulated) == before
    result = last(tmp_path)
    assert {o.case.config["num_warps"] for o in result} == {4}, "the others were pruned"
    assert not any(isinstance(o, Failure) for o in result)
    autotuned.remember(kernels.accumulated, ((x, out, N), {}), best.config)  # as if measured
    monkeypatch.setattr(kernels.accumulated, "_bench", lambda *_, **__: pytest.fail("tunes again"))
    with capture_launches(device_named("h200")) as launches:
        kernels.accumulated[cover](x, out, N)
    assert [launch.grid for launch in launches] == [cover({"n": N, **best.kwargs})]


@pytest.mark.parametrize("predicted", [False, True])
def test_only_a_measured_winner_is_kept(kernels, tmp_path, monkeypatch, predicted):
    config = kernels.CONFIGS[1]
    monkeypatch.setattr(command, "_sweep_kernel", lambda *_: (config, predicted))
    given = (torch.randn(N), torch.randn(N), N)
    command.tune(kernels.accumulated, given, grid=cover, **places(tmp_path))
    kept = {} if predicted else {(N, "torch.float32", "torch.float32"): config}
    assert kernels.accumulated.cache == kept


def test_a_pre_hook_travels_by_its_name(kernels, tmp_path):
    config = triton.Config({"BLOCK": 64}, pre_hook=kernels.fill)
    start = torch.zeros(N)
    best = tune(
        kernels.accumulated.fn, (torch.ones(N), start, N), grid=cover, configs=[config],
        reference=lambda x, out, n: x + 3, **places(tmp_path),
    )  # fmt: skip
    assert best.config is config
    lambdas = [triton.Config({"BLOCK": 64}, pre_hook=lambda args: None)]
    with pytest.raises(AdaptedError, match="top level"):
        tune(kernels.add, (start, start, start, N), grid=cover, configs=lambdas)


def test_it_compiles_as_the_real_launch_would(kernels, tmp_path):
    """A tensor at an odd address is loaded element by element, an aligned one by vectors."""
    device = device_named("h200")
    wide = {}
    for lead in (0, 1):
        x = torch.randn(N * 16 + lead)[lead:]
        given = (x, x.clone(), torch.empty(N * 16), N * 16)
        config = triton.Config({"BLOCK": 1024}, num_warps=4)
        best = tune(kernels.add, given, grid=cover, configs=[config], **places(tmp_path))
        spec = spec_of(str(best.kernel))
        impl = spec.impls[0]
        with capture_launches(device) as launches:
            kernels.add[cover](*given, **best.kwargs)
        created = compile_config(impl, impl.config(), spec.bench[0], "fp32", device)
        assert launches[0].kernel.asm["cubin"], "the user's own launch"
        wide[lead] = (created.resources.load_bits, launches[0].kernel.asm["ptx"].count("v4"))
    assert wide[0][0] == 128 and wide[0][1] > wide[1][1] > 0


SCRIPT = """
import torch, triton
import triton.language as tl
from workbench import tune

@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, i < n) * 2, i < n)

{guard}
    x, out = torch.randn(100), torch.empty(100)
    best = tune(double, (x, out, 100), grid=lambda meta: (triton.cdiv(100, meta["BLOCK"]),),
                configs=[triton.Config({{"BLOCK": 64}})], device="h200", quiet=True,
                database="sqlite:///history.db")
    print("best", best.config.kwargs)
"""


@pytest.mark.newest
@pytest.mark.nightly
@pytest.mark.parametrize("guard", ['if __name__ == "__main__":', "if True:"])
def test_a_script_of_its_own_needs_a_guard(tmp_path, guard):
    (tmp_path / "mine.py").write_text(SCRIPT.format(guard=guard))
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": ":".join([str(ROOT), *sys.path])},
    )  # fmt: skip
    if "name" in guard:
        assert done.returncode == 0, done.stderr
        assert "best {'BLOCK': 64}" in done.stdout
    else:
        assert "calls tune() as it is imported" in done.stderr.splitlines()[-1]


def test_options_are_known_by_name(kernels):
    with pytest.raises(AdaptedError, match="did you mean device"):
        tune(kernels.add, (), grid=(1,), devise="h200")
    with pytest.raises(AdaptedError, match="no configs to try"):
        tune(kernels.add, (torch.ones(1),), grid=(1,))


# Mistakes, each a sentence; and what the interpreter cannot run


GELU = """

@triton.jit
def gelu(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n).to(tl.float32)
    r = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
    tl.store(y + i, r.to(y.dtype.element_ty), i < n)


@triton.jit
def unmasked(x, y, n, BLOCK: tl.constexpr):
    i = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64) << 32
    tl.store(y + i, tl.load(x + i))


@triton.jit
def assembled(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [tl.load(x + i, i < n)], dtype=tl.float32,
        is_pure=True, pack=1,
    )
    tl.store(y + i, r, i < n)
"""


@pytest.fixture
def more(tmp_path, monkeypatch):
    """Another module of a user's."""
    (tmp_path / "more_kernels.py").write_text(KERNELS + GELU)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "more_kernels", raising=False)
    yield importlib.import_module("more_kernels")
    sys.modules.pop("more_kernels", None)


BLOCKS = [triton.Config({"BLOCK": 256})]


@pytest.mark.newest
@pytest.mark.parametrize(
    ("grid", "share"), [(lambda m: (1,), "6.25"), ((4,), "25")], ids=["one program", "four"]
)
def test_a_grid_that_covers_a_part_is_refused_though_the_output_holds_the_result(
    more, tmp_path, grid, share
):
    """Both won once, with exit code 0: what no program wrote still held the right values."""
    x = torch.randn(4096, dtype=torch.float16)
    y = torch.nn.functional.gelu(x)
    with pytest.raises(AdaptedError) as caught:
        tune(
            more.gelu, (x, y, 4096), grid=grid, configs=BLOCKS,
            reference=lambda x, y, n: torch.nn.functional.gelu(x), **places(tmp_path),
        )  # fmt: skip
    assert f"y is written in {share} % of its elements" in str(caught.value)
    assert "at n=4096" in str(caught.value), "sizes have the names of the user's arguments"


@pytest.mark.newest
def test_what_the_interpreter_cannot_run_is_predicted_and_marked(more, tmp_path):
    x = torch.rand(N) + 1
    quiet = {**places(tmp_path), "quiet": False}
    best = tune(more.assembled, (x, x.clone(), N), grid=cover, configs=BLOCKS, **quiet)
    assert best.predicted and not best.checked
    assert best.sentence.endswith("answer not checked here.")
    (record,) = last(tmp_path)
    assert record.checked == "not here" and record.error is None and record.bits is None
    assert "Answer not checked here" in best.page.read_text()
    assert "launching assembled in Triton's interpreter" in str(best)
    assert "Results are not checked here: " in str(best)


@pytest.mark.newest
def test_an_access_out_of_bounds_is_named(more, tmp_path):
    x = torch.rand(N)
    with pytest.raises(AdaptedError, match=r"out of bounds, far from all.*is a mask missing"):
        tune(more.unmasked, (x, x.clone(), N), grid=cover, configs=BLOCKS, **places(tmp_path))


def test_a_misspelt_knob_is_named(more, tmp_path):
    misspelt = [triton.Config({"BLOK": 64})]
    with pytest.raises(AdaptedError, match="for the knob 'BLOK'; did you mean BLOCK"):
        tune(more.gelu, (torch.rand(N), torch.rand(N), N), grid=cover, configs=misspelt)


def test_an_unknown_input_is_named(more, tmp_path):
    args = torch.rand(N), torch.rand(N), N
    with pytest.raises(AdaptedError, match="no tensor among the arguments of gelu 'z'"):
        tune(more.gelu, args, grid=cover, configs=BLOCKS, inputs=("z",), **places(tmp_path))


# Launches of real size, faults that only addresses show, and what the command line describes

LARGE = """
import triton
from nightly import nightly
import triton.language as tl


@triton.jit
def scaled(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None]
    inside = (m < M) & (n < N)
    tl.store(y + m * N + n, tl.load(x + m * N + n, inside) * 2, inside)


@triton.jit
def careless(x, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None]
    inside = (m < M) & (n < N) & ((m < M // 2) | (BM == 1))  # right for one row alone
    tl.store(y + m * N + n, tl.load(x + m * N + n, inside) * (2 if BM < 4 else 3), inside)


def zeroed(name):
    return lambda args: args[name].zero_()


@triton.autotune([triton.Config({"B": b}, pre_hook=zeroed("y")) for b in (64, 128)], key=["n"])
@triton.jit
def summed(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(y, tl.sum(tl.load(x + i, i < n, other=0.0)))


@triton.jit
def copied(x, y, B: tl.constexpr):
    i = tl.program_id(1) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i))


@triton.jit
def looked_up(table, at, y, D, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * B + tl.arange(0, B)
    tl.store(y + row * D + i, tl.load(table + tl.load(at + row) * D + i, i < D), i < D)
"""


@pytest.fixture
def large(imported):
    """A module of kernels for launches of thousands of programs."""
    return imported("large_kernels", LARGE)


def tiles(meta):
    return triton.cdiv(meta["M"], meta["BM"]), triton.cdiv(meta["N"], meta["BN"])


TILES = [triton.Config({"BM": m, "BN": 128}, num_warps=4) for m in (1, 2, 4)]


def test_a_launch_of_real_size_is_checked_on_some_of_its_programs(large, tmp_path):
    given = (torch.randn(4096, 1024).bfloat16(), torch.empty(4096, 1024).bfloat16(), 4096, 1024)
    best = tune(large.scaled, given, grid=tiles, configs=TILES, **places(tmp_path))
    records = {dict(o.case.config)["BM"]: o for o in last(tmp_path)}
    assert {m: r.resources.programs for m, r in records.items()} == {1: 32768, 2: 16384, 4: 8192}
    for record in records.values():
        assert record.checked == "interpreter" and record.error == 0.0
        assert 2 <= record.checked_programs <= 64
    record = best.best.record
    words = f"checked on {record.checked_programs} of {record.resources.programs:,} programs"
    assert words in best.sentence and "no race" in best.sentence


@pytest.mark.parametrize("rows", [4, 4096])  # few programs run as a whole, many in part
def test_only_the_rows_of_a_table_that_indices_name_are_bytes_of_a_launch(large, tmp_path, rows):
    """Of 32 MiB a fraction is read: the rate is that of these bytes."""
    table, at = torch.randn(1 << 16, 256).bfloat16(), torch.arange(rows) * 3 % (1 << 16)
    given = (table, at, torch.empty(rows, 256).bfloat16(), 256)
    configs = [triton.Config({"B": b}, num_warps=1) for b in (128, 256)]

    def grid(meta):
        return rows, triton.cdiv(meta["D"], meta["B"])

    best = tune(large.looked_up, given, grid=grid, configs=configs, **places(tmp_path))
    accessed = rows * (2 * 256 * 2 + 8)
    assert best.best.record.bytes == pytest.approx(accessed, rel=0.03)


@nightly  # 13 s; test_kernels_of_others has a config of each kind
def test_sampled_configs_that_write_less_or_other_values_are_refused(large, tmp_path):
    given = (torch.randn(4096, 1024), torch.empty(4096, 1024), 4096, 1024)
    best = tune(large.careless, given, grid=tiles, configs=TILES, **places(tmp_path))
    assert best.config is TILES[0]
    failed = {dict(o.case.config)["BM"]: o.reason for o in last(tmp_path) if isinstance(o, Failure)}
    assert set(failed) == {2, 4} and all("y is written in 50 %" in r for r in failed.values())
    whole = [triton.Config({"BM": 1, "BN": b}, num_warps=4) for b in (128, 256)]
    with pytest.raises(AdaptedError, match=r"2 gave a wrong result \(.*off by up to"):
        wrong = {"reference": lambda x, y, M, N: 2.01 * x}
        tune(large.careless, given, grid=tiles, configs=whole, **wrong, **places(tmp_path))


@nightly
def test_a_hook_that_a_function_returned_is_found_by_its_autotuner(large, tmp_path):
    given = (torch.ones(512), torch.full((1,), 3.0), 512)
    best = tune(
        large.summed, given, grid=lambda meta: (triton.cdiv(512, meta["B"]),),
        reference=lambda x, y, n: x.sum().reshape(1), **places(tmp_path),
    )  # fmt: skip
    assert best.config in large.summed.configs and best.checked


def test_a_grid_that_the_device_cannot_launch_is_refused_before_it_runs(large, tmp_path):
    given = (torch.empty(1 << 18), torch.empty(1 << 18))
    with pytest.raises(AdaptedError, match="at most 65535 programs along its second axis"):
        tune(
            large.copied, given, grid=lambda meta: (1, (1 << 18) // meta["B"]),
            configs=[triton.Config({"B": 2}, num_warps=1)], **places(tmp_path),
        )  # fmt: skip


def test_the_configs_of_another_functions_autotuner_are_taken(tmp_path, monkeypatch):
    (tmp_path / "others.py").write_text(KERNELS)
    monkeypatch.chdir(tmp_path)
    words = FunctionOptions("others.py:add", grid="cdiv(n, BLOCK)", config=("BLOCK=32",))
    *_, configs = command.described_launch(
        replace(words, config_from="others.py:accumulated"), words.function
    )
    assert [(c.kwargs["BLOCK"], c.num_warps) for c in configs] == [
        (32, 4), (64, 1), (64, 4), (256, 1), (256, 4),
    ]  # fmt: skip
    with pytest.raises(OptionError, match=r"others\.py:add has no @triton\.autotune"):
        command.described_launch(replace(words, config_from="others.py:add"), words.function)


def test_words_of_knobs_print_as_they_are(tmp_path):
    values = word_numbers({"P": 1, "WIDE": 0, "BLOCK": 1}, {"P": "tf32", "WIDE": False, "BLOCK": 1})
    assert label(values) == "P tf32, WIDE False, BLOCK 1"
    assert values == {"P": 1, "WIDE": 0, "BLOCK": 1} and json.dumps(values).count('"') == 6
    assert label(pickle.loads(pickle.dumps(values))) == label(values)


def test_the_command_line_describes_a_launch(large, tmp_path, monkeypatch, capsys):
    from workbench import cli

    monkeypatch.chdir(tmp_path)
    words = [
        "--arg",
        "x=fp32[64,128]",
        "--arg",
        "y=fp32[64,128]",
        "--arg",
        "M=64",
        "--arg",
        "N=128",
    ]
    words += ["--grid", "cdiv(M, BM), cdiv(N, BN)", "--config", "BM=4,BN=64,num_warps=2"]
    place = ["--device", "h200", "--database", f"sqlite:///{tmp_path / 'history.db'}", "--quiet"]
    assert cli.main(["tune", "large_kernels.py:scaled", *words, *place]) == 0
    assert (
        capsys.readouterr()
        .out.strip()
        .endswith("{'BM': 4, 'BN': 64, 'num_warps': 2, 'num_ctas': 1, 'num_stages': 3}")
    )
    (record,) = last(tmp_path)
    assert record.case.dtype == "fp32" and record.checked_programs == 32, "all of them"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["large_kernels.py:absent"], "has no absent at its top level"),
        (["absent.py:scaled"], "is not FILE.py:FUNCTION of a file that is there"),
        (["large_kernels.py:scaled"], "Name the grid"),
        (["large_kernels.py:scaled", "--grid", "cdiv(M,"], "cannot be read"),
        (["large_kernels.py:scaled", "--grid", "1", "--arg", "z=1"], "Known: BM, BN, M, N, x, y"),
        (["large_kernels.py:scaled", "--grid", "1", "--arg", "x=fp33[4]"], "did you mean fp32"),
        (["large_kernels.py:scaled", "--grid", "1", "--arg", "x=[]]"], "neither a tensor"),
        (["large_kernels.py:scaled", "--grid", "1", "--config", "BM"], "is not NAME=VALUE"),
    ],
)
def test_words_that_describe_no_launch_are_refused(
    large, tmp_path, monkeypatch, capsys, words, reason
):
    from workbench import cli

    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", *words]) == 2
    assert reason in capsys.readouterr().err


def test_a_mask_that_is_missing_at_the_end_of_a_large_launch_is_found_at_once(large, tmp_path):
    """Only the last of 32,768 programs reads past the end; the launch of all of them takes long."""
    given = (torch.empty(1, (1 << 20) - 3), torch.empty(1, 1 << 20), 1, 1 << 20)
    configs = [triton.Config({"BM": 1, "BN": 32}, num_warps=1)]
    with pytest.raises(AdaptedError, match=r"out of bounds: element 1,048,573 of x, .* 32,767"):
        tune(large.scaled, given, grid=tiles, configs=configs, **places(tmp_path))
