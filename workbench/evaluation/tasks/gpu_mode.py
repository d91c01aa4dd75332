"""Tasks in GPU MODE's format: a folder with `reference.py` (`ref_kernel`, `generate_input`,
`check_implementation`) and `task.yml`, and a submission with `custom_kernel`.

The whole numbers among the arguments of `generate_input` are the axes, without its seed.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from math import gcd
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

FORMAT = "gpu_mode"
FUNCTIONS = ("ref_kernel", "generate_input", "check_implementation")
TASK = "task.yml"
CASES = "WORKBENCH_CASES"  # of the reference's copy
# of the usual helper `make_match_reference`; an absolute one of 1e-8 is none at any scale
MATCHED = {"rtol": 1e-5, "atol": 1e-8}
_NARROW = (("float8", "fp8"), ("float16", "fp16"), ("bfloat16", "bf16"))


def is_task(task: Path) -> bool:
    """Return whether a folder, or one of its files, is a task of this format."""
    folder = task if task.is_dir() else task.parent
    named = task.is_dir() or task.name in ("reference.py", TASK)
    return named and (folder / "reference.py").is_file() and (folder / TASK).is_file()


def files(task: Path, submission: Path) -> TaskFiles:
    """Return a task and a submission. Raises TaskError."""
    folder = task if task.is_dir() else task.parent
    text = read(submission)
    if not defines(parse_file(text, str(submission)), "custom_kernel"):
        raise TaskError(f"{submission} has no custom_kernel, which the task {folder.name} needs.")
    reference = read(folder / "reference.py")
    tree = parse_file(reference, str(folder / "reference.py"))
    if missing := [name for name in FUNCTIONS if not defines(tree, name)]:
        raise TaskError(f"{folder / 'reference.py'} has no {missing[0]}.")
    copy = _cpu_text(reference) + f"\n\n{CASES} = {_cases(folder / TASK)!r}\n".encode()
    trusted = {SPEC_FILE: spec_text(FORMAT, folder.name), f"{REFERENCE}.py": copy}
    for name in ("task.py", "utils.py"):
        for place in (folder / name, folder.parent / name):
            if place.is_file():
                trusted[name] = _cpu_text(read(place))
                break
    names = reference.decode("utf-8", "replace")
    dtype = next((ours for theirs, ours in _NARROW if re.search(rf"\b{theirs}", names)), "fp32")
    return TaskFiles(FORMAT, trusted, text, "custom_kernel", dtype)


def _cpu_text(data: bytes) -> bytes:
    """Return the text of a judge's file with its tensors on the CPU."""
    return re.sub(rb"(['\"])cuda(:0)?\1", b'"cpu"', data)


