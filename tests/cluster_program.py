"""The command line with a stand-in for each of four GPUs: `python cluster_program.py sweep ...`."""

from __future__ import annotations

import sys

from cluster_hosts import STANDIN

from workbench import cli
from workbench.backend.cluster import cluster


def main() -> int:
    inner = cluster.local_cluster
    cluster.gpus_of_host = lambda: ["0", "1", "2", "3"]
    cluster.local_cluster = lambda many, notify: inner(many, notify, [STANDIN])
    return cli.run(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
