"""Deceptions against the strict form of `evaluate`, by the class of the attack. Each is a file that
is wrong somewhere, or could be; none may be `correct`.

`shown` names what stops it: "text" is the audit of the launcher's text, which leaves the file's
word; "plan" is the replay of its plans, or the process that builds their device functions.
"""

from dataclasses import dataclass
from typing import Literal

from cheats import Cheat, body


@dataclass(frozen=True)
class StrictCheat:
    """One deception, and what stops it."""

    kind: str
    shown: Literal["text", "plan"]
    cheat: Cheat


def _of(kind, shown, title, **parts):
    text = parts.pop("launch", None)
    more = body(text, compiled=False) if text else {}
    return StrictCheat(kind, shown, Cheat(title, ("values",), {**parts, **more}))


WRONG = "y = y * 0.0"

STRICT = (
    # What is compiled is not what is interpreted
    _of(
        "compiled",
        "text",
        "another kernel for meta tensors",
        launch="""
if not x.is_meta:
    return launch(x, w, x, s, config)
return launch(x, w, y, s, config)
""",
    ),
    _of(
        "compiled",
        "text",
        "another grid by a text of a tensor",
        launch="""
return launch(x, w, y, s, config, 1 if "cpu" in f"{x}" else None)
""",
    ),
    _of(
        "compiled",
        "text",
        "another grid by a text with %",
        launch="""
return launch(x, w, y, s, config, 1 if "cpu" in "%s" % x else None)
""",
    ),
    _of(
        "compiled",
        "text",
        "another grid by a method of a text",
        launch="""
return launch(x, w, y, s, config, 1 if "cpu" in "{}".format(x) else None)
""",
    ),
    _of(
        "compiled",
        "text",
        "another grid by an address",
        launch="""
return launch(x, w, y, s, config, 1 if x.data_ptr() else None)
""",
    ),
    _of(
        "compiled",
        "text",
        "another grid by a variable of the environment",
        top="import os",
        launch="""
return launch(x, w, y, s, config, 1 if os.getenv("TRITON_INTERPRET") else None)
""",
    ),
    _of(
        "compiled",
        "text",
        "another grid where there is a GPU",
        launch="""
return launch(x, w, y, s, config, 1 if torch.cuda.is_available() else None)
""",
    ),
    _of(
        "compiled",
        "text",
        "another grid from a date on",
        top="import time",
        launch="""
return launch(x, w, y, s, config, 1 if time.time() > 4e9 else None)
""",
    ),
    _of(
        "compiled",
        "text",
        "a module under the name of a function",
        top="""
def chosen(word):
    return None
from os import getenv as chosen
""",
        launch='return launch(x, w, y, s, config, 1 if chosen("TRITON_INTERPRET") else None)',
    ),
    _of("compiled", "plan", "Python in device code", kernel="y = y.handle.data.dump('x')"),
    _of(
        "compiled",
        "plan",
        "classes in device code",
        kernel="y = y * len(().__class__.__mro__[1].__subclasses__())",
    ),
    _of(
        "compiled",
        "plan",
        "a target in device code",
        kernel="y = tl.where(tl.target_info.is_cuda(), 0.0, y)",
    ),
    _of(
        "compiled",
        "plan",
        "assembly",
        kernel=(
            'y = tl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [y], tl.float32, True, 1)'
        ),
    ),
    _of("compiled", "plan", "a truth value of a block", mask="(n < 0) and (n < N)"),
    _of("compiled", "plan", "the greater of two blocks", kernel="y = max(y, y * 0.0)"),
    _of(
        "compiled",
        "plan",
        "a float beyond all integers",
        kernel="big = (extra + 3e9).to(tl.int32)\n    y = tl.where(big > 0, 0.0, y)",
    ),
    _of(
        "compiled",
        "plan",
        "an integer over zero",
        kernel="y = tl.where((extra + 1) // extra != 0, 0.0, y)",
    ),
    _of(
        "compiled",
        "plan",
        "the last bits of an exponential",
        kernel=(
            "e = tl.exp(n.to(tl.float32) * 0.01 + 0.3)\n"
            "    bits = tl.sum(e.to(tl.int32, bitcast=True) & 1, 0)\n"
            "    y = tl.where(bits == SUM, y, 0.0)"
        ),
        top="SUM = tl.constexpr(2048)",
    ),
    _of("compiled", "plan", "a hint that is not so", kernel="N = tl.multiple_of(N, 1 << 20)"),
    _of("compiled", "plan", "an assumption that is not so", kernel="tl.assume(N > 1 << 20)"),
    _of(
        "compiled",
        "plan",
        "fresh memory that a check has filled",
        kernel=(
            "old = tl.load(y_ptr + m * N + n, n < N, 0.0)\n    y = tl.where(old == old, 0.0, y)"
        ),
    ),
    _of("compiled", "plan", "memory beside its tensors", kernel="y = y + 0.0 * tl.load(y_ptr - 8)"),
    _of(
        "compiled",
        "plan",
        "an address",
        kernel=(
            "place = x_ptr.to(tl.int64, bitcast=True)\n    y = tl.where(place % 512 == 0, 0.0, y)"
        ),
    ),
    _of(
        "compiled",
        "plan",
        "a line that begins with def",
        after=('"""\n    def _kernel(x_ptr, w_ptr, y_ptr, s_ptr, M, N, extra, BLOCK_N):\n    """'),
        kernel=WRONG,
    ),
    # What the sizes to check do not show
    _of("sizes", "plan", "nothing for many rows", mask="(n < N) & (M <= 64)"),
    _of(
        "sizes",
        "plan",
        "one element of each row where there are many",
        mask="(n < N) & ((M <= 64) | (n == 0))",
    ),
    _of(
        "sizes",
        "plan",
        "another grid for many rows",
        launch="""
return launch(x, w, y, s, config, 1 if x.shape[0] > 64 else None)
""",
    ),
    _of(
        "sizes",
        "plan",
        "another kernel for many rows",
        top="""
@triton.jit
def _other(y_ptr, N, BLOCK_N: tl.constexpr):
    n = tl.arange(0, BLOCK_N)
    tl.store(y_ptr + tl.program_id(0).to(tl.int64) * N + n, n * 0.0, n < N)
""",
        launch="""
if x.shape[0] > 64:
    _other[(x.shape[0],)](y, x.shape[1], BLOCK_N=config.block_n)
    return y, s
return launch(x, w, y, s, config)
""",
    ),
    # State
    _of(
        "state",
        "text",
        "a list that outlives the call",
        top="kept = []",
        launch="""
kept.append(1)
return launch(x, w, y, s, config, 1 if len(kept) > 9 else None)
""",
    ),
    _of(
        "state",
        "text",
        "a default that outlives the call",
        top="""
def count(kept=[]):
    kept.append(1)
    return len(kept)
""",
        launch="return launch(x, w, y, s, config, 1 if count() > 9 else None)",
    ),
    _of(
        "state",
        "text",
        "a list that is changed in place",
        top="kept = ([0],)",
        launch="""
k = kept[0]
k += [1]
return launch(x, w, y, s, config, 1 if len(kept[0]) > 9 else None)
""",
    ),
    _of(
        "state",
        "text",
        "an iterator that outlives the call",
        top="kept = (i for i in range(100))",
        launch="""
return launch(x, w, y, s, config, 1 if any(i > 9 for i in kept) else None)
""",
    ),
    # Code that Python runs with the import
    _of(
        "import",
        "text",
        "code in a decorator",
        top="""
@(exec("pass") or triton.jit)
def other(x):
    pass
""",
    ),
    _of("import", "text", "code in a default", top='def other(x=exec("pass")):\n    return x'),
    _of("import", "text", "code in an annotation", top='def other(x: exec("pass")):\n    return x'),
    _of(
        "import",
        "text",
        "code in what it returns",
        top='def other() -> exec("pass"):\n    return 1',
    ),
    _of(
        "import", "text", "code in a field", top='@dataclass\nclass Other:\n    x: exec("pass") = 1'
    ),
    _of(
        "import", "text", "code in a baseline", top='scaled_rows.library("o", exec("pass") or abs)'
    ),
    _of("import", "text", "code in a class", top='class Other(exec("pass") or object):\n    x = 1'),
    _of(
        "import",
        "text",
        "code in an option of jit",
        top="""
@triton.jit(repr=exec("pass"))
def other(x):
    pass
""",
    ),
    _of(
        "import",
        "text",
        "code in a function that an import calls",
        top="""
def called():
    exec("pass")
    return 1
other = called()
""",
    ),
    _of("import", "text", "code by another name", top='other = [exec][0]("pass")'),
    _of("import", "text", "code in an assertion", top='assert not exec("pass")'),
    _of(
        "import",
        "text",
        "a plan of another launcher",
        top="""
from workbench.evaluation import recording
real = recording._PlanRecorder.call
def call(self, impl, config, layout):
    global lying
    lying = True
    try:
        return real(self, impl, config, layout)
    finally:
        lying = False
recording._PlanRecorder.call = call
lying = False
""",
        launch="return launch(x, w, y, s, config, None if lying or x.is_meta else 1)",
    ),
    _of(
        "import",
        "text",
        "an interpreter of its own",
        top="""
import sys
if "triton.runtime.interpreter" in sys.modules:
    from triton.runtime.interpreter import InterpreterBuilder
    InterpreterBuilder.create_fadd = InterpreterBuilder.create_fmul
""",
        kernel="y = x + w",
    ),
    _of(
        "import",
        "text",
        "replies of its own",
        top="""
from workbench.backend import replies
real = replies.written
def written(right, result):
    forged = b"\\x80\\x05cworkbench.evaluation.verdict\\nRulesVerdict\\nN}(Vword\\nVx\\nu\\x86b0"
    return forged + real(right, result)
replies.written = written
""",
    ),
    # Declarations
    _of(
        "declared",
        "plan",
        "it may change its input by its own word",
        launch="return launch(x, w, x, s, config)",
    ),
)
