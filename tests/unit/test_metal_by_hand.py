"""Metal's texts, launches and replies with two of everything, each result by hand."""

import struct
from dataclasses import replace
from threading import Lock
from types import SimpleNamespace

import pytest
import torch

from metal_shim import check, compiler, emulate, host, launches, whole
from metal_shim.emulate import (
    CheckName,
    EmulatedTraffic,
    EmulationOptions,
    LaunchRejected,
    MetalLaunch,
)
from metal_shim.kernel import _check, metal_kernel
from metal_shim.launches import HeldRows, refuse_uneven
from metal_shim.lint import findings
from metal_shim.signature import ArrayType, MetalCall, MetalSource, parameters
from workbench.data.record import BufferCounts

pytestmark = pytest.mark.unit


def said(header="", body="", inputs=("x",), outputs=("y",)):
    """Return each finding as its text."""
    return [str(f) for f in findings(MetalSource("k", inputs, outputs, body, header), ("T",))]


NEEDS = "needs device, constant, threadgroup or thread before it"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("float* a; T& b; half* c;", ["float *", "T &", "half *"]),
        ("float** a;", ["float *"]),  # the second star points to a pointer
        ("vec<T, 4>* a; array<vec<float, 2>, 3>& b;", ["vec < T , 4 > *",
                                                      "array < vec < float , 2 > , 3 > &"]),
        ("float const* a;", ["float const *"]),
        ("a * b; sizeof(float) * 3; this * b; n & 1; x && y; w < 3 > *b;", []),
        ("device float* a; float* b;", ["float *"]),
        ("device const float* a, float* b;", ["float *"]),  # a space ends at the comma
        ("device T a = T(1); f(float* b);", ["float *"]),
        ("device T a; (float*)b; <float*>; {float& c}", ["float *", "float *", "float &"]),
        ("thread float& a; threadgroup half* b; constant T* c;", []),
        ("; > * a; } > * b", []),
    ],
)  # fmt: skip
def test_each_pointer_without_an_address_space_is_named(body, names):
    assert said(body=body) == [f"line 1: `{name}` {NEEDS}" for name in names]


def test_recursion_is_found_through_several_functions_and_not_among_overloads():
    header = (
        "int a(int n) { return b(n) + d(n); }\nint b(int n) { return c(n); }\n"
        "int c(int n) { return a(n); }\nint d(int n) const { return e(n); }\n"
        "int e(int n) { return 1; }\nint o(int n) { return o(1.0f); }\nint o(float n) { return 1; }"
        "\nint z(int n) { if (n) { return z(n - 1); } return 2; }"
    )
    calls = "calls itself; Metal does not support recursion"
    assert said(header) == [f"header line {n}: {name} {calls}" for n, name in
                            ((1, "a"), (2, "b"), (3, "c"), (8, "z"))]  # fmt: skip


def test_words_and_attributes_that_metal_lacks_are_all_named_with_their_lines():
    body = (
        "double a; std::max(1, 2); std + 1;\n"
        "static int b; static constexpr int c = 1; static constant int d = 2; "
        "static inline int e;\n"
        "// goto\ngoto f; /* new\nnew */ delete g; [[likely]] [[unroll]] [[odd]]"
    )
    assert said("static int s; static constexpr int t = 1; try", body) == [
        "header line 1: Metal has no `try`", "line 5: [[likely]] is not a Metal attribute",
        "line 5: [[odd]] is not a Metal attribute", "line 1: Metal has no `double`",
        "line 1: Metal has no `std::`", "line 2: Metal has no `static`",
        "line 4: Metal has no `goto`", "line 5: Metal has no `delete`",
    ]  # fmt: skip


