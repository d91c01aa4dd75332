"""Why a config cannot run on a device, before anything is compiled or emulated."""

from __future__ import annotations

from workbench.backend.protocol import Problem
from workbench.device.hardware import METAL, Device
from workbench.measurement.candidate import Candidate


def refusal_of(candidate: Candidate, problem: Problem, device: Device) -> str | None:
    """Return in one sentence why a config cannot run on the device, or None: by the kernel's own
    `refuse`, and for a Metal kernel by the limits of its buffers and of each dispatch."""
    impl, config = candidate.impl, candidate.config
    reason = impl.rejection_reason(config, device.limits, problem.dtype, problem.sizes)
    if device.backend == METAL and impl.backend == "triton":
        return f"{impl.title} is a Triton kernel, and {device.title} runs Metal kernels"
    if reason is not None or impl.backend != "metal":
        return reason
    from workbench.backend.metal.emulated import dispatch_refusal

    return dispatch_refusal(impl, config, problem, device)
