"""Read a whole Metal kernel, a `[[kernel]]` function with buffers and attributes of its own.

MLX builds a function around the body of `mx.fast.metal_kernel`, which `signature` reproduces. A
whole kernel, as in the headers of MLX's own library, declares its parameters itself. The emulator
runs it as it is; on a Mac it is no input of `mx.fast.metal_kernel`, so nothing launches it there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from metal_shim.host import without_comments
from metal_shim.signature import ATTRIBUTES, MetalSource, Parameter
from workbench.spec import WorkbenchError

_FUNCTION_CONSTANT = re.compile(
    r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\([^\]]*\]\]"
)
_PARAMETER = re.compile(
    r"(?P<declaration>.*?[\s*&])(?P<name>\w+)\s*(?:\[\[\s*(?P<attribute>\w+)[^\]]*\]\])?\s*",
    re.DOTALL,
)


class NotWhole(WorkbenchError, ValueError):
    """A text has no kernel of a name, or one that the emulator cannot launch."""


def whole_source(
    text: str, function: str, header: str = "", constants: Mapping[str, int] | None = None
) -> MetalSource:
    """Return the kernel `function` of a Metal text as the emulator takes it.

    Args:
        text: The unmodified text; findings name its lines.
        function: Name of the `[[kernel]]` or `kernel` function.
        header: Text before it, such as the headers that it includes.
        constants: Values of the function constants of the text.

    Buffers are the inputs (const or constant) and outputs in the order of the parameters, which for
    MLX's kernels is that of their indices. Raises NotWhole.
    """
    values = constants or {}
    header, text = (_with_constants(each, values) for each in (header, text))
    parameters = [_parameter(part) for part in _listed(without_comments(text), function)]
    buffers = [p for p in parameters if not p.part]
    return MetalSource(
        name=function,
        inputs=tuple(p.name for p in buffers if not _is_written(p)),
        outputs=tuple(p.name for p in buffers if _is_written(p)),
        body=text,
        header=header,
        whole=tuple(parameters),
    )


def _with_constants(text: str, values: Mapping[str, int]) -> str:
    def given(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if name not in values:
            raise NotWhole(f"the function constant {name} has no value; name one in constants.")
        return f"constant {kind} {name} = {int(values[name])}"

    return _FUNCTION_CONSTANT.sub(given, text)


def _listed(text: str, function: str) -> list[str]:
    """Return the parameters of the kernel, each as text."""
    start = re.search(rf"\bkernel\b[^;{{}}]*?\bvoid\s+{function}\s*\(", text)
    if start is None:
        raise NotWhole(f"the text has no kernel {function}; name one of its [[kernel]] functions.")
    depth, parts = 0, [""]
    for letter in text[start.end() :]:
        depth += (letter in "([<") - (letter in ")]>")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise NotWhole(f"the parameter {text!r} cannot be read; write it as `type name`.")
    declaration, name = match["declaration"].strip(), match["name"]
    attribute = match["attribute"] or "buffer"
    if attribute == "buffer":
        return Parameter(declaration, name, name)
    if attribute not in ATTRIBUTES:
        raise NotWhole(f"the emulator gives no {attribute}, which {name} takes; pass it otherwise.")
    return Parameter(declaration, name, "", attribute)


def _is_written(parameter: Parameter) -> bool:
    return not re.search(r"\bconst(ant)?\b", parameter.declaration)
