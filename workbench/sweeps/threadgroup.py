"""How many threads should a threadgroup of a Metal kernel have?"""

from workbench.spec import among, threads, tile
from workbench.sweeps import Sweep

SWEEP = Sweep(vary=[threads], tune=[tile, among], backend="metal", instead="block_size")
