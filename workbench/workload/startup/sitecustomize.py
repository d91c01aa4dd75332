"""Record this Python process, or pin configs in it, if `workbench workload` started it or a parent
of it, or if WORKBENCH_TUNED is set.

Python imports a module of this name at its start. The folder of this file is on PYTHONPATH, so that
every Python process of a program is reached, those of torchrun or of a server's workers, too. An
own `sitecustomize` of the user's is imported first. Both begin when Triton is imported.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

VARIABLE = "WORKBENCH_RECORDING"  # how the parent tells its processes what to record
TUNED = "WORKBENCH_TUNED"  # the table to pin; users may set it, too
MARKS = "WORKBENCH_MARKS"  # where a compared run writes the times of its steps
HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1]


def _import_users_own() -> None:
    """Import the `sitecustomize` that would have been imported without this one."""
    paths = [path for path in sys.path if Path(path or ".").resolve() != HERE]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)


def _import_hook() -> Any:
    """Return the class that calls a function after an import, without importing the workbench."""
    path = PACKAGE / "traces" / "profilers" / "running" / "after_import.py"
    spec = spec_from_file_location("workbench_after_import", path)
    assert spec is not None and spec.loader is not None  # a path of a Python file always has both
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.AfterImport


def _begin_safely(name: str, variable: str) -> None:
    """Begin what the module `name` does. A failure costs that in this process, never the
    program."""
    if str(PACKAGE.parent) not in sys.path:
        sys.path.append(str(PACKAGE.parent))
    try:
        import_module(f"workbench.workload.{name}").begin(os.environ[variable])
    except Exception as error:
        text = f"note: {variable} has no effect in this process ({type(error).__name__}: {error})."
        print(text, file=sys.stderr)


def _begin_modules() -> None:
    for name, variable in (("deployed", TUNED), ("program", VARIABLE)):
        if os.environ.get(variable):
            _begin_safely(name, variable)


if __name__ == "sitecustomize":
    _import_users_own()
    if os.environ.get(MARKS):
        _begin_safely("step_marks", MARKS)
    if os.environ.get(VARIABLE) or os.environ.get(TUNED):
        sys.meta_path.insert(0, _import_hook()("triton", _begin_modules))
