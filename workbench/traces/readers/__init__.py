"""The engine of readers: find the reader of a file by its content, read it, join files of a run.

One file of this folder, or of `examples/readers/` of a clone, is one format, with `READER =
TraceReader(title, sniff, read)`. A reader sniffs the first 64 kB, never the extension. It keeps
what it understands, and notes what it left out.
"""

import hashlib
import os
import pkgutil
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from workbench.data.contributed import contributed_modules, example_folders
from workbench.data.record_tally import REFUSED
from workbench.traces.plausible import drop_impossible
from workbench.traces.readers.inputs.source import (
    BLOCK_BYTES,
    ReadError,
    ReadLimits,
    Source,
    first_words,
    is_text,
    sources,
)
from workbench.traces.trace import WORK, Trace, TraceFile, plain

__path__.extend(example_folders(__name__))

DAMAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    sqlite3.Error,
)


@dataclass(frozen=True)
class TraceReader:
    """A format: its name in messages, and two functions.

    `sniff(source)` returns whether the head of a file is of this format. `read(source)` returns its
    trace; it raises ReadError with a sentence, and ValueError, KeyError and the like where a value
    is damaged, which the engine reports with the place.
    """

    title: str
    sniff: Callable[[Source], bool]
    read: Callable[[Source], Trace]
    is_whole: bool = False  # a file is a recording of its own, not one table of several
    may_be_cut: bool = False  # its end may be missing: what is whole is read, and a note says so