def _cases(file: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the arguments of `generate_input` that a task names, to test and to time."""
    try:
        import yaml
    except ImportError:
        raise TaskError(f"Reading {file} needs PyYAML: pip install pyyaml.") from None
    try:
        content = yaml.safe_load(read(file))
    except yaml.YAMLError as error:
        raise TaskError(f"{file} is not YAML ({' '.join(str(error).split())[:200]}).") from None
    cases = {}
    for name in ("tests", "benchmarks"):
        given = content.get(name) if isinstance(content, dict) else None
        if not isinstance(given, list) or not all(isinstance(case, dict) for case in given):
            raise TaskError(f"{file} has no list of {name}.")
        cases[name] = given
    if not cases["tests"]:
        raise TaskError(f"{file} names no test.")
    cases["benchmarks"] = cases["benchmarks"] or cases["tests"][-1:]
    if not all(ast.literal_eval(repr(case)) == case for some in cases.values() for case in some):
        raise TaskError(f"{file} holds other arguments than numbers and texts.")
    return cases


def spec_of(reference: ModuleType, name: str) -> Any:
    """Return the Spec of a task's reference, which is trusted."""
    from workbench.evaluation.tasks.task_spec import TaskFunctions, spec_from, widths

    task = _Generators(reference)
    functions = TaskFunctions(name, task.make, task.reference, task.call, objects=task.objects)
    timed, named = task.sizes["benchmarks"], task.sizes["tests"]
    steps = {axis: gcd(*(sizes[axis] for sizes in (*timed, *named))) for axis in timed[0]}
    return spec_from(functions, timed, named, dict(widths(task.tolerances())), steps)


class _Generators:
    """The functions of a reference."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        cases: Mapping[str, Sequence[dict[str, Any]]] = getattr(module, CASES)
        takes = inspect.signature(module.generate_input).parameters
        first = cases["benchmarks"][0]
        axes = [n for n in takes if type(first.get(n)) is int and n != "seed" and first[n] > 0]
        if not axes:
            raise TaskError("The task's generate_input takes no size.")
        self._others = {n: v for n, v in first.items() if n not in axes and n != "seed"}
        self._seeded = "seed" in takes
        self.sizes = {
            kind: [
                {axis: case[axis] for axis in axes}
                for case in some
                if all(case.get(n) == v for n, v in self._others.items())
                and all(type(case.get(axis)) is int for axis in axes)
            ]
            for kind, some in cases.items()
        }
        self._whole: dict[Any, Any] = {}  # the arguments around the tensors, by sizes

    def _generate(self, sizes: Sizes, seed: int) -> Any:
        import torch

        given = {**self._others, **sizes, **({"seed": seed} if self._seeded else {})}
        torch.manual_seed(seed)
        return self._module.generate_input(**given)

    def make(self, sizes: Sizes, seed: int) -> Mapping[str, Any]:
        """Return the tensors of a call by their place in its data."""
        data = self._generate(sizes, seed)
        return {name: x for name, x in _leaves(data) if _is_tensor(x)}

    def _data(self, tensors: Mapping[str, Any], sizes: Sizes) -> Any:
        """Return the data of a call with these tensors in their places."""
        from torch.utils._python_dispatch import _disable_current_modes

        small = {axis: min(n, 64) for axis, n in sizes.items()}
        for some in (sizes,) if small == sizes else (small, sizes):
            key = tuple(some.items())
            if key not in self._whole:
                try:
                    with _disable_current_modes():
                        self._whole[key] = self._generate(some, 1)
                except Exception:  # no data at that size
                    continue
            data = self._whole[key]
            rest = [x for _, x in _leaves(data) if not _is_tensor(x)]
            if some == sizes or not any(type(x) is int for x in rest):
                return _place_tensors(data, tensors)
        raise TaskError("The task makes no data at these sizes.")

    def reference(self, tensors: Mapping[str, Any], sizes: Sizes) -> Any:
        """Return what the judge's function gives."""
        return self._module.ref_kernel(self._data(tensors, sizes))

    def call(self, function: Callable[..., Any], tensors: Mapping[str, Any], sizes: Sizes) -> Any:
        """Return what a submission gives."""
        return function(self._data(tensors, sizes))

    def objects(
        self, tensors: Mapping[str, Any], sizes: Sizes, outputs: tuple[Any, ...]
    ) -> str | None:
        """Return what the task's own check says against outputs, or None."""
        output = outputs if len(outputs) > 1 else outputs[0]
        answer = self._module.check_implementation(self._data(tensors, sizes), output)
        if isinstance(answer, tuple):
            return None if answer and answer[0] else " ".join(map(str, answer[1:])) or "it fails"
        return str(answer) if answer else None

    def tolerances(self) -> dict[str, tuple[float, float]]:
        """Return the relative and the absolute tolerance of each dtype: the widest of the task's
        own and of what a rounding leaves. The task's own check decides, too."""
        source = inspect.getsource(self._module)
        own = dict(MATCHED)
        for word in own:
            if given := re.search(rf"\b{word}\s*=\s*([0-9.e+-]+)", source):
                own[word] = float(given[1])
        pair = min(own["rtol"], 1e-2), min(max(own["atol"], 1e-6), 1e-2)
        least = {"fp32": 1e-5, "fp16": 1e-3, "bf16": 8e-3, "fp8": 0.125, "fp64": 1e-12}
        return {name: (max(pair[0], low), pair[1]) for name, low in least.items()}


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _leaves(data: Any, name: str = "") -> list[tuple[str, Any]]:
    """Return the values in the data of a call with names by their places: `a`, `b`, `c_weight`."""
    if isinstance(data, Mapping):
        pairs = [(re.sub(r"\W", "_", str(key)), value) for key, value in data.items()]
    elif isinstance(data, (tuple, list)):
        pairs = [(f"data{place}" if not name else str(place), v) for place, v in enumerate(data)]
    else:
        return [(name or "data", data)]
    return [leaf for key, v in pairs for leaf in _leaves(v, f"{name}_{key}" if name else key)]


def _place_tensors(data: Any, tensors: Mapping[str, Any]) -> Any:
    """Return the data of a call with other tensors."""
    names = iter([name for name, x in _leaves(data) if _is_tensor(x)])

    def place(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: place(v) for key, v in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(place(v) for v in value)
        return tensors[next(names)] if _is_tensor(value) else value

    return place(data)
