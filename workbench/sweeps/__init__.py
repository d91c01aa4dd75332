"""One sweep a file: which kinds of knob vary, and which are tuned for each of their values."""

from collections.abc import Sequence
from dataclasses import dataclass

from workbench.spec import Knob


@dataclass(frozen=True)
class Sweep:
    """Which kinds of knob vary, and which are tuned anew for each of their values.

    A tile is only as good as the warps and stages it is given: with those fixed, small and large
    tiles are not compared fairly. Every other knob keeps its default.
    """

    vary: Sequence[Knob]
    tune: Sequence[Knob] = ()
    backend: str = ""  # of the only kernels that it is for: "metal"; empty: any
    instead: str = ""  # the sweep to name for other kernels
