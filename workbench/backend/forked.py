"""What the server imports that compilers and measuring processes are forked from: Triton, and the
hash of its own libraries, half a second that each of them would otherwise spend for itself."""

from __future__ import annotations

from triton.backends.amd import compiler as amd
from triton.backends.nvidia import compiler as nvidia
from triton.runtime.cache import triton_key

COMPILERS = (amd, nvidia)
KEY = triton_key()  # kept by Triton from now on
