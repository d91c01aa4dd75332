"""The tuned table: configs of `@triton.autotune` functions, measured, to be pinned in a program.

One JSON file, in which each entry is a line and the lines are sorted, so that git merges and diffs
it. It is data: reading it imports and runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench import __version__
from workbench.data.files import open_to_read, reason_of, write_file
from workbench.workload import strict
from workbench.workload.signature import (
    PlainArgument,
    RecordedArgument,
    TensorArgument,
    plain_value,
)
from workbench.workload.strict import WorkloadError

SCHEMA = 1
PREDICTED = "predicted"  # what the protocol of an entry begins with that nothing measured
ConfigValue = int | bool | str | None


@dataclass(frozen=True)
class MeasuredTime:
    """A time of one launch in seconds, with its 95 % interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class PinnedEntry:
    """The config of one function for one key of its autotuner."""

    arch: str  # sm_90
    device: str  # NVIDIA H200
    triton: str
    torch: str
    module: str
    function: str
    text_hash: str  # of the function and what it calls
    key: tuple[str, ...]  # as `triton_hooks.tuner_key` writes it
    config: tuple[tuple[str, ConfigValue], ...]  # sorted; with num_warps and the like
    before_s: MeasuredTime  # with the config that the program used
    after_s: MeasuredTime
    family: str | None  # keys that were measured together, between which `nearest` may choose
    protocol: str
    at: str  # ISO 8601 with offset
    # By name as text, `bfloat16[8, 1024]` or a value's repr; empty in tables that do not have them.
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def is_predicted(self) -> bool:
        """Whether its times are predicted: no GPU took part, and `pin` does not use it."""
        return self.protocol.startswith(PREDICTED)

    @property
    def place(self) -> tuple[Any, ...]:
        """What an entry is found by; a table has one entry for each."""
        return (self.arch, self.module, self.function, self.text_hash, self.triton, self.key)


def text_of(entries: Iterable[PinnedEntry]) -> str:
    """Return the contents of a table; of entries with one place the newest is kept."""
    kept: dict[tuple[Any, ...], PinnedEntry] = {}
    for entry in sorted(entries, key=lambda each: each.at):
        kept[entry.place] = entry
    lines = sorted(json.dumps(_plain(e), sort_keys=True) for e in kept.values())
    head = {"tuned_table": SCHEMA, "written_by": f"kernel-workbench {__version__}"}
    first = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items())
    inner = ",\n".join(f"  {line}" for line in lines)
    return f'{{\n{first},\n "entries": [\n{inner}\n ]\n}}\n'


def _plain(entry: PinnedEntry) -> dict[str, Any]:
    times = {n: list(asdict(getattr(entry, n)).values()) for n in ("before_s", "after_s")}
    plain = {**asdict(entry), **times, "config": dict(entry.config)}
    arguments = plain.pop("arguments")
    return {**plain, "arguments": dict(arguments)} if arguments else plain


def write(path: Path, entries: Iterable[PinnedEntry]) -> None:
    """Write a table; a reader sees the old content or the new one. Raises FileError."""
    write_file(path, text_of(entries), make_folder=True)


def read(path: Path) -> list[PinnedEntry]:
    """Return the entries of a table. Raises WorkloadError in one sentence."""
    try:
        with open_to_read(path) as file:
            data = file.read()
    except OSError as error:
        raise WorkloadError(
            f"{path} cannot be read ({reason_of(error)}); name a tuned table."
        ) from None
    return parse(data, str(path))


def parse(data: bytes, name: str) -> list[PinnedEntry]:
    """Return the entries of a table's bytes; `name` is the file's, for messages. Raises
    WorkloadError."""
    plain = strict.document(data, name, "tuned_table", SCHEMA, "tuned table")
    try:
        return strict.rows(plain, "entries", _entry)
    except strict.Damage as error:
        raise WorkloadError(f"{name} is damaged ({error}); restore or make it again.") from None


TEXTS = ("arch", "device", "triton", "torch", "module", "function", "text_hash", "protocol", "at")


def _entry(value: Any, at: str) -> PinnedEntry:
    required = (*TEXTS, "key", "config", "before_s", "after_s", "family")
    plain = strict.fields_of(value, at, required, ("arguments",))
    family = plain["family"]
    return PinnedEntry(
        **{name: strict.text(plain[name], f"{at}.{name}") for name in TEXTS},
        key=strict.texts(plain["key"], f"{at}.key"),
        config=_config(plain["config"], f"{at}.config"),
        before_s=_time(plain["before_s"], f"{at}.before_s"),
        after_s=_time(plain["after_s"], f"{at}.after_s"),
        family=None if family is None else strict.text(family, f"{at}.family"),
        arguments=_arguments(plain.get("arguments", {}), f"{at}.arguments"),
    )


def _arguments(value: Any, at: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise strict.Damage(f"{at} is not an object")
    for each in value.values():
        strict.text(each, at)
    return tuple(value.items())


def argument_texts(arguments: Mapping[str, RecordedArgument]) -> tuple[tuple[str, str], ...]:
    """Return the tensors and plain values of a recorded launch as an entry has them."""
    result = []
    for name, argument in arguments.items():
        if isinstance(argument, TensorArgument):
            result.append((name, f"{argument.dtype}{list(argument.shape)}"))
        elif isinstance(argument, PlainArgument):
            result.append((name, repr(plain_value(argument))))
    return tuple(sorted(result))


def _config(value: Any, at: str) -> tuple[tuple[str, ConfigValue], ...]:
    if not isinstance(value, dict):
        raise strict.Damage(f"{at} is not an object")
    for name, each in value.items():
        if not isinstance(each, (int, str, type(None))):
            raise strict.Damage(f"{at}.{ascii(name)[:40]} is not a value of a config")
        if type(each) is int:
            strict.whole(each, f"{at}.{ascii(name)[:40]}")
    return tuple(sorted(value.items()))


def _time(value: Any, at: str) -> MeasuredTime:
    if not isinstance(value, list) or len(value) != 3:
        raise strict.Damage(f"{at} is not a median with its interval")
    median, low, high = (strict.seconds(each, at) for each in value)
    if not low <= median <= high:
        raise strict.Damage(f"{at} has a median outside of its interval")
    return MeasuredTime(median, low, high)