def test_threadgroup_memory_and_mlx_names_in_a_header_are_named():
    header = (
        "threadgroup float a[4];\nthreadgroup half b = 1;\nthreadgroup T c;\n"
        "threadgroup float* d;\nthreadgroup Mine e;\nvoid f(threadgroup float& g);\n"
        "thread_index_in_simdgroup;\n[[thread_index_in_simdgroup]];\nx_shape; y_shape; z_ndim;"
    )
    memory = "is threadgroup memory; declare it in the body"
    add = "MLX adds {} only if the body names it; pass it as an argument"
    assert said(header, inputs=("x", "z")) == [
        *(f"header line {n}: `{name}` {memory}" for n, name in ((1, "a"), (2, "b"), (3, "c"))),
        "header line 7: MLX adds thread_index_in_simdgroup only to the body; pass it as an "
        "argument",
        f"header line 9: {add.format('x_shape')}", f"header line 9: {add.format('z_ndim')}",
    ]  # fmt: skip
    assert not said(body=header.replace("d;", "d = q;").replace("x_shape", "y"))


BARRIER = "threadgroup_barrier(mem_flags::mem_none)"


def test_atomics_and_names_of_arrays_are_all_looked_at():
    body = "atomic<half> a; atomic<uint> b; atomic<Mine> c; atomic_char d; atomic_uint e; atomic 1"
    assert said(body=body) == [
        "line 1: Metal has no atomic half",
        "line 1: Metal has no atomic char",
    ]
    assert said(body="\n;", inputs=("a", "b", "grid_size"), outputs=("c", "b")) == [
        "line 2: an array has the name of the attribute grid_size",
        "line 2: two arrays are called b",
    ]


# Launches


def call_of(*shapes, template=None, dtype="fp32", body="y[0] = x[0];", header=""):
    arrays = [ArrayType(shape, dtype) for shape in shapes]
    names = tuple(f"x{n}" for n in range(len(arrays) - 1))
    source = MetalSource("k", names, ("y",), body, header)
    return MetalCall(source, tuple(arrays[:-1]), tuple(arrays[-1:]), template or {})


@pytest.mark.parametrize(
    ("grid", "group", "shape", "words"),
    [
        ((1024, 1, 1), (1024, 1, 1), (4,), None),
        ((2048, 2, 1), (1024, 1, 1), (4,), None),
        ((1025, 1, 1), (1025, 1, 1), (4,), "k: 1025 threads in a threadgroup; Metal allows"),
        ((8, 1, 1), (4096, 1, 1), (4,), None),  # MLX launches the threads of the grid
        ((1, 1, 1), (1, 1, 1), (4,), None),
        ((0, 1, 1), (1, 1, 1), (4,), "k: grid (0, 1, 1) and group (1, 1, 1) must be at least 1"),
        ((8, 1, 1), (8, 0, 1), (4,), "must be at least 1"),
        (((1 << 32) - 1, 1, 1), (1, 1, 1), (4,), None),
        ((1, 1 << 32, 1), (1, 1, 1), (4,), "has 2^32 threads or more"),
        ((1, 1, 1), (1, 1, 1), (4, 0), "does not launch a kernel with an empty array"),
    ],
)
def test_a_launch_that_no_gpu_takes_is_refused(grid, group, shape, words):
    for shapes in ((shape, (4,)), ((4,), shape)):
        launch = MetalLaunch(call_of(*shapes), (), grid, group)
        if words is None:
            emulate.reject_launch(launch)
            continue
        with pytest.raises(LaunchRejected) as error:
            emulate.reject_launch(launch)
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("grid", "group", "floats", "refusal", "threadgroups"),
    [
        ((64, 1, 1), (32, 1, 1), 8192, None, 2),
        ((65, 3, 1), (32, 2, 1), 8192, None, 6),
        ((64, 1, 1), (32, 1, 1), 8193, "32772 bytes of threadgroup memory; a threadgroup has 32768",
         2),
        ((64, 1, 1), (33, 1, 1), 1, "33 threads are not a multiple of 32, a SIMD-group's", 2),
        ((33, 1, 1), (33, 1, 1), 1, None, 1),  # the whole grid is one threadgroup
    ],
)  # fmt: skip
def test_a_planned_launch_says_what_it_needs(grid, group, floats, refusal, threadgroups):
    call = call_of((4,), (4,), body=f"threadgroup float s[{floats}];")
    launch = MetalLaunch(call, (), grid, group)
    assert launch.refusal() == refusal and launch.threadgroups == threadgroups
    assert launch.threadgroup_bytes == 4 * floats
    kernel = metal_kernel("k", inputs="x", outputs="y", body=f"threadgroup float s[{floats}];")
    assert kernel.refuse_threadgroup() == (refusal if floats > 8192 else None)


