"""Using a sweep's answer: what goes into the file of tuned configs, and what is shown of it.

`workbench tuned` shows, exports and imports; `workbench.launch` uses the file in launches.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.data.record import Measured, Outcome, Predicted, Record, Run
from workbench.data.tuned_cache import Entry, Tuned, TunedError, changing, default_path, read, write
from workbench.spec import Impl, Spec, brief, sizes_text
from workbench.tuner.selection import answer, config_key, on_one_footing, relevant, standing

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Entry", "Tuned", "TunedError", "Wanted", "changing", "code", "default_path", "entries_of",
    "export", "forget", "merge", "remember", "show_tuned", "source_of", "use",
]  # fmt: skip


# From a sweep


def source_of(impl: Impl) -> str:
    """Hash of the file that holds the launcher; empty where it has none."""
    module = sys.modules.get(impl.launch.__module__)
    return catalog.source_hash(module) if module and getattr(module, "__file__", None) else ""


def entries_of(run: Run, outcomes: Sequence[Outcome], sources: Mapping[str, str]) -> list[Entry]:
    """The winner of each Impl: in a measured run by the final alone, in a predicted run marked so.

    `sources` is `source_of` each Impl, by name. An Impl whose default alone was in the final, where
    defaults always are, has no entry if another of its configs was faster in the screen.
    """
    found = []
    for impl in sorted({o.case.impl for o in outcomes if not o.case.is_baseline}):
        mine = [o for o in relevant(run, outcomes) if o.case.impl == impl]
        told = answer(run, mine)
        if told.winner is None or (told.winner.measured and not _reached(mine)):
            continue
        ties = tuple(dict(r.case.config) for r in told.ties)
        found.append(_entry(run, told.winner, sources.get(impl, ""), told.configs, ties))
    return found


def _entry(
    run: Run, won: Record, source: str, configs: int, ties: tuple[Mapping[str, int], ...]
) -> Entry:
    t, software = won.timing, run.environment.versions
    low_s, high_s, regime, protocol = (
        (None, None, "", t.model)
        if isinstance(t, Predicted)
        else (t.low_s, t.high_s, f"{t.regime}, {t.state}", t.protocol)
    )
    return Entry(
        kernel=run.kernel, impl=won.case.impl, config=dict(won.case.config),
        sizes=dict(run.sizes), dtype=run.dtype, device=run.device,
        torch=software.get("torch", ""), triton=software.get("triton", ""), source=source,
        predicted=not isinstance(t, Measured), time_s=won.time_s, low_s=low_s, high_s=high_s,
        regime=regime, protocol=protocol, run=run.id, at=won.at, configs=configs, ties=ties,
    )  # fmt: skip


def _reached(outcomes: Sequence[Outcome]) -> bool:
    """Whether an Impl came into the final by its times, not by its default alone."""
    records = [o for o in standing(outcomes) if isinstance(o, Record)]
    finals = [r for r in records if r.phase == "final"]
    if not finals or any(not r.default for r in finals):
        return bool(finals)
    right = {config_key(r.case) for r in records}
    screens = [r for key, r in on_one_footing(outcomes).items() if key in right]
    return all(r.time_s >= d.time_s for d in screens if d.default for r in screens)


def remember(
    run: Run, outcomes: Sequence[Outcome], spec: Spec | None = None, path: Path | None = None
) -> list[Entry]:
    """Keep the winners of a finished sweep; returns those that now stand. Raises TunedError.

    An older entry stays where a narrower sweep did worse: it looked at fewer configs, and its time
    lies wholly above the older one under the same protocol, so it never tried the better config.
    """
    spec = spec or catalog.spec_of(run.source)
    found = entries_of(run, outcomes, {impl.name: source_of(impl) for impl in spec.impls})
    if not found:
        return []
    with changing(path or default_path()) as tuned:
        for entry in found:
            old = tuned.entries.get(entry.key)
            if old is None or not _missed(entry, old):
                tuned.add(entry)
        return [e for e in found if tuned.entries.get(e.key) == e]


def _missed(new: Entry, old: Entry) -> bool:
    if old.high_s is None or new.low_s is None:
        return False
    alike = (old.protocol, old.regime) == (new.protocol, new.regime)
    return alike and new.configs < old.configs and old.high_s < new.low_s


# Between files


def export(entries: Sequence[Entry], to: Path, of: Path) -> None:
    """Write entries of the file `of` to another. Raises TunedError."""
    if to.resolve() == of.resolve():
        raise TunedError(f"{to} is the file of tuned configs itself; export to another.")
    write(to, entries)


def merge(given: Path, path: Path) -> tuple[int, int]:
    """Take the entries of another file in, the newer of equal keys; (new or newer, all read).

    Raises TunedError, and then nothing of it is taken.
    """
    entries = read(given)
    with changing(path) as tuned:
        before = dict(tuned.entries)
        for entry in entries:
            tuned.add(entry)
        changed = sum(before.get(key) != entry for key, entry in tuned.entries.items())
    return changed, len(entries)


def forget(entries: Sequence[Entry], path: Path) -> None:
    """Drop these entries from the file. Raises TunedError."""
    with changing(path) as tuned:
        for entry in entries:
            if tuned.entries.get(entry.key) == entry:
                del tuned.entries[entry.key]


# For people


@dataclass(frozen=True)
class Wanted:
    """What `workbench tuned` is asked: one thing to do, or none, with entries of these names."""

    kernel: str | None = None
    impl: str | None = None
    device: str | None = None
    file: Path | None = None
    export: Path | None = None
    load: Path | None = None
    code: bool = False
    forget: bool = False


def use(wanted: Wanted, console: Console) -> None:
    """Do what `workbench tuned` was asked. Raises TunedError."""
    told = {"--export": wanted.export, "--import": wanted.load, "--code": wanted.code,
            "--forget": wanted.forget}  # fmt: skip
    asked = [option for option, value in told.items() if value]
    if len(asked) > 1:
        raise TunedError(f"{' and '.join(asked)} are two things to do; ask for one at a time.")
    path = wanted.file or default_path()
    if wanted.load is not None:
        if wanted.kernel or wanted.impl or wanted.device:
            raise TunedError("--import takes a file whole; leave the kernel, Impl and device out.")
        taken, of = merge(wanted.load, path)
        console.print(f"{taken} of {of} entries are new or newer, and are in {path}.")
        return
    entries = Tuned.load(path).matching(wanted.kernel, wanted.impl, wanted.device)
    if wanted.forget:
        if wanted.kernel is None:
            raise TunedError("--forget needs a kernel; write `workbench tuned KERNEL --forget`.")
        forget(entries, path)
        console.print(f"{len(entries)} entries forgotten.")
    elif wanted.export is not None:
        export(entries, wanted.export, path)
        console.print(f"{len(entries)} entries written to {wanted.export}.")
    elif wanted.code and entries:
        console.print(code(entries), soft_wrap=True)  # lines stay whole, to be pasted
    else:
        show_tuned(entries, console)


HEADINGS = ("kernel", "sizes", "dtype", "device", "config", "time", "date", "versions")


def show_tuned(entries: Sequence[Entry], console: Console) -> None:
    """Print a table; a predicted time begins with `~`. Versions need 140 columns."""
    from rich.table import Table
    from rich.text import Text

    if not entries:
        console.print("Nothing is tuned that matches: `workbench sweep` tunes a kernel.")
        return
    table = Table(box=None, pad_edge=False)
    shown = [h for h in HEADINGS if h != "versions" or console.width >= 140]
    for heading in shown:
        table.add_column(heading, overflow="fold", no_wrap=heading in ("time", "date"))
    for e in entries:
        sizes = sizes_text(e.sizes, " ")  # a narrow column breaks at spaces
        cells = (f"{e.kernel}.{e.impl}", sizes, e.dtype, e.device, brief(e.config), _time(e),
                 e.at[:10], f"torch {e.torch}, triton {e.triton}")  # fmt: skip
        table.add_row(*map(Text, cells[: len(shown)]))
    console.print(table)


def _time(entry: Entry) -> str:
    time_us = f"{entry.time_s * 1e6:.4g} us"
    tie = f", {len(entry.ties) + 1} tie" if entry.ties else ""
    return (f"~{time_us} predicted" if entry.predicted else time_us) + tie


_TRITONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # parameters of triton.Config


def code(entries: Sequence[Entry]) -> str:
    """Lists of `triton.Config` to paste, one for each Impl. Fields in lower case stand in capitals,
    as kernel files name their constexprs; equal configs are listed once."""
    lists: dict[str, dict[str, list[str]]] = {}
    for e in entries:
        said = f"{sizes_text(e.sizes)} {e.dtype} on {e.device}: {_time(e)}"
        said += f"; torch {e.torch}, triton {e.triton}; {e.at[:10]}, run {e.run}"
        if e.config.get("num_warps") == 0:
            said += "; its launcher chose num_warps from the sizes, so here it is Triton's 4"
        configs = lists.setdefault(f"{e.kernel}.{e.impl}", {})
        configs.setdefault(_config(e.config), []).append(said)
    return "\n".join(_pasted(title, configs) for title, configs in lists.items())


def _config(config: Mapping[str, int]) -> str:
    meta = {k.upper() if k.islower() else k: v for k, v in config.items() if k not in _TRITONS}
    inner = ", ".join(f'"{name}": {value}' for name, value in meta.items())
    words = "".join(f", {name}={config[name]}" for name in _TRITONS if config.get(name))
    return f"triton.Config({{{inner}}}{words})"


def _pasted(title: str, configs: Mapping[str, Sequence[str]]) -> str:
    name = re.sub(r"\W", "_", title)
    lines = [f"# {title}", f"{'_' if name[0].isdigit() else ''}{name} = ["]
    for config, said in configs.items():
        lines += [*(f"    # {each}" for each in said), f"    {config},"]
    return "\n".join([*lines, "]"])
