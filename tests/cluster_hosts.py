"""A Dask scheduler and workers with a stand-in for the GPU, each a process of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
STANDIN = str(TESTS / "cluster_standin.py")
PATH = os.pathsep.join([str(TESTS.parent), str(TESTS)])


class Hosts:
    """A scheduler and workers, each a process of its own as on a cluster of many hosts."""

    def __init__(self, folder):
        self.folder, self.workers = folder, {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"tcp://127.0.0.1:{self.port}"
        self.scheduler = None

    def _start(self, module, *words, **more):
        environment = {**os.environ, "PYTHONPATH": PATH, "STANDIN": str(self.folder), **more}
        with (self.folder / "dask.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{module}", *words, "--no-dashboard"],
                env=environment, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip

    def start_scheduler(self):
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", str(self.port))

    def start_worker(self, name, gpu=True):
        """A worker without a nanny, so that nothing restarts it."""
        more = {"CUDA_VISIBLE_DEVICES": name}
        resources = ["--resources", "GPU=1"] if gpu else []
        self.workers[name] = self._start(
            "worker", self.url, "--no-nanny", "--nthreads", "2", "--name", name, "--preload",
            STANDIN, "--death-timeout", "20", "--memory-limit", "0", *resources, **more,
        )  # fmt: skip

    def start(self, *names):
        self.start_scheduler()
        for name in names:
            self.start_worker(name, gpu=name != "cpu")
        from distributed import Client

        with Client(self.url, timeout=60) as client:
            client.wait_for_workers(len(names), timeout=60)

    def own(self, name, **differs):
        (self.folder / f"cluster-{name}.json").write_text(json.dumps(differs))

    def end(self):
        for process in [*self.workers.values(), self.scheduler]:
            if process is not None:
                process.kill()
                process.wait()