def test_threadgroup_memory_is_the_sum_of_all_declarations():
    """12 float, 2 of each of 3 half4, 5 uchar3 of 4 bytes, and one number: 48 + 48 + 20 + 4."""
    body = (
        "constexpr int A = 2, B = A * 3; constexpr uint C = B % 4 + 8 / 4 - 1;\n"
        "threadgroup float s[A * B]; threadgroup half4 t[2][C]; // threadgroup float u[9];\n"
        "threadgroup uchar3 v[5]; threadgroup T w; threadgroup float* p;"
    )
    source = MetalSource("k", (), (), body)
    assert host.threadgroup_bytes(source, {"T": "fp32"}) == 120
    assert host.threadgroup_bytes(source, {"T": "bf16", "N": 7}) == 118
    for wrong in ("Mine s[2];", "float s[x];", "float s[1 / 0];", "float s[1.5];", "Mine2 s;"):
        with pytest.raises(ValueError, match=r"unknown|not arithmetic"):
            host.threadgroup_bytes(MetalSource("k", (), (), f"threadgroup {wrong}"), {})


@pytest.mark.parametrize(
    ("words", "value"),
    [("7 + 2", 9), ("7 - 2", 5), ("7 * 2", 14), ("7 / 2", 3), ("7 % 4", 3), ("N", 5)],
)
def test_extents_are_arithmetic(words, value):
    assert host._evaluate(words, {"N": 5}) == value


@pytest.mark.parametrize(
    ("N", "threads", "values"),
    [(1, 256, 4), (1024, 256, 4), (1025, 256, 8), (2048, 256, 8), (2049, 256, 16), (4096, 256, 16),
     (4097, 512, 16), (8192, 512, 16), (16_384, 1024, 16), (16_385, 1024, 32), (32_768, 1024, 32),
     (40_000, 1024, 32)],
)  # fmt: skip
def test_a_row_is_held_by_the_fewest_threads(N, threads, values):
    config = launches.size_rows(HeldRows(), None, itemsize=4, M=1, N=N)
    assert (config.threads, config.values) == (threads, values)
    refused = launches.refuse_rows(config, None, itemsize=4, M=1, N=N)
    assert refused == (f"the threads hold 32768 values, but a row has {N}" if N > 32_768 else None)
    assert launches.reject_rows(N, N) is None and launches.reject_rows(N - 1, N) is not None
    own = launches.size_rows(HeldRows(threads=32), None, itemsize=4, M=1, N=256)
    assert (own.threads, own.values) == (32, 8)


def test_blocks_are_shared_in_parts_of_eight():
    block = SimpleNamespace(block_m=32, block_n=32, simd_m=4, simd_n=2)
    assert refuse_uneven(block) is None
    block.simd_n = 3
    assert refuse_uneven(block) == "block_n = 32 is not a multiple of 8 x 3 SIMD-groups"
    block.block_m = 40
    assert refuse_uneven(block) == "block_m = 40 is not a multiple of 8 x 4 SIMD-groups"


