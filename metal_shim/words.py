"""Read Metal source as words, and find the brackets between them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(
    r"""(?m)^#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\d[\w.]*|\S"""
)
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Word(str):
    """A name, number, string or sign of a text, and where it stands there."""

    start: int

    @property
    def end(self) -> int:
        """Return where the text goes on behind it."""
        return self.start + len(self)


def words_of(text: str) -> list[Word]:
    """Return the words of a text without comments; lines of the preprocessor are none."""
    result = []
    for match in _WORD.finditer(text):
        if not match[0].startswith("#"):
            result.append(word := Word(match[0]))
            word.start = match.start()
    return result


def depths(words: Sequence[str], opening: str = "([{") -> list[int]:
    """Return how many of these brackets are open around each word; a bracket is outside of
    itself."""
    closing, depth, result = {_CLOSING[bracket] for bracket in opening}, 0, []
    for word in words:
        depth -= word in closing
        result.append(depth)
        depth += word in opening
    return result


def closing(words: Sequence[str], start: int) -> int:
    """Return the index of the bracket that closes the one at `start`, or the last index. Angles
    inside of round brackets are comparisons."""
    depth, inner = 0, 0
    opening = words[start] if start < len(words) else ""
    for i in range(start, len(words)):
        if opening == "<":
            inner += (words[i] == "(") - (words[i] == ")")
        if not inner:
            depth += (words[i] == opening) - (words[i] == _CLOSING.get(opening))
            if depth == 0:
                return i
    return len(words) - 1


def opening_angle(words: Sequence[str], end: int) -> int:
    """Return the index of the `<` that the `>` at `end` closes, or 0."""
    around = depths(words[: end + 1], "<")
    return max((i for i in range(end) if words[i] == "<" and around[i] == around[end]), default=0)


def parts(words: Sequence[str]) -> list[list[str]]:
    """Return the parts of a list that commas at its own level separate."""
    result = [list[str]()]
    for word, depth in zip(words, depths(words, "([<{"), strict=True):
        if word == "," and depth == 0:
            result.append([])
        else:
            result[-1].append(word)
    return result


def join_words(words: Sequence[str]) -> list[str]:
    """Return the parts of a list as text, with a blank between two names."""
    return [re.sub(r"(\w) (?!\w)|(?<!\w) ", r"\1", " ".join(part)) for part in parts(words)]


def strip_attributes(words: Sequence[str]) -> list[str]:
    """Return the words without `[[...]]` and `__attribute__((...))`."""
    result, i = list[str](), 0
    while i < len(words):
        if list(words[i : i + 2]) == ["[", "["]:
            i = closing(words, i) + 1
        elif words[i] in ("__attribute__", "alignas"):
            i = closing(words, i + 1) + 1
        else:
            result.append(words[i])
            i += 1
    return result
