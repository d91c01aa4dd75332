"""Calibrations: times of a device's configs over many sizes, measured by `workbench calibrate`.

A calibration is one file, `NAME.csv.gz`, of lines `# field: text` and a table with the columns of
the tables in `benchmarks/data` and one more, `held`: 1 at sizes that only check what the others
give. The user's own file is in the folder of the default database; those that come with the
workbench are in `workbench/device/calibrations`. A kernel at a dtype is taken from the user's file
if that has it.

A launch without a config chooses among the configs that were measured, by the model that these
times correct (`correction.py`), and a sweep is ordered by it. Sizes that are held back tell how
good that is; then they correct, too.

`calibrations/impls/ARCH.csv` has fewer columns: the best time of each Impl at the measured sizes,
on devices of one architecture. `tuner/choice.py` orders Impls by it.
"""

import csv
import gzip
import io
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.data.files import write_file
from workbench.data.record import Resources
from workbench.spec import Sizes, WorkbenchError, short

SHIPPED = Path(__file__).parent / "calibrations"
IMPLS = SHIPPED / "impls"  # a file for each architecture, written by docs/generate.py
FIELDS = ("device", "gpu", "date", "versions", "protocol", "source")
RESOURCES = (
    "registers", "spill_bytes", "shared_bytes", "threads", "blocks_per_core", "programs",
    "load_bits",
)  # fmt: skip
HEADS = (
    "kernel", "sizes", "dtype", "impl", "config", *RESOURCES, "copy_engine", "matrix_unit",
    "binary", "median_us", "launches", "each", "held",
)  # fmt: skip


class CalibrationError(WorkbenchError):
    """A calibration file cannot be used; one sentence, with what to do next."""


@dataclass(frozen=True)
class CalibrationTime:
    """The measured time of one config at certain sizes."""

    kernel: str
    sizes: Mapping[str, int]
    dtype: str
    impl: str
    config: Mapping[str, int]
    resources: Resources
    median_s: float
    launches: int = 1
    each: tuple[Resources, ...] = ()  # of every launch in order, if there are several
    is_check: bool = False  # at sizes that only check


@dataclass(frozen=True)
class Calibration:
    """All times of a device. `about` has the fields of the head of the file: the device, the GPU
    as its driver names it, the date, the versions, the protocol of the times and where they are
    from."""

    metadata: Mapping[str, str]
    times: Sequence[CalibrationTime] = ()
    digest: str = ""  # of the file's bytes

    def times_of(self, kernel: str, dtype: str) -> list[CalibrationTime]:
        """Return the times of a kernel at a dtype."""
        return [t for t in self.times if t.kernel == kernel and t.dtype == dtype]

    @property
    def kernels(self) -> list[tuple[str, str]]:
        """Return kernels and dtypes, in the order of the file."""
        return list(dict.fromkeys((t.kernel, t.dtype) for t in self.times))

    @property
    def title(self) -> str:
        """Name of the calibration in sentences: `calibration of h200 of 2026-11-21`."""
        return f"calibration of {self.metadata['device']} of {self.metadata['date']}"


@dataclass(frozen=True)
class MeasuredCase:
    """The Impls of a kernel at one size, the fastest first."""

    kernel: str
    sizes: Mapping[str, int]
    dtype: str
    impls: Sequence[str]

    def octaves(self, sizes: Sizes) -> float:
        """Return how far these sizes are, over all axes."""
        at = self.sizes
        return sum(abs(math.log2(max(at[axis], 1) / max(sizes[axis], 1))) for axis in sizes)


# The file


def plain_numbers(text: str) -> dict[str, int]:
    """Return the numbers of `block_m=1 num_warps=8`."""
    return dict(_numbers(text))


@lru_cache(maxsize=4096)  # 600 lines have 20 sizes and 100 configs
def _numbers(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, int(n)) for name, n in re.findall(r"(\w+)=(-?\d+)", text))


def numbers_text(numbers: Mapping[str, int]) -> str:
    """Return numbers as `block_m=1 num_warps=8`."""
    return " ".join(f"{name}={n}" for name, n in numbers.items())