def test_an_input_of_fewer_than_eight_elements_is_constant():
    call = call_of((7,), (8,), (2, 4), (), (2,), body="x0_shape x2_strides x2_ndim")
    assert [(p.declaration, p.name) for p in parameters(call)] == [
        ("const constant float*", "x0"), ("const constant int*", "x0_shape"),
        ("const device float*", "x1"), ("const device float*", "x2"),
        ("const constant int64_t*", "x2_strides"), ("const constant int&", "x2_ndim"),
        ("const constant float&", "x3"), ("device float*", "y"),
    ]  # fmt: skip
    assert call.function == "custom_kernel_k_floatc_float_float_floats_float"
    templated = replace(call, template={"T": "fp16", "N": 4, "B": True})
    assert templated.function.startswith("custom_kernel_k__float16_t_4_1_floatc_")


def test_tensors_must_fit_the_declaration():
    source = MetalSource("k", ("a", "b"), ("y",), "")
    x = torch.ones(2)
    _check(source, (x, x), (x,))
    _check(source, (x, x), (torch.ones(2, device="meta"),))
    for given, models, words in (
        ((x,), (x,), r"k has 2 inputs \(a, b\), not 1."),
        ((x, x), (x, x), r"k has 1 outputs \(y\), not 2."),
        ((x, torch.ones(2, device="meta")), (x,), "b is on meta"),
        ((x, x.double()), (x,), "Metal does not support torch.float64, the dtype of b"),
        ((x, x), (x.double(),), "the dtype of y"),
    ):
        with pytest.raises(LaunchRejected, match=words):
            _check(source, given, models)
    with emulate.planning():
        _check(source, (x, torch.ones(2, device="meta")), (x,))
    assert not emulate.is_planning() and not emulate.is_requested()
    with emulate.emulation(EmulationOptions()) as runs:
        assert emulate.is_requested() and runs == []


# Requests and replies of the emulator


def test_a_request_holds_each_buffer_and_its_flags():
    call = call_of((2, 3), (2,), (3,), dtype="fp16", body="x0_shape x0_strides x0_ndim")
    launch = MetalLaunch(call, (b"a" * 12, b"b" * 4), (64, 2, 1), (128, 1, 1), ("y",))
    options = EmulationOptions(emulate.SCHEDULES[1], counting=True, accesses=99)
    head, *buffers = list(emulate._request(launch, options))
    assert struct.unpack("=6I3I3I2Q", head) == (6, 1, 1, 1, 0, 0, 64, 2, 1, 64, 1, 1, 32_768, 99)
    read = [struct.unpack("=40sQI4x", b) for b in buffers[:6]]
    assert [(name.rstrip(b"\0").decode(), *more) for name, *more in read] == [
        ("x0", 12, 2), ("x0_shape", 8, 2), ("x0_strides", 16, 2), ("x0_ndim", 4, 2), ("x1", 4, 2),
        ("y", 6, 5),
    ]  # fmt: skip
    assert buffers[6:] == [
        b"a" * 12, struct.pack("=2i", 2, 3), struct.pack("=2q", 3, 1), struct.pack("=i", 2),
        b"b" * 4,
    ]  # fmt: skip
    # of corners the sizes of inputs and the contents of what describes them
    alone = replace(options, corners=True)
    head, *buffers = list(emulate._request(replace(launch, inputs=()), alone))
    assert struct.unpack("=6I3I3I2Q", head)[5] == 1
    read = [struct.unpack("=40sQI4x", b)[1:] for b in buffers[:6]]
    assert read == [
        (12, 18), (8, 2), (16, 2), (4, 2), (4, 18), (6, 21),
    ]  # fmt: skip
    assert len(b"".join(buffers[6:])) == 8 + 16 + 4
    plain = list(emulate._request(replace(launch, same_value=()), options))
    assert struct.unpack("=40sQI4x", plain[6])[2] == 1


def test_contents_and_counts_of_a_reply_are_split():
    assert emulate._split(b"abcdef", [1, 3, 2]) == [b"a", b"bcd", b"ef"]
    lines = ["counts 10 20 30 40 50 60", "buffer x 1 2 3 4 5", "odd", "buffer y 6 7 8 9 10"]
    traffic = emulate._traffic(lines)
    buffers = {"x": BufferCounts("x", 1, 2, 3, 4, 5), "y": BufferCounts("y", 6, 7, 8, 9, 10)}
    assert traffic == EmulatedTraffic(buffers, 10, 20, 30, 40, 50, 60)
    assert (traffic.unique_read, traffic.unique_written) == (11, 13)


