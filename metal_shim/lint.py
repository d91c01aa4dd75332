"""Find in Metal source what clang accepts in the emulator's mode and Apple's compiler does not.

A lexer and rules, without a compiler. The rules follow the Metal Shading Language Specification 3.2
and what `mx.fast.metal_kernel` adds to a body. Literals without a suffix are floats in MSL, and
accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from metal_shim.host import without_comments
from metal_shim.signature import ATTRIBUTES, MetalSource


class LintRule(Enum):
    """What a finding breaks."""

    ADDRESS_SPACE = "pointer or reference without address space"
    RECURSION = "recursion"
    THREADGROUP = "threadgroup variable outside the kernel"
    ATTRIBUTE = "unknown attribute"
    WORD = "word that Metal lacks"
    HEADER_ATTRIBUTE = "attribute in the header"
    HEADER_SHAPE = "shape of an input in the header"
    ATOMIC = "atomic of a type that Metal lacks"
    NAME = "name of an array"


@dataclass(frozen=True)
class LintFinding:
    """A broken rule: one sentence and the line, in the body or in the header."""

    rule: LintRule
    sentence: str
    line: int
    in_header: bool = False

    def __str__(self) -> str:
        return f"{'header line' if self.in_header else 'line'} {self.line}: {self.sentence}"


@dataclass(frozen=True)
class Token:
    """A word or sign of the source, and its line."""

    text: str
    line: int


@dataclass(frozen=True)
class Text:
    """Tokens of a body or header; `types` are names of types beside Metal's own."""

    source: MetalSource
    tokens: tuple[Token, ...]
    in_header: bool
    types: frozenset[str]

    def words(self, start: int, end: int) -> list[str]:
        """Return the texts of these tokens."""
        return [token.text for token in self.tokens[start:end]]

    def at(self, index: int) -> str:
        """Return the text of a token, empty outside."""
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""


_TOKEN = re.compile(r'\n|"[^"\n]*"|\[\[|\]\]|::|[A-Za-z_]\w*|\d[\w.]*|\S')


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SCALARS = _words(
    """bool char uchar short ushort int uint long ulong half float bfloat size_t ptrdiff_t int8_t
    uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t float16_t bfloat16_t"""
)
_VECTORS = frozenset(name + width for name in _SCALARS for width in "234")
_ATOMICS = _words("atomic_int atomic_uint atomic_bool atomic_float atomic_ulong")
_TYPES = _SCALARS | _VECTORS | _ATOMICS | {"void"}
_TEMPLATES = _words("vec simdgroup_matrix atomic array")
_SPACES = _words("device constant threadgroup thread threadgroup_imageblock")
_MISSING = _words(
    "double goto new delete printf try throw catch virtual dynamic_cast typeid thread_local"
)
_KNOWN_ATTRIBUTES = frozenset(ATTRIBUTES) | _words(
    """kernel buffer threadgroup host_name max_total_threads_per_threadgroup unroll clang
    always_inline maybe_unused function_constant texture sampler"""
)
_ATOMIC = _words("int uint bool float ulong int32_t uint32_t uint64_t")
_CONTROL = _words("if for while switch return sizeof")


@cache
def findings(source: MetalSource, types: tuple[str, ...] = ()) -> tuple[LintFinding, ...]:
    """Return the broken rules of a kernel. `types` names template parameters that are types."""
    header = _lexed(source.header)
    declared = {
        header[i + 1].text
        for i, token in enumerate(header[:-1])
        if token.text in ("typename", "class", "struct", "using")
    }
    known = frozenset({*_TYPES, *types, *declared})
    texts = [Text(source, header, True, known), Text(source, _lexed(source.body), False, known)]
    return tuple(f for text in texts for rule in RULES for f in rule(text))


def faults(source: MetalSource, types: tuple[str, ...] = ()) -> list[str]:
    """Return one sentence for each broken rule."""
    return [str(f) for f in findings(source, types)]


def _lexed(text: str) -> tuple[Token, ...]:
    tokens, line = list[Token](), 1
    for match in _TOKEN.finditer(without_comments(text)):
        if match[0] == "\n":
            line += 1
        else:
            tokens.append(Token(match[0], line))
    return tuple(tokens)


def _finding(text: Text, index: int, rule: LintRule, sentence: str) -> LintFinding:
    line = text.tokens[index].line if text.tokens else 1
    return LintFinding(rule, sentence, line, text.in_header)


def _address_spaces(text: Text) -> Iterator[LintFinding]:
    for i, token in enumerate(text.tokens):
        if token.text not in "*&" or i == 0 or text.at(i - 1) in "*&":
            continue
        start = _start_of_type(text, i - 1)
        if start is None or text.at(start) in ("this", "sizeof"):
            continue
        first = start
        while first > 0 and text.at(first - 1) not in ";{}(),<>=":
            first -= 1
        if not _SPACES & set(text.words(first, i)):
            name = " ".join(text.words(start, i + 1))
            sentence = f"`{name}` needs device, constant, threadgroup or thread before it"
            yield _finding(text, i, LintRule.ADDRESS_SPACE, sentence)


