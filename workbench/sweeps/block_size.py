"""How many threads should one block have?"""

from workbench.spec import stages, threads, tile
from workbench.sweeps import Sweep

SWEEP = Sweep(vary=[threads], tune=[tile, stages])
