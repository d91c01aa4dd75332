"""MLX programs run unchanged: `python -m metal_shim.check --mlx`, and pytest's `--metal-check`."""

import importlib.util
import textwrap

import pytest

from metal_shim import check
from metal_shim.emulate import CheckName, LaunchRejected

mx = pytest.importorskip("mlx.core", reason="pip install 'mlx[cpu]', or the extra metal-test")
import mlx_programs  # noqa: E402

from metal_shim.mlx_program import check_program, checked_program  # noqa: E402

pytest_plugins = "pytester"

SWAPPED = textwrap.dedent('''\
    import mlx.core as mx

    assert mx.metal.is_available() and mx.default_device() == mx.gpu

    SWAP = mx.fast.metal_kernel(
        name="swap", input_names=["x"], output_names=["y"],
        source="""
            threadgroup float s[64];
            uint at = thread_position_in_threadgroup.x;
            s[at] = x[at];
            y[at] = s[63 - at];
        """,
    )

    def swapped(x):
        return SWAP(
            inputs=[x], grid=(64, 1, 1), threadgroup=(64, 1, 1),
            output_shapes=[x.shape], output_dtypes=[x.dtype],
        )[0]

''')


def kernel(source, inputs="x", outputs="y", **more):
    return mx.fast.metal_kernel(
        name="k", input_names=inputs.split(), output_names=outputs.split(), source=source, **more
    )


def launched(made, *inputs, shape=(8,), dtype=mx.float32, threads=8, **more):
    (y,) = made(
        inputs=list(inputs), grid=(threads, 1, 1), threadgroup=(threads, 1, 1),
        output_shapes=[shape], output_dtypes=[dtype], **more,
    )  # fmt: skip
    return y