def resources_of(line: Mapping[str, str]) -> Resources:
    """Return the resources of a line of a table of times. Raises KeyError or ValueError where it
    lacks one."""
    counts: dict[str, Any] = {name: int(line[name]) for name in RESOURCES}
    return Resources(
        binary=line["binary"],
        occupancy=0.0,  # the model works with `blocks_per_core`
        limiter="",
        waves=0.0,
        tail=0.0,
        matrix_unit=line["matrix_unit"] or None,
        compile_s=0.0,
        copy_engine=line["copy_engine"] == "1",
        **counts,
    )


def each_text(each: Sequence[Resources]) -> str:
    """Return the resources of every launch in a cell: `registers=48 spill_bytes=0 ...; ...`."""
    texts = []
    for one in each:
        named = {name: getattr(one, name) for name in RESOURCES}
        named |= {"copy_engine": int(one.copy_engine), "matrix_unit": one.matrix_unit or ""}
        texts.append(" ".join(f"{name}={value}" for name, value in named.items()))
    return ";".join(texts)


def each_of(line: Mapping[str, str]) -> tuple[Resources, ...]:
    """Return the resources of every launch of a line of a table; none where it is one. Raises as
    `resources_of` does."""
    return tuple(_launch_of(cell) for cell in line.get("each", "").split(";") if cell)


@lru_cache(maxsize=4096)  # a fifth of a kernel's launches differ
def _launch_of(cell: str) -> Resources:
    return resources_of({**dict(pair.split("=") for pair in cell.split()), "binary": ""})


def save(calibration: Calibration, path: Path) -> None:
    """Write a calibration; the file is whole or as it was. Raises FileError."""
    text = io.StringIO()
    for name in FIELDS:
        text.write(f"# {name}: {calibration.metadata.get(name, '')}\n")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(HEADS)
    table.writerows(map(_line, calibration.times))
    packed = gzip.compress(text.getvalue().encode(), mtime=0)  # equal tables are equal files
    write_file(path, packed, make_folder=True)


def _line(time: CalibrationTime) -> list[object]:
    created = time.resources
    return [
        time.kernel, numbers_text(time.sizes), time.dtype, time.impl, numbers_text(time.config),
        *(getattr(created, name) for name in RESOURCES), int(created.copy_engine),
        created.matrix_unit or "", created.binary[:8], f"{time.median_s * 1e6:.3f}", time.launches,
        each_text(time.each), int(time.is_check),
    ]  # fmt: skip


def load(path: Path, kernel: str = "") -> Calibration:
    """Return the calibration of a file, or what it has of one kernel. Raises CalibrationError where
    it cannot be read, or a line of it is damaged."""
    head, rows, digest = read_rows(path, kernel)
    about = {name: value for name, value in head.items() if name in FIELDS}
    if missing := [name for name in ("device", "date") if not about.get(name)]:
        raise _damaged_error(path, f"no {missing[0]} in its head")
    return Calibration(about, tuple(_time(row, path) for row in rows), digest)


def read_rows(path: Path, kernel: str = "") -> tuple[dict[str, str], Iterable[dict[str, str]], str]:
    """Return the head of a file, its rows or those of one kernel, and a digest of its bytes. Raises
    CalibrationError where it cannot be read."""
    try:
        packed = path.read_bytes()
        text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise CalibrationError(
            f"The calibration {path} cannot be read ({reason}); remove it, and measure anew by "
            "`workbench calibrate`."
        ) from None
    lines = text.splitlines()
    head = [line[2:].partition(": ") for line in lines if line.startswith("# ")]
    table = [line for line in lines if not line.startswith("#")]
    # A line takes 15 us to read, and a calibration has 5,000 of 40 kernels
    if kernel:
        table[1:] = [line for line in table[1:] if line.startswith(f"{kernel},")]
    about = {name: value for name, _, value in head}
    return about, csv.DictReader(table), f"{zlib.crc32(packed):08x}"


def shipped_damage(path: Path, error: Exception) -> CalibrationError:
    """Return the error of a file that comes with the workbench and cannot be parsed."""
    reason = f"{type(error).__name__}: {short(str(error))}"
    return CalibrationError(f"{path} is damaged ({reason}); install the workbench again.")


def _damaged_error(path: Path, reason: str) -> CalibrationError:
    return CalibrationError(
        f"The calibration {path} is damaged ({reason}); remove it, and measure anew by `workbench "
        "calibrate`."
    )


