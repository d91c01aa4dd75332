"""Limit the memory of a process, so that one that takes too much fails alone."""

import os
from contextlib import suppress
from pathlib import Path

SHARE = 0.8  # of the machine's memory that one process may take
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def total_bytes() -> int:
    """Return the bytes of memory of this machine, or of this container where it has fewer."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _CGROUPS:
        with suppress(OSError, ValueError):
            total = min(total, int(Path(name).read_text()))
    return total


def limit_memory(share: float = SHARE) -> None:
    """Let this process fail with MemoryError beyond a share of the machine's memory.

    Linux counts private writable pages (RLIMIT_DATA), not the address space that a GPU's driver
    reserves. A limit that was lower before stays. Elsewhere nothing is limited.
    """
    try:
        import resource
    except ImportError:
        return
    size = int(share * total_bytes())
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (size, soft, hard) if limit != resource.RLIM_INFINITY]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
