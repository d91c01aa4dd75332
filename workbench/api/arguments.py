"""Convert arguments of the API to the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

from workbench.commands.options import Also, Idle, OptionError, Requirement, Sanitizer
from workbench.spec import sizes_text

OneSize = str | Mapping[str, int]
"""Sizes of one problem: `{"M": 4096, "N": 1024}`, or the text of `--sizes`."""

ManySizes = str | Mapping[str, int | Sequence[int]] | Sequence[str | Mapping[str, int]]
"""Sizes of several problems: a mapping whose values may be lists, or a list of sizes."""

MappedSizes = Mapping[str, int | Sequence[int]] | Sequence[Mapping[str, int]]
"""Sizes of a decorated function: a mapping whose values may be lists, or a list of mappings."""

Words = str | Sequence[str]
"""One word, or several."""


class PlaceArguments(TypedDict, total=False):
    """Arguments that all commands take."""

    out: str | Path  # folder for the page and the events file
    database: str | None  # URL; SQLite in the user's data folder by default
    progress: bool | None  # False for no display


class RunArguments(PlaceArguments, total=False):
    """Arguments of commands that measure."""

    require: Idle | Sequence[Idle]  # "idle-gpu": refuse to measure while others use the GPU


class TimedArguments(RunArguments, total=False):
    """Arguments of commands that time configs."""

    also: Also | Sequence[Also]  # "energy": the joules of a call; "profile": last


class SweepArguments(PlaceArguments, total=False):
    """The less frequent arguments of a sweep."""

    also: Also | Sequence[Also]
    require: Requirement | Sequence[Requirement]
    only: bool
    search: str | None
    workers: int | str | None
    fresh: bool


class CompareArguments(TimedArguments, total=False):
    """The less frequent arguments of a comparison."""

    trust: bool


class EvaluateArguments(TypedDict, total=False):
    """The less frequent arguments of an evaluation."""

    task: str | Path | None
    require: Sanitizer | Sequence[Sanitizer]
    accept_claims: bool
    progress: bool | None  # False for no display


def command_options(function: str, known: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as fields of the command's options. Raises TypeError for one that the
    TypedDict `known` lacks."""
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return {k: Path(v) if k == "out" else v for k, v in given.items() if k != "progress"}


def words(given: Words) -> tuple[str, ...]:
    """Return one word or several as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def sizes_texts(sizes: ManySizes | None) -> tuple[str, ...]:
    """Return sizes as `--sizes` takes them, one text a problem; lists in a mapping are combined
    with each other. Raises OptionError for a size that is not a whole number."""
    if sizes is None:
        return ()
    if isinstance(sizes, str):
        return (sizes,)
    if isinstance(sizes, Mapping):
        return tuple(sizes_text(each) for each in _combine_sizes(sizes))
    return tuple(text for one in sizes for text in sizes_texts(one))


def sizes_mappings(sizes: MappedSizes) -> tuple[dict[str, int], ...]:
    """Return sizes as mappings, one a problem. Raises OptionError for a size that is not a positive
    whole number, and for no size."""
    if isinstance(sizes, Mapping):
        every = tuple(_combine_sizes(sizes))
    else:
        every = tuple(one for each in sizes for one in sizes_mappings(each))
    if not any(every):
        raise OptionError('There is no size; write sizes={"N": [1024, 4096]}.')
    for axis, extent in (item for one in every for item in one.items()):
        if extent < 1:
            raise OptionError(f"The size {axis}={extent} is not positive; write 1 or more.")
    return every


def _combine_sizes(sizes: Mapping[str, int | Sequence[int]]) -> list[dict[str, int]]:
    lists = [_extents(axis, extent) for axis, extent in sizes.items()]
    return [dict(zip(sizes, each, strict=True)) for each in product(*lists)]


def one_size(sizes: OneSize | None) -> str | None:
    """Return the sizes of one problem as `--sizes` takes them. Raises OptionError for several."""
    texts = sizes_texts(sizes)
    if len(texts) > 1:
        raise OptionError(f"This takes one size, and sizes= names {len(texts)}; name one of them.")
    return texts[0] if texts else None


def _extents(axis: str, extent: int | Sequence[int]) -> Sequence[int]:
    """Return the extents of one axis. Raises OptionError."""
    if isinstance(extent, int) and not isinstance(extent, bool):
        return (extent,)
    if isinstance(extent, Sequence | range) and not isinstance(extent, str) and extent:
        return [one for each in extent for one in _extents(axis, each)]
    raise OptionError(
        f"The size {axis}={extent!r} is not a whole number; write sizes={{{axis!r}: 1024}}, "
        f"or a list "
        "of numbers."
    )


def optional_path(path: str | Path | None) -> Path | None:
    """Return a path, or None."""
    return None if path is None else Path(path)
