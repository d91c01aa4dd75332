"""Tasks in flashinfer-bench's format: a Definition, its workloads and a Solution, as JSON.

The axes that a Definition leaves open are the axes here; its constant ones stay as they are. The
workloads lie beside it, as in a folder of that format (`definitions/...`, `workloads/...`), or in a
file of the same name that ends in `.jsonl`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
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

FORMAT = "flashinfer_bench"
TASK = "WORKBENCH_TASK"  # of the reference's copy
TOLERANCE = (1e-2, 1e-2)  # of its own configuration
DTYPES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8_e5m2", "int64": "int64", "int32": "int32", "int16": "int16",
    "int8": "int8", "bool": "bool",
}  # fmt: skip
RANGES = {"int8": 128, "int16": 1024, "int32": 1024, "int64": 1024}  # of random numbers


def is_task(task: Path) -> bool:
    """Return whether a file is a Definition."""
    if task.suffix != ".json" or not task.is_file():
        return False
    try:
        content = json.loads(task.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    names = ("name", "axes", "inputs", "outputs", "reference")
    return isinstance(content, dict) and all(name in content for name in names)


def files(task: Path, submission: Path) -> TaskFiles:
    """Return a Definition with its workloads, and a Solution. Raises TaskError."""
    definition = _json(task)
    _hold(task, definition)
    solution = _json(submission) if submission.suffix == ".json" else None
    destination = True
    helpers: dict[str, bytes] = {}
    if solution is None:  # a file of its own, whose `run` returns its outputs
        text, entry, destination = read(submission), "run", False
    else:
        text, entry, destination, helpers = _solution(submission, solution, definition["name"])
    if not defines(parse_file(text, str(submission)), entry):
        raise TaskError(f"{submission} defines no {entry}.")
    content = {
        "definition": {k: definition[k] for k in ("name", "axes", "inputs", "outputs")},
        "constraints": definition.get("constraints") or [],
        "workloads": _workloads(task, definition["name"]),
        "destination": destination,
    }
    code = f"{definition['reference']}\n\n{TASK} = {content!r}\n"
    trusted = {SPEC_FILE: spec_text(FORMAT, definition["name"]), f"{REFERENCE}.py": code.encode()}
    kinds = [DTYPES.get(t["dtype"], "") for t in definition["inputs"].values() if t["shape"]]
    order = ("fp8", "fp8_e5m2", "fp16", "bf16", "fp32")
    dtype = next((kind for kind in order if kind in kinds), "fp32")
    return TaskFiles(FORMAT, trusted, text, entry, dtype, helpers)


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read(file))
    except (ValueError, RecursionError):
        raise TaskError(f"{file} is not JSON.") from None
    if not isinstance(content, dict):
        raise TaskError(f"{file} holds no object.")
    return content


def _hold(task: Path, definition: Mapping[str, Any]) -> None:
    """Raise TaskError where a Definition holds what no Spec has."""
    axes, texts = definition["axes"], (definition["name"], definition["reference"])
    if not isinstance(axes, dict) or not all(isinstance(text, str) for text in texts):
        raise TaskError(
            f"{task} is not a Definition: its name, axes or reference is of another type."
        )
    if not defines(parse_file(definition["reference"].encode(), f"the reference of {task}"), "run"):
        raise TaskError(f"The reference of {task} has no function `run`.")
    for axis, given in axes.items():
        kind = given.get("type") if isinstance(given, dict) else None
        if kind not in ("const", "var") or (
            kind == "const" and type(given.get("value")) is not int
        ):
            raise TaskError(f"The axis {axis} of {task} is neither `const` nor `var`.")
    for name, tensor in {**definition["inputs"], **definition["outputs"]}.items():
        if not isinstance(tensor, dict) or tensor.get("dtype") not in DTYPES:
            raise TaskError(f"{task}: {name} is of a dtype that no Spec has.")
        if odd := [axis for axis in tensor.get("shape") or () if axis not in axes]:
            raise TaskError(f"{task}: {name} has the axis {odd[0]}, which is not declared.")


def _solution(
    file: Path, content: Mapping[str, Any], definition: str
) -> tuple[bytes, str, bool, dict[str, bytes]]:
    """Return the text, the entry, the calling style and the other files of a Solution."""
    try:
        spec, sources = content["spec"], content["sources"]
        path, _, entry = spec["entry_point"].partition("::")
        texts = {source["path"]: source["content"].encode() for source in sources}
        language, of = spec["language"], content["definition"]
    except (KeyError, TypeError, AttributeError) as error:
        raise TaskError(f"{file} is not a Solution: it lacks {error}.") from None
    if of != definition:
        raise TaskError(f"{file} is a Solution of {of}, and the task is {definition}.")
    if language not in ("python", "triton"):
        raise TaskError(f"{file} is in {language}; only Python and Triton are judged.")
    if path not in texts or not entry.isidentifier():
        raise TaskError(f"{file} has no source {path} with {entry or 'an entry'}.")
    odd = [p for p in texts if PurePosixPath(p).is_absolute() or ".." in PurePosixPath(p).parts]
    if odd:
        raise TaskError(f"{file} holds a source at {odd[0]}, outside of its folder.")
    text = texts.pop(path)
    return text, entry, bool(spec.get("destination_passing_style", True)), texts


def _workloads(task: Path, name: str) -> list[dict[str, Any]]:
    """Return axes and scalars of each workload whose inputs are random or numbers."""
    places = [task.with_suffix(".jsonl")]
    for folder in task.resolve().parents:
        if folder.name == "definitions":
            within = task.resolve().parent.relative_to(folder)
            places.append(folder.parent / "workloads" / within / f"{name}.jsonl")
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise TaskError(f"{task} has no workloads; write {places[0]} (docs/evaluate.md).")
    known = []
    for line in read(file).decode("utf-8", "replace").splitlines():
        try:
            one = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            raise TaskError(f"{file} holds a line that is not JSON.") from None
        one = one.get("workload", one) if isinstance(one, dict) else None
        if not isinstance(one, dict) or not isinstance(one.get("axes"), dict):
            continue
        inputs = one.get("inputs") or {}
        if all(i.get("type") in ("random", "scalar") for i in inputs.values()):
            scalars = {n: i["value"] for n, i in inputs.items() if i["type"] == "scalar"}
            known.append({"axes": one["axes"], "scalars": scalars})
    if not known:
        raise TaskError(f"{file} has no workload of random inputs; others are not supported.")
    return known


def spec_of(reference: ModuleType, name: str) -> Any:
    """Return the Spec of a Definition, whose reference is trusted."""
    from workbench.evaluation.tasks.task_spec import TaskFunctions, spec_from, widths

    task = _OpenDefinition(reference)
    functions = TaskFunctions(
        name, task.make, task.reference, task.call, constraint=task.constraint
    )
    tolerances = dict.fromkeys(("fp32", "fp16", "bf16", "fp8", "fp8_e5m2"), TOLERANCE)
    steps = {axis: 1 for axis in task.timed[0]}
    return spec_from(functions, task.timed, [], dict(widths(tolerances)), steps)


class _OpenDefinition:
    """A Definition with its workloads."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        content = getattr(module, TASK)
        definition = content["definition"]
        self._inputs, self._outputs = definition["inputs"], definition["outputs"]
        self._const = {n: a["value"] for n, a in definition["axes"].items() if a["type"] == "const"}
        self._destination, self._constraints = content["destination"], content["constraints"]
        self._scalars = content["workloads"][0]["scalars"]
        free = [n for n, a in definition["axes"].items() if a["type"] == "var"]
        sizes = [
            {axis: work["axes"][axis] for axis in free}
            for work in content["workloads"]
            if work["scalars"] == self._scalars and all(a in work["axes"] for a in free)
        ]
        self.timed = list({tuple(s.items()): s for s in sizes}.values())
        if not free or not self.timed:
            raise TaskError("The Definition leaves no axis open, or its workloads name none.")
        self.timed.sort(key=lambda s: -max(s.values()))

    def constraint(self, sizes: Sizes) -> str | None:
        """Return the first constraint of the Definition that these sizes break, or None."""
        known = {**self._const, **sizes}
        for text in self._constraints:
            try:
                holds = eval(text, {"__builtins__": {}}, dict(known))
            except Exception:  # it is about values, not about sizes
                continue
            if not holds:
                return f"its constraint {text} does not hold"
        return None

    def _shape(self, tensor: Mapping[str, Any], sizes: Sizes) -> list[int]:
        return [({**self._const, **sizes})[axis] for axis in tensor["shape"]]

    def make(self, sizes: Sizes, seed: int) -> Mapping[str, Any]:
        """Return random inputs as flashinfer-bench makes them."""
        import torch

        chance, tensors = torch.Generator().manual_seed(seed), {}
        for name, tensor in self._inputs.items():
            if tensor["shape"] is None:
                continue
            shape, dtype = self._shape(tensor, sizes), getattr(torch, tensor["dtype"])
            if dtype.is_floating_point:
                x = torch.randn(shape, generator=chance)
                x = x.clamp(-2, 2) if dtype.itemsize == 1 else x
            else:
                most = RANGES.get(tensor["dtype"])
                low, high = (-most, most) if most else (0, 2)
                x = torch.randint(low, high, shape, generator=chance)
            tensors[name] = x.to(dtype)
        return tensors

    def _arguments(self, tensors: Mapping[str, Any]) -> list[Any]:
        return [
            tensors[n] if t["shape"] is not None else self._scalars.get(n)
            for n, t in self._inputs.items()
        ]

    def reference(self, tensors: Mapping[str, Any], sizes: Sizes) -> Any:
        """Return the outputs of the Definition's reference, in their order."""
        result = self._module.run(*self._arguments(tensors))
        if isinstance(result, Mapping):
            return tuple(result[name] for name in self._outputs)
        return result

    def call(self, function: Callable[..., Any], tensors: Mapping[str, Any], sizes: Sizes) -> Any:
        """Return the outputs of a Solution, into fresh memory where it takes them as arguments."""
        import torch

        given = self._arguments(tensors)
        if not self._destination:
            result = function(*given)
            if isinstance(result, Mapping):
                return tuple(result[name] for name in self._outputs)
            return result
        device = next(iter(tensors.values())).device
        outputs = [
            torch.empty(self._shape(t, sizes), dtype=getattr(torch, t["dtype"]), device=device)
            for t in self._outputs.values()
        ]
        function(*given, *outputs)
        return tuple(outputs)
