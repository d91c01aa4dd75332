"""Launches that are compiled as far as Triton's TTGIR, which takes a third of the time: LLVM and
ptxas have the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.compile.dedup import Dedup, Stop
from workbench.compile.launches import capture_launches
from workbench.device.hardware import Device
from workbench.spec import Impl


class Stopped(Dedup):
    """Ends each compilation at its TTGIR, which is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def meet(
        self,
        module: Any,
        metadata: Mapping[str, Any],
        backend: Any,
        options: Any,
        later: Sequence[str],
    ) -> None:
        self.texts.append(str(module))
        raise Stop

    def end(self, kernel: Any) -> None:
        """It was compiled before and comes from a cache."""
        self.texts.append(kernel.asm["ttgir"])


def ttgir_of(impl: Impl, config: Any, tensors: Sequence[Any], device: Device) -> list[str]:
    """Return the TTGIR of each launch on these tensors, in order."""
    dedup = Stopped()
    with capture_launches(device, dedup):
        impl(*tensors, config=config)
    return dedup.texts
