"""Convert the words of `workbench tune` to what `tune` takes: tensors, numbers, a grid, configs."""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.adapted.travel import AdaptedError, Place, module_in_package
from workbench.catalog import name_hint
from workbench.commands.options import OptionError
from workbench.measurement.inputs import torch_dtype
from workbench.spec import ITEMSIZE

TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d, ]+)\](?:<(?P<below>\d+))?")
OPERATIONS: Mapping[type, Callable[[int, int], int]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
}
CALLS: Mapping[str, Callable[..., int]] = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}
SEED = 0


def function_of(words: str) -> Any:
    """Return the function of `path/to/file.py:name`. A file that a package needs around it, as for
    relative imports, is imported as its module. Raises OptionError where there is none."""
    file, _, name = words.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise OptionError(f"{words} is not FILE.py:FUNCTION of a file that is there.")
    path = path.resolve()
    script, module = Place(str(path), "__main__", name), module_in_package(path)
    try:
        if module is None:
            return script.find()
        try:
            return Place(str(path), module, name).find()
        except AdaptedError as error:
            try:  # a folder of scripts may have an `__init__.py`, too
                return script.find()
            except AdaptedError:
                raise error from None
    except AttributeError:
        raise OptionError(f"{file} has no {name} at its top level.") from None


def arguments_of(words: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of `--arg` by name. Raises OptionError for one that cannot be read."""
    values = {}
    for each in words:
        name, sign, text = each.partition("=")
        if not sign:
            raise OptionError(
                f"--arg {each} is not NAME=VALUE, such as x=bf16[8192,4096] or n=4096."
            )
        if name not in names:
            raise OptionError(name_hint("argument for --arg", name, names))
        values[name] = _value(name, text)
    return values


def _value(name: str, text: str) -> Any:
    if (match := TENSOR.fullmatch(text)) is not None:
        return _tensor(name, match)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise OptionError(
            f"--arg {name}={text} is neither a tensor, such as bf16[8192,4096] or "
            "int64[4096]<32000, nor a number."
        ) from None


def _tensor(name: str, match: re.Match[str]) -> Any:
    """Return a tensor of random values: floats are normal, integers below the stated bound."""
    import torch

    if match["dtype"] not in ITEMSIZE:
        raise OptionError(name_hint(f"dtype for --arg {name}", match["dtype"], ITEMSIZE))
    dtype = torch_dtype(match["dtype"])
    shape = tuple(int(n) for n in match["shape"].split(",") if n.strip())
    dice = torch.Generator().manual_seed(SEED)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=dice).to(dtype)
    return torch.randint(int(match["below"] or 2), shape, generator=dice).to(dtype)


def grid_of(text: str) -> Callable[[Mapping[str, Any]], tuple[int, ...]]:
    """Return the grid of `--grid`: numbers, names of arguments and knobs, `+ - * // %`, `cdiv`,
    `min` and `max`. Raises OptionError for anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise OptionError(
            f"--grid {text} cannot be read; write 'cdiv(M, BM), cdiv(N, BN)'."
        ) from None
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return lambda meta: tuple(_number(part, meta) for part in parts)


def _number(node: ast.expr, meta: Mapping[str, Any]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        if type(meta.get(node.id)) is not int:
            raise OptionError(f"--grid names {node.id}, which is not a whole number of the launch.")
        return int(meta[node.id])
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](_number(node.left, meta), _number(node.right, meta))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
        return CALLS[node.func.id](*(_number(each, meta) for each in node.args))
    raise OptionError(
        f"--grid has {ast.unparse(node)}; it takes numbers, names, + - * // % and cdiv."
    )


def config_of(text: str) -> Any:
    """Return the `triton.Config` of `BM=64,BN=128,num_warps=4`. Raises OptionError for a word that
    is not NAME=VALUE."""
    from workbench.dsl import triton

    named: dict[str, Any] = {}
    for word in text.split(","):
        name, sign, value = word.strip().partition("=")
        if not sign or not name.isidentifier():
            raise OptionError(f"--config {text} is not NAME=VALUE,..., such as BM=64,num_warps=4.")
        try:
            named[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            named[name] = value  # a word, such as tf32
    options = {n: named.pop(n) for n in ("num_warps", "num_stages", "num_ctas") if n in named}
    return triton.Config(named, **options)
