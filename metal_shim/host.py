"""Translate the generated Metal source into C++ that clang compiles for the CPU. Pure text.

clang reads MSL itself in its mode C++ for OpenCL. Three things are rewritten: attributes are
removed, threadgroup variables become references into memory that the emulator provides, and an
entry function passes the buffers and the thread's position. Lines keep their numbers: those of the
body count from 1, those of the header from `HEADER_LINE`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache

from metal_shim import signature
from metal_shim.signature import NUMBERS, TYPES, MetalCall, MetalSource, TemplateValue

FILE_LINES = 1_000_000  # between the numbers of the lines of one file and of the next
HEADER_LINE = FILE_LINES + 1  # number of the first line of the header in messages of the emulator
THREADGROUP_LIMIT = 32_768  # bytes of threadgroup memory on every Apple GPU

# `threadgroup float a[N], b[4][5];` and not the declaration of a pointer. What initialises it is
# dropped: Metal gives such memory no first value.
_ALIGNED = r"(?:(?:__attribute__\s*\(\(.*?\)\)|alignas\s*\([^)]*\))\s*)?"
_KIND = (
    r"(?:typename\s+|const\s+|volatile\s+|struct\s+)*[A-Za-z_][\w:]*(?:\s*<[^;{}]*?>(?:::\w+)*)?"
)
_EXTENTS = r"(?:\s*\[[^;{}]*?\])*(?:\s*=\s*(?:\{[^;]*?\}|[^,;{}()]+))?"
_DECLARATION = re.compile(
    rf"{_ALIGNED}\bthreadgroup\s+{_ALIGNED}(?P<type>{_KIND})\s+{_ALIGNED}"
    rf"(?P<names>\w+{_EXTENTS}(?:\s*,\s*\w+{_EXTENTS})*)\s*;",
    re.DOTALL,
)
_DECLARATOR = re.compile(r"(\w+)((?:\s*\[[^\]]*\])*)(?:\s*=\s*(?:\{[^;]*?\}|[^,;{}()]+))?")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CONSTANT = re.compile(r"\bconstexpr\s+(?:const\s+)?u?int\s+([^;]*);")
_BYTES = {name: signature.SIZES[dtype] for name, dtype in signature.METAL_DTYPES.items()}
_BYTES |= {f"{name}{n}": (n + n % 2) * size for name, size in _BYTES.items() for n in (2, 3, 4)}


@cache
def strip_comments(text: str) -> str:
    """Return the text with blanks in place of comments; every line keeps its number."""
    return _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


# How `thread` is read in the text of a file. clang gives `this` no certain address space, Metal
# that of the thread: methods get it. Where that does not compile nothing has it, and clang permits
# more than Metal; and at last casts to parameters of templates make vectors. The first to compile
# is taken.
_ANYWHERE = "#undef thread\n#define thread\n"
READINGS = (("", False), (_ANYWHERE, False), (_ANYWHERE, True))


def host_text(call: MetalCall, reading: int = 0, corners: bool = False) -> str:
    """Return the C++ source of a program's kernel, with the entry that `runtime.cpp` calls;
    `reading` is an index of `READINGS`, for the kernel of a file. For the corners of a grid casts
    to integers of 32 bits say what they lose."""
    name, source = call.source.name, call.source
    if corners:
        header, body = _rewrite_casts(source.header), _rewrite_casts(source.body)
        source = replace(source, header=header, body=body)
    using, of_any = READINGS[reading] if source.files else ("using namespace metal;\n", False)
    body, start = _rewritten(source.body, of_any), ""
    if not using:
        body = _rewrite_methods(body)
    if not source.whole:
        start, body = re.sub(r"\[\[.*?\]\]", "", signature.head(call)), f"{body}\n}}"
        using += "#include <mlx_utils>\n"
    return (
        f'#include <metal_stdlib>\n{using}#line {HEADER_LINE} "{name}.metal"\n'
        f'{_rewritten(source.header)}\n{start}#line 1 "{name}.metal"\n{body}\n{_entry(call)}'
    )


@cache
def _rewritten(text: str, of_any: bool = False) -> str:
    text = _DECLARATION.sub(_emulate_memory, strip_comments(text))
    text = re.sub(r"#include\s*<metal_\w+>", "", text)
    text = _REFERENCE.sub(r"const \1 ", text)
    text = re.sub(r"\[\[.*?\]\]", "", text, flags=re.DOTALL)
    types = re.findall(r"\btypename\s+(\w+)(?=\s*[,>=])", text) if of_any else []
    return _rewrite_vectors(text, set(types))


def _emulate_memory(match: re.Match[str]) -> str:
    result, kind = "", match["type"]
    for name, extents in _DECLARATOR.findall(match["names"]):
        own = f"msl_type_{name}"
        result += f"typedef {kind} msl_part_{name}; typedef msl_part_{name} {own}{extents}; "
        result += f'threadgroup {own}& {name} = MSL_THREADGROUP({own}, msl_part_{name}, "{name}"); '
    return result + "\n" * match[0].count("\n")


# A constant reference into the thread's memory takes values only of lasting variables in this mode
_REFERENCE = re.compile(
    r"\b(?:const\s+thread|thread\s+const)\s+([A-Za-z_][\w:]*(?:<[^;{}()&]*?>)?)\s*&\s*(?=\w+\s*[,)=])"
)
_VECTOR = re.compile(
    r"(?<!operator )\b(?:metal::)?vec\s*<([^<>;(){}]*(?:<[^<>;(){}]*>[^<>;(){}]*)?)>\s*\("
)
# A vector may have fewer values in braces than elements; the others are 0.
_BRACED = r"\w+\s*=\s*\{[^{};]*\}"
_BRACES = re.compile(
    r"\b((?:metal::)?(?:float|half|bfloat|u?char|u?short|u?int|u?long)[234])"
    rf"(\s+{_BRACED}(?:\s*,\s*{_BRACED})*)(?=\s*[;,])"
)
_LIST = r"(?<=[(,])(\s*)\{([^{};]*,[^{};]*)\}(?=\s*[,)])"  # a vector as an argument
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*(?:metal::)?(?:vec\s*<[^;]*>|\w+[234])\s*;")
_CAST = r"(?:(?<=[=(,?:;{}&|<>+/*%^-])|(?<=\breturn))(\s*)\(\s*((?:metal::)?\w+)\s*\)(?=\s*[\w(])"


def _rewrite_vectors(text: str, types: set[str]) -> str:
    """Return a text in which `vec<T, 4>(...)`, an alias of a vector and a cast to one make vectors,
    as do those of `types`. clang takes a call of their names for a conversion of one value."""
    text = re.sub(r"\bstatic_cast\s*<\s*([\w:]+)\s*>\s*\(", r"metal::msl_to<\1>(", text)
    if types:
        text = re.sub(_LIST, r"\1metal::msl_list(\2)", text)
    text = _VECTOR.sub(r"metal::msl_make<metal::vec<\1>>(", text)
    text = _BRACES.sub(
        lambda m: m[1] + re.sub(r"\{([^{};]*)\}", rf"metal::msl_braces<{m[1]}>(\1)", m[2]), text
    )
    aliases = {*_ALIAS.findall(text), *types}
    for name in aliases:
        text = re.sub(rf"(?<![\w:.<]){name}\s*\((?!\s*[*&])", f"metal::msl_make<{name}>(", text)

    def cast(match: re.Match[str]) -> str:
        vector = match[2] in aliases or re.fullmatch(
            r"(metal::)?[a-z]+([234]|[234]x[234])", match[2]
        )
        return f"{match[1]}metal::msl_cast<{match[2]}>()->*" if vector else match[0]

    return re.sub(_CAST, cast, text)


# `uint(i)` and `(uint)i`, and not `operator uint()`, `unsigned int (...)` or `int (*f)()`
_NARROW = r"(?<!operator )(?<!unsigned )(?<!long )(?<!short )\b(u?int(?:32_t)?)\s*\((?!\s*[*&])"
_NARROW_CAST = r"(?<=[=(,?:;{}&|<>+/*%^-])(\s*)\(\s*(u?int(?:32_t)?)\s*\)(?=\s*[\w(])"


def _rewrite_casts(text: str) -> str:
    text = re.sub(r"\bstatic_cast\s*<\s*(u?int(?:32_t)?)\s*>\s*\(", r"\1(", text)
    text = re.sub(_NARROW_CAST, r"\1metal::msl_cast<\2>{__LINE__}->*", strip_comments(text))
    return re.sub(_NARROW, r"metal::msl_narrow<\1>(", text)


_METHOD = re.compile(
    r"(?:\bstatic\b[^;{}()]*)?\b(?P<name>operator\s*\S+?|\w+)\s*"
    r"(?P<list>\((?:[^()]|\([^()]*\))*\))(?P<const>\s*const\b)?(?=\s*\{)"
)
_STRUCTURE = re.compile(r"\b(?:struct|class)\s+(\w+)[^;{}()=]*\{")


def _rewrite_methods(text: str) -> str:
    """Return a text in which the methods of structures, but for those that are static or construct,
    take their object in the thread's address space."""
    result, at = "", 0
    for match in _STRUCTURE.finditer(text):
        if match.start() < at:
            continue  # inside of another
        end, depth = match.end(), 1
        while depth and end < len(text):
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        result += text[at : match.end()] + _mark_methods(text[match.end() : end], match[1])
        at = end
    return result + text[at:]


