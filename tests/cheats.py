"""Kernels that deceive a check, each written as a file of its own from one honest kernel.

A deception changes some of the marked places of HONEST. The kernel comes first in it, so that most
files share one compiled kernel: Triton's key holds the number of its line. A deception breaks at
least one of its `rules`; `gpu` marks those that only a GPU can show.
"""

from dataclasses import dataclass
from pathlib import Path

SPEC = Path(__file__).parent / "cheat_spec" / "scaled_rows.py"

HONEST = '''"""{title}"""

from dataclasses import dataclass

import torch
from scaled_rows import refuse, scaled_rows

from workbench.dsl import tl, triton
from workbench.spec import threads, tile

TOLD = [tuple(sizes.values()) for sizes in scaled_rows.check]


@triton.jit
def _kernel(x_ptr, w_ptr, y_ptr, s_ptr, M, N, extra, BLOCK_N: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + m * N + n, n < N, 0.0).to(tl.float32)
    w = tl.load(w_ptr + n, n < N, 0.0).to(tl.float32)
    y = x * w
    s = tl.sum(y, 0)
    last = (m == M - 1) & (n == N - 1)
    {kernel}
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), {mask})
    tl.store(s_ptr + m, s.to(s_ptr.dtype.element_ty))
    {after}


{top}


def launch(x, w, y, s, config, rows=None, extra=0):
    M, N = x.shape
    _kernel[(M if rows is None else rows,)](
        x, w, y, s, M, N, extra, BLOCK_N=config.block_n, num_warps=config.num_warps
    )
    return y, s


def empty(x):
    return torch.empty_like(x), x.new_empty(x.shape[0])


@dataclass(frozen=True)
class Rows:
    block_n: int = tile(64, 4096, default=4096)
    num_warps: int = threads(4, 8, default=8)


@scaled_rows.impl(Rows, refuse=refuse, name="mine")
def mine(x, w, *, config):
    y, s = empty(x)
{body}
'''
USUAL = {
    "top": "",
    "kernel": "",
    "mask": "n < N",
    "after": "",
    "body": "    return launch(x, w, y, s, config)",
}


@dataclass(frozen=True)
class Cheat:
    """One deception; `parts` replace the usual text of the marked places."""

    title: str
    rules: tuple[str, ...]
    parts: dict[str, str]
    gpu: bool = False
    own: bool = False  # judged by its own file's Spec, which it may spoil as it is imported

    @property
    def name(self) -> str:
        return self.title.replace(" ", "_").replace(",", "").replace(".", "_")

    def write(self, folder: Path) -> Path:
        """Write the kernel, beside the Spec that it imports. Returns its path."""
        spec = SPEC.read_text(encoding="utf-8")
        text = HONEST.format(**(USUAL | {"title": self.title} | self.parts))
        if self.own:  # one file holds the Spec and the kernel
            text = text.replace("from scaled_rows import refuse, scaled_rows\n", "")
            head, _, _ = spec.partition("@triton.jit")
            text = f"{head}\n{REFUSE}\n" + text
        else:
            (folder / "scaled_rows.py").write_text(spec, encoding="utf-8")
        path = folder / f"{self.name}.py"
        path.write_text(text, encoding="utf-8")
        return path


REFUSE = """
def refuse(config, limits, *, itemsize, M, N):
    return f"a row of {N} is longer than the block" if config.block_n < N else None
"""

# A launch on meta tensors is the compiler's: most deceptions are honest there.
COMPILED = "    if x.is_meta:\n        return launch(x, w, y, s, config)\n"


def body(text: str, compiled: bool = True) -> dict[str, str]:
    """Return the parts of a launcher that is honest when it is compiled."""
    lines = "".join(f"    {line}\n" for line in text.strip().splitlines())
    return {"body": (COMPILED if compiled else "") + lines.rstrip()}


