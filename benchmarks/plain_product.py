"""A plain matrix product whose configs were all timed on an H200, and its code for that device.

    python benchmarks/plain_product.py

It declares nothing. The times are in `data/h200_plain_matmul.csv.gz`. The script compiles every
config of them for sm_90 and writes TTGIR and resources to `data/h200_plain_matmul_code.json.xz`, so
that `predictors.py` needs no compiler; it takes 10 minutes on one core, and no GPU takes part.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from workbench.code.code_work import launch_work
from workbench.code.program_values import LaunchArguments
from workbench.data.record import Resources
from workbench.device.code_model import predict_launch
from workbench.device.hardware import device_named
from workbench.device.occupancy import occupancy

DATA = Path(__file__).parent / "data"
TIMES = DATA / "h200_plain_matmul.csv.gz"
CODE = DATA / "h200_plain_matmul_code.json.xz"
DEVICE = "h200"
GROUP = 8  # rows of tiles that are visited together
KNOBS = ("BM", "BN", "BK", "num_warps", "num_stages")
LOCATION = re.compile(r"^#loc.*\n| loc\(.*\)$", flags=re.M)
RESOURCES = ("registers", "spill_bytes", "shared_bytes", "load_bits", "matrix_unit")


@cache
def timed_rows() -> tuple[Mapping[str, str], ...]:
    """Return the rows of the table of times that have one."""
    with gzip.open(TIMES, "rt") as file:
        return tuple(row for row in csv.DictReader(file) if row["us"])


@cache
def stored_code() -> Mapping[str, Any]:
    """Return the stored code: `ttgir`, a list, and `configs` with places in it."""
    code: Mapping[str, Any] = json.loads(lzma.decompress(CODE.read_bytes()))
    return code


def code_key(row: Mapping[str, str]) -> str:
    """Return the key of a row's code: its knobs, and whether Triton knows its sizes as multiples
    of 16."""
    aligned = all(int(row[axis]) % 16 == 0 for axis in "MNK")
    return " ".join([*(row[knob] for knob in KNOBS), "aligned" if aligned else "any"])


def launch_of(row: Mapping[str, str]) -> tuple[tuple[int, ...], LaunchArguments]:
    """Return the grid and the arguments of a row's launch."""
    m, n, k = (int(row[axis]) for axis in "MNK")
    grid = (math.ceil(m / int(row["BM"])) * math.ceil(n / int(row["BN"])),)
    scalars = {"M": m, "N": n, "K": k, "sam": k, "sbk": n, "scm": n}
    tensors = {"a_ptr": 2 * m * k, "b_ptr": 2 * k * n, "c_ptr": 2 * m * n}
    return grid, LaunchArguments(scalars, tensors)


def timed_resources(row: Mapping[str, str]) -> Resources:
    """Return the registers, spills and shared memory that the table states. The width of loads and
    the matrix instruction, which it lacks, are those of the code."""
    code = stored_code()["configs"][code_key(row)]
    stated = {"registers": int(row["regs"]), "shared_bytes": int(row["shared"])}
    return _resources(row, {**code, **stated, "spill_bytes": 4 * int(row["spills"])})


def code_resources(row: Mapping[str, str]) -> Resources:
    """Return the resources of a row's stored code."""
    return _resources(row, stored_code()["configs"][code_key(row)])


def _resources(row: Mapping[str, str], known: Mapping[str, Any]) -> Resources:
    threads = 32 * int(row["num_warps"])
    registers, shared = max(16, known["registers"]), known["shared_bytes"]
    device = device_named(DEVICE)
    fit = occupancy(device, threads=threads, registers=registers, shared_bytes=shared)
    return Resources(
        binary="",
        threads=threads,
        blocks_per_core=max(1, fit.blocks_per_core),
        occupancy=fit.fraction,
        limiter=fit.limiter,
        programs=math.prod(launch_of(row)[0]),
        waves=0.0,
        tail=0.0,
        compile_s=0.0,
        **{name: known[name] for name in RESOURCES},
    )


def predicted_s(row: Mapping[str, str]) -> float:
    """Return the seconds that the model of code predicts of a row's launch."""
    code = stored_code()
    text = code["ttgir"][code["configs"][code_key(row)]["ttgir"]]
    device, resources = device_named(DEVICE), code_resources(row)
    grid, given = launch_of(row)
    work = launch_work(text, grid, given, device, resources, int(row["num_stages"]))
    return predict_launch(device, work, resources).predicted_s


def compile_row(row: Mapping[str, str]) -> tuple[str, Resources]:
    """Return the TTGIR and the resources of a row's config, compiled for the device."""
    import torch
    from product_kernel import mm

    from workbench.compile import read_resources
    from workbench.compile.launches import capture_launches

    device = device_named(DEVICE)
    m, n, k = (int(row[axis]) for axis in "MNK")
    shapes = ((m, k), (k, n), (m, n))
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    knobs = {knob: int(row[knob]) for knob in KNOBS}
    with capture_launches(device) as launches:
        mm[launch_of(row)[0]](*tensors, m, n, k, k, n, n, G=GROUP, **knobs)
    (launch,) = launches
    return launch.kernel.asm["ttgir"], read_resources(launch, launches, device, 0.0)


def compile_rows() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the key, the TTGIR and the resources of each code that the table needs."""
    for key, row in {code_key(row): row for row in timed_rows()}.items():
        text, resources = compile_row(row)
        yield key, text, {name: getattr(resources, name) for name in RESOURCES}


def main() -> None:
    """Compile all configs and write their code."""
    import triton

    places: dict[str, int] = {}
    configs: dict[str, Any] = {}
    for key, text, resources in compile_rows():
        place = places.setdefault(LOCATION.sub("", text), len(places))
        configs[key] = {"ttgir": place, **resources}
        print(len(configs), key, resources, flush=True)
    by = f"Triton {triton.__version__} for sm_90"
    result = {"device": DEVICE, "compiled": by, "ttgir": list(places), "configs": configs}
    CODE.write_bytes(lzma.compress(json.dumps(result).encode(), preset=9))


if __name__ == "__main__":
    main()
