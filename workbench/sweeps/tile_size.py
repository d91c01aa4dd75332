"""How large a block should one program own?"""

from workbench.spec import stages, threads, tile
from workbench.sweeps import Sweep

SWEEP = Sweep(vary=[tile], tune=[threads, stages])
