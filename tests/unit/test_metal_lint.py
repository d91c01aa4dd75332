"""Each rule of the lint has texts that break it, on a known line, and texts that keep it."""

import pytest

from metal_shim.lint import RULES, LintRule, findings
from metal_shim.signature import ATTRIBUTES, MetalSource
from metal_shim.words import closing

# rule, header, body; the line that breaks the rule ends in //!
BROKEN = [
    (LintRule.ADDRESS_SPACE, "float h(float* p) { return p[0]; } //!\n", "y[0] = 1;"),
    (LintRule.ADDRESS_SPACE, "", "\nconst float4 & v = x[0]; //!\n"),
    (LintRule.ADDRESS_SPACE, "", "\n\nuint n = *(uint*)q; //!\n"),
    (LintRule.ADDRESS_SPACE, "", "T* p = y; //!"),
    (LintRule.ADDRESS_SPACE, "", "vec<T, 4>* p = y; //!"),
    (LintRule.ADDRESS_SPACE, "struct Q { float a; };\nfloat f(Q& q) { return 1; } //!\n", ""),
    (LintRule.RECURSION, "int f(int n) { //!\n  return n < 2 ? n : f(n - 1); }\n", ""),
    (LintRule.RECURSION, "int f(int n) { return g(n); } //!\nint g(int n) { return f(n); }", ""),
    (LintRule.THREADGROUP, "float f() {\n  threadgroup float s[64]; //!\n  return 0; }\n", ""),
    (LintRule.ATTRIBUTE, "float f(float v [[thread_idx]]) { return v; } //!\n", ""),
    (LintRule.WORD, "", "\ndouble d = 1; //!"),
    (LintRule.WORD, "", "goto end; //!"),
    (LintRule.WORD, "", "static int n; //!"),
    (LintRule.WORD, "", "y[0] = std::exp(1.0f); //!"),
    (LintRule.WORD, "", 'printf("%d", 1); //!'),
    (LintRule.HEADER_ATTRIBUTE, "uint f() { return thread_index_in_simdgroup; } //!\n", ""),
    (LintRule.HEADER_SHAPE, "int f() {\n  return x_shape[0]; //!\n}\n", ""),
    (LintRule.ATOMIC, "", "threadgroup atomic<half> n; //!"),
    (LintRule.ATOMIC, "", "threadgroup atomic_short n; //!"),
]  # fmt: skip

KEPT = {
    LintRule.ADDRESS_SPACE: (
        "template <typename T> vec<T, 4> f(const device T* p, thread float& v) "
        "{ return *(const device vec<T, 4>*)p; }\n",
        "auto g = [&](float t) { return t * 2; }; int n = TG * VALUES; bool b = n & 1;"
        "device const float4* p = (device const float4*)(x + n); float q = float(n) * 3;",
    ),
    LintRule.RECURSION: (
        "float f(float v) { return v; }\nfloat4 f(float4 v) { return float4(f(v.x)); }\n"
        "float g(float v) { return f(v) + f(v); }\n", "",
    ),
    LintRule.THREADGROUP: (
        "float f(threadgroup float* s) { return s[0]; }\n", "threadgroup float s[4];",
    ),
    LintRule.ATTRIBUTE: ("", "[[unroll]] for (int i = 0; i < 4; i++) {}"),
    LintRule.WORD: ("static constexpr constant int N = 4;\n", "float v = 1.0; // double, std::exp"),
    LintRule.HEADER_ATTRIBUTE: (
        "uint f(uint lane) { return lane; }\n", "f(thread_index_in_simdgroup);",
    ),
    LintRule.HEADER_SHAPE: ("int f(int n) { return n; }\n", "f(x_shape[0]);"),
    LintRule.ATOMIC: ("", "threadgroup atomic_uint n; threadgroup atomic<float> m;"),
    LintRule.NAME: ("", ""),
}  # fmt: skip


def broken(header, body, inputs=("x",), outputs=("y",)):
    return findings(MetalSource("k", inputs, outputs, body, header), ("T",))


def marked(text):
    return [
        n for n, line in enumerate(text.splitlines(), 1) if line.endswith("//!") or "//!" in line
    ]


@pytest.mark.parametrize(("rule", "header", "body"), BROKEN)
def test_a_broken_rule_is_named_with_its_line(rule, header, body):
    (finding, *_) = broken(header, body)
    assert finding.rule is rule
    assert finding.is_in_header == ("//!" in header)
    assert finding.line in marked(header if finding.is_in_header else body)


@pytest.mark.parametrize("rule", LintRule)
def test_what_keeps_a_rule_is_accepted(rule):
    assert not broken(*KEPT[rule])


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        (("x",), ("grid_size",), "has the name of the attribute"),
        (("x", "y"), ("y",), "two arrays are called y"),
    ],
)
def test_names_of_arrays(inputs, outputs, says):
    (finding,) = broken("", "int n = 0;", inputs, outputs)
    assert finding.rule is LintRule.NAME and says in finding.sentence


def test_every_rule_is_tried():
    assert {rule for rule, _, _ in BROKEN} | {LintRule.NAME} == set(LintRule) == set(KEPT)
    assert len(RULES) == len(LintRule) - 2  # one function has the three rules of the header
    assert all(name.islower() for name in ATTRIBUTES)


def test_a_bracket_that_nothing_closes_ends_with_the_text():
    assert (closing("f(a,(b);", 4), closing("f(a,(b);", 1)) == (6, 7)


def test_an_empty_body_is_no_crash():
    assert broken("", "", ("x", "x"), ("y",))[0].line == 1
