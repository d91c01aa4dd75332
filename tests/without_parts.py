"""A copy of the package without some of its parts, and programs that run on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from workbench.data.contributed import EXAMPLE_MODULES
from workbench.data.parts import PARTS

ROOT = Path(__file__).parents[1]
# An editable installation would show a checkout's `metal_shim` to a copy that has none.
ONLY_THE_COPY = f"""\
import sys

sys.path[:] = [entry for entry in sys.path if entry != {str(ROOT)!r}]
"""


def copy_without(names, home):
    """Copy the package without the parts of these names into a folder, and return the folder. The
    bytecode goes with it: the files keep their times."""

    def is_absent(path):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        return any(PARTS[name].has_module(module) for name in names)

    def of_parts(folder, files):
        return [file for file in files if is_absent(Path(folder, file))]

    for package in ("workbench", "metal_shim", *(f"examples/{name}" for name in EXAMPLE_MODULES)):
        if not is_absent(ROOT / package):
            shutil.copytree(ROOT / package, home / package, ignore=of_parts)
    (home / "sitecustomize.py").write_text(ONLY_THE_COPY)
    return home


def run_there(home, *words, limit_s=200):
    """Run Python with these words on a copy, in its folder, and return what came of it."""
    environment = {**os.environ, "PYTHONPATH": str(home), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
