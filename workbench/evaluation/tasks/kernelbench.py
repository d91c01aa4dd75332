"""Tasks in KernelBench's format: a file with `Model`, `get_inputs` and `get_init_inputs`, and a
submission with `ModelNew`.

The numbers at the top of the file that its functions use are the axes. The parameters of the model
are inputs: the judge's model makes them, and a submission's gets them by name.
"""

import ast
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from math import gcd, prod
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.evaluation.tasks.text import (
    REFERENCE,
    SPEC_FILE,
    TaskError,
    TaskFiles,
    defines,
    parse_file,
    read,
    spec_text,
)
from workbench.spec import Sizes

FORMAT = "kernelbench"
FUNCTIONS = ("Model", "get_inputs", "get_init_inputs")
# KernelBench's own, relative and absolute
TOLERANCES = {"fp32": (1e-4, 1e-4), "fp16": (1e-2, 1e-2), "bf16": (1e-2, 1e-2)}
FEW = 64  # an axis up to here may stand for a window, a group or a head, and stays as it is


def is_task(task: Path) -> bool:
    """Return whether a file holds a task of this format."""
    if not task.is_file() or task.suffix != ".py":
        return False
    try:
        tree = ast.parse(task.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(defines(tree, name) for name in FUNCTIONS)


def files(task: Path, submission: Path) -> TaskFiles:
    """Return a task and a submission. Raises TaskError."""
    text = read(submission)
    if not defines(parse_file(text, str(submission)), "ModelNew"):
        raise TaskError(f"{submission} has no class ModelNew, which the task {task.name} needs.")
    trusted = {SPEC_FILE: spec_text(FORMAT, task.stem), f"{REFERENCE}.py": read(task)}
    return TaskFiles(FORMAT, trusted, text, "ModelNew")


def spec_of(reference: ModuleType, name: str) -> Any:
    """Return the Spec of a task's reference, which is trusted."""
    from workbench.evaluation.tasks.task_spec import (
        MOST_STEP,
        TaskFunctions,
        spec_from,
        steps_within,
        widths,
    )

    task = _Models(reference, name)
    functions = TaskFunctions(task.name, task.make, task.reference, task.call, follows=True)
    timed = task.sizes
    wanted = {a: n if n <= FEW else gcd(n, MOST_STEP) for a, n in timed.items()}
    steps = steps_within(timed, wanted, task.bytes_at)
    return spec_from(functions, [timed], [], dict(widths(TOLERANCES)), steps)


class _Models:
    """A reference whose numbers can be others."""

    def __init__(self, module: ModuleType, name: str) -> None:
        loader: Any = module.__loader__
        self._text: str = loader.get_source(module.__name__)
        self._tree = ast.parse(self._text)
        self._file = str(module.__file__)
        self.name = name
        self.sizes = self._axes(module)
        self.at, self.scalars = cache(self._names_at), cache(self._scalars)

    def _axes(self, module: ModuleType) -> dict[str, int]:
        """Return the whole numbers at the top of the file that its functions use."""
        used = {
            n.id
            for node in self._tree.body
            if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS[1:]
            for n in ast.walk(node)
            if isinstance(n, ast.Name)
        }
        axes: dict[str, int] = {}
        for node in self._tree.body:
            name = _number_name(node)
            if name is not None:
                value = getattr(module, name, None)
                if name in used and type(value) is int and value > 0:
                    axes[name] = value
        if not axes:
            raise TaskError(
                "The task names no size: give its get_inputs whole numbers at the top of the file."
            )
        return axes

    def _names_at(self, sizes: tuple[tuple[str, int], ...]) -> Mapping[str, Any]:
        """Return the names of the reference with these numbers in place of its own."""
        from torch.utils._python_dispatch import _disable_current_modes

        sizes_at = dict(sizes)
        tree = ast.parse(self._text)
        for node in tree.body:
            name = _number_name(node)
            if name in sizes_at:
                node.value = ast.copy_location(ast.Constant(sizes_at[name]), node)  # type: ignore[attr-defined]
        names: dict[str, Any] = {"__name__": REFERENCE, "__file__": self._file}
        with _disable_current_modes():
            exec(compile(tree, self._file, "exec"), names)
        return names

    def bytes_at(self, sizes: Sizes) -> int:
        """Return the bytes of the inputs at these sizes, from tensors without values."""
        import torch

        names = self.at(tuple(sizes.items()))
        with torch.device("meta"):
            inputs = [x for x in names["get_inputs"]() if isinstance(x, torch.Tensor)]
            model = names["Model"](*names["get_init_inputs"]())
        return sum(4 * prod(x.shape) for x in (*inputs, *model.state_dict().values()))

    def _arguments(self, sizes: Sizes) -> list[str]:
        model = self.at(tuple(sizes.items()))["Model"]
        return [n for n in inspect.signature(model.forward).parameters if n != "self"]

    def make(self, sizes: Sizes, seed: int) -> Mapping[str, Any]:
        """Return the inputs of a call and the parameters of the model, by name."""
        import torch

        names = self.at(tuple(sizes.items()))
        torch.manual_seed(seed)
        inputs = names["get_inputs"]()
        named = zip(self._arguments(sizes), inputs, strict=False)
        tensors = {n: x for n, x in named if isinstance(x, torch.Tensor)}
        state = names["Model"](*names["get_init_inputs"]()).state_dict()
        return {**tensors, **{_input(n): x.detach().clone() for n, x in state.items()}}

    def _model(
        self, kind: Callable[..., Any], names: Any, tensors: Mapping[str, Any], arguments: list[str]
    ) -> tuple[Any, dict[str, Any]]:
        """Return a model without values, and the tensors that are its parameters."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes(), torch.device("meta"):
            model = kind(*names["get_init_inputs"]())
            own = {n: tuple(x.shape) for n, x in model.state_dict().items()}
        state = {n: x for n, x in tensors.items() if n not in arguments}
        by_name = {_input(n): n for n in own}
        if by_name.keys() == state.keys():
            return model, {by_name[n]: x for n, x in state.items()}
        if list(own.values()) == [tuple(x.shape) for x in state.values()]:
            return model, dict(zip(own, state.values(), strict=True))
        raise TaskError(
            f"ModelNew has the parameters {', '.join(own) or 'none'}, and Model others "
            f"({', '.join(state) or 'none'})."
        )

    def _forward(
        self, kind: Callable[..., Any], names: Any, tensors: Mapping[str, Any], sizes: Sizes
    ) -> Any:
        """Call a model with these parameters in place of its own."""
        import torch

        arguments = self._arguments(sizes)
        scalars = self.scalars(tuple(sizes.items()))
        model, state = self._model(kind, names, tensors, arguments)
        given = tuple(tensors.get(n, value) for n, value in scalars.items())
        with torch.no_grad():
            return torch.func.functional_call(model, state, given)

    def reference(self, tensors: Mapping[str, Any], sizes: Sizes) -> Any:
        """Return what the judge's model gives."""
        names = self.at(tuple(sizes.items()))
        return self._forward(names["Model"], names, tensors, sizes)

    def call(self, function: Callable[..., Any], tensors: Mapping[str, Any], sizes: Sizes) -> Any:
        """Return what a submission's model gives."""
        return self._forward(function, self.at(tuple(sizes.items())), tensors, sizes)

    def _scalars(self, sizes: tuple[tuple[str, int], ...]) -> dict[str, Any]:
        """Return the arguments of a forward by name; those that are tensors are None."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes(), torch.device("meta"):
            inputs = self.at(sizes)["get_inputs"]()
        named = zip(self._arguments(dict(sizes)), inputs, strict=False)
        return {n: None if isinstance(x, torch.Tensor) else x for n, x in named}


def _number_name(node: ast.stmt) -> str | None:
    """Return the name of a number that stands at the top of a file, or None. One that is computed
    from others follows them."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target, value = node.target, node.value
    else:
        return None
    plain = all(
        isinstance(n, (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop))
        for n in ast.walk(value)
    )
    return target.id if isinstance(target, ast.Name) and plain else None


def _input(name: str) -> str:
    return "state_" + name.replace(".", "_")