def _time(row: Mapping[str, str], path: Path) -> CalibrationTime:
    try:
        result = CalibrationTime(
            row["kernel"],
            plain_numbers(row["sizes"]),
            row["dtype"],
            row["impl"],
            plain_numbers(row["config"]),
            resources_of(row),
            float(row["median_us"]) * 1e-6,
            int(row["launches"]),
            each_of(row),
            row["held"] == "1",
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _damaged_error(path, f"{type(error).__name__} in {short(dict(row))}") from None
    if not 0 < result.median_s < 1e6 or not result.sizes or min(result.sizes.values()) < 1:
        raise _damaged_error(path, f"the line {short(dict(row))}")
    return result


# The calibrations of a device


def own_path(device: str) -> Path:
    """Return the path of the user's own calibration of a device."""
    from platformdirs import user_data_dir

    folder = Path(user_data_dir("kernel-workbench", appauthor=False))
    return folder / "calibrations" / f"{device}.csv.gz"


def is_calibrated_here(device: str, kernel: str, dtype: str) -> bool:
    """Return whether the user's own calibration of a device has times of a kernel at a dtype.
    Raises CalibrationError."""
    own, stamp = own_path(device), _stamp(own_path(device))
    if stamp is None:
        return False
    ours = _merge_calibrations(own, None, own, stamp, kernel)  # without those that are shipped
    return ours is not None and (kernel, dtype) in ours.kernels


def shipped_devices() -> list[str]:
    """Return the devices whose calibrations come with the workbench."""
    return sorted(path.name.partition(".")[0] for path in SHIPPED.glob("*.csv.gz"))


def calibration_of(device: str, kernel: str = "") -> Calibration | None:
    """Return the calibration of a device, or what it has of one kernel: of each kernel and dtype
    the user's own times, or else those that come with the workbench. None if there are none. Raises
    CalibrationError."""
    shipped, own = SHIPPED / f"{device}.csv.gz", own_path(device)
    return _merge_calibrations(shipped, _stamp(shipped), own, _stamp(own), kernel)


Stamp = tuple[int, int, int]


def _stamp(path: Path) -> Stamp | None:
    """Return what changes with a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@lru_cache(maxsize=128)
def _merge_calibrations(
    shipped: Path, shipped_stamp: Stamp | None, own: Path, own_stamp: Stamp | None, kernel: str
) -> Calibration | None:
    theirs = load(shipped, kernel) if shipped_stamp else None
    ours = load(own, kernel) if own_stamp else None
    if theirs is None or ours is None:
        return ours or theirs
    measured = set(ours.kernels)
    times = [t for t in theirs.times if (t.kernel, t.dtype) not in measured]
    return replace(ours, times=(*ours.times, *times), digest=ours.digest + theirs.digest)


@lru_cache(maxsize=128)
def measured_cases(arch: str, kernel: str = "") -> list[MeasuredCase]:
    """Return the cases of a kernel, or of all, that were measured on devices of an architecture.
    Times of the final benchmark come before those of the first pass. Raises CalibrationError where
    the file, which comes with the workbench, is damaged."""
    path = IMPLS / f"{arch}.csv"
    if not path.is_file():
        return []
    cases = defaultdict[tuple[str, str, str], list[tuple[bool, float, str]]](list)
    for row in read_rows(path, kernel)[1]:
        try:
            at = row["kernel"], row["sizes"], row["dtype"]
            cases[at].append((row["phase"] != "final", float(row["median_us"]), row["impl"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(
                f"{path} is damaged ({type(error).__name__} in {short(dict(row))}); install the "
                "workbench again."
            ) from None
    for times in cases.values():
        times.sort(key=lambda one: one[:2])  # equal times stay in the order of the file
    return [
        MeasuredCase(name, plain_numbers(sizes), dtype, [impl for *_, impl in times])
        for (name, sizes, dtype), times in cases.items()
    ]


def times_not_held_back(times: Iterable[CalibrationTime]) -> list[CalibrationTime]:
    """Return the times at sizes that are not held back."""
    return [time for time in times if not time.is_check]


def sizes_in(times: Iterable[CalibrationTime]) -> list[dict[str, int]]:
    """Return the different sizes, in order."""
    return [dict(s) for s in dict.fromkeys(tuple(t.sizes.items()) for t in times)]
