"""Functions of the Metal library against values worked out by hand; one kernel computes them."""

import math
import struct

import pytest
from metal_bugs import launch

from metal_shim.emulate import LaunchRejected, emulate_launch

# of one thread; the values are exact or those of Python's own functions
ONE = {
    "clamp(half(3.5f), half(0), half(1))": 1,
    "clamp(7, 0, 5)": 5,
    "clamp(float2(-1, 9), 0.0f, 5.0f).y": 5,
    "saturate(1.5f)": 1,
    "mix(2.0f, 6.0f, 0.25f)": 3,
    "mix(float2(0, 2), float2(4, 6), 0.5f).y": 4,
    "sign(-0.25f)": -1,
    "step(2.0f, 1.0f)": 0,
    "smoothstep(0.0f, 4.0f, 1.0f)": 0.15625,  # t = 1/4: t * t * (3 - 2 t) = 1/16 * 5/2
    "fract(2.75f)": 0.75,
    "copysign(2.0f, -1.0f)": -2,
    "ldexp(1.5f, 3)": 12,
    "fdim(5.0f, 3.0f)": 2,
    "fmod(-7.0f, 3.0f)": -1,
    "atan2(1.0f, -1.0f)": 3 * math.pi / 4,
    "sinh(1.0f)": math.sinh(1),
    "acosh(2.0f)": math.acosh(2),
    "tan(0.5f)": math.tan(0.5),
    "powr(2.0f, 10.0f)": 1024,
    "exp10(2.0f)": 100,
    "cospi(1.0f)": -1,
    "fma(2.0f, 3.0f, 4.0f)": 10,
    "precise::divide(1.0f, 4.0f)": 0.25,
    "fast::exp2(5.0f)": 32,
    "metal::precise::rsqrt(16.0f)": 0.25,
    "sincos(0.0f, f)": 0,
    "modf(-2.5f, f)": -0.5,
    "frexp(12.0f, n)": 0.75,  # 12 = 0.75 * 2^4
    "float(n)": 4,
    "ilogb(20.0f)": 4,
    "max3(1, 9, 4)": 9,
    "median3(7.0f, 1.0f, 4.0f)": 4,
    "min(short(3), short(-2))": -2,
    "max(int4(1, 2, 3, 4), int4(4, 3, 2, 1)).y": 3,
    "fmin(1, float4(0.5f)).x": 0.5,
    "abs(-5)": 5,
    "abs(int2(-3, 2)).x": 3,
    "absdiff(-3, 4)": 7,
    "addsat(uchar(200), uchar(100))": 255,
    "subsat(char(-100), char(100))": -128,
    "hadd(7, 4)": 5,
    "rhadd(7, 4)": 6,
    "rotate(0x80000001u, 1u)": 3,
    "popcount(0xF0u)": 4,
    "clz(1u)": 31,
    "clz(ushort(1))": 15,
    "ctz(8u)": 3,
    "reverse_bits(1u) >> 31": 1,
    "extract_bits(0xABCDu, 4, 8)": 0xBC,
    "extract_bits(int(0xF0), 4, 4)": -1,
    "insert_bits(0u, 0xFu, 8, 4)": 0xF00,
    "mulhi(0x80000000u, 4u)": 2,
    "mulhi(-1, 1)": -1,
    "mul24(1000, 1000)": 1e6,
    "dot(float3(1, 2, 3), float3(4, 5, 6))": 32,
    "length(float2(3, 4))": 5,
    "distance(float2(1, 1), float2(4, 5))": 5,
    "normalize(float2(3, 4)).y": 0.8,
    "cross(float3(1, 0, 0), float3(0, 1, 0)).z": 1,
    "reflect(float2(1, -1), float2(0, 1)).y": 1,
    "any(float2(0, 1) > float2(2, 0))": 1,
    "all(bool4(true, true, false, true))": 0,
    "select(1.0f, 2.0f, true)": 2,
    "select(float2(1, 2), float2(3, 4), float2(0, 1) > 0.5f).y": 4,
    "isnan(NAN) && isinf(INFINITY) && !isfinite(INFINITY)": 1,
    "isnormal(1.0f) && signbit(-0.0f) && isunordered(NAN, 1.0f)": 1,
    "float4x4(2.0f)[3][3]": 2,
    "(float2x2(float2(1, 2), float2(3, 4)) * float2(1, 10)).y": 42,  # 2 * 1 + 4 * 10
    "transpose(float2x2(float2(1, 2), float2(3, 4)))[0].y": 3,
    "determinant(float2x2(float2(1, 2), float2(3, 4)))": -2,
    "float3(packed_float3(1, 2, 3)).z": 3,
    "array<int, 3>{4, 5, 6}[1]": 5,
    "vec<float, 4>(1, 2, 3, 4).w": 4,
    "((float4)half4(1, 2, 3, 4)).z": 3,
    "three.y + three.z": 7,
    "numeric_limits<half>::max()": 65504,
    "numeric_limits<int>::lowest() + 1": -2147483647,
    "numeric_limits<float>::infinity() > FLT_MAX": 1,
    "UINT_MAX == 4294967295u && SHRT_MIN == -32768": 1,
    "M_SQRT1_2_F": math.sqrt(0.5),
    "is_same_v<conditional_t<true, int, float>, int>": 1,
    "is_integral<uint>::value && is_floating_point_v<half>": 1,
    "pack_float_to_unorm4x8(float4(1, 0, 0, 1))": 0xFF0000FF,
    "unpack_unorm4x8_to_float(255u).x": 1,
    "as_type<uint>(1.0f) >> 23": 127,
    "static_cast<bfloat>(half(1.5f))": 1.5,
    "exp(bfloat2(0, 0)).x + exp(half(0))": 2,
}  # fmt: skip