LINE = 1 << 62


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (f"finding racecheck {LINE | 2:x} 5 1 2 3 a race@{LINE | 1:x}@",
         "k, line 2 (`two`): a race (line 1) [thread 5 of threadgroup 1,2,3]"),
        (f"finding racecheck {LINE | 1000001:x} 0 0 0 0 a race@{LINE | 1000002:x}@",
         "k, header line 1 (`above`): a race (header line 2) [thread 0 of threadgroup 0,0,0]"),
        (f"finding synccheck {LINE | 3:x} -1 0 0 0 odd", "k, line 3 (`three`): odd"),
        (f"finding synccheck {LINE | 4:x} -1 0 0 0 odd", "k, line 4: odd"),
        ("finding memcheck 0 -1 0 0 0 an array '__local msl_type_s' of",
         "k: the threadgroup array s"),
        ("finding memcheck 0 -1 0 0 0 an array 'float[4]' of", "k: an array float[4]"),
        ("finding initcheck 7 -1 0 0 0 odd@0@", "k, line 2 (`two`): odd"),
        ("finding initcheck 8 -1 0 0 0 odd", "k: odd"),
        ("error it broke", "k: it broke"),
        ("", "k: no result"),
    ],
)  # fmt: skip
def test_a_reply_is_read_with_its_line(monkeypatch, reply, says):
    asked = []
    monkeypatch.setattr(
        emulate.compiler, "line_of",
        lambda program, address, name: asked.append((program, name)) or {7: 2}.get(address),
    )  # fmt: skip
    call = call_of((4,), (4,), body="one\n two \nthree", header="above\nmore")
    found = emulate._finding("program", call, reply)
    assert str(found) == says and set(asked) <= {("program", "k")}
    check_name = CheckName(reply.split()[1]) if reply.startswith("finding") else CheckName.MEMCHECK
    assert found.check is check_name


# Whole kernels


def test_parameters_of_a_whole_kernel_are_listed():
    text = (
        "constant int A [[function_constant(1)]]; constant bool B [[ function_constant(2) ]];\n"
        "[[kernel]] void other(device int* q) {}\n"
        "template <typename T> [[kernel]] void mine(\n  const device T* x [[buffer(0)]], "
        "constant vec<int, 2>& n [[buffer(1)]], device T* y [[buffer(2)]],\n"
        "  device atomic<uint>* z, uint3 at [[thread_position_in_grid]], uint lane "
        "[[thread_index_in_simdgroup]]) { f(A, B); }"
    )
    source = whole.whole_source(text, "mine", constants={"A": 3, "B": True})
    assert source.inputs == ("x", "n") and source.outputs == ("y", "z")
    assert "constant int A = 3; constant bool B = 1;" in source.body
    assert [(p.declaration, p.name, p.array, p.part) for p in source.whole] == [
        ("const device T*", "x", "x", ""), ("constant vec<int, 2>&", "n", "n", ""),
        ("device T*", "y", "y", ""), ("device atomic<uint>*", "z", "z", ""),
        ("uint3", "at", "", "thread_position_in_grid"),
        ("uint", "lane", "", "thread_index_in_simdgroup"),
    ]  # fmt: skip
    assert "other" not in source.body and source.body.count("\n") == text.count("\n")
    for name, constants, words in (
        ("absent", {"A": 1, "B": 1}, "has no kernel absent"),
        ("mine", {"A": 1}, "constant B has no value"),
    ):
        with pytest.raises(whole.NotWhole, match=words):
            whole.whole_source(text, name, constants=constants)
    for parameter, words in (
        ("uint3 a [[texture(0)]]", "takes texture"),
        ("x", "cannot be read"),
    ):
        with pytest.raises(whole.NotWhole, match=words):
            whole.whole_source(f"[[kernel]] void k({parameter}) {{}}", "k")


