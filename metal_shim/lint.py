"""Find in Metal source what clang accepts in the emulator's mode and Apple's compiler does not.

A lexer and rules, without a compiler. The rules follow the Metal Shading Language Specification 3.2
and what `mx.fast.metal_kernel` adds to a body. Literals without a suffix are floats in MSL, and
accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise

from metal_shim.host import strip_comments
from metal_shim.signature import ATTRIBUTES, MetalSource
from metal_shim.words import Word, closing, opening_angle, words_of


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
    is_in_header: bool = False

    def __str__(self) -> str:
        return f"{'header line' if self.is_in_header else 'line'} {self.line}: {self.sentence}"


@dataclass(frozen=True)
class Text:
    """Words of a body or header; `types` are names of types beside Metal's own."""

    source: MetalSource
    words: tuple[Word, ...]
    is_in_header: bool
    types: frozenset[str]

    def word(self, index: int) -> str:
        """Return a word, empty outside."""
        return self.words[index] if 0 <= index < len(self.words) else ""

    def opens(self, index: int) -> bool:
        """Return whether an attribute begins here."""
        return self.word(index) == self.word(index + 1) == "["


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
    header, body = (_lex(text) for text in (source.header, source.body))
    kinds = ("typename", "class", "struct", "using")
    declared = {after for word, after in pairwise(header) if word in kinds}
    known = frozenset({*_TYPES, *types, *declared})
    texts = [Text(source, header, True, known), Text(source, body, False, known)]
    return tuple(f for text in texts for rule in RULES for f in rule(text))


def _lex(text: str) -> tuple[Word, ...]:
    return tuple(words_of(strip_comments(text).replace("#", " ")))  # with the lines of macros


def _finding(text: Text, index: int, rule: LintRule, sentence: str) -> LintFinding:
    plain = text.source.header if text.is_in_header else text.source.body
    line = plain.count("\n", 0, text.words[index].start) + 1 if text.words else 1
    return LintFinding(rule, sentence, line, text.is_in_header)


def _address_spaces(text: Text) -> Iterator[LintFinding]:
    for i, word in enumerate(text.words):
        if word not in "*&" or i == 0 or text.word(i - 1) in "*&":
            continue
        start = _start_of_type(text, i - 1)
        if start is None or text.word(start) in ("this", "sizeof"):
            continue
        first = start
        while first > 0 and text.word(first - 1) not in ";{}(),<>=":
            first -= 1
        if not _SPACES & set(text.words[first:i]):
            name = " ".join(text.words[start : i + 1])
            sentence = f"`{name}` needs device, constant, threadgroup or thread before it"
            yield _finding(text, i, LintRule.ADDRESS_SPACE, sentence)


def _start_of_type(text: Text, end: int) -> int | None:
    """Return the index where the type that ends at a word begins, or None if it is not a type."""
    end -= text.word(end) == "const"
    if text.word(end) in text.types:
        return end
    if text.word(end) != ">":
        return None
    start = opening_angle(text.words, end)
    is_type = text.word(start - 1) in _TEMPLATES and not set(";{}") & set(text.words[start:end])
    return start - 1 if is_type else None


def _functions(text: Text) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last word of the body of each function that the text defines."""
    for i, word in enumerate(text.words):
        if word == "(" and text.word(i - 1).isidentifier() and text.word(i - 1) not in _CONTROL:
            end = closing(text.words, i)
            body = end + 2 if text.word(end + 1) == "const" else end + 1
            if text.word(body) == "{":
                yield text.word(i - 1), body, closing(text.words, body)


def _recursion(text: Text) -> Iterator[LintFinding]:
    bodies = list(_functions(text))
    names = [name for name, _, _ in bodies]
    calls = {name: set(names) & set(text.words[a:b]) for name, a, b in bodies}
    for name, start, _ in bodies:
        if names.count(name) > 1:  # overloads may call one another
            continue
        before, reached = set[str](), calls[name]
        while reached != before:
            before, reached = reached, reached.union(*(calls[called] for called in reached))
        if name in reached:
            sentence = f"{name} calls itself; Metal does not support recursion"
            yield _finding(text, start, LintRule.RECURSION, sentence)


def _header(text: Text) -> Iterator[LintFinding]:
    if not text.is_in_header:
        return
    shapes = {f"{n}_{part}" for n in text.source.inputs for part in ("shape", "strides", "ndim")}
    for i, word in enumerate(text.words):
        declared = word == "threadgroup" and text.word(i + 1) in text.types
        if declared and text.word(i + 2).isidentifier() and text.word(i + 3) in ("[", ";", "="):
            sentence = f"`{text.word(i + 2)}` is threadgroup memory; declare it in the body"
            yield _finding(text, i, LintRule.THREADGROUP, sentence)
        elif word in ATTRIBUTES and not text.opens(i - 2) and not text.opens(i + 1):
            sentence = f"MLX adds {word} only to the body; pass it as an argument"
            yield _finding(text, i, LintRule.HEADER_ATTRIBUTE, sentence)
        elif word in shapes:
            sentence = f"MLX adds {word} only if the body names it; pass it as an argument"
            yield _finding(text, i, LintRule.HEADER_SHAPE, sentence)


def _attributes(text: Text) -> Iterator[LintFinding]:
    for i in range(len(text.words)):
        if text.opens(i) and (name := text.word(i + 2)) not in _KNOWN_ATTRIBUTES:
            yield _finding(text, i, LintRule.ATTRIBUTE, f"[[{name}]] is not a Metal attribute")


def _missing_words(text: Text) -> Iterator[LintFinding]:
    for i, word in enumerate(text.words):
        library = word == "std" and text.word(i + 1) == text.word(i + 2) == ":"
        constant = text.word(i + 1) in ("constexpr", "constant", "inline")
        static = word == "static" and not constant and not text.is_in_header
        if word in _MISSING or library or static:
            name = "std::" if library else word
            yield _finding(text, i, LintRule.WORD, f"Metal has no `{name}`")


def _atomics(text: Text) -> Iterator[LintFinding]:
    for i, word in enumerate(text.words):
        kind = text.word(i + 2) if word == "atomic" and text.word(i + 1) == "<" else ""
        if word.startswith("atomic_") and word.removeprefix("atomic_") in _TYPES:
            kind = word.removeprefix("atomic_")
        if kind in _TYPES and kind not in _ATOMIC:
            yield _finding(text, i, LintRule.ATOMIC, f"Metal has no atomic {kind}")


def _names(text: Text) -> Iterator[LintFinding]:
    names = [] if text.is_in_header else [*text.source.inputs, *text.source.outputs]
    for name in names:
        if name in ATTRIBUTES:
            sentence = f"an array has the name of the attribute {name}"
            yield _finding(text, 0, LintRule.NAME, sentence)
    for name in {n for n in names if names.count(n) > 1}:
        yield _finding(text, 0, LintRule.NAME, f"two arrays are called {name}")


RULES: Sequence[Callable[[Text], Iterator[LintFinding]]] = (
    _address_spaces,
    _recursion,
    _header,
    _attributes,
    _missing_words,
    _atomics,
    _names,
)
