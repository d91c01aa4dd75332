"""A package `torch` that records nothing: the recorder of programs is tested with it in a tenth of
a second a program, where importing torch takes two."""

FILES = {
    "__init__.py": """
__version__ = "0"
from types import SimpleNamespace
cuda = SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)
from . import autograd, profiler
""",
    "autograd/__init__.py": "from . import profiler\n",
    "autograd/profiler.py": "class profile:\n    def __enter__(self): pass\n",
    "profiler.py": """
import json
LOG = []
class ProfilerActivity: CPU, CUDA = "CPU", "CUDA"
class record_function:
    def __init__(self, name): pass
    def __enter__(self): pass
    def __exit__(self, *error): pass
def schedule(**how): return how
class profile:
    def __init__(self, activities=(), schedule=None, on_trace_ready=None, **how):
        self.schedule, self.ready, self.steps = schedule, on_trace_ready, 0
    def start(self): LOG.append("start")
    def __enter__(self): self.start()
    def __exit__(self, *error): pass
    def step(self):
        self.steps += 1
        if self.schedule and self.steps == sum(self.schedule.values()) - 1: self.ready(self)
    def stop(self): LOG.append("stop")
    def events(self): return []
    def key_averages(self, **how): return []
    def export_chrome_trace(self, path):
        open(path, "w").write(json.dumps({"log": LOG, "steps": self.steps}))
""",
}


def write(folder):
    """Write the package into a folder, to stand on the path of a program."""
    for name, text in FILES.items():
        path = folder / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
