"""How many warps, and how deep a pipeline, hide the latency?"""

from workbench.spec import stages, threads, tile
from workbench.sweeps import Sweep

SWEEP = Sweep(vary=[threads, stages], tune=[tile])
