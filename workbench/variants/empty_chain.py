"""A chain of L launches that do nothing but say that they ran: y[l] = l.

What is left of a launch when its kernel neither reads nor computes, L times in a row. A call by the
host's clock costs L launches by the CPU; in a graph, L times what lies between the end of a kernel
and the end of the next.

With `pdl` (programmatic dependent launch, NVIDIA from sm_90 on) a kernel may start while the one
before runs, and waits for its end before it writes, as one must that reads what was written: of the
gap only that wait is left.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import INTERPRETED, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, among


def reference(x):
    return torch.arange(len(x), device=x.device, dtype=x.dtype)


empty_chain = Spec(
    name="empty_chain",
    inputs={"x": Tensor("L", dtype="fp32")},  # says by its length how many launches
    outputs={"y": Tensor("L", dtype="fp32")},
    reference=reference,
    flops=lambda L: 0,
    check=[{"L": 1}, {"L": 3}, {"L": 8}],
    bench=[{"L": 256}, {"L": 1}],
    tolerance={"fp32": Tolerance(relative=0.0)},
)


@triton.jit(do_not_specialize=["at"])
def _link(y_ptr, at, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    tl.store(y_ptr + at, at.to(tl.float32))


@dataclass(frozen=True)
class Links:
    pdl: int = among(0, 1, default=0)


def refuse_links(config, limits, *, itemsize, L):
    if not config.pdl:
        return None
    generation = int(limits.arch.removeprefix("sm_")) if limits.nvidia else 0
    if generation < 90:
        return f"{limits.arch} has no programmatic dependent launch"
    return None


def work(config, limits, *, itemsize, L):
    return Work(tiles=1, steps=1, load_bytes=0, store_bytes=4)  # of each launch


@empty_chain.impl(Links, refuse=refuse_links, work=work)
def links(x, *, config):
    """One program of one warp a launch."""
    y = x.new_empty(len(x))
    # only NVIDIA's compiler knows this option
    more = {"launch_pdl": True} if config.pdl and not INTERPRETED else {}
    for at in range(len(x)):
        _link[(1,)](y, at, PDL=bool(more), num_warps=1, **more)
    return y


@empty_chain.impl(backend="torch", name="torch")
def library(x):
    y = torch.empty_like(x)
    for at, number in enumerate(y.unbind()):
        number.fill_(at)
    return y
