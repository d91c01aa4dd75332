"""Read TTGIR, Triton's intermediate code with layouts, as a tree of operations.

The text is that of `asm["ttgir"]`, after loops were pipelined, of Triton 3.6 to 3.9. One line is
one operation. What an operation does is not decided here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

LOC = re.compile(r"\s*loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
OP = re.compile(r'^(?:(%[\w.$-]+)(?::(\d+))? = )?"?([a-z_]+\.[\w.]+)"?(.*)$')
PLACE = re.compile(r'"([^"]*)":(\d+):\d+')
NAME = re.compile(r"%[\w.$-]+(?:#\d+)?")
PARAMETER = re.compile(r"(%[\w.$-]+): ([^,{)]+)")
TYPE = re.compile(r"(?:tensor|memdesc)<")
DESCRIPTOR = re.compile(r"!tt\.tensordesc<(?:tensor<)?((?:\d+x)+)(\w+)")  # 3.6 has `tensor<`
BLOCK = "block"  # the pseudo-operation of a label, whose results are the block's arguments


class NotModelled(Exception):
    """No time can be derived from this code; the message says why, as a clause."""


@dataclass
class Op:
    """One operation with the operations inside it."""

    name: str  # with its dialect: "tt.load"
    text: str  # what follows the name
    results: list[str]
    regions: list[list[Op]] = field(default_factory=list)
    tail: str = ""  # what follows its closing brace
    number: int = 0  # its place in the text
    line: tuple[str, int] | None = None  # of the source: file without folders, and line

    @property
    def word(self) -> str:
        """Return the name without its dialect."""
        return self.name.split(".", 1)[1] if "." in self.name else self.name

    @property
    def operands(self) -> list[str]:
        """Return the names of the values that it takes, in order; those of a loop's head have
        another form."""
        return [] if self.name == "scf.for" else NAME.findall(self.text.split(" : ")[0])


@dataclass(frozen=True)
class TensorType:
    """Shape, element and layout of a tensor or of a buffer in shared memory."""

    shape: tuple[int, ...]
    element: str  # "f32", "i32", "ptr<bf16>"
    layout: str

    @property
    def item_bytes(self) -> float:
        """Return the bytes of one element; of a pointer, those of what it points to."""
        inner = self.element[4:-1] if self.element.startswith("ptr") else self.element
        return element_bytes(inner)

    @property
    def is_float(self) -> bool:
        """Return whether its elements are floats."""
        return self.element[0] in "fb"

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


@dataclass
class Function:
    """One kernel: its operations, its parameters in order, its layouts by name, its warps."""

    body: list[Op]
    parameters: list[str]
    kinds: list[str]  # of the parameters: "!tt.ptr<f32>", "i32"
    layouts: dict[str, str]
    warps: int
    lanes: int = 32
    blocks: int = 1  # of a cluster


def element_bytes(element: str) -> float:
    """Return the bytes of an element by its name: 2 for "bf16"."""
    if element.startswith("ptr"):
        return 8
    digits = re.search(r"\d+", element)
    return max(1, int(digits.group()) / 8) if digits else 4


def read_ttgir(text: str) -> Function:
    """Return the kernel of a text. Raises NotModelled where it has several functions."""
    return _TtgirReader().read(text)


class _TtgirReader:
    """The text as far as it was read: blocks that are open, and the operations that they are of."""

    def __init__(self) -> None:
        self.function = Function([], [], [], {}, 4)
        self._open: list[list[Op]] = [self.function.body]
        self._owners: list[Op] = []
        self._count = 0
        self._has_ended = False
        self._places: dict[str, str] = {}  # texts of the named ones
        self._located: list[tuple[Op, str]] = []
        self._last = Op("", "", [])

    def read(self, text: str) -> Function:
        for raw in text.splitlines():
            line = LOC.sub("", raw).strip()
            if line.startswith("#loc"):
                name, _, self._places[name] = raw.partition(" = ")
            elif line.startswith("#"):
                name, _, self.function.layouts[name] = line.partition(" = ")
            elif line.startswith("module"):
                self._module(line)
            elif line.startswith("tt.func"):
                self._begin(line)
            elif not self._has_ended:
                count = self._count
                self._line(line)
                if self._count > count and (places := LOC.findall(raw)):
                    self._located.append((self._last, places[-1]))
        for op, place in self._located:
            op.line = self._resolve(place)
        if not self.function.body:
            raise NotModelled("its intermediate code has no function")
        return self.function

    def _resolve(self, place: str) -> tuple[str, int] | None:
        """Return the source line of a place; of a function that was inlined, its own line."""
        if match := PLACE.search(place):
            return match.group(1).rsplit("/", 1)[-1], int(match.group(2))
        names = re.findall(r"#loc\d*", place)
        lines = (self._resolve(self._places[n]) for n in names if n in self._places)
        return next(filter(None, lines), None)

    def _module(self, line: str) -> None:
        def number(key: str, default: int) -> int:
            match = re.search(rf'"ttg.{key}" = (\d+)', line)
            return int(match.group(1)) if match else default

        self.function.warps = number("num-warps", 4)
        self.function.lanes = number("threads-per-warp", 32)
        self.function.blocks = number("num-ctas", 1)

    def _begin(self, line: str) -> None:
        if self.function.body or self._has_ended:
            raise NotModelled("it calls a function that is not inlined")
        pairs = PARAMETER.findall(line)
        self.function.parameters = [name for name, _ in pairs]
        self.function.kinds = [kind.strip() for _, kind in pairs]

    def _line(self, line: str) -> None:
        if line.startswith("^"):
            labels = re.findall(r"(%[\w.$-]+): ", line)
            self._open[-1].append(Op(BLOCK, line, labels, number=self._count))
        elif line.startswith("}"):
            self._close(line[1:].strip())
        elif match := OP.match(line):
            self._operation(*match.groups())

    def _close(self, rest: str) -> None:
        if not self._owners:
            self._has_ended = bool(self.function.body)
        elif rest.endswith("{"):  # "} else {", "} do {"
            self._owners[-1].regions.append([])
            self._open[-1] = self._owners[-1].regions[-1]
        else:
            self._owners.pop().tail = rest
            self._open.pop()

    def _operation(self, result: str | None, many: str | None, name: str, rest: str) -> None:
        if name.startswith("amdg.buffer_"):
            name, rest = self._use_pointers(name.removeprefix("amdg.buffer_"), rest)
        self._count += 1
        places = [f"#{i}" for i in range(int(many))] if many else [""]
        results = [f"{result}{place}" for place in places] if result else []
        op = self._last = Op(name, rest.strip(), results, number=self._count)
        self._open[-1].append(op)
        if rest.endswith("{"):
            op.regions.append([])
            self._owners.append(op)
            self._open.append(op.regions[-1])

    def _use_pointers(self, word: str, rest: str) -> tuple[str, str]:
        """Note the pointers of an access to an AMD buffer, a base and offsets; return the name and
        the text of the access that takes these pointers."""
        operands = re.sub(r" stride = %[\w.$#-]+", "", re.split(r" \{| : ", rest)[0])
        before, base, offsets, after = re.split(r"(%[\w.$-]+)\[(%[\w.$#-]+)\]", operands)
        element, kind = re.findall(r"<(\w+)>", rest)[0], types_in(rest)[0]
        pointers = f"{base}.{self._count}"
        self._operation(pointers, None, "tt.addptr", f"{base}, {offsets} : !tt.ptr<{element}>")
        after, _, buffer = after.replace(" = ", " ").partition(" into ")
        names = ", ".join((pointers, *NAME.findall(before), *NAME.findall(buffer)))
        extents = "".join(f"{n}x" for n in kind.shape)
        name = "ttg.async_copy_global_to_local" if buffer else f"tt.{word}"
        return name, f"{names}{after} : tensor<{extents}!tt.ptr<{element}>, {kind.layout}>"


@lru_cache(maxsize=100_000)
def types_in(text: str) -> tuple[TensorType, ...]:
    """Return the types of tensors and buffers that a text names, in order."""
    return tuple(_type(_bracketed_text(text, match.end())) for match in TYPE.finditer(text))


def _bracketed_text(text: str, begin: int) -> str:
    """Return what stands between angle brackets, of which the first is open at `begin`."""
    depth, at = 1, begin
    while depth and at < len(text):
        if text[at - 1] != "-":  # an arrow's bracket closes nothing
            depth += {"<": 1, ">": -1}.get(text[at], 0)
        at += 1
    return text[begin : at - 1]


def _type(inside: str) -> TensorType:
    extents = re.match(r"(?:\d+x)*", inside)
    assert extents is not None  # it matches the empty text
    dims = extents.group()
    element, _, layout = inside[len(dims) :].partition(", ")
    shape = tuple(int(d) for d in dims.split("x") if d)
    return TensorType(shape, element.replace("!tt.", ""), layout)


def pointer_type(op: Op) -> TensorType:
    """Return the type of what an access takes as its pointers: of a tensor of them, of one, or of a
    descriptor's block. Raises NotModelled where it takes none."""
    if (block := DESCRIPTOR.search(op.text)) is not None:
        shape = tuple(int(n) for n in block.group(1).split("x") if n)
        return TensorType(shape, f"ptr<{block.group(2)}>", "")
    if kinds := types_in(op.text):
        return kinds[0]
    match = re.search(r"!tt\.ptr<([^>,]*)", op.text)
    if match is None:
        raise NotModelled(f"{op.name} without a pointer")
    return TensorType((), f"ptr<{match.group(1)}>", "")
