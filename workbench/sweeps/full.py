"""Which config is best, whatever kind of knob it takes?"""

from workbench.spec import among, stages, threads, tile
from workbench.sweeps import Sweep

SWEEP = Sweep(vary=[tile, threads, stages, among])