# of 32 threads, lane 3 of which is looked at; v is the lane
LANES = {
    "simd_shuffle_rotate_down(v, 30)": 1,
    "simd_shuffle_rotate_up(v, 5)": 30,
    "simd_shuffle_and_fill_down(v, 100 + v, 30)": 101,  # lane 33 is the filling's lane 1
    "simd_shuffle_and_fill_up(v, 100 + v, 4)": 131,
    "simd_prefix_exclusive_product(v + 1)": 6,
    "simd_prefix_inclusive_product(v + 1)": 24,
    "simd_prefix_inclusive_sum(v)": 6,
    "quad_shuffle(v, 1)": 1,
    "quad_broadcast(v, 2)": 2,
    "quad_shuffle_xor(v, 2)": 1,
    "quad_shuffle_up(v, 1)": 2,
    "quad_shuffle_rotate_down(v, 2)": 1,
    "quad_max(v)": 3,
    "quad_product(v + 1)": 24,
    "quad_prefix_exclusive_sum(v)": 3,
    "quad_all(v < 4)": 1,
    "quad_any(v > 3)": 0,
    "simd_is_first()": 0,
    "popcount(uint(ulong(simd_active_threads_mask())))": 32,
    "simd_max(float2(v, -v)).y": 0,
}  # fmt: skip


def test_functions_of_one_thread():
    lines = [f"y[{i}] = float({text});" for i, text in enumerate(ONE)]
    start = "float f = 0; int n = 0; float4 three = {1, 3, 4}; if (lid != 0) return;\n"
    (contents,) = emulate_launch(launch("library", start + "\n".join(lines), group=len(ONE)))
    values = struct.unpack(f"={len(ONE)}f", contents)
    for (text, expected), value in zip(ONE.items(), values, strict=True):
        assert value == pytest.approx(expected, rel=2e-6, abs=1e-7), text


def test_functions_of_a_simdgroup():
    lines = [f"const float r{i} = float({text});" for i, text in enumerate(LANES)]
    stores = [f"if (lane == 3) y[{i}] = r{i};" for i in range(len(LANES))]
    zeros = f"if (lane >= {len(LANES)}) y[lane] = 0;"
    body = "const int v = int(lane);\n" + "\n".join([*lines, *stores, zeros])
    (contents,) = emulate_launch(launch("lanes", body, group=32))
    values = struct.unpack("=32f", contents)
    for (text, expected), value in zip(LANES.items(), values, strict=False):
        assert value == expected, text


@pytest.mark.parametrize("name", ["atomic_thread_fence(mem_flags::mem_device)", "printf(0)"])
def test_what_metal_has_and_the_emulator_lacks_says_so(name):
    word = name.partition("(")[0]
    with pytest.raises(LaunchRejected, match=rf"{word}") as caught:
        emulate_launch(launch("lacking", f"\n    y[at] = 0;\n    {name};\n"))
    lacks = ("the emulator does not support", "Metal has no")
    assert any(words in str(caught.value) for words in lacks)
