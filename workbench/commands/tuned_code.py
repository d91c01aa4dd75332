"""Write tuned configs as lists of `triton.Config` that the kernels' own functions take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.catalog.source import code_hash
from workbench.data.tuned_cache import Entry
from workbench.data.units import console_microseconds, counted
from workbench.device import hardware
from workbench.spec import Impl, WorkbenchError, sizes_text

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # parameters of triton.Config
WRITTEN = Path("results") / "adapted"  # where `tune` writes kernels of functions
Lists = dict[str, dict[str, list[str]]]  # comments by config, by title


def code(entries: Sequence[Entry], file: Path | None = None) -> str:
    """Return lists of `triton.Config` to paste, one for each device function that an Impl launches.
    `file` holds the kernel, if it is not a built-in one.

    A config holds every constant that the launch gives the function, under the function's own
    names, so that `function[grid](*tensors_and_numbers, **config.all_kwargs())` is that launch.
    They are captured from a launch for the entry's device, which needs Triton and no GPU. Where
    that is not possible a comment says why, and the config holds the Impl's fields. Equal configs
    are listed once.
    """
    lists: Lists = {}
    for entry in entries:
        try:
            launched = _launched(_impl_of(entry, file), entry)
        except (WorkbenchError, CaptureError) as error:
            reason = f"; fields of the Impl, not arguments of its function: {error}"
            _add(lists, f"{entry.kernel}.{entry.impl}", _config(entry.config), entry, reason)
            continue
        for function, (config, launches) in launched.items():
            repeated = f"; {launches} launches a call" if launches > 1 else ""
            _add(lists, f"{entry.kernel}.{entry.impl}.{function}", config, entry, repeated)
    return "\n".join(_pasted(title, configs) for title, configs in lists.items())


class CaptureError(Exception):
    """The launches of an entry cannot be captured here; one clause."""


def _impl_of(entry: Entry, file: Path | None) -> Impl:
    """Return the Impl of an entry. One's own kernel is in the named file, or in the file of its
    code that lies here or was written of a function. Raises CaptureError where there is none."""
    name = entry.kernel
    if name in catalog.kernel_names():
        return catalog.impl_of(catalog.spec_of(name), entry.impl)
    if file is not None:
        return catalog.impl_of(catalog.spec_of(str(file)), entry.impl)
    for path in (Path(f"{name}.py"), *WRITTEN.glob(f"*/{name}.py")):
        if path.is_file():
            impl = catalog.impl_of(catalog.spec_of(str(path)), entry.impl)
            if code_hash(impl) == entry.source:
                return impl
    raise CaptureError(
        f"the file that was swept is not here; name it: workbench tuned path/to/{name}.py --code"
    )


def _launched(impl: Impl, entry: Entry) -> dict[str, tuple[str, int]]:
    """Return the config of each function that the entry's Impl launches, and how often it does. Of
    several launches with different constants the function has a number in its name."""
    try:
        from workbench.compile import CompileError, compile_launches
    except ImportError as error:
        raise CaptureError(f"Triton cannot be imported ({error})") from None
    device = hardware.device_named(entry.device)
    try:
        config = impl.config(**entry.config)
        launches, _ = compile_launches(impl, config, entry.sizes, entry.dtype, device)
    except (TypeError, CompileError) as error:
        raise CaptureError(f"it does not compile here ({error})") from None
    result: dict[str, tuple[str, int]] = {}
    for launch in launches:
        text = _config({**launch.constants, **launch.options})
        name, number = launch.function, 2
        while name in result and result[name][0] != text:
            name, number = f"{launch.function}_{number}", number + 1
        result[name] = text, result.get(name, (text, 0))[1] + 1
    return result


def _add(lists: Lists, title: str, config: str, e: Entry, more: str) -> None:
    text = f"{sizes_text(e.sizes)} {e.dtype} on {e.device}: {time_text(e)}"
    text += f"; torch {e.torch}, triton {e.triton}; {e.at[:10]}, run {e.run}"
    text += f"; bits {bits_text(e)}{more}"
    lists.setdefault(title, {}).setdefault(config, []).append(" ".join(text.split()))


def _config(config: Mapping[str, Any]) -> str:
    inner = ", ".join(f'"{n}": {_literal(v)}' for n, v in config.items() if n not in OPTIONS)
    words = "".join(f", {name}={config[name]}" for name in OPTIONS if config.get(name))
    return f"triton.Config({{{inner}}}{words})"


def _literal(value: Any) -> str:
    """Return a constant as Python text; a dtype of Triton as `triton.language.float32`."""
    inner = getattr(value, "value", value)  # of a tl.constexpr
    if type(inner).__module__.startswith("triton.language") and hasattr(inner, "name"):
        names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
        return f"triton.language.{names.get(inner.name, inner.name)}"
    return repr(inner)


def _pasted(title: str, configs: Mapping[str, Sequence[str]]) -> str:
    name = re.sub(r"\W", "_", title)
    lines = [f"# {title}", f"{'_' if name[0].isdigit() else ''}{name} = ["]
    for config, text in configs.items():
        lines += [*(f"    # {each}" for each in text), f"    {config},"]
    return "\n".join([*lines, "]"])


def time_text(entry: Entry) -> str:
    """Return the time of an entry, with a tilde where it is predicted, its ties, and whether its
    Impl is the fastest at its sizes."""
    time_us = console_microseconds(entry.time_s)
    tie = f", {len(entry.ties) + 1} tie" if entry.ties else ""
    first = ", fastest Impl" if entry.fastest else ""
    return (f"~{time_us} predicted" if entry.predicted else time_us) + tie + first


def bits_text(entry: Entry) -> str:
    """Return whether a launch keeps its bits when it takes this config in place of the default:
    `as default`, `not as default`, `vary` (from call to call) or `unknown`; then the class of bits
    in its run, and `required` where only such a config could win."""
    if entry.repeats is False:
        text = "vary"
    else:
        text = {True: "as default", False: "not as default", None: "unknown"}[
            entry.same_bits_as_default
        ]
    if entry.same_bits_as:
        text += ", required"
    if not entry.bits_class:
        return text
    many = f", {counted(entry.bits_configs, 'config')}" if entry.bits_configs else ""
    return f"{text}; {entry.bits_class} of {entry.bits_classes}{many}"
