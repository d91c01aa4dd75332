"""The text around a Metal body is MLX's, and the host text is that with threadgroup memory moved.

The golden texts were written by MLX 0.32.4 while it traced an export of these kernels on Linux.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metal_shim import host
from metal_shim.signature import (
    ATTRIBUTES,
    TYPES,
    ArrayType,
    MetalCall,
    MetalSource,
    head,
    metal_text,
    parameters,
)

BODY = (
    "\n  uint i = thread_position_in_grid.x; "
    "y[i] = T(x[i]) + x_shape[0] + e[0] + s + x_ndim + x_strides[0];\n"
)
SOURCE = MetalSource(
    "softmax", ("x", "e", "s"), ("y",), BODY, "inline float h(float v) { return v; }\n"
)
CALL = MetalCall(
    SOURCE,
    (ArrayType((4, 8), "fp32"), ArrayType((3,), "fp32"), ArrayType((), "fp32")),
    (ArrayType((4, 8), "fp16"),),
    {"T": "fp16", "TG": 32, "B": True},
)
NAME = "custom_kernel_softmax__float16_t_32_1_float_floatc_floats_float16_t"
TEXT = f"""inline float h(float v) {{ return v; }}
template <typename T, int TG, bool B>
[[kernel]] void {NAME}(
  const device float* x [[buffer(0)]],
  const constant int* x_shape [[buffer(1)]],
  const constant int64_t* x_strides [[buffer(2)]],
  const constant int& x_ndim [[buffer(3)]],
  const constant float* e [[buffer(4)]],
  const constant float& s [[buffer(5)]],
  device float16_t* y [[buffer(6)]],
  uint3 thread_position_in_grid [[thread_position_in_grid]]) {{
{BODY}
}}

template [[host_name("{NAME}")]] [[kernel]] decltype({NAME}<float16_t, 32, 1>) {NAME}<float16_t, 32, 1>;
"""  # noqa: E501

PLAIN = MetalCall(
    MetalSource("no_template", ("x", "w"), ("y", "z"), "y[0] = 1;"),
    (ArrayType((8,), "bf16"), ArrayType((4,), "uint8")),
    (ArrayType((8,), "bf16"), ArrayType((2,), "int32")),
    {},
)
PLAIN_TEXT = """[[kernel]] void custom_kernel_no_template_bfloat16_t_uint8_tc_bfloat16_t_int32_t(
  const device bfloat16_t* x [[buffer(0)]],
  const constant uint8_t* w [[buffer(1)]],
  device bfloat16_t* y [[buffer(2)]],
  device int32_t* z [[buffer(3)]]) {
y[0] = 1;
}
"""


@pytest.mark.parametrize(("call", "text"), [(CALL, TEXT), (PLAIN, PLAIN_TEXT)])
def test_the_text_is_that_of_mlx(call, text):
    assert metal_text(call) == text


@given(st.integers(0, 40), st.sampled_from(sorted(TYPES)))
def test_inputs_of_fewer_than_eight_elements_are_constant(size, dtype):
    source = MetalSource("k", ("x",), ("y",), "y[0] = x[0];")
    call = MetalCall(source, (ArrayType((size,), dtype),), (ArrayType((9,), dtype),), {})
    space = "constant" if size < 8 else "device"
    assert parameters(call)[0].declaration == f"const {space} {TYPES[dtype]}*"
    assert parameters(call)[1].declaration == f"device {TYPES[dtype]}*"


@given(st.sets(st.sampled_from(sorted(ATTRIBUTES))), st.sets(st.sampled_from(["x", "w"])))
def test_what_the_body_names_is_added(names, shaped):
    body = " ".join([*sorted(names), *(f"{n}_shape" for n in shaped)])
    source = MetalSource(
        "k", ("x", "w"), ("y",), body, header="x_strides thread_index_in_simdgroup"
    )
    array = ArrayType((64,), "fp32")
    call = MetalCall(source, (array, array), (array,), {})
    listed = [p.name for p in parameters(call)]
    assert [n for n in listed if n.endswith("_shape")] == [
        f"{n}_shape" for n in ("x", "w") if n in shaped
    ]
    assert not [n for n in listed if n.endswith("_strides")]  # the header does not count
    contained = {a for a in ATTRIBUTES if a in body}
    assert {a for a in ATTRIBUTES if f"[[{a}]]" in head(call)} == contained


def test_no_attribute_is_left_in_the_host_text_and_lines_keep_their_numbers():
    body = """
    /* a comment
       of two lines */ threadgroup float a[TG], b[4][5]; // and one more
    a[0] = 1;
"""
    source = MetalSource("k", ("x",), ("y",), body, "")
    array = ArrayType((64,), "fp32")
    text = host.host_text(MetalCall(source, (array,), (array,), {"TG": 32}))
    assert "[[" not in text
    lines = text[text.index("#line 1 ") :].splitlines()
    assert lines[4].strip() == "a[0] = 1;"
    assert "typedef msl_part_b msl_type_b[4][5];" in lines[3]
    assert "typedef float msl_part_a;" in lines[3]
    assert 'MSL_THREADGROUP(msl_type_a, msl_part_a, "a")' in lines[3]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("threadgroup float a[TG];", 128),
        ("constexpr int N = TG / 32, M = N + 3; threadgroup T a[N * M], b[2][M % 3];", 12),
        ("threadgroup float4 v[2]; threadgroup atomic_uint n;", 36),
        ("threadgroup float* p = q; // threadgroup float a[100];", 0),
        ("threadgroup vec<T, 4> v[2];", None),
        ("threadgroup float a[sizeof(float)];", None),
    ],
)
def test_threadgroup_memory_is_counted_from_the_declarations(body, expected):
    source = MetalSource("k", ("x",), ("y",), body)
    if expected is None:
        with pytest.raises(ValueError, match=r"threadgroup type|arithmetic"):
            host.threadgroup_bytes(source, {"T": "fp16", "TG": 32})
    else:
        assert host.threadgroup_bytes(source, {"T": "fp16", "TG": 32}) == expected
