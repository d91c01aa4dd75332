"""Verdicts that `evaluate --json` stored, for `evaluate --verify` and `--reuse`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.commands.options import CommandError

if TYPE_CHECKING:
    from workbench.commands.evaluate import EvaluateOptions

_TEXTS = ("file", "dtype", "device", "verdict")
REQUESTED = ("spec", "task", "impl", "sizes", "dtype", "device", "accept_claims")
BOUND = ("submission", "spec", "format", "versions")
COMPARED = ("verdict", "rule", "hidden_sizes", "config", "sizes")


def stored_verdict(path: Path) -> Mapping[str, Any]:
    """Return the content of a verdict's file. Raises CommandError where it is none."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise CommandError(f"{path} cannot be read ({reason}); name a verdict's file.") from None
    known = isinstance(content, dict) and content.get("command") == "evaluate"
    if not known or not all(isinstance(content.get(name), str) for name in _TEXTS):
        raise CommandError(f"{path} holds no verdict; name a file of `evaluate --json`.")
    maps = all(isinstance(content.get(name), dict) for name in ("config", "sizes", "digests"))
    numbers = all(type(content.get(name)) is int for name in ("seed", "exit_code"))
    if not maps or not numbers:
        raise CommandError(f"{path} lacks what a verdict is bound to; evaluate the kernel again.")
    return dict(content)


def request_of(options: EvaluateOptions) -> dict[str, Any]:
    """Return what was asked of an evaluation, as it was given, but for the file's own place."""
    request = {name: getattr(options, name) for name in REQUESTED}
    task = None if options.task is None else str(options.task)
    return {**request, "task": task, "require": list(options.require)}


def verdict_to_reuse(
    path: Path, options: EvaluateOptions, digests: Mapping[str, Any], device: str | None
) -> Mapping[str, Any] | None:
    """Return the verdict of a file where it answers this evaluation: the same request, the same
    content of a file under test and of its Spec, the same versions, and the same GPU where times
    were measured. None otherwise, or where there is no file yet. Raises CommandError."""
    if not path.exists():
        return None
    stored = stored_verdict(path)
    before = stored["digests"]
    alike = all(before.get(name) == digests.get(name) for name in BOUND)
    measured_on = None if stored.get("predicted") else stored["device"]
    if digests["submission"] is None or not alike or measured_on != device:
        return None
    return stored if stored.get("request") == request_of(options) else None


def options_of(stored: Mapping[str, Any], options: EvaluateOptions) -> EvaluateOptions:
    """Return the options by which a verdict was reached. A kernel and a Spec that are named replace
    those of the file, which may lie elsewhere here."""
    knobs = ",".join(f"{name}={value}" for name, value in stored["config"].items())
    impl = stored.get("impl")
    return replace(
        options,
        kernel=options.kernel or stored["file"],
        spec=options.spec or stored.get("spec"),
        task=options.task or (Path(stored["task"]) if stored.get("task") else None),
        impl=f"{impl}:{knobs}" if impl and knobs else impl,
        sizes=",".join(f"{axis}={extent}" for axis, extent in stored["sizes"].items()),
        dtype=stored["dtype"],
        device=stored["device"] if stored.get("predicted") else None,
    )


def differing(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of what differs between a stored verdict and the same evaluation now."""
    names = [name for name in COMPARED if stored.get(name) != now.get(name)]
    before, after = stored["digests"], now["digests"]
    return names + [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
