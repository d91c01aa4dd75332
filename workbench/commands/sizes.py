"""Parse the sizes and the dtype of a command line."""

from workbench import catalog
from workbench.catalog.declared import flops_fault, size_fault
from workbench.commands.options import CommandError
from workbench.spec import Spec, sizes_text


def check_dtype(spec: Spec, dtype: str) -> None:
    """Raise CommandError where the kernel does not support this dtype."""
    if dtype not in spec.tolerance:
        raise CommandError(catalog.name_hint("dtype", dtype, spec.tolerance))


def sizes_of(spec: Spec, text: str | None) -> dict[str, int]:
    """Return the sizes of `M=4096,N=4096,K=4096`; the Spec's first size to time for None.

    Raises CommandError where an axis is unknown, missing, or not a positive whole number.
    """
    if text is None:
        return dict(spec.bench[0])
    example = sizes_text(spec.bench[0])
    sizes = parsed_sizes(text, example, spec)
    if missing := [axis for axis in spec.axes if axis not in sizes]:
        raise CommandError(f"--sizes {text} lacks {', '.join(missing)}; write --sizes {example}.")
    if reason := size_fault(spec, sizes):
        raise CommandError(f"--sizes {text}: the sizes {reason}; write --sizes {example}.")
    if reason := flops_fault(spec, sizes):
        raise CommandError(f"{reason}.")
    return sizes


def parsed_sizes(text: str, example: str, spec: Spec | None = None) -> dict[str, int]:
    """Return the sizes that a text names: positive whole numbers, of the axes of the Spec where one
    is given. Raises CommandError, which shows the `example`."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, extent = (word.strip() for word in part.partition("="))
        if spec is not None and axis not in spec.axes:
            raise CommandError(catalog.name_hint(f"axis of {spec.name}", axis, spec.axes))
        if not (extent.isascii() and extent.isdecimal() and int(extent[:40])):
            raise CommandError(
                f"{axis}={extent} is not a positive whole number; write --sizes {example}."
            )
        if axis in sizes:
            raise CommandError(f"--sizes {text} names {axis} twice; write --sizes {example}.")
        sizes[axis] = int(extent[:40])  # forty digits are more than any device holds
    return sizes
