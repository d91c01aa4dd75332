"""List the tuned configs, which launches without a config use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.commands import field
from workbench.commands.console import aloud, note, say_result
from workbench.commands.field import argument, flag, option
from workbench.commands.options import Options
from workbench.data.exits import PASSED
from workbench.data.files import is_output, real_path
from workbench.data.units import amount, console_microseconds
from workbench.spec import Impl, WorkbenchError, label, sizes_text

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.data.tuned_cache import Entry


class TunedOptions(Options):
    kernel: str | None = argument("This kernel only: its name, or path/to/mine.py.", None)
    impl: str | None = option(None, "This Impl only.")
    device: str | None = option(None, "This device only.")
    file: Path | None = option(None, "Tuned cache; in the user's data folder by default.")
    export: Path | None = option(None, "Write what is listed to this file.")
    load: Path | None = option(None, "Import this file; equal keys: the newer is kept.", "--import")
    code: bool = flag("Print triton.Config lists to paste.", "--code")
    forget: bool = flag("Drop the kernel's entries.", "--forget")
    quiet: bool = field.quiet("Print only the entries.")
    json: Path | None = field.json("Write what is listed to this file; - is standard output.")


def run(options: TunedOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for
    from workbench.commands.result import write_result

    return write_result(options, "tuned", PASSED, **use(options, console_for(options)))


OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # parameters of triton.Config
WRITTEN = Path("results") / "adapted"  # where `tune` writes kernels of functions
Lists = dict[str, dict[str, list[str]]]  # comments by config, by title


# Between files


def export(entries: Sequence[Entry], to: Path, of: Path) -> None:
    """Write entries of the file `of` to another. Raises TunedError."""
    from workbench.data.tuned_cache import TunedError, write

    if real_path(to) == real_path(of):
        raise TunedError(f"{to} is the file of tuned configs itself; export to another.")
    write(to, entries)


def merge(
    given: Path, path: Path, on_damage: Callable[[str], object] | None = None
) -> tuple[int, int]:
    """Add the usable entries of another file, the newer of equal keys. `on_damage` is called with
    what is wrong with each of the others. Returns how many were new or newer, and how many were
    read.

    Raises TunedError where a file cannot be read or written, and then nothing of it is added.
    """
    from workbench.data.tuned_cache import changing, read

    entries = read(given, on_damage)
    with changing(path) as tuned:
        before = dict(tuned.entries)
        for entry in entries:
            tuned.add(entry)
        changed = sum(before.get(key) != entry for key, entry in tuned.entries.items())
    return changed, len(entries)


def forget(entries: Sequence[Entry], path: Path) -> None:
    """Remove these entries from the file. Raises TunedError."""
    from workbench.data.tuned_cache import changing

    with changing(path) as tuned:
        for entry in entries:
            if tuned.entries.get(entry.key) == entry:
                del tuned.entries[entry.key]


# Output


def use(options: TunedOptions, console: Console) -> dict[str, Any]:
    """Show, export, import or forget tuned configs, as the options say. Returns what the JSON
    document holds of it: the entries, or of an import the numbers of them. Raises TunedError where
    the options conflict or a file cannot be used."""
    from workbench import catalog
    from workbench.data.tuned_cache import Tuned, TunedError, damage_text, default_path

    actions = {
        "--export": options.export,
        "--import": options.load,
        "--code": options.code,
        "--forget": options.forget,
    }
    named = [name for name, value in actions.items() if value]
    if len(named) > 1:
        raise TunedError(f"{' and '.join(named)} are two things to do; ask for one at a time.")
    path = options.file or default_path()
    if options.load is not None:
        if options.kernel or options.impl or options.device:
            raise TunedError("--import takes a file whole; leave the kernel, Impl and device out.")
        bad: list[str] = []
        taken, of = merge(options.load, path, bad.append)
        if bad:
            note(f"{options.load}: {len(bad)} damaged left out, the first is {bad[0]}")
        text = f"{taken} of {of} entries are new or newer, and are in {path}."
        say_result(console, text, whole=False)
        return {"file": str(path), "read": of, "changed": taken}
    tuned = Tuned.load(path)
    if tuned.damage_notes:
        note(damage_text(path, tuned.damage_notes))
    file = Path(options.kernel) if options.kernel and catalog.is_path(options.kernel) else None
    kernel = catalog.spec_of(str(file)).name if file else options.kernel
    entries = tuned.matching(kernel, options.impl, options.device)
    if options.forget:
        if options.kernel is None:
            raise TunedError("--forget needs a kernel; write `workbench tuned KERNEL --forget`.")
        forget(entries, path)
        say_result(console, f"{len(entries)} entries forgotten.")
    elif options.export is not None:
        export(entries, options.export, path)
        if not is_output(options.export):
            text = f"{len(entries)} entries written to {options.export}."
            say_result(console, text, whole=False)
    first = tuned.fastest()  # an older winner is marked, too
    shown = [replace(entry, fastest=entry.key in first) for entry in entries]
    if options.code and entries:
        say_result(console, code(shown, file))  # lines stay whole, to be pasted
    elif not (options.forget or options.export):
        with aloud(console):
            show_entries(shown, console)
    return {"file": str(path), "entries": [asdict(entry) for entry in shown]}


HEADINGS = ("kernel", "sizes", "dtype", "device", "config", "time", "bits", "date", "versions")


def show_entries(entries: Sequence[Entry], console: Console) -> None:
    """Print a table of entries; a predicted time begins with `~`. Versions need 140 columns."""
    from workbench.device.error_band import devices_words
    from workbench.reports.tables import text_table

    if not entries:
        console.print("Nothing is tuned that matches: `workbench sweep` tunes a kernel.")
        return
    shown = [h for h in HEADINGS if h != "versions" or console.width >= 140]
    table = text_table(shown, right=(), whole=("time", "date"))
    for e in entries:
        sizes = sizes_text(e.sizes, " ")  # a narrow column breaks at spaces
        cells = (
            f"{e.kernel}.{e.impl}",
            sizes,
            e.dtype,
            e.device,
            label(e.config),
            time_text(e),
            bits_text(e),
            e.at[:10],
            f"torch {e.torch}, triton {e.triton}",
        )
        table.add_row(*cells[: len(shown)])
    console.print(table)
    for line in devices_words((e.device, e.kernel) for e in entries if e.predicted):
        console.print(f"Predicted times of {line}", soft_wrap=True)


# Lists of `triton.Config`


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
            launched = _launched_configs(_impl_of(entry, file), entry)
        except (WorkbenchError, CaptureError) as error:
            reason = f"; fields of the Impl, not arguments of its function: {error}"
            _add(lists, f"{entry.kernel}.{entry.impl}", _config(entry.config), entry, reason)
            continue
        for function, (config, launches) in launched.items():
            repeated = f"; {launches} launches a call" if launches > 1 else ""
            _add(lists, f"{entry.kernel}.{entry.impl}.{function}", config, entry, repeated)
    return "\n".join(_pasted_text(title, configs) for title, configs in lists.items())


class CaptureError(Exception):
    """The launches of an entry cannot be captured here; one clause."""


def _impl_of(entry: Entry, file: Path | None) -> Impl:
    """Return the Impl of an entry. One's own kernel is in the named file, or in the file of its
    code that lies here or was written of a function. Raises CaptureError where there is none."""
    from workbench import catalog
    from workbench.catalog.source import code_hash

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


def _launched_configs(impl: Impl, entry: Entry) -> dict[str, tuple[str, int]]:
    """Return the config of each function that the entry's Impl launches, and how often it does. Of
    several launches with different constants the function has a number in its name."""
    from workbench.device import hardware

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


def _pasted_text(title: str, configs: Mapping[str, Sequence[str]]) -> str:
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
    many = f", {amount(entry.bits_configs, 'config')}" if entry.bits_configs else ""
    return f"{text}; {entry.bits_class} of {entry.bits_classes}{many}"
