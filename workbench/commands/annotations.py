"""Findings of a command at lines of source: workflow commands of GitHub, and SARIF 2.1.0.

They are made of the document that `--json` writes, for `gate`, `evaluate` and `diagnose`.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import workbench
from workbench.data.impl_check import WORDS

Level = Literal["error", "warning", "note"]
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
COMMANDS: Mapping[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}
CHECKED: Mapping[str, Level] = {
    "wrong": "error", "other reference": "warning", "unproven": "warning",
}  # fmt: skip
COMPARED: Mapping[str, Level] = {"SLOW": "error", "CLOCK": "warning", "INCONCLUSIVE": "warning"}
COMPILED: Mapping[str, Level] = {"FAILS": "error", "WORSE": "warning"}


@dataclass(frozen=True)
class Annotation:
    """One finding, and the line of source that it is about."""

    level: Level
    rule: str  # `gate/wrong`
    message: str
    file: Path | None = None  # None where the finding is about no file
    line: int = 1


def annotations_of(document: Mapping[str, Any]) -> list[Annotation]:
    """Return what the document of a command names; nothing where all is well."""
    every = {"gate": _gate_notes, "evaluate": _evaluate_notes, "diagnose": _diagnose_notes}
    return list(every[document["command"]](document))


def _gate_notes(document: Mapping[str, Any]) -> Iterator[Annotation]:
    files = [Path(name) for name in document.get("files", ())]

    def annotation(level: Level, word: str, kernel: str, impl: str, message: str) -> Annotation:
        rule, title = f"gate/{word.lower()}", f"{kernel}.{impl}" if impl else kernel
        text = f"{word} {title}: {message}".removesuffix(": ")
        return Annotation(level, rule, text, *place_of(files, kernel, impl))

    for check in document.get("checks", ()):
        kernel, _, impl = check["title"].rpartition(".")
        if level := CHECKED.get(check["state"]):
            yield annotation(level, WORDS[check["state"]], kernel, impl, check["reason"])
    comparison = document.get("comparison") or {"kind": "", "parts": ()}  # nothing was compared
    for part in comparison["parts"]:
        case = part["case"] or {"kernel": part["name"], "impl": ""}
        word = part["word"] or "FAILS"
        about = f"{case['device']}: " if comparison["kind"] == "machine code" else ""
        if level := {**COMPARED, **COMPILED}.get(word):
            message = about + part["reason"]
            yield annotation(level, word, case["kernel"], case["impl"], message)
    for left in document.get("left_out", ()):
        if left["broken"]:
            kernel, _, impl = left["what"].partition(" ")[0].rpartition(".")
            yield annotation("error", "FAILS", kernel or left["what"], impl, left["reason"])


def _evaluate_notes(document: Mapping[str, Any]) -> Iterator[Annotation]:
    verdict, file = document["verdict"], _file(document["file"])
    if verdict == "correct":
        return
    open_ = [rule for rule in document["rules"] if rule["state"] == "not run"]
    reason = document["reason"] or document["claim"] or (open_[0]["reason"] if open_ else "")
    rule = document["rule"] or verdict
    level: Level = "error" if verdict == "rejected" else "warning"
    place = place_of([file] if file else [], document["kernel"], document["impl"] or "")
    yield Annotation(level, f"evaluate/{rule}", f"{verdict}: {rule}: {reason}", *place)


def _diagnose_notes(document: Mapping[str, Any]) -> Iterator[Annotation]:
    file = _file(document.get("kernel", ""))
    for each in document.get("diagnoses", ()):
        name, _, line = (each["places"] or ("",))[0].rpartition(":")
        known = file if file is None or file.name == Path(name).name else Path(name)
        impl = each.get("subject", "").partition(" ")[0]
        place = place_of([file] if file else [], document.get("kernel", ""), impl)
        place = (known or Path(name), int(line)) if line.isdigit() else place
        advice = f" {each['advice']}" if each["advice"] else ""
        level: Level = "note" if each["rule"] == "model" else "warning"  # a limit is not a fault
        yield Annotation(level, f"diagnose/{each['rule']}", f"{each['sentence']}{advice}", *place)


def _file(kernel: str) -> Path | None:
    """Return the file of a kernel; None where there is none."""
    from workbench import catalog

    try:
        return catalog.file_of(kernel) if kernel else None
    except catalog.CatalogError:
        return None


def place_of(files: Sequence[Path], kernel: str, impl: str) -> tuple[Path | None, int]:
    """Return the file of a kernel, one of those given, and the line at which its Impl begins: 1
    where neither the Impl nor the kernel's name is found in it."""
    candidates: list[tuple[int, Path, int]] = []
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, ValueError, SyntaxError):
            continue
        names = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)} | {file.stem}
        defined = {n.name: n.lineno for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        rank = 2 * (kernel in (*names, file.name, str(file))) + (impl in defined)
        candidates.append((rank, file, defined.get(impl, 1)))
    if not candidates:
        return (files[0], 1) if len(files) == 1 else (None, 1)
    rank, file, line = max(candidates, key=lambda each: each[0])
    return (file, line) if rank or len(files) == 1 else (None, 1)


def _relative(file: Path) -> str:
    """Return a path as GitHub shows it: from the current folder where it is inside."""
    full = file.resolve()
    here = Path.cwd().resolve()
    return (full.relative_to(here) if full.is_relative_to(here) else full).as_posix()


def workflow_command(annotation: Annotation) -> str:
    """Return the line by which a job of GitHub marks a line of the change."""
    data = annotation.message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    place = {"title": f"Kernel Workbench, {annotation.rule}"}
    if annotation.file is not None:
        place = {"file": _relative(annotation.file), "line": str(annotation.line)} | place
    parts = ",".join(f"{key}={_property(value)}" for key, value in place.items())
    return f"::{COMMANDS[annotation.level]} {parts}::{data}"


def _property(value: str) -> str:
    for letter in "%\r\n:,":
        value = value.replace(letter, f"%{ord(letter):02X}")
    return value


def sarif(annotations: Sequence[Annotation]) -> dict[str, Any]:
    """Return a log of SARIF 2.1.0 with one run, which GitHub's code scanning takes."""
    driver = {
        "name": "Kernel Workbench",
        "version": workbench.__version__,
        "rules": [{"id": rule} for rule in dict.fromkeys(each.rule for each in annotations)],
    }
    results = [_result(each) for each in annotations]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(annotation: Annotation) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": annotation.rule,
        "level": annotation.level,
        "message": {"text": annotation.message},
    }
    if annotation.file is not None:
        file = annotation.file.resolve()
        inside = file.is_relative_to(Path.cwd().resolve())
        uri = quote(_relative(file)) if inside else file.as_uri()
        region = {"startLine": annotation.line}
        place = {"artifactLocation": {"uri": uri}, "region": region}
        result["locations"] = [{"physicalLocation": place}]
    return result
