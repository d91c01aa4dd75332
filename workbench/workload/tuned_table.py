"""The tuned table: configs of `@triton.autotune` functions, measured, to be pinned in a program.

A file as the tuned cache is one, with a mark of its own and other entries: a function is found by
its code and the key of its autotuner, where an Impl is found by sizes. Each entry is a line and the
lines are in order, so that git merges and diffs them. It is data: reading it imports and runs
nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from workbench.data import tuned_cache
from workbench.data.plain import Format, Seconds, Values, Whole
from workbench.data.tuned_cache import TunedError
from workbench.workload.signature import (
    PlainArgument,
    RecordedArgument,
    TensorArgument,
    plain_value,
)

FORMAT = Format(
    "tuned_table",
    1,
    "tuned table",
    TunedError,
    "restore it, or make it again by `workbench workload tune`",
)
PREDICTED = "predicted"  # what the protocol of an entry begins with that nothing measured
ConfigValue = int | bool | str | None
Config = Mapping[str, Whole | bool | str | None]


@dataclass(frozen=True)
class MeasuredTime:
    """A time of one launch in seconds, with its 95 % interval."""

    median: Seconds
    low: Seconds
    high: Seconds


Interval = Annotated[
    MeasuredTime,
    Values(lambda time: time.low <= time.median <= time.high, "a median in its interval"),
]


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
    config: Config  # with num_warps and the like
    before_s: Interval  # with the config that the program used
    after_s: Interval
    family: str | None  # keys that were measured together, between which `nearest` may choose
    protocol: str
    at: str  # ISO 8601 with offset
    # By name as text, `bfloat16[8, 1024]` or a value's repr; empty in tables that do not have them.
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Module and function."""
        return f"{self.module}.{self.function}"

    @property
    def is_predicted(self) -> bool:
        """Whether its times are predicted: no GPU took part, and `pin` does not use it."""
        return self.protocol.startswith(PREDICTED)

    @property
    def place(self) -> tuple[Any, ...]:
        """What an entry is found by; a table has one entry for each."""
        return (self.arch, self.module, self.function, self.text_hash, self.triton, self.key)


def newest_entries(entries: Iterable[PinnedEntry]) -> list[PinnedEntry]:
    """Return the newest of the entries with one place, in the order of a table."""
    by_place = {entry.place: entry for entry in sorted(entries, key=lambda each: each.at)}
    return [by_place[place] for place in sorted(by_place)]


def write(path: Path, entries: Iterable[PinnedEntry]) -> None:
    """Write a table; a reader sees the old content or the new one. Raises TunedError."""
    tuned_cache.write(path, newest_entries(entries), make_folder=True, form=FORMAT)


def read(path: Path) -> list[PinnedEntry]:
    """Return the entries of a table. Raises TunedError, in one sentence, also where one of them is
    damaged."""
    return parse(FORMAT.read(path), str(path))


def parse(data: bytes, name: str) -> list[PinnedEntry]:
    """Return the entries of a table's bytes; `name` is the file's, for messages. Raises TunedError,
    as `read` does."""

    def refuse(damage: str) -> None:
        raise FORMAT.damage_error(name, damage)

    return tuned_cache.parse(FORMAT, data, name, PinnedEntry, refuse)


def argument_texts(arguments: Mapping[str, RecordedArgument]) -> dict[str, str]:
    """Return the tensors and plain values of a recorded launch as an entry has them."""
    result = {}
    for name, argument in sorted(arguments.items()):
        if isinstance(argument, TensorArgument):
            result[name] = f"{argument.dtype}{list(argument.shape)}"
        elif isinstance(argument, PlainArgument):
            result[name] = repr(plain_value(argument))
    return result
