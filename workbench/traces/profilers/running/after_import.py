"""Call a function after the first import of a module. Runs in the user's interpreter, and needs the
standard library."""

import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Call a function when a module was imported for the first time: what a program sets before
    that, such as environment variables, is set by then."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of the module, whose loader calls the function at its end; None for any
        other module. Whoever only looks whether there is the module, as torch does for Triton when
        it opens the GPU, gets such a spec, too."""
        if name != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
