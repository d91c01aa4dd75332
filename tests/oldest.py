"""Print the oldest versions that pyproject.toml allows, as constraints for pip: those of all
dependencies, and of the extras named. A nightly job installs them and runs some commands."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BOUND = re.compile(r"^([A-Za-z0-9._-]+)(?:\[\w+\])?>=([\d.]+)(?:,<[\d.]+)?\s*(?:;.*)?$")


def bounds(*extras):
    """Return the lower bound of each dependency by its name; None where one has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [n for extra in extras for n in project["optional-dependencies"][extra]]
    results = {}
    for text in (*project["dependencies"], *named):
        bound = _BOUND.match(text)
        results[bound[1] if bound else text] = bound and bound[2]
    return results


if __name__ == "__main__":
    for name, version in bounds(*sys.argv[1:]).items():
        print(f"{name}=={version}")