def _mark_methods(body: str, structure: str) -> str:
    """Return the text of a structure with `thread` behind its methods' parameters."""

    def mark(match: re.Match[str]) -> str:
        before = body[: match.start()]
        inside = before.count("{") != before.count("}")
        name = match["name"]
        initialises = re.search(r"(?:[,.]|(?<!:):)\s*$", before)  # a member, and is no method
        kept = match[0].startswith("static") or name in (structure, "if", "for", "while")
        if inside or initialises or kept:
            return match[0]
        return f"{match[0]} thread"

    constructor = rf"(\b{structure}\s*\((?:[^()]|\([^()]*\))*\))\s*thread\b"
    return re.sub(constructor, r"\1", _METHOD.sub(mark, body))


def _entry(call: MetalCall) -> str:
    """Return the entry of a kernel. The types of a whole kernel's parameters are those of the
    instance."""
    source, whole = call.source, bool(call.source.whole)
    function = source.function or (source.name if whole else call.function)
    if call.template and "<" not in function:
        function += f"<{', '.join(signature.template_values(call.template))}>"
    listed = source.whole or (*signature.parameters(call), *signature.attributes(source))
    values, sizes, fields = list[str](), list[str](), ""
    for number, p in enumerate(listed):
        own = f"typename metal::msl_parameter<{number}, msl_kernel>::type"
        kind = own if whole else p.declaration
        if p.array:
            pointee, index = f"typename metal::msl_pointee<{kind}>::type", len(sizes)
            values.append(f"metal::msl_buffer<{kind}>(b[{index}])")
            sizes.append(f"metal::msl_size<{pointee}>")
            set_ = "".join(f" metal::msl_set(v->{name}, {value});" for name, value in p.fields)
            if set_:
                fields += f"  if (i == {index}) {{ auto v = (__private {pointee}*)to;{set_} }}\n"
        elif p.part == "threadgroup":
            values.append(f'metal::msl_shared<{kind}>("{p.name}", {p.bytes})')
        elif p.part == "absent":
            values.append(f"metal::msl_absent<{kind}>()")
        elif p.part in NUMBERS:
            values.append(f"({kind})({NUMBERS[p.part]})")
        else:
            axes = (f"(uint)({signature.POSITIONS[p.part].format(axis)})" for axis in range(3))
            maker = f"metal::msl_extents<{kind}>" if whole else kind
            values.append(f"{maker}({', '.join(axes)})")
    return (
        f"typedef decltype({function}) msl_kernel;\n"
        f'extern "C" {_PLAIN} ulong msl_element(uint i) {{\n'
        f"  const ulong sizes[] = {{{', '.join([*sizes, '0'])}}};\n  return sizes[i]; }}\n"
        f'extern "C" {_PLAIN} void msl_fill(uint i, __private uchar* to) {{\n{fields}}}\n'
        f'extern "C" {_PLAIN} void msl_entry(__private ulong* b) {{\n'
        f"  {function}({', '.join(values)});\n}}\n"
    ).replace("typename ", "")