# The compiler


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("clang version 19.1.7", "19.1.7"),
        ("Ubuntu clang version 22.0", "22.0"),
        ("clang version 18.9.9", None),
        ("gcc 14", None),
    ],
)
def test_a_clang_of_version_19_is_found(monkeypatch, version, found):
    monkeypatch.setattr(compiler, "_version", lambda command: version)
    monkeypatch.setattr(compiler.shutil, "which", lambda name, path: name)
    clang = compiler._first_clang.__wrapped__(("/bin/clang++",), "")
    assert (clang and clang.number) == found
    assert clang is None or (clang.kernel, clang.native) == (("/bin/clang++",), ("/bin/clang++",))


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("version", ["0.15.2", ""])
def test_the_wheel_s_compiler_has_two_commands(monkeypatch, installed, version):
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: installed or None)
    monkeypatch.setattr(compiler, "_version", lambda command: version)
    monkeypatch.setattr(compiler.sys, "executable", "python")
    zig = compiler._zig.__wrapped__()
    assert (zig is not None) == bool(installed and version)
    if zig is not None:
        assert zig.number == "zig 0.15.2" and zig.kernel == ("python", "-m", "ziglang", "clang")
        assert zig.native == ("python", "-m", "ziglang", "c++")


def test_compilers_are_looked_for_in_order(monkeypatch):
    asked, found = [], compiler.MetalCompiler(("c",), ("c",), "clang version 20")
    zig = replace(found, version="zig 1")
    monkeypatch.setattr(compiler, "_zig", lambda: zig)
    monkeypatch.setattr(compiler, "_first_clang", lambda names, path: asked.append(names))
    assert compiler.find_compiler() is zig and asked == [compiler.CANDIDATES]
    with pytest.raises(compiler.CompilerMissing, match="mine is not clang"):
        compiler.find_compiler("mine")
    monkeypatch.setattr(compiler, "_zig", lambda: None)
    with pytest.raises(compiler.CompilerMissing, match=r"clang\+\+ 19 or later is not installed"):
        compiler.find_compiler()
    monkeypatch.setattr(compiler, "_first_clang", lambda names, path: found)
    assert compiler.find_compiler("mine") is compiler.find_compiler() is found


def test_a_compiler_s_errors_are_the_first_three(monkeypatch):
    def done(code, text):
        monkeypatch.setattr(
            compiler.subprocess, "run",
            lambda *command, **more: SimpleNamespace(returncode=code, stdout="", stderr=text),
        )  # fmt: skip

    done(0, "a: error: odd")
    compiler._run("c")
    done(1, "".join(f"k.cpp:{n}: error: __local {n}\nnote\n" for n in range(4)))
    with pytest.raises(compiler.KernelRejected) as error:
        compiler._run("c")
    assert str(error.value) == "; ".join(f"k.cpp:{n}: error: threadgroup {n}" for n in range(3))
    done(1, "w " * 300)
    with pytest.raises(compiler.KernelRejected) as error:
        compiler._run("c")
    assert len(str(error.value)) == 400
    done(0, "No space left on device")
    with pytest.raises(compiler.CacheUnusable):
        compiler._run("c")


def test_a_line_is_asked_of_the_first_tool_that_is_installed(monkeypatch):
    asked = []

    def run(command, **more):
        asked.append(command)
        return SimpleNamespace(stdout="other.metal:1\nk.metal:12\nk.metal:3\n")

    monkeypatch.setattr(compiler.subprocess, "run", run)
    for tool, options in (("addr2line", ("-i",)), ("llvm-symbolizer", ("--inlines",))):
        monkeypatch.setattr(compiler.shutil, "which", lambda name, tool=tool: name == tool and tool)
        assert compiler.line_of("program", 31, "k") == 12
        assert asked[-1][:5] == (tool, *options, "-e", "program", "0x1f")
        assert asked[-1][5:8] == ("0x1c", "0x19", "0x16")  # where that place has no line
    assert compiler.line_of("program", 31, "absent") is None
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    assert compiler.line_of("program", 31, "k") is None and len(asked) == 3


