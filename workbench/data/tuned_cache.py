"""The tuned cache: the winners of earlier sweeps, as JSON.

A tuned table of a workload (`workload/tuned_table.py`) is a file of the same format, with entries
of another class.

An entry is found by kernel, Impl, sizes, dtype, device, the versions of torch and Triton and the
hash of the kernel's code: with any of them changed another config may win. Sizes match exactly or,
failing that, by bucket: each axis to the nearest power of two, because the quantities that decide
between configs (waves of blocks, trips of the loop, what the cache holds) depend on ratios of
sizes.
"""

import json
import math
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeVar

from workbench.data.clock import epoch_of
from workbench.data.files import FileError, reason_of, write_file
from workbench.data.plain import Damage, Format, Line, Seconds, Values, Whole, read_as, read_rows
from workbench.spec import Sizes, WorkbenchError

Key = tuple[object, ...]


class TunedError(WorkbenchError):
    """The tuned cache cannot be read or written; one sentence, with what to do next."""


FORMAT = Format(
    "tuned",
    1,
    "file of tuned configs",
    TunedError,
    "repair it or move it away, as it is not overwritten",
)
# `--code` writes texts and names into Python source
Numbers = Annotated[
    Mapping[str, Whole],
    Values(lambda numbers: all(map(str.isidentifier, numbers)), "whole numbers by name"),
]
Extents = Annotated[
    Numbers, Values(lambda sizes: min(sizes.values(), default=0) >= 0, "sizes of at least 0")
]
Time = Annotated[Seconds, Values(lambda s: s > 0, "a time above 0 s")]
Date = Annotated[Line, Values(lambda at: epoch_of(at) > 0, "a date")]
Number = Annotated[Whole, Values(lambda n: n > 0, "a whole number above 0")]
Bits = Annotated[str, Values(("", "default").__contains__, "empty or `default`")]
Letters = Annotated[
    str, Values(lambda s: not s or (s.isascii() and s.isalpha() and s.isupper()), "capital letters")
]


@dataclass(frozen=True)
class Entry:
    """The winner of one Impl in one sweep: measured in its final benchmark, or predicted by the
    model.

    A predicted entry has no interval, names the model in `protocol`, and is never launched. `ties`
    are the configs that tie with the fastest; `configs` counts those of the sweep.

    The bits of its outputs were compared with those of other configs on the inputs of its run, and
    a hash of them would mean nothing in another run. So the entry holds what was learnt:
    `same_bits_as_default` compares with the config that a launch of the Impl takes where nothing is
    tuned. It is false also where one of the two changes its bits from call to call, and None where
    they were not compared, as in files from before and in predicted entries.
    """

    kernel: Line
    impl: Line
    config: Numbers
    sizes: Extents
    dtype: Line
    device: Line
    torch: Line
    triton: Line
    source: Line  # hash of the Impl's code; in schema 1 of the kernel's file
    predicted: bool
    time_s: Time
    low_s: Time | None  # 95 % interval of the median
    high_s: Time | None
    regime: Line  # "cold, sustained"; empty where predicted
    protocol: Line
    run: Line
    at: Date  # ISO 8601 with offset
    configs: Whole
    ties: tuple[Numbers, ...] = ()
    same_bits_as_default: bool | None = None
    bits_class: Letters = ""  # its letter among the classes of bits on the page of its run
    bits_classes: Number | None = None  # of that run, on the same inputs
    bits_configs: Number | None = None  # in its class, itself included
    repeats: bool | None = None  # whether its bits were the same again; None if not looked at
    same_bits_as: Bits = ""  # "default": only configs with the bits of the run's default could win
    fastest: bool = False  # of all Impls in the final benchmark of its run

    @property
    def title(self) -> str:
        """Kernel and Impl: `softmax.rows`."""
        return f"{self.kernel}.{self.impl}"

    @property
    def problem(self) -> Key:
        """What entries must share for one of them to be the fastest."""
        sizes = tuple(sorted(self.sizes.items()))
        software = self.torch, self.triton
        return self.kernel, sizes, self.dtype, self.device, *software, self.predicted

    @property
    def key(self) -> Key:
        """Key of the entry; of entries with equal keys the newest is kept."""
        sizes = tuple(sorted(self.sizes.items()))
        at = self.kernel, self.impl, sizes, self.dtype, self.device
        return *at, self.torch, self.triton, self.source, self.predicted