def test_a_race_of_a_program_has_the_lines_of_the_kernel_and_of_the_call(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text(SWAPPED + "print(len(swapped(mx.arange(64.0)).tolist()))\n")
    assert check_program([str(program)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("64\n1 Metal kernel, 1 launch emulated on a CPU; Apple's compiler")
    assert "racecheck  1 finding\n" in printed and "memcheck   0 findings\n" in printed
    # the other access: thread 63 reads s[0] in line 11 of the file, in line 5 of the source
    assert "program.py:10: swap, line 4 (`s[at] = x[at];`): race on threadgroup memory s" in printed
    assert "(line 5)" in printed and "; launched at program.py:16" in printed
    assert "never launched" not in printed and mx.fast.metal_kernel.__name__ == "metal_kernel"


def test_a_program_that_fails_or_launches_nothing_is_2(tmp_path, capsys):
    program = tmp_path / "program.py"
    for text, says in (
        ("raise ValueError('x')", "ended with ValueError"),
        ("import sys; sys.exit(3)", "ended with exit code 3"),
        ("import sys; assert sys.argv[1:] == ['--epochs', '2']", "0 Metal kernels, 0 launches"),
    ):
        program.write_text(text)
        assert check.main(["--mlx", str(program), "--epochs", "2"]) == 2
        assert says in capsys.readouterr().out
    for words, says in (
        (["--mlx"], "name a program"),
        (["--mlx", "-m"], "name a program"),
        (["--mlx", str(tmp_path / "other.py")], "does not exist"),
    ):
        assert check.main(words) == 2
        assert says in capsys.readouterr().err


def test_values_strides_and_start_values_are_those_of_mlx():
    with checked_program() as report:
        gather = kernel(
            """
            uint at = thread_position_in_grid.x;
            y[at] = T(2) * x[elem_to_loc(at, x_shape, x_strides, x_ndim)];
            """,
            ensure_row_contiguous=False,
        )
        x = mx.arange(8.0).reshape(2, 4)
        for dtype in (mx.float32, mx.bfloat16):
            template = [("T", dtype)]
            turned = x.astype(dtype).T
            y = launched(gather, turned, shape=(4, 2), dtype=dtype, template=template)
            assert y.dtype == dtype and y.tolist() == (2 * x.T).tolist()
        row = mx.broadcast_to(mx.array([1.0, 2.0]), (4, 2))
        y = launched(gather, row, shape=(4, 2), template=[("T", mx.float32)])
        assert y.tolist() == [[2, 4]] * 4
        add = kernel(
            "atomic_fetch_add_explicit(&y[x[thread_position_in_grid.x]], 1, memory_order_relaxed);",
            atomic_outputs=True,
        )
        x = mx.array([0, 1, 1, 2, 2, 2, 0, 2], dtype=mx.uint32)
        assert launched(add, x, shape=(4,), init_value=3).tolist() == [5, 5, 7, 3]
        scalar = kernel("y[thread_position_in_grid.x] = x;")
        assert launched(scalar, 1.5).tolist() == [1.5] * 8
    assert not report.findings
    # four runs for each kind of launch: two dtypes and a broadcast row; each its 32-byte sectors
    assert [(k.launches, k.runs, k.sectors > 0) for k in report.kernels] == [
        (3, 12, True), (1, 4, True), (1, 4, True),
    ]  # fmt: skip


def test_a_kind_of_launch_is_checked_in_four_schedules_once():
    with checked_program() as report:
        made = kernel("y[thread_position_in_grid.x] = x[thread_position_in_grid.x];")
        for number in range(3):
            assert launched(made, mx.full((8,), number)).tolist() == [number] * 8
        made(
            inputs=[mx.ones((8,))], grid=(8, 1, 1), threadgroup=(256, 1, 1),
            output_shapes=[(8,)], output_dtypes=[mx.float32],
        )  # fmt: skip
    (entry,) = report.kernels
    assert (entry.launches, entry.runs) == (4, 4 + 1 + 1 + 4)
    assert entry.notes == {"a threadgroup of 256x1x1 is cut to 8x1x1, the grid"}
    # 8 floats read and 8 written are a sector each
    assert entry.sectors == 4 * 2


def test_a_custom_kernel_has_no_gradient_but_its_function_may():
    def doubled(x):
        return launched(
            kernel("y[thread_position_in_grid.x] = 2 * x[thread_position_in_grid.x];"), x
        )

    own = mx.custom_function(doubled)
    own.vjp(lambda given, cotangent, _: 2 * cotangent)
    with checked_program():
        with pytest.raises(ValueError, match="no gradient of the custom kernel k"):
            mx.grad(lambda x: doubled(x).sum())(mx.ones((8,)))
        assert mx.grad(lambda x: own(x).sum())(mx.ones((8,))).tolist() == [2] * 8
        assert mx.compile(own)(mx.ones((8,))).tolist() == [2] * 8


def test_after_a_finding_that_ends_a_run_the_program_gets_zeros():
    with checked_program() as report:
        made = kernel("y[thread_position_in_grid.x] = x[thread_position_in_grid.x + 1];")
        assert launched(made, mx.ones((8,))).tolist() == [0] * 8
        unwritten = kernel(
            "if (thread_position_in_grid.x < 4) y[thread_position_in_grid.x] = x[0];"
        )
        assert launched(unwritten, mx.ones((8,))).tolist()[:4] == [1] * 4
        with pytest.raises(LaunchRejected, match="complex64, the dtype of x"):
            launched(made, mx.zeros((8,), dtype=mx.complex64))
    outside, output = report.findings
    assert "outside device memory x: at index 8 of 8" in str(outside)
    assert "output y[4] was never written" in str(output)
    assert report.refusals[0].startswith("k: the emulator does not support mlx.core.complex64")


def test_the_plugin_fails_the_test_that_launched_a_race(pytester):
    pytester.makepyfile(
        SWAPPED
        + textwrap.dedent("""\
    def test_races():
        swapped(mx.arange(64.0))

    def test_nothing():
        pass
    """)
    )
    result = pytester.runpytest_inprocess("-p", "metal_shim.pytest_plugin", "--metal-check")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*swap, line 4 (`s[[]at] = x[[]at];`): race on threadgroup memory s*launched at *",
         "racecheck  1 finding"]
    )  # fmt: skip


# Kernels, launches, sectors and races of each program; see `mlx_programs.py`
PROGRAMS = {
    "recurrence": (6, 9, 0),
    "rwkv": (3, 4, 0),
    "turboquant": (1, 1, 0),
    "losses": (2, 3, 2),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_another_project_runs_unchanged(name, capsys):
    if importlib.util.find_spec(mlx_programs.PACKAGES[name]) is None:
        pytest.skip(f"{mlx_programs.PACKAGES[name]} is not installed; mlx_programs.py says how")
    with checked_program() as report:
        mx.random.seed(0)
        getattr(mlx_programs, name)()
    assert not report.refusals
    launched = [kernel for kernel in report.kernels if kernel.launches]
    launches = sum(kernel.launches for kernel in launched)
    kinds = {f.finding.kernel for f in report.findings}
    assert (len(launched), launches, len(kinds)) == PROGRAMS[name], list(report.lines())
    assert {f.finding.check for f in report.findings} <= {CheckName.RACECHECK}