_PLAIN = '__attribute__((no_sanitize("thread", "undefined")))'  # its accesses are not the kernel's


def threadgroup_bytes(source: MetalSource, template: Mapping[str, TemplateValue]) -> int:
    """Return the bytes of threadgroup memory that the declarations of the body take.

    Extents are arithmetic on numbers, on template values and on `constexpr int` constants of the
    body. Raises ValueError where one is anything else.
    """
    return _threadgroup_bytes(source, tuple(template.items()))


def refuse_threadgroup(needed: int) -> str | None:
    """Return in one sentence why so many bytes of threadgroup memory are too many, or None."""
    if needed <= THREADGROUP_LIMIT:
        return None
    return f"{needed} bytes of threadgroup memory; a threadgroup has {THREADGROUP_LIMIT}"


@cache
def _threadgroup_bytes(source: MetalSource, template: tuple[tuple[str, TemplateValue], ...]) -> int:
    text = strip_comments(source.body)
    names = {name: value for name, value in template if not isinstance(value, str)}
    kinds = {name: TYPES[value] for name, value in template if isinstance(value, str)}
    for line in _CONSTANT.findall(text):
        for part in line.split(","):
            name, _, value = part.partition("=")
            names[name.strip()] = _evaluate(value, names)
    total = 0
    for match in _DECLARATION.finditer(text):
        for _, extents in _DECLARATOR.findall(match["names"]):
            kind = kinds.get(match["type"], match["type"])
            if kind not in _BYTES:
                raise ValueError(
                    f"the size of the threadgroup type {kind} is unknown; declare its parts"
                )
            size = _BYTES[kind]
            for extent in re.findall(r"\[([^\]]*)\]", extents):
                size *= _evaluate(extent, names)
            total += size
    return total


_ARITHMETIC: tuple[type, ...] = (ast.Expression, ast.BinOp, ast.Constant, ast.Name, ast.Load)
_ARITHMETIC += (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def _evaluate(text: str, names: Mapping[str, int]) -> int:
    """Return the value of a constant expression. Raises ValueError for anything else."""
    with suppress(SyntaxError, NameError, ZeroDivisionError):
        # a division of integers in MSL
        tree = ast.parse(text.strip().replace("/", "//"), mode="eval")
        others = [node for node in ast.walk(tree) if not isinstance(node, _ARITHMETIC)]
        values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        if not others and all(isinstance(value, int) for value in values):
            return int(eval(compile(tree, "extent", "eval"), {"__builtins__": {}}, {**names}))
    raise ValueError(
        f"the extent {text.strip()!r} is not arithmetic on numbers, template values and "
        "constexpr int constants; write it so"
    )
