"""What other places add: `examples/` of a clone experiments and readers, and installed packages
kernels, devices and readers, named by entry points of theirs.

An entry point `gelu = "theirs.gelu"` of the group `workbench.kernels` is a module with a Spec, one
of `workbench.readers` a module with a READER. One of `workbench.devices`, `x1 = "theirs.devices"`,
is a package in whose folder `x1.toml` lies.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

# Folders of `examples/` whose files are modules of a package. The wheel has them in its folder.
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"  # exists only in a clone
EXAMPLE_MODULES = {"experiments": "workbench.experiments", "readers": "workbench.traces.readers"}

Group = Literal["workbench.kernels", "workbench.devices", "workbench.readers"]


def example_folders(package: str) -> list[str]:
    """Return the folders of a clone's `examples/` that belong on a package's path; none elsewhere,
    where the wheel has their modules in the package's own folder."""
    folders = [EXAMPLES / name for name, value in EXAMPLE_MODULES.items() if value == package]
    return [str(folder) for folder in folders if folder.is_dir()]


@cache
def contributed_modules(group: Group) -> Mapping[str, str]:
    """Return the module of each name of a group. This reads what every installed package declares,
    0.02 s for 150 of them, so it is called only where no name of our own fits, or for all names."""
    from importlib.metadata import entry_points

    return {each.name: each.value.partition(":")[0] for each in entry_points(group=group)}


def device_file(name: str) -> Path | None:
    """Return the file of a contributed device, without importing its package; None without one."""
    from importlib.util import find_spec

    package = contributed_modules("workbench.devices").get(name)
    try:
        spec = find_spec(package) if package else None
    except ModuleNotFoundError:
        return None
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / f"{name}.toml" for folder in folders or ()]
    return next((file for file in files if file.is_file()), None)
