"""Write a tuned table as Python source, or as the JSON files of vLLM and SGLang."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.data.files import write_file
from workbench.workload.pinned import OPTIONS
from workbench.workload.tuned_table import PinnedEntry


@dataclass
class ExportResult:
    """What an export wrote, and which entries it left out, each with the reason."""

    files: list[Path] = field(default_factory=list)
    exported_entries: int = 0
    left_out: list[tuple[PinnedEntry, str]] = field(default_factory=list)


# Python


def export_python(entries: Sequence[PinnedEntry], file: Path) -> ExportResult:
    """Write a source file with a dict of `triton.Config` by key for each function. Returns what was
    written. Raises FileError."""
    write_file(file, python_text(entries), make_folder=True)
    return ExportResult([file], len(entries))


def python_text(entries: Sequence[PinnedEntry]) -> str:
    """Return the source. Text of the table stands in literals and in ASCII comments alone."""
    functions: dict[tuple[str, str, str, str, str], list[PinnedEntry]] = defaultdict(list)
    for entry in entries:
        group = (entry.arch, entry.module, entry.function, entry.text_hash, entry.triton)
        functions[group].append(entry)
    parts = ["import triton"]
    taken: set[str] = set()
    for group, several in sorted(functions.items()):
        arch, module, function, text_hash, version = group
        name = _free_name(f"{function}_{arch}", taken)
        about = f"{module}.{function}, code {text_hash}, on {arch} with Triton {version}"
        lines = [f"# {ascii(about)[1:-1]}", f"{name} = {{"]
        for entry in sorted(several, key=lambda each: each.key):
            times = f"{entry.after_s.median * 1e6:.4g} us, before {entry.before_s.median * 1e6:.4g}"
            lines += [f"    # {times}; {ascii(entry.at)[1:-1]}"]
            lines += [f"    {entry.key!a}: {_config_source(entry)},"]
        parts.append("\n".join([*lines, "}"]))
    return "\n\n".join(parts) + "\n"


def _config_source(entry: PinnedEntry) -> str:
    config = dict(entry.config)
    options = {n: config.pop(n) for n in OPTIONS if n in config}
    words = "".join(f", {n}={v!a}" for n, v in options.items() if v is not None)
    return f"triton.Config({config!a}{words})"


def _free_name(text: str, taken: set[str]) -> str:
    name = re.sub(r"\W", "_", ascii(text)[1:-1], flags=re.ASCII)
    name = f"configs_{name}"
    number, first = 1, name
    while name in taken:
        number += 1
        name = f"{first}_{number}"
    taken.add(name)
    return name


# vLLM and SGLang: one file a shape of the experts; keys are batch sizes. As `get_config_file_name`
# of vLLM's `fused_moe.py` names them (November 2026).

MOE_ARGUMENTS = {"a_ptr", "b_ptr", "sorted_token_ids_ptr", "expert_ids_ptr", "top_k"}
MOE_CONFIG = (
    *("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"),
)  # fmt: skip
QUANTISED = ("fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16")
TENSOR = re.compile(r"(\w+)\[([1-9]\d*(?:, [1-9]\d*)*)\]\Z", re.ASCII)


def export_vllm_moe(entries: Sequence[PinnedEntry], folder: Path) -> ExportResult:
    """Write a JSON file for each shape of experts. Returns what was written, and why entries were
    left out. Raises FileError."""
    result = ExportResult()
    files: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for entry in sorted(entries, key=lambda each: each.at):
        place = moe_place(entry)
        if isinstance(place, str):
            result.left_out.append((entry, place))
            continue
        name, batch = place
        files[name][batch] = {each: entry.config[each] for each in MOE_CONFIG}
    for name, configs in sorted(files.items()):
        ordered = {str(batch): configs[batch] for batch in sorted(configs)}
        write_file(folder / name, json.dumps(ordered, indent=4) + "\n", make_folder=True)
        result.files.append(folder / name)
        result.exported_entries += len(configs)
    return result


def moe_place(entry: PinnedEntry) -> tuple[str, int] | str:
    """Return the name of the file and the batch size of an entry, or why it has none. Both of a
    layer's matrix products use one config, that of the first, whose experts have the two halves of
    gate and up projection."""
    given = entry.arguments
    if not set(given) >= MOE_ARGUMENTS:
        return "it is not recorded with the arguments of a fused MoE kernel"
    a, b = TENSOR.match(given["a_ptr"]), TENSOR.match(given["b_ptr"])
    if a is None or b is None:
        return "its a_ptr and b_ptr are not tensors"
    (batch, *_), experts = ([int(n) for n in shape[2].split(",")] for shape in (a, b))
    if len(experts) != 3 or experts[1] % 2:
        return "its b_ptr has not the shape of the first product, experts x 2 N x K"
    if given["top_k"] == "1" and given.get("MUL_ROUTED_WEIGHT") != "False":
        return "it is the second product of its layer; vLLM takes one config for both"
    if not set(MOE_CONFIG) <= set(entry.config):
        return f"its config lacks one of {', '.join(MOE_CONFIG)}"
    return _moe_name(entry, given, experts[0], experts[1] // 2, a[1]), batch


def _moe_name(
    entry: PinnedEntry, given: Mapping[str, str], experts: int, n: int, dtype: str
) -> str:
    device = re.sub(r"[^\w.-]", "_", entry.device)
    if "H200" in device.split("_"):
        device = "NVIDIA_H200"  # one name for the whole family
    kind = next((each for each in QUANTISED if given.get(f"use_{each}") == "True"), "")
    if not kind and dtype == "float32":
        kind = "float32"
    text = f"E={experts},N={n},device_name={device}" + (f",dtype={kind}" if kind else "")
    block = [given.get("group_n", "0"), given.get("group_k", "0")]
    if all(each.isdecimal() and int(each) for each in block):
        text += f",block_shape=[{','.join(block)}]"
    return f"{text}.json"
