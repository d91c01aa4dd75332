"""Operations for models: `workbench.ops.softmax(x)` runs the kernel that suits the sizes of `x`.

One function an operation of the catalogue, with its inputs in the order of the Spec. They work
under `torch.compile(fullgraph=True)`, in CUDA graphs, and, where an operation has a derivative,
under autograd; see docs/ops.md. The functions are made from the Specs; their signatures and texts
for editors and type checkers are in `__init__.pyi`, which docs/generate.py writes.
"""

from workbench.catalog import kernel_names, spec_of
from workbench.ops.operation import operation_of
from workbench.ops.shapes import OperationError

__all__ = ["OperationError", "operation_of", *kernel_names()]

globals().update({name: operation_of(spec_of(name)) for name in kernel_names()})
