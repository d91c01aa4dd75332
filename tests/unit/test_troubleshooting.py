"""docs/troubleshooting.md quotes sentences that the code has."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SENTENCES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), flags=re.M)
GAP = "\0"

pytestmark = pytest.mark.unit


def strings(path: Path) -> list[str]:
    """Texts of a module without backticks; what an f-string puts in is a gap."""
    result = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else GAP for p in node.values)
            result.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            result.append(node.value)
    return [text.replace("`", "") for text in result]


def texts() -> list[str]:
    """Return every text of the package."""
    files = sorted((ROOT / "workbench").rglob("*.py"))
    return [text.replace("\n", " ") for path in files for text in strings(path)]


def holds(text: str, parts: list[str]) -> bool:
    """Return whether the parts stand in a text, in their order, with a gap between any two."""
    at = 0
    for i, part in enumerate(parts):
        there = text.find(part, at)
        if there < 0 or (i and GAP not in text[at:there]):
            return False
        at = there + len(part)
    return True


def test_each_sentence_is_one_of_the_codes() -> None:
    assert len(SENTENCES) == len(set(SENTENCES)) >= 35
    every = texts()
    missing = []
    for sentence in SENTENCES:
        parts = [part.strip() for part in sentence.split("...") if part.strip()]
        if not any(holds(text, parts) for text in every):
            missing.append(sentence)
    assert not missing, "\n".join(missing)