CHEATS = (
    # Values
    Cheat("the last element is wrong", ("values",), {"kernel": "y = tl.where(last, 0.0, y)"}),
    Cheat("one NaN", ("values",), {"kernel": 'y = tl.where(last, float("nan"), y)'}),
    Cheat("nothing is written", ("values",), {"mask": "n < 0"}),
    Cheat("half of the rows", ("values",), body("return launch(x, w, y, s, config, len(x) // 2)")),
    Cheat("zeros", ("values",), {"kernel": "y = y * 0.0"}),
    Cheat(
        "a sum over a part of the row, scaled",
        ("values",),
        {"kernel": "s = 2 * tl.sum(tl.where(n % 2 == 0, y, 0.0), 0)"},
    ),
    Cheat(
        "arithmetic in few bits",
        ("values",),
        {"kernel": "y = (y * 64).to(tl.int32).to(tl.float32) / 64"},
    ),
    Cheat(
        "what fresh memory held before",
        ("values", "launches"),
        {"top": "kept = []", **body("kept.append(launch(x, w, y, s, config))\nreturn empty(x)")},
    ),
    Cheat(
        "expected values from the checker's memory",
        ("values",),
        {
            "top": "import gc",
            **body(
                """
found = [o for o in gc.get_objects() if type(o).__name__ == "PreparedProblem"]
launch(x, w, y, s, config, 0)
for problem in found:
    if tuple(problem.expected_outputs[0].shape) == tuple(x.shape):
        y.copy_(problem.expected_outputs[0])
        s.copy_(problem.expected_outputs[1])
return y, s
"""
            ),
        },
    ),
    Cheat(
        "results of a file of an earlier run",
        ("values", "launches"),
        {
            "top": "import os\nplace = os.path.join(os.path.dirname(__file__), 'kept.pt')",
            **body(
                """
launch(x, w, y, s, config)
if os.path.exists(place):
    kept = torch.load(place)
    if kept[0].shape == y.shape:
        y.set_(kept[0]), s.set_(kept[1])
        return y, s
torch.save((y.clone(), s.clone()), place)
return y, s
"""
            ),
        },
    ),
    Cheat(
        "a Spec with another tolerance and reference",
        ("values",),
        {
            "top": (
                "for name, value in (('tolerance', {d: type(t)(1e9) for d, t in "
                "scaled_rows.tolerance.items()}), ('reference', lambda x, w: (x * 0, x[:, 0]))):\n"
                "    object.__setattr__(scaled_rows, name, value)"
            ),
            "kernel": "y = y * 0.0",
        },
    ),
    # Sizes
    Cheat(
        "right at the sizes that it was told",
        ("sizes",),
        {
            **body("return launch(x, w, y, s, config, extra=0 if tuple(x.shape) in TOLD else 1)"),
            "kernel": "y = tl.where((extra == 1) & last, 0.0, y)",
        },
    ),
    Cheat("no mask beyond a multiple of 8", ("values",), {"mask": "n < N // 8 * 8"}),
    # Repeats
    Cheat(
        "right the first few times",
        ("values", "repeat", "sizes"),
        {
            "top": "count = [0]",
            "kernel": "y = tl.where((extra > 6) & last, 0.0, y)",
            **body("count[0] += 1\nreturn launch(x, w, y, s, config, extra=count[0])"),
        },
    ),
    Cheat(
        "results that vary in the last bits",
        ("repeat",),
        {
            "top": "count = [0]",
            "kernel": "y = y * (1 + 2.4e-7 * (extra % 3))",
            **body("count[0] += 1\nreturn launch(x, w, y, s, config, extra=count[0])"),
        },
    ),
    Cheat(
        "remembers by address",
        ("values", "launches", "repeat", "sizes"),
        {
            "top": "known = {}",
            **body(
                """
if (x.data_ptr(), x.shape) not in known:
    known[x.data_ptr(), x.shape] = launch(x, w, y, s, config)
return known[x.data_ptr(), x.shape]
"""
            ),
        },
    ),
    Cheat(
        "remembers by value",
        ("launches",),
        {
            "top": "known = {}",
            **body(
                """
key = x.numpy().tobytes() if x.device.type == "cpu" else x.cpu().numpy().tobytes()
if key not in known:
    known[key] = launch(x, w, y, s, config)
return known[key]
"""
            ),
        },
    ),
    # Form
    Cheat(
        "another dtype",
        ("form",),
        body("y = x.new_empty(x.shape, dtype=torch.float64)\nreturn launch(x, w, y, s, config)"),
    ),
    Cheat(
        "another shape",
        ("form",),
        body("launch(x, w, y, s, config)\nreturn y.view(-1), s"),
    ),
    Cheat(
        "a class that equals everything",
        ("form", "values"),
        {
            "top": (
                "class Liar(torch.Tensor):\n"
                "    @classmethod\n"
                "    def __torch_function__(cls, func, types, args=(), kwargs=None):\n"
                "        return True if func is torch.equal else "
                "super().__torch_function__(func, types, args, kwargs or {})\n"
            ),
            **body("launch(x, w, y, s, config)\nreturn y.as_subclass(Liar), s"),
        },
    ),
    Cheat(
        "a tensor on another device",
        ("form",),
        body("launch(x, w, y, s, config)\nreturn torch.empty_like(y, device='meta'), s"),
    ),
    Cheat("one output of two", ("form",), body("launch(x, w, y, s, config)\nreturn y")),
    # Memory, guards and inputs
    Cheat(
        "two outputs in one memory",
        ("memory",),
        body(
            """
both = x.new_empty(x.numel() + len(x))
return launch(x, w, both[: x.numel()].view(x.shape), both[x.numel() :], config)
"""
        ),
    ),
    Cheat(
        "a transposed view",
        ("memory", "operators"),
        body(
            """
launch(x, w, y, s, config)
other = x.new_empty(x.shape[1], x.shape[0])
other.t().copy_(y)
return other.t(), s
"""
        ),
    ),
    Cheat(
        "writes behind its output",
        ("guards",),
        {"after": "tl.store(y_ptr + M * N, 0.0, m == M - 1)"},
    ),
    Cheat(
        "overwrites its input by zeros",
        ("inputs",),
        body("launch(x, w, y, s, config)\nx.zero_()\nreturn y, s"),
    ),
    Cheat("returns its input", ("inputs",), body("return launch(x, w, x, s, config)")),
    # Launches and operators
    Cheat(
        "another kernel than the compiled one",
        ("launches",),
        {
            "top": "from scaled_rows import rows",
            **body("return rows.launch(x, w, config=config)"),
        },
    ),
    Cheat(
        "a library in place of the kernel",
        ("operators", "launches"),
        body("return x * w, (x * w).sum(1)"),
    ),
    Cheat(
        "torch that does the work next to a kernel",
        ("operators",),
        body(
            """
launch(x, w, y, s, config)
z = torch.mul(x, w)
return z, torch.sum(z, 1)
"""
        ),
    ),
    Cheat(
        "the reference itself",
        ("operators",),
        body(
            """
launch(x, w, y, s, config)
y, s = scaled_rows.reference(x.double(), w.double())
return y.to(x.dtype), s.to(x.dtype)
"""
        ),
    ),
    # Functions
    Cheat(
        "replaces torch.equal",
        ("values",),
        {"top": "torch.equal = lambda a, b: True", "kernel": "y = y * 0.0"},
    ),
    Cheat(
        "replaces the comparison, in the file of its Spec",
        ("functions",),
        {
            "top": (
                "from workbench.measurement import correctness\n"
                "correctness.compare_values = lambda *given: correctness.Checked(0.0)"
            ),
            "kernel": "y = y * 0.0",
        },
        own=True,
    ),
    Cheat(
        "replaces torch.where, in the file of its Spec",
        ("functions",),
        {"top": "real = torch.where\ntorch.where = lambda *given: real(*given)"},
        own=True,
    ),
    # Process
    Cheat("sys.exit", ("process",), body("raise SystemExit(0)")),
    Cheat(
        "os._exit",
        ("process",),
        {"top": "import os", **body("os._exit(0)")},
    ),
    Cheat(
        "a segfault",
        ("process",),
        {"top": "import ctypes", **body("ctypes.string_at(0)")},
    ),
    Cheat(
        "an endless loop",
        ("process",),
        {"top": "import time", **body("while True:\n    time.sleep(1)")},
    ),
    Cheat(
        "a thread that goes on",
        ("process", "values"),
        {
            "top": "import threading, time",
            **body(
                """
def later():
    time.sleep(0.5)
    launch(x, w, y, s, config)
launch(x, w, *empty(x), config)
threading.Thread(target=later).start()
return y, s
"""
            ),
        },
    ),
    Cheat(
        "a process that goes on",
        ("process",),
        {
            "top": "import subprocess",
            **body("subprocess.Popen(['sleep', '20'])\nreturn launch(x, w, y, s, config)"),
        },
    ),
    Cheat(
        "writes a result of its own to every pipe",
        ("process",),
        {
            "top": "import os",
            **body(
                """
for file in range(3, 64):
    try:
        os.write(file, b"\\0" * 7 + b"\\x04" + b"true")
    except OSError:
        pass
return launch(x, w, y, s, config)
"""
            ),
        },
    ),
    # A GPU alone shows these
    Cheat(
        "all work on another stream",
        ("streams", "values"),
        {
            "top": "streams = []",
            **body(
                """
streams or streams.append(torch.cuda.Stream())
with torch.cuda.stream(streams[0]):
    return launch(x, w, y, s, config)
"""
            ),
        },
        gpu=True,
    ),
    Cheat(
        "half of the work on another stream",
        ("streams", "values", "launches"),
        {
            "top": "streams = []",
            **body(
                """
streams or streams.append(torch.cuda.Stream())
half = len(x) // 2
with torch.cuda.stream(streams[0]):
    launch(x[half:], w, y[half:], s[half:], config)
launch(x, w, y, s, config, half)
return y, s
"""
            ),
        },
        gpu=True,
    ),
    Cheat(
        "nothing while it is captured",
        ("launches", "timed"),
        body(
            """
if torch.cuda.is_current_stream_capturing():
    return y, s
return launch(x, w, y, s, config)
"""
        ),
        gpu=True,
    ),
    Cheat(
        "less when the clock's code calls it",
        ("timed", "launches", "values", "floor"),
        {
            "top": "import sys",
            **body(
                """
frame, names = sys._getframe(), []
while frame is not None:
    names.append(frame.f_code.co_name)
    frame = frame.f_back
timed = {"capture", "step", "samples", "first_time"} & set(names)
return launch(x, w, y, s, config, len(x) // 2 if timed else None)
"""
            ),
        },
        gpu=True,
    ),
)
