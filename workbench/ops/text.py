"""Signatures and docstrings of the operations, from their Specs.

`__init__.pyi` consists of them, for editors and type checkers; docs/generate.py writes it. So there
is one place that says what an operation takes, the Spec, and no wrapper that could differ from it.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from types import GenericAlias

import torch

from workbench.device.hardware import DEVICES
from workbench.ops.derivatives import DERIVATIVES
from workbench.spec import Spec, Tensor

WIDTH = 100  # characters of a line


def dtypes_of(spec: Spec) -> list[str]:
    """Return the dtypes under test that some Impl of Triton takes on an H200. A tolerance may also
    be there for an output with a dtype of its own."""
    limits, sizes = DEVICES["h200"].limits, (*spec.check, *spec.bench)
    return [
        dtype
        for dtype in spec.tolerance
        if any(
            impl.rejection_reason(impl.default(limits, dtype, at), limits, dtype, at) is None
            for impl in spec.impls
            if impl.backend == "triton"
            for at in sizes
        )
    ]


def signature_of(spec: Spec) -> inspect.Signature:
    """Return the signature of an operation."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    several = GenericAlias(tuple, (torch.Tensor,) * len(spec.outputs))
    return inspect.Signature(
        [inspect.Parameter(name, kind, annotation=torch.Tensor) for name in spec.inputs],
        return_annotation=torch.Tensor if len(spec.outputs) == 1 else several,
    )


def docstring_of(spec: Spec) -> str:
    """Return the docstring of an operation: the meaning as the kernel's file has it, its constants,
    shapes and dtypes, and whether there is a derivative."""
    shared = ", ".join(dtypes_of(spec))
    meaning = _meaning(spec)
    parts = [meaning, *_constants(spec, meaning), "Args:"]
    parts[-1] += "".join(f"\n    {n}: {_axes(t, shared)}" for n, t in spec.inputs.items())
    alike = next((f"as {n}" for n, t in spec.inputs.items() if t.dtype is None), "")
    results = "".join(f"\n    {n}: {_axes(t, alike)}" for n, t in spec.outputs.items())
    parts.append(f"Returns:{results}")
    parts.append("Raises:\n    OperationError: The operation does not take these tensors.")
    parts.append(_derivative(spec))
    return "\n\n".join(parts)


def _axes(tensor: Tensor, dtype: str) -> str:
    return f"`{tensor.axes}`, {tensor.dtype or dtype}."


def _meaning(spec: Spec) -> str:
    """Return the first paragraph of the kernel's file, and the next one if that is its formula."""
    module = sys.modules[spec.reference.__module__]
    first, *others = (inspect.getdoc(module) or spec.name).split("\n\n")
    return "\n\n".join([first, *others[:1]]) if first.endswith(":") else first


def _constants(spec: Spec, meaning: str) -> Iterator[str]:
    """Return the numbers of the kernel's file that its formula names, in a sentence."""
    known: Mapping[str, object] = vars(sys.modules[spec.reference.__module__])
    words = {word.lower() for word in re.findall(r"\w+", meaning)}
    numbers = [
        f"{name} = {value:g}"
        for name, value in known.items()
        if name.isupper() and isinstance(value, float) and name.lower() in words
    ]
    if numbers:
        yield f"{', '.join(numbers)}."


def _derivative(spec: Spec) -> str:
    derivative = DERIVATIVES.get(spec.name)
    if derivative is None:
        return "It has no backward, and refuses inputs that require a gradient."
    integers = [n for n, t in spec.inputs.items() if (t.dtype or "").startswith("int")]
    inputs = [n for n in spec.inputs if n not in (*derivative.constant, *integers)]
    return f"It has gradients for {', '.join(inputs)}."


def stub(specs: Mapping[str, Spec]) -> str:
    """Return the text of `__init__.pyi`."""
    head = (
        "# Written by docs/generate.py from the Specs; do not edit.\n\n"
        "from collections.abc import Callable\n"
        "from typing import Any\n\n"
        "from torch import Tensor\n\n"
        "from workbench.spec import Spec, WorkbenchError\n\n"
        "class OperationError(WorkbenchError, ValueError): ...\n\n"
        "def operation_of(spec: Spec) -> Callable[..., Any]: ...\n"
    )
    return head + "\n".join(_function(spec) for spec in specs.values())


def _function(spec: Spec) -> str:
    inputs = ", ".join(f"{name}: Tensor" for name in spec.inputs)
    several = ", ".join("Tensor" for _ in spec.outputs)
    output = several if len(spec.outputs) == 1 else f"tuple[{several}]"
    line = f"def {spec.name}({inputs}) -> {output}:"
    if len(line) > WIDTH:  # as ruff formats it
        inside = inputs if len(inputs) + 4 <= WIDTH else inputs.replace(", ", ",\n    ") + ","
        line = f"def {spec.name}(\n    {inside}\n) -> {output}:"
    lines = docstring_of(spec).splitlines()
    body = "\n".join(f"    {each}".rstrip() for each in lines)
    return f'{line}\n    """{body.lstrip()}\n    """\n'