@cache
def readers() -> dict[str, TraceReader]:
    """Return every reader by the name of its file, those of installed packages last. Raises
    ReadError where one of these cannot be imported."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg]
    own = {name: import_module(f"{__name__}.{name}").READER for name in sorted(names)}
    others = contributed_modules("workbench.readers").items()
    return own | {name: _load_reader(name, module) for name, module in others if name not in own}


def _load_reader(name: str, module: str) -> TraceReader:
    try:
        reader = import_module(module).READER
    except Exception as error:  # whatever the package does at its import
        reason = f"{type(error).__name__}: {first_words(error)}"
        raise ReadError(f"the reader {name} of {module} cannot be imported ({reason}).") from error
    if not isinstance(reader, TraceReader):
        raise ReadError(f"READER of {module} is not a workbench.traces.readers.TraceReader.")
    return reader


def reader_of(source: Source) -> TraceReader:
    """Return the one reader whose format the file has. Raises ReadError where there is none, or
    more than one, with a word on what was seen."""
    if not source.is_folder and not source.head:
        raise ReadError(f"{source.name} is empty; record again.")
    fitting = [reader for reader in readers().values() if reader.sniff(source)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        titles = " and ".join(reader.title for reader in fitting)
        raise ReadError(f"{source.name} looks like {titles}; name a file of one format.")
    raise ReadError(
        f"{source.name} is of no known format (it begins with {_beginning(source.head)}); "
        "`workbench read` takes what docs/commands.md lists."
    )


def _beginning(head: bytes) -> str:
    if not is_text(head):
        return "bytes " + head[:8].hex(" ")
    text = " ".join(head[:400].decode("utf-8", "replace").split())[:60]
    return repr(text) if text else "white space"


def read_source(source: Source) -> Trace:
    """Return the trace of one file. Raises ReadError in one sentence for any damage."""
    reader = reader_of(source)
    trace = _read(reader, source)
    if source.is_cut and not reader.may_be_cut:
        source.place = ""
        source.fail("its packed data ends early, and what follows is lost", "copy it again")
    drop_impossible(trace)
    for dispatch in trace.dispatches:
        dispatch.id, dispatch.lane = plain(dispatch.id), plain(dispatch.lane)
    _refuse_bad(trace, reader, source)
    trace.title = reader.title
    trace.files = [_file_of(source)]
    if trace.is_empty:
        reason = trace.notes[0] if trace.notes else "it holds no event"
        source.place = ""
        source.fail(f"this {reader.title} has nothing to show ({reason})", "record again")
    return trace


def _read(reader: TraceReader, source: Source) -> Trace:
    """Call a reader, and raise ReadError where a value is damaged."""
    try:
        return reader.read(source)
    except DAMAGE as error:
        kind = "it is nested too deeply" if isinstance(error, RecursionError) else ""
        reason = kind or f"{type(error).__name__}, {first_words(error)}"
        source.place = source.place or "in its structure"
        source.fail(f"this {reader.title} is damaged ({reason})", "record or copy it again")


def _refuse_bad(trace: Trace, reader: TraceReader, source: Source) -> None:
    """Add a note on the bad records of a file. Raises ReadError where over a quarter of the records
    of a kind are bad."""
    tally = trace.tally
    for kind, share in tally.shares().items():
        if share > REFUSED:
            source.place = ""
            reasons = ", ".join(tally.sentences(kind))
            reason = f"this {reader.title} cannot be used ({reasons})"
            source.fail(reason, "record again, or export it again")
    trace.notes += tally.sentences()


def _file_of(source: Source) -> TraceFile:
    digest, size = hashlib.sha256(), 0
    with source.path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return TraceFile(source.name, size, digest.hexdigest())


def read(
    paths: Sequence[Path | str], limits: ReadLimits | None = None, range_name: str | None = None
) -> Trace:
    """Return the files of one run as one trace.

    Args:
        paths: files, folders, packed files, or `-` for standard input.
        range_name: host operations of this name are kept as well.

    Raises ReadError, in one sentence, where a named file cannot be read, or where files are of
    different tools. Files of a folder that are of no known format are noted and left out.
    """
    limits = limits or ReadLimits()
    files: list[_ReadFile] = []
    left_out: list[str] = []
    members: set[tuple[Path, str]] = set()
    for path in map(Path, paths):
        many = sources(path, limits, range_name)
        for source in many:
            place = source.path.resolve(), source.member
            if place in members:
                left_out.append(f"{source.name} was named twice.")
                continue
            members.add(place)
            try:
                files.append(_ReadFile(source, read_source(source)))
            except ReadError as error:
                if len(many) == 1:
                    raise
                left_out.append(str(error))
    if not files:
        first = left_out[0] if left_out else "No file was named; name one."
        raise ReadError(first)
    return _join_files(files, left_out)


@dataclass(frozen=True)
class _ReadFile:
    """A file that was read."""

    source: Source
    trace: Trace

    @property
    def run(self) -> str:
        """Path of the recording that the file is of: its own, or of a table of several what stands
        before the name of the table, `host/4711` of `host/4711_kernel_trace.csv`."""
        path = self.source.path.resolve()
        path = path / self.source.member
        if reader_of(self.source).is_whole:
            return str(path)
        return str(path.parent / TABLE_NAME.sub("", path.name))


# Ends of the names of the tables of rocprofv3 and `nsys stats`
TABLE_NAME = re.compile(
    r"_?(?:agent_info|(?:kernel|memory_copy|memory_allocation|scratch_memory|counter_collection|"
    r"(?:hip|hsa|marker|rccl)(?:_\w+)?|cuda_\w+|nvtx_\w+)(?:_trace)?)?(?:\.csv)?(?:\.gz)?\Z"
)


def _join_files(files: list[_ReadFile], left_out: Iterable[str]) -> Trace:
    traces = [each.trace for each in files]
    _name_recordings(files)
    first, *others = traces
    for other in others:
        if other.tool != first.tool:
            raise ReadError(
                f"{first.files[0].name} is of {first.tool} and {other.files[0].name} of "
                f"{other.tool}; read the files of one tool together."
            )
        first.join(other)
    first.notes += [f"left out: {sentence}" for sentence in left_out]
    return first


def _name_recordings(files: Sequence[_ReadFile]) -> None:
    """Put the rank, or else the part of its path that differs, before the devices and processes of
    each recording where several have work of a device."""
    if len(files) < 2:
        return
    timed = [each for each in files if any(True for _ in each.trace.activities.select(*WORK))]
    runs = {each.run for each in timed}
    if len(runs) < 2:
        return
    ranks = {each.run: each.trace.rank for each in timed}
    by_rank = None not in ranks.values() and len(set(ranks.values())) == len(ranks)
    above = os.path.commonpath([str(Path(run).parent) for run in runs])
    for each in files:
        title = plain(os.path.relpath(each.run, above))
        each.trace.name_devices(f"rank {ranks[each.run]}" if by_rank and each.run in ranks
                                else title)  # fmt: skip
