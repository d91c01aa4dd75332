"""Imports of a fork server whose workers all compile or measure: Triton, and what tasks need.

Each of a sweep's twenty workers would spend a second of CPU on them, all at once. Triton hashes its
own libraries here, too, once for all.
"""

import workbench.backend.processes
import workbench.dsl.gluon
import workbench.measurement.bench
import workbench.measurement.probe
import workbench.measurement.tamper
import workbench.measurement.worker  # noqa: F401
from workbench.data.triton_key import key_of_triton

key_of_triton()
