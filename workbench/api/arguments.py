"""Convert arguments of the API to the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from workbench.commands.options import OptionError
from workbench.spec import sizes_text

OneSize = str | Mapping[str, int]
"""Sizes of one problem: `{"M": 4096, "N": 1024}`, or the text of `--sizes`."""

ManySizes = str | Mapping[str, int | Sequence[int]] | Sequence[str | Mapping[str, int]]
"""Sizes of several problems: a mapping whose values may be lists, or a list of sizes."""

MappedSizes = Mapping[str, int | Sequence[int]] | Sequence[Mapping[str, int]]
"""Sizes of a decorated function: a mapping whose values may be lists, or a list of mappings."""

Words = str | Sequence[str]
"""One word, or several."""


def words(value: Words) -> tuple[str, ...]:
    """Return one word or several as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


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