def _start_of_type(text: Text, end: int) -> int | None:
    """Return the index where the type that ends at a token begins, or None if it is no type."""
    if text.at(end) == "const":
        end -= 1
    if text.at(end) in text.types:
        return end
    if text.at(end) != ">":
        return None
    depth = 0
    for i in range(end, -1, -1):
        depth += {">": 1, "<": -1}.get(text.at(i), 0)
        if text.at(i) in ";{}":
            return None
        if depth == 0:
            return i - 1 if text.at(i - 1) in _TEMPLATES else None
    return None


def _functions(text: Text) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last token of the body of each function that the text defines."""
    for i, token in enumerate(text.tokens):
        if token.text == "(" and text.at(i - 1).isidentifier() and text.at(i - 1) not in _CONTROL:
            end = _closing(text, i)
            body = end + 2 if text.at(end + 1) == "const" else end + 1
            if text.at(body) == "{":
                yield text.at(i - 1), body, _closing(text, body)


def _closing(text: Text, index: int) -> int:
    """Return the index of the bracket that closes the one at `index`, or the last token."""
    opening = text.at(index)
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for i in range(index, len(text.tokens)):
        depth += {opening: 1, closing: -1}.get(text.at(i), 0)
        if depth == 0:
            return i
    return len(text.tokens) - 1


def _recursion(text: Text) -> Iterator[LintFinding]:
    bodies = list(_functions(text))
    names = [name for name, _, _ in bodies]
    calls = {name: set(text.words(a, b)) & set(names) for name, a, b in bodies}
    for name, start, _ in bodies:
        if names.count(name) > 1:  # overloads may call one another
            continue
        reached, todo = set[str](), list(calls[name])
        while todo:
            if (now := todo.pop()) not in reached:
                reached.add(now)
                todo += calls[now]
        if name in reached:
            sentence = f"{name} calls itself, and Metal has no stack for that"
            yield _finding(text, start, LintRule.RECURSION, sentence)


def _threadgroup_variables(text: Text) -> Iterator[LintFinding]:
    if not text.in_header:
        return
    for i, token in enumerate(text.tokens):
        declared = token.text == "threadgroup" and text.at(i + 1) in text.types
        if declared and text.at(i + 2).isidentifier() and text.at(i + 3) in ("[", ";", "="):
            sentence = f"`{text.at(i + 2)}` is threadgroup memory, which only the body can declare"
            yield _finding(text, i, LintRule.THREADGROUP, sentence)


def _attributes(text: Text) -> Iterator[LintFinding]:
    for i, token in enumerate(text.tokens):
        if token.text == "[[" and text.at(i + 1) not in _KNOWN_ATTRIBUTES:
            yield _finding(
                text, i, LintRule.ATTRIBUTE, f"[[{text.at(i + 1)}]] is no attribute of Metal"
            )


def _missing_words(text: Text) -> Iterator[LintFinding]:
    for i, token in enumerate(text.tokens):
        library = token.text == "std" and text.at(i + 1) == "::"
        static = token.text == "static" and text.at(i + 1) not in (
            "constexpr",
            "constant",
            "inline",
        )
        if token.text in _MISSING or library or (static and not text.in_header):
            word = "std::" if library else token.text
            yield _finding(text, i, LintRule.WORD, f"Metal has no `{word}`")


def _header_names(text: Text) -> Iterator[LintFinding]:
    if not text.in_header:
        return
    shapes = {f"{n}_{part}" for n in text.source.inputs for part in ("shape", "strides", "ndim")}
    for i, token in enumerate(text.tokens):
        if token.text in ATTRIBUTES and text.at(i - 1) != "[[" and text.at(i + 1) != "[[":
            sentence = f"MLX adds {token.text} to the body alone; pass it as an argument"
            yield _finding(text, i, LintRule.HEADER_ATTRIBUTE, sentence)
        elif token.text in shapes:
            sentence = f"MLX adds {token.text} where the body names it; pass it as an argument"
            yield _finding(text, i, LintRule.HEADER_SHAPE, sentence)


def _atomics(text: Text) -> Iterator[LintFinding]:
    for i, token in enumerate(text.tokens):
        kind = text.at(i + 2) if token.text == "atomic" and text.at(i + 1) == "<" else ""
        if token.text.startswith("atomic_") and token.text.removeprefix("atomic_") in _TYPES:
            kind = token.text.removeprefix("atomic_")
        if kind in _TYPES and kind not in _ATOMIC:
            yield _finding(text, i, LintRule.ATOMIC, f"Metal has no atomic {kind}")


def _names(text: Text) -> Iterator[LintFinding]:
    if text.in_header:
        return
    for name in (*text.source.inputs, *text.source.outputs):
        if name in ATTRIBUTES:
            yield _finding(
                text, 0, LintRule.NAME, f"an array is called {name}, which is an attribute"
            )
    names = [*text.source.inputs, *text.source.outputs]
    for name in {n for n in names if names.count(n) > 1}:
        yield _finding(text, 0, LintRule.NAME, f"two arrays are called {name}")


RULES: Sequence[Callable[[Text], Iterator[LintFinding]]] = (
    _address_spaces,
    _recursion,
    _threadgroup_variables,
    _attributes,
    _missing_words,
    _header_names,
    _atomics,
    _names,
)
