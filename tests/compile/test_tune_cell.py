"""Tuning a function of a notebook's cell, whose source is in no file."""

import linecache

import pytest
import torch
import triton

import workbench as wb

HELPERS = """
import torch
import triton
import triton.language as tl

FACTOR: tl.constexpr = tl.constexpr(3)
OFFSET = tl.constexpr(1.0)
LOWEST = tl.constexpr(float("-inf"))

@triton.jit
def moved(value):
    return tl.maximum(value * FACTOR + OFFSET, LOWEST)
"""
KERNEL = """
@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, moved(tl.load(x + at, at < n)), at < n)
"""


class Notebook:
    """Executes cells as IPython does: their source is known to `linecache` alone."""

    def __init__(self, folder):
        self.folder, self.names, self.count = folder, {"__name__": "__main__"}, 0

    def cell(self, source):
        self.count += 1
        file = str(self.folder / f"ipykernel_{self.count}.py")
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), self.names)


def test_a_function_of_a_cell_is_tuned(tmp_path):
    book = Notebook(tmp_path)
    book.cell(HELPERS)
    book.cell(KERNEL)
    book.cell("x = at = n = BLOCK = object()")  # parameters and a local of the function
    x = torch.randn(1000)
    best = wb.tune(
        book.names["scale"],
        (x, torch.empty_like(x), x.numel()),
        grid=lambda meta: (triton.cdiv(1000, meta["BLOCK"]),),
        configs=[triton.Config({"BLOCK": block}) for block in (128, 256)],
        device="h200",
        out=tmp_path / "results",
        database=f"sqlite:///{tmp_path / 'history.db'}",
        quiet=True,
    )
    assert best.predicted and best.checked and best.kwargs["BLOCK"] in (128, 256)
    (file,) = (tmp_path / "results" / "cells").glob("scale_*.py")
    assert "triton.language.constexpr(3)" in file.read_text()


def test_a_cell_that_names_an_object_is_refused(tmp_path):
    book = Notebook(tmp_path)
    book.cell("import triton\nimport triton.language as tl\nthing = object()\n")
    book.cell("@triton.jit\ndef f(x, B: tl.constexpr):\n    tl.store(x, thing)\n")
    with pytest.raises(wb.WorkbenchError, match=r"thing, which .* names, is object"):
        wb.tune(
            book.names["f"], (torch.empty(1),), grid=(1,), out=tmp_path,
            configs=[triton.Config({"B": 1})], device="h200",
        )  # fmt: skip
