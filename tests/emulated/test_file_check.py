"""Kernels of `.metal` files, as they stand: headers, macros, structures, memory of the launch."""

import numpy as np
import pytest

from metal_shim import check, file_check
from metal_shim.emulate import LaunchRejected
from metal_shim.file_check import FileArguments, array_of, check_file
from metal_shim.whole import NotWhole, WholeOptions, declarations, kernel_names

HEADER = """
#pragma once
#define instantiate(name, type) \\
  template [[host_name("scale_" #name)]] kernel scale_t scale<type, 4>;
struct Arguments { int n; float by[2]; ulong stride; };
struct Halves {  // methods hand out members, which lie in the thread's memory
  float values[2];
  thread float& first() { return values[0]; }
  float sum() const { return values[0] + values[1]; }
};
template <typename T> void swapped(thread T& a, thread T& b) { T kept = a; a = b; b = kept; }
"""

FILE = """
#include <metal_stdlib>
#include "shapes/arguments.h"
using namespace metal;
constant bool elsewhere [[function_constant(7)]];   // of a kernel that is not chosen
constant bool negative [[function_constant(3)]];
constant float table[4] = {1, 2, 3, 4};

template <typename T4> void doubled(device const T4* x, thread T4& to) { to = 2 * x[0]; }

template <typename T, int N>
kernel void scale(
    constant Arguments& args [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device float* y [[buffer(2)]],
    constant size_t shape[2] [[buffer(3)]],
    threadgroup char* memory [[threadgroup(0)]],
    device const float* mask [[buffer(4), function_constant(elsewhere)]],
    ushort lid [[thread_index_in_threadgroup]],
    uint2 at [[thread_position_in_grid]]) {
  threadgroup float* held = (threadgroup float*)memory;
  threadgroup __attribute__((aligned(16))) float zeros[N] = {0};
  threadgroup vec<float, 4> wide[64];
  wide[lid] = vec<float, N>(float(x[at.x]) * args.by[1]);
  if (lid < N) zeros[lid] = table[lid];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Halves pair;
  pair.first() = wide[lid][3];
  pair.values[1] = zeros[lid % N];
  swapped(pair.values[0], pair.values[1]);
  held[lid] = pair.sum();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (at.x < shape[1]) y[at.x] = held[lid ^ 1] * (negative ? -1 : 1);
}
typedef decltype(scale<float, 4>) scale_t;
instantiate(f32, float)
instantiate(f16, half)

template <typename T4, void (*work)(device const T4*, thread T4&)>
kernel void applied(device const T4* x, device T4* y, uint at [[thread_position_in_grid]]) {
  T4 v;
  work(x + at, v);
  y[at] = (T4)v;
}
template [[host_name("apply_doubled")]] kernel void applied<float4, doubled>(
    device const float4*, device float4*, uint);

kernel void drawn(texture2d<float> image [[texture(0)]], device float* y) { y[0] = 0; }
kernel void counted(device atomic_uint* n, constant uint* x, uint at [[thread_position_in_grid]]) {
  if (elsewhere) return;
  atomic_fetch_add_explicit(&n[x[at]], 1u, memory_order_relaxed);
}
kernel void beyond(device float* y, uint at [[thread_position_in_grid]]) { y[at + 1] = 1; }
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metal")
    (folder / "shapes").mkdir()
    (folder / "shapes" / "arguments.h").write_text(HEADER)
    (folder / "kernels").mkdir()
    path = folder / "kernels" / "all.metal"
    path.write_text(FILE)
    return path


def arguments(values, threads=8, constants=None):
    given = {name: str(value) for name, value in values.items()}
    options = WholeOptions(constants=constants or {})
    return FileArguments(given, (threads, 1, 1), (threads, 1, 1), options=options)


SCALED = {"x": "8=3", "y": "8", "shape": "1,8", "args.by[1]": "2", "memory": 256}


@pytest.mark.parametrize(("dtype", "sign"), [("f32", 0), ("f16", 1)])
def test_a_kernel_that_a_macro_makes_has_memory_structures_and_constants(file, dtype, sign):
    result = check_file(file, f"scale_{dtype}", arguments(SCALED, constants={"negative": sign}))
    assert not result.findings
    # 3 * 2 and the table's value of the neighbour's lane
    expected = [(6 + n) * (-1) ** sign for n in (2, 1, 4, 3, 2, 1, 4, 3)]
    assert result.outputs["y"].tolist() == expected
    (run,) = result.runs
    assert run.traffic.threadgroup_bytes == 256 + 16 + 64 * 16


def test_a_function_as_argument_of_a_template(file):
    result = check_file(file, "apply_doubled", arguments({"x": "2x4=1.5", "y": "2x4"}, threads=2))
    assert not result.findings and result.outputs["y"].tolist() == [[3] * 4] * 2


def test_a_template_argument_has_several_digits(tmp_path):
    path, head = tmp_path / "n.metal", "[[kernel]] void f"
    path.write_text(
        f"template <int N> {head}(device float* y, uint i [[thread_position_in_grid]]) "
        f'{{ y[i] = N; }}\ntemplate [[host_name("f512")]] {head}<512>(device float* y, uint i);\n'
    )
    for name in ("f512", "f<512>"):
        assert check_file(path, name, arguments({"y": "8"})).outputs["y"].tolist() == [512] * 8


def test_an_output_with_a_first_value_is_updated(file):
    given = arguments({"n": "4=10", "x": "0,1,1,3"}, threads=4, constants={"elsewhere": 0})
    result = check_file(file, "counted", given)
    assert not result.findings and result.outputs["n"].tolist() == [11, 12, 10, 11]


def test_a_finding_has_the_line_of_the_file(file):
    (finding,) = check_file(file, "beyond", arguments({"y": "8"})).findings
    line = next(n for n, text in enumerate(FILE.splitlines(), 1) if "y[at + 1]" in text)
    assert str(finding).startswith(f"beyond, all.metal line {line} (`kernel void beyond(")


@pytest.mark.parametrize(
    ("kernel", "values", "constants", "says"),
    [
        ("drawn", {"y": "1"}, {}, "image is a texture2d; the emulator does not support it"),
        ("missing", {}, {}, "no kernel missing; name one of .*: scale_f32, scale_f16"),
        ("", {}, {}, "has the kernels scale_f32, .*; choose one with --kernel"),
        ("scale_f32", SCALED, {}, "the function constant negative has no value"),
        ("scale_f32", {"x": "8"}, {"negative": 0}, "memory is threadgroup memory .*; give its"),
        ("beyond", {}, {}, r"the argument y \(device float\*\) has no value; give one as --arg"),
        ("beyond", {"y": "8", "z": "1"}, {}, "beyond has no argument z; it has y, at"),
        ("beyond", {"y": "a"}, {}, "y=a is not a number, a shape"),
        ("beyond", {"y": "fp8:8"}, {}, "fp8 is not a dtype"),
        ("scale_f32", {**SCALED, "args": "1"} | {"args.by[1]": ""}, {"negative": 0}, "rejects it"),
    ],
)
def test_what_is_missing_is_one_sentence(file, kernel, values, constants, says):
    with pytest.raises((NotWhole, LaunchRejected), match=says):
        check_file(file, kernel, arguments(values, constants=constants))


def test_the_names_of_a_file_and_a_header_that_is_missing(file, tmp_path):
    assert kernel_names(file, WholeOptions()) == [
        "scale_f32", "scale_f16", "apply_doubled", "drawn", "counted", "beyond",
    ]  # fmt: skip
    (tmp_path / "other.metal").write_text('#include "none.h"\n')
    with pytest.raises(NotWhole, match=r"'none.h' file not found; --include names a folder"):
        kernel_names(tmp_path / "other.metal", WholeOptions())


def test_names_of_declarations():
    text = """
    template <typename T, int N = 4> struct Pair { T a[N]; };
    template <> struct Pair<int, 2> { int b; };
    typedef struct tag { int a; } named;
    typedef float matrix_t[4];
    typedef void (*function)(int);
    using alias = Pair<float>;
    constant int one = 1, two[2] = {1, 2};
    enum Kind { A, B };
    namespace inner { inline float helper(float x) { return x; } }
    template <typename T> enable_if_t<(sizeof(T) > 2), T> limited(T x) { return x; }
    static inline __attribute__((always_inline)) int8_t attributed(int x) { return x; }
    """
    names = [(sorted(d.names), d.scope) for d in declarations(text)]
    assert names == [
        (["Pair"], ""), (["Pair"], ""), (["named", "tag"], ""), (["matrix_t"], ""), ([], ""),
        (["alias"], ""), (["one", "two"], ""), (["Kind"], ""), (["helper"], "inner::"),
        (["limited"], ""), (["attributed"], ""),
    ]  # fmt: skip


def test_the_command_compares_an_output_with_a_file(file, tmp_path, capsys):
    np.save(tmp_path / "right.npy", np.full((2, 4), 3.0))
    np.save(tmp_path / "wrong.npy", np.full((2, 4), 4.0))
    words = [str(file), "--kernel", "apply_doubled", "--arg", "x=2x4=1.5", "--arg", "y=2x4"]
    words += ["--grid", "2", "--group", "2", "--expect"]
    assert check.main([*words, f"y={tmp_path / 'right.npy'}"]) == 0
    assert "memcheck   0 findings" in capsys.readouterr().out
    assert check.main([*words, f"y={tmp_path / 'wrong.npy'}"]) == 1
    assert "y is wrong in 8 of 8 elements, first at [0, 0]: 3 in place of 4" in (
        capsys.readouterr().out
    )
    assert check.main([str(tmp_path / "none.metal")]) == 2


@pytest.mark.parametrize("text", ["nan", "inf", "1.5", "1,2,3,4", "a", "", "1,", "-3"])
def test_extents_are_one_to_three_whole_numbers(text):
    with pytest.raises(file_check.NotANumber, match="is not one to three whole numbers"):
        file_check.extents(text)
    assert file_check.extents("64,2") == (64, 2, 1)


def test_what_holds_no_array_is_one_sentence(tmp_path):
    several, text = tmp_path / "several.npz", tmp_path / "text.npy"
    np.savez(several, x=np.ones(3))
    text.write_text("no array")
    for path in (several, text, tmp_path / "none.npy"):
        with pytest.raises(NotWhole, match=r"cannot be read \(.*\); name a file of numpy\.save"):
            array_of(str(path))
    np.save(tmp_path / "three.npy", np.ones(3))
    words = file_check.deviations({"y": np.ones(8)}, {"y": str(tmp_path / "three.npy")})
    assert words == [f"results    y has 8 elements, and {tmp_path / 'three.npy'} 3"]