def bucket(sizes: Sizes) -> dict[str, int]:
    """Return each extent as the power of two nearest to it in ratio: 2897 to 5792 are 4096."""
    return {axis: 1 << round(math.log2(n)) if n > 0 else 0 for axis, n in sizes.items()}


def default_path() -> Path:
    """Return the path of the default tuned cache, in the folder of the default database."""
    from platformdirs import user_data_dir

    return Path(user_data_dir("kernel-workbench", appauthor=False)) / "tuned.json"


@dataclass
class Tuned:
    """Entries of a file, in memory; `changing` writes them back. `damaged` says of each entry that
    the file holds and that cannot be used why not."""

    entries: dict[Key, Entry] = field(default_factory=dict)
    damage_notes: Sequence[str] = ()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the entries of the file; none if there is no file yet. Raises TunedError where it
        cannot be read. A damaged entry costs itself only."""
        try:
            path.stat()
        except FileNotFoundError:
            return cls()
        except OSError:
            pass  # `read` raises with the reason
        damaged: list[str] = []
        return cls({e.key: e for e in read(path, damaged.append)}, damaged)

    def add(self, entry: Entry) -> None:
        """Add an entry; of two with one key the newer is kept, whichever was added first."""
        old = self.entries.get(entry.key)
        if old is None or _age(entry) > _age(old):
            self.entries[entry.key] = entry

    def find(
        self,
        kernel: str,
        impl: str,
        sizes: Sizes,
        dtype: str,
        device: str,
        versions: Mapping[str, str],
        sources: Sequence[str],
    ) -> Entry | None:
        """Return the measured entry for exactly these sizes; else, of those in the same bucket, the
        nearest in ratio and then the newest; else None. Entries of other buckets are never
        returned."""
        software = versions.get("torch", ""), versions.get("triton", "")
        request = kernel, impl, dtype, device, *software
        near = [
            e
            for e in self.entries.values()
            if request == (e.kernel, e.impl, e.dtype, e.device, e.torch, e.triton)
            and e.source in sources
            and not e.predicted
            and bucket(e.sizes) == bucket(sizes)
        ]
        return min(near, key=lambda e: (distance(e.sizes, sizes), -epoch_of(e.at)), default=None)

    def matching(
        self,
        kernel: str | None = None,
        impl: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> list[Entry]:
        """Return the entries that match all given values: by problem, its fastest Impl first."""
        request = {"kernel": kernel, "impl": impl, "device": device, "dtype": dtype}
        results = [
            e
            for e in self.entries.values()
            if all(value in (None, getattr(e, name)) for name, value in request.items())
        ]
        first = self.fastest()
        return sorted(results, key=lambda e: (e.problem, e.key not in first, e.key))

    def fastest(self) -> set[Key]:
        """Return the key of the entry of each problem that won the newest sweep of it."""
        won = sorted((e for e in self.entries.values() if e.fastest), key=_age)
        return {e.key for e in {e.problem: e for e in won}.values()}


def distance(a: Sizes, b: Sizes) -> float:
    """Return how far apart sizes are, in octaves over all axes."""
    return sum(abs(math.log2(max(a[axis], 1) / max(b[axis], 1))) for axis in a)


def _age(entry: Entry) -> tuple[float, str]:
    """Return a sort key by date; between equal dates the text decides, not the order of merging."""
    return epoch_of(entry.at), json.dumps(asdict(entry), sort_keys=True)


# The file


class Titled(Protocol):
    """An entry of a file of tuned configs: a dataclass of JSON values with a name for messages."""

    @property
    def title(self) -> str:
        """Return its name."""


E = TypeVar("E", bound=Titled)


def read(path: Path, on_damage: Callable[[str], object] | None = None) -> list[Entry]:
    """Return the usable entries of a file. `on_damage` is called with what is wrong with each of
    the others. Raises TunedError where the file cannot be read at all."""
    return parse(FORMAT, FORMAT.read(path), str(path), Entry, on_damage)


def parse(
    form: Format,
    data: bytes,
    name: str,
    kind: type[E],
    on_damage: Callable[[str], object] | None = None,
) -> list[E]:
    """Return the usable entries of a file's bytes, of one class; `name` is the file's, in messages.
    Raises TunedError, as `read` does."""
    plain = form.parse(data, name)

    def read_entry(value: Any, at: str) -> E | None:
        try:
            entry: E = read_as(kind, value, at)
        except Damage as damage:
            if on_damage is not None:
                on_damage(str(damage))
            return None
        return entry

    try:
        entries = read_rows(plain, "entries", read_entry)
    except Damage as damage:
        raise form.damage_error(name, damage) from None
    return [entry for entry in entries if entry is not None]


def damage_text(path: Path, damaged: Sequence[str]) -> str:
    """Return one sentence on the damaged entries of a file; empty if there are none."""
    if not damaged:
        return ""
    many = f"{len(damaged)} entries" if len(damaged) > 1 else "1 entry"
    first = f"{'the first: ' if len(damaged) > 1 else ''}{damaged[0]}"
    them = "them" if len(damaged) > 1 else "it"
    return f"{path} holds {many} that cannot be used ({first}); the next change drops {them}."


def plain_entry(entry: Titled) -> dict[str, Any]:
    """Return an entry as JSON. Raises Damage where it could not be read back."""
    plain: dict[str, Any] = asdict(entry)  # type: ignore[call-overload]
    read_as(type(entry), plain, entry.title)
    return plain


@contextmanager
def changing(path: Path) -> Iterator[Tuned]:
    """Return a context manager with the file's entries, to be changed inside; the file is written
    at the end, while other processes that would change it wait. Nothing is written after an
    exception. Raises TunedError where the file cannot be read or written."""
    import fcntl

    try:
        path = path.resolve()  # the lock lies beside the target of a link
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise TunedError(
                f"{path} is not a regular file, so no entry can be kept; name another."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("a")
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
        raise _unwritable(path, reason_of(error)) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise _unwritable(path, reason_of(error)) from None
        tuned = Tuned.load(path)
        before = dict(tuned.entries)
        yield tuned
        if tuned.entries != before:
            write(path, tuned.entries.values())


def write(
    path: Path, entries: Iterable[Titled], make_folder: bool = False, form: Format = FORMAT
) -> None:
    """Write a file atomically, even if the process is killed. Raises TunedError where it cannot, or
    where an entry could not be read back; the file is then as it was."""
    try:
        write_file(path, text_of(entries, form), make_folder)
    except FileError as error:
        raise _unwritable(path, error.reason) from None
    for choices in LOOKED_UP:
        choices.clear()


def text_of(entries: Iterable[Titled], form: Format = FORMAT) -> str:
    """Return the contents of a file, in which each entry is a line. Raises TunedError where one
    could not be read back."""
    try:
        lines = ",\n".join(json.dumps(plain_entry(e), allow_nan=False) for e in entries)
    except Damage as damage:
        raise TunedError(f"{damage}; correct the kernel, nothing is kept.") from None
    return f'{{"{form.mark}": {form.version}, "entries": [\n{lines}\n]}}\n'


def _unwritable(path: Path, reason: str) -> TunedError:
    return TunedError(f"{path} cannot be written ({reason}); name a file that you may write.")


# Configs that launches without a config have looked up in this process; cleared by `write`.
LOOKED_UP: list[dict[Any, Any]] = []
