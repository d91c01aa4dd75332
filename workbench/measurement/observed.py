"""Record what a launcher does beside its kernels: the operators of torch, and the launches.

Works in Triton's interpreter and on meta tensors. On a GPU a captured graph names the kernels
instead.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# Operators that allocate, fill or view memory, and compute nothing.
HARMLESS = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros"),
        *("zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like"),
        *("new_full", "zero_", "fill_", "zero", "fill", "view", "_unsafe_view", "reshape"),
        *("_reshape_alias", "slice", "select", "narrow", "permute", "transpose", "t", "unsqueeze"),
        *("squeeze", "expand", "as_strided", "detach", "alias", "split", "split_with_sizes"),
        *("unbind", "unfold", "view_as_real", "set_", "resize_", "lift_fresh"),
    )
)


@dataclass
class Observed:
    """Launches and torch's operators of a call, in order."""

    launches: list[str] = field(default_factory=list)  # names of device functions
    operators: list[str] = field(default_factory=list)  # `add`, without its overload

    @property
    def computing(self) -> tuple[str, ...]:
        """Return the operators that do more than allocate, fill or view memory; each once."""
        return tuple(dict.fromkeys(name for name in self.operators if name not in HARMLESS))


class _Operators(TorchDispatchMode):  # type: ignore[misc]  # untyped, as all of torch is here
    def __init__(self, observed: Observed) -> None:
        super().__init__()
        self.observed, self.launching = observed, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler here, which takes 2 s and more."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.launching:
            self.observed.operators.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def observing(seen: Observed) -> Iterator[None]:
    """Return a context manager that records in `seen` what the launchers inside the block do. The
    interpreter's own copies of memory are left out."""
    mode = _Operators(seen)
    restore = _watch_interpreter(mode)
    try:
        with mode:
            yield
    finally:
        restore()


def _watch_interpreter(mode: _Operators) -> Callable[[], None]:
    """Record the launches of Triton's interpreter, if it runs kernels here. Returns a function that
    ends this."""
    from workbench.dsl import INTERPRETED

    if not INTERPRETED:
        return lambda: None
    from triton.runtime.interpreter import GridExecutor

    real = GridExecutor.__call__

    def record_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        mode.observed.launches.append(self.fn.__name__)
        mode.launching += 1
        try:
            return real(self, *args, **kwargs)
        finally:
            mode.launching -= 1

    GridExecutor.__call__ = record_launch

    def restore() -> None:
        GridExecutor.__call__ = real

    return restore