# What a check prints


def test_a_check_prints_each_count_and_the_first_of_each():
    report = check.CheckReport(runs=7)
    assert report.is_clean and [*check.lines(report, "k")] == [
        "k: 7 runs emulated on a CPU; Apple's compiler and GPU took no part",
        *(f"{name.value:<10} 0 findings" for name in CheckName), "results    0 wrong results",
    ]  # fmt: skip
    run = emulate.EmulatedRun(
        call_of((4,), (4,)), (64, 2, 1), (32, 1, 1),
        EmulatedTraffic({"x": BufferCounts("x", 10, 1, 8, 2, 3)}, 1, 2, 3, 256, 5, 6),
    )  # fmt: skip
    report.findings[CheckName.RACECHECK] += ["one", "two"]
    assert not report.is_clean
    report.findings[CheckName.MEMCHECK] += ["three"]
    report.wrong.append("a case: off")
    report.endless += ["rows", "lanes"]
    report.dispatches["rows"] = ("a case", [run, run])
    dispatch = [
        "  k: grid of 64x2x1 threads, threadgroups of 32x1x1, 256 bytes of threadgroup memory",
        "    x                  11 bytes requested,         10 unique,         96 in sectors",
    ]
    assert [*check.lines(report, "k")][1:] == [
        "synccheck  0 findings", "racecheck  2 findings: one", "memcheck   1 finding: three",
        "initcheck  0 findings", "results    1 wrong result: a case: off",
        *(f"{impl}: a run did not end; the runs after it were skipped"
          for impl in ("rows", "lanes")),
        "dispatches of a case", *dispatch, *dispatch,
    ]  # fmt: skip
    only = check.CheckReport(wrong=["a case: off"])
    assert not only.is_clean


def test_runs_enter_the_report_case_by_case(monkeypatch):
    """Four schedules each; of the second Impl a run does not end, and its second case is left out;
    the third is wrong."""
    impls = [SimpleNamespace(name=n, title=f"k.{n}") for n in "abbc"]
    cases = [check.MetalCase(impl, SimpleNamespace(), {"N": 1}, "fp32") for impl in impls]
    seen, lock = [], Lock()

    def checked(impl, config, problem):
        options, runs = emulate._RECORDING.get()
        with lock:
            seen.append((impl.name, options.counting))
            number = len([s for s in seen if s[0] == "b"])
        if impl.name == "b" and number == 2:
            raise emulate.EndlessRun(emulate.EmulationFinding(CheckName.SYNCCHECK, "no end", "k"))
        runs.append("run")
        return SimpleNamespace(wrong="off" if impl.name == "c" else None)

    monkeypatch.setattr(check, "find_compiler", lambda: None)
    monkeypatch.setattr(check, "cases", lambda spec: cases)
    monkeypatch.setattr(check.MetalCase, "__str__", lambda self: self.impl.title)
    monkeypatch.setattr("workbench.measurement.correctness.check", checked)
    monkeypatch.setattr(
        "workbench.measurement.correctness.PreparedProblem", SimpleNamespace(make=lambda *given: 1)
    )
    report, progress = check.CheckReport(), []
    check.check_spec("spec", report, progress.append)
    counting = [False, False, False, True]
    assert sorted(seen) == [(name, c) for name in "abc" for c in counting]
    assert report.runs == 12 and report.endless == ["b"] and report.wrong == ["k.c: off"] * 4
    assert {"a", "c"} <= set(report.dispatches) and report.dispatches["a"] == (cases[0], ["run"])
    assert [len(each) for each in report.findings.values()] == [1, 0, 0, 0]
    assert progress == ["k.a", "k.b", "k.c"]
