"""The blocks of docs/api.md run as one script, in their order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARK = "<!-- needs a GPU -->\n"
BLOCK = re.compile(rf"({MARK})?```python\n(.*?)```", flags=re.S)


@pytest.mark.nightly  # all of the page in one process: 29 s
@pytest.mark.newest
def test_the_blocks_of_the_api_page_run(tmp_path):
    """Those that need a GPU, and are marked so, are only compiled."""
    blocks = BLOCK.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    assert len(blocks) >= 7 and any(mark for mark, _ in blocks)
    for _, text in blocks:
        compile(text, "api.md", "exec")
    first, *rest = [text for mark, text in blocks if not mark]
    script = tmp_path / "page.py"
    guarded = "".join(rest).replace("\n", "\n    ")
    kernel = re.search(r"import torch.*?(?=\n\nif __name__)", "".join(rest), flags=re.S)[0]
    own = guarded.replace(kernel.replace("\n", "\n    "), "")
    script.write_text(f"{kernel}\n\nif __name__ == '__main__':\n    "
                      + first.replace("\n", "\n    ") + own + "\n")  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        "µs predicted (measured times are" in done.stdout and "did you mean softmax?" in done.stdout
    )
    assert {"sweep.png", "sweep.json", "curve.png"} <= {path.name for path in tmp_path.iterdir()}
