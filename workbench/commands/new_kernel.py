"""Write a working kernel file to start from."""

from __future__ import annotations

import keyword
import shlex
from collections.abc import Mapping
from pathlib import Path

from workbench.commands.field import argument, option
from workbench.commands.options import Options
from workbench.spec import WorkbenchError


class NewKernelOptions(Options):
    name: str = argument("Name of the kernel: a Python name.")
    folder: Path = option(Path("."), "Where to write NAME.py.")
    like: str | None = option(
        None, "elements, rows, tiles, matmul or attention; by default taken from its name."
    )


FILES = Path(__file__).parent / "kernel_files"
STARTER = FILES / "elements.py.txt"

# What each file computes, and the words of a kernel's name that choose it.
COMPUTES = {
    "elements": "{}, element by element",
    "rows": "softmax of rows",
    "tiles": "a transpose in tiles",
    "matmul": "a matrix product",
    "attention": "attention",
}
_LIKE = {
    **dict.fromkeys(("softmax", "norm", "reduce", "sum", "rows"), "rows"),
    **dict.fromkeys(("transpose", "tiles"), "tiles"),
    **dict.fromkeys(("matmul", "gemm", "mm", "bmm", "linear", "product"), "matmul"),
    **dict.fromkeys(("attention", "attn", "flash", "sdpa"), "attention"),
}

# Functions that `elements` can compute. What stands for the others in place of the lines of SiLU,
# which the file computes as it is: meaning, operations, torch, Triton, library, special values.
_SILU = (
    "y = x * sigmoid(x)",
    "4 FLOP",
    "lambda N: 4 * N",
    "x * torch.sigmoid(x)",
    "x * tl.sigmoid(x)",
    "torch.nn.functional.silu(x)",
    "NaN stays NaN, infinity stays infinity, minus infinity becomes NaN;",
)
_FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "silu": _SILU,
    "gelu": (
        "y = x * (1 + erf(x / sqrt(2))) / 2",
        "5 FLOP",
        "lambda N: 5 * N",
        "0.5 * x * (1 + torch.erf(x * 0.5**0.5))",
        "0.5 * x * (1 + tl.erf(x * 0.7071067811865476))",
        "torch.nn.functional.gelu(x)",
        "NaN stays NaN, infinity stays infinity, minus infinity becomes NaN;",
    ),
    "relu": (
        "y = max(x, 0)",
        "1 FLOP",
        "lambda N: N",
        "torch.relu(x)",
        "tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)",
        "torch.relu(x)",
        "NaN stays NaN, infinity stays infinity, minus infinity becomes 0;",
    ),
    "sigmoid": (
        "y = 1 / (1 + exp(-x))",
        "3 FLOP",
        "lambda N: 3 * N",
        "torch.sigmoid(x)",
        "tl.sigmoid(x)",
        "torch.sigmoid(x)",
        "NaN stays NaN, infinity becomes 1, minus infinity becomes 0;",
    ),
    "tanh": (
        "y = tanh(x)",
        "5 FLOP",
        "lambda N: 5 * N",
        "torch.tanh(x)",
        "2 * tl.sigmoid(2 * x) - 1",
        "torch.tanh(x)",
        "NaN stays NaN, infinity becomes 1, minus infinity becomes -1;",
    ),
}
_FUNCTION_OF = {**{name: name for name in _FUNCTIONS}, "swish": "silu"}


class TemplateError(WorkbenchError):
    """No file was written; one sentence says why, and what to do."""


def run(options: NewKernelOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import say

    path, computes = write_kernel(options.name, options.folder, options.like)
    kernel = shlex.quote(str(path))
    say(f"wrote   {path}: {computes}\ntry it  workbench sweep {kernel}")
    return 0


def write_kernel(name: str, folder: Path, like: str | None = None) -> tuple[Path, str]:
    """Write a starter kernel to `folder/name.py`, which must not exist: one like `like`, or else
    what its name says. Returns its path, and what it computes. Raises TemplateError where the name
    is not usable or the file cannot be written."""
    from workbench.catalog import kernel_names, name_hint

    if not name.isidentifier() or keyword.iskeyword(name):
        raise TemplateError(
            f"{name!r} is not a Python name; take letters, digits and _, as in my_gelu."
        )
    if name in kernel_names():
        raise TemplateError(f"{name!r} is a built-in kernel; take another name, as my_{name}.")
    if like is not None and like not in COMPUTES:
        raise TemplateError(name_hint("file to start from", like, COMPUTES))
    words = name.lower().split("_")
    chosen = like or next((_LIKE[word] for word in words if word in _LIKE), "elements")
    text = (FILES / f"{chosen}.py.txt").read_text(encoding="utf-8")
    function = next((_FUNCTION_OF[word] for word in words if word in _FUNCTION_OF), "silu")
    if chosen == "elements":
        for old, new in zip(_SILU, _FUNCTIONS[function], strict=True):
            text = text.replace(old, new)
    if name in words_of(text):
        raise TemplateError(
            f"{name!r} already means something in a kernel file; take another name."
        )
    path = folder / f"{name}.py"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace("NAME", name))
    except FileExistsError:
        raise TemplateError(f"{path} exists; choose another name or --folder.") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TemplateError(
            f"{path} cannot be written ({reason}); choose another --folder."
        ) from None
    return path, COMPUTES[chosen].format(function)


def words_of(source: str) -> set[str]:
    """Return every name that a Python source uses, except in comments and strings, and except
    attributes: `gelu` of `torch.nn.functional.gelu` may be a kernel's name."""
    import io
    import tokenize

    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    dots = [""] + [token.string for token in tokens]
    return {
        token.string
        for token, before in zip(tokens, dots, strict=False)
        if token.type == tokenize.NAME and before != "."
    }
