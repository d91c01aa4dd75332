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
real = replies.write
def written(right, result):
    forged = b"\\x80\\x05cworkbench.evaluation.verdict\\nRulesVerdict\\nN}(Vword\\nVx\\nu\\x86b0"
    return forged + real(right, result)
replies.write = written
""",
    ),
    # Declarations
    _of(
        "declared",
        "plan",
        "it may change its input by its own word",
        launch="return launch(x, w, x, s, config)",
    ),
    # What the lists of names let through
    _of(
        "import",
        "text",
        "a function of compile time that looks around",
        top="""
@triton.constexpr_function
def chosen():
    import os
    return 1 if os.getenv("TRITON_INTERPRET") else None
""",
        launch="return launch(x, w, y, s, config, chosen())",
    ),
    _of(
        "import",
        "text",
        "a baseline that the launcher calls",
        top='chosen = scaled_rows.library("o", lambda x: 1 if x.is_cuda else None)',
        launch="return launch(x, w, y, s, config, chosen(x))",
    ),
    _of(
        "import",
        "text",
        "a baseline by name that the launcher calls",
        top="""
def looked(x):
    return 1 if x.is_cuda else None
chosen = scaled_rows.library("o", looked)
""",
        launch="return launch(x, w, y, s, config, chosen(x))",
    ),
    _of(
        "import",
        "text",
        "a function under the name of Spec",
        top="""
def Spec(reference):
    return reference()
""",
        launch="""
return launch(x, w, y, s, config, Spec(reference=lambda: 1 if x.is_cuda else None))
""",
    ),
    _of(
        "compiled",
        "text",
        "another grid by bytes of a tensor",
        launch="""
return launch(x, w, y, s, config, 1 if b"cuda" in b"%r" % (x,) else None)
""",
    ),
    _of(
        "state",
        "text",
        "another grid by the order of a set",
        launch="""
return launch(x, w, y, s, config, 1 if list({"a", "b"})[0] == "a" else None)
""",
    ),
    _of(
        "state",
        "text",
        "another grid by the order of keys",
        launch="""
keys = dict(a=1, b=1).keys()
return launch(x, w, y, s, config, 1 if list(keys & keys)[0] == "a" else None)
""",
    ),
    _of(
        "compiled",
        "text",
        "an address under the name of a field",
        top="""
@dataclass(frozen=True)
class Other:
    data_ptr: int = 1
""",
        launch="return launch(x, w, y, s, config, 1 if x.data_ptr() else None)",
    ),
    _of(
        "compiled",
        "plan",
        "the variable of a loop after it",
        kernel="""for last_m in range(0, 1):
        y = y * 1.0
    y = tl.where(last_m == 0, y, 0.0)""",
    ),
    _of(
        "sizes",
        "plan",
        "nothing at the very size to time",
        kernel="y = tl.where(M == 8192, 0.0, y)",
    ),
    _of(
        "order",
        "plan",
        "zeros in the row of the next program",
        after="tl.store(y_ptr + (m + 1) * N + n, y * 0.0, (n < N) & (m + 1 < M))",
    ),
    _of(
        "order",
        "plan",
        "rows in the order of a counter",
        kernel="""at = tl.atomic_add(s_ptr + M, 1.0).to(tl.int64)
    y = tl.load(x_ptr + at * N + n, n < N, 0.0) * w
    s = tl.sum(y, 0)""",
        launch="""
s = x.new_zeros(x.shape[0] + 1)
y, s = launch(x, w, y, s, config)
return y, s[: x.shape[0]]
""",
    ),
    _of(
        "order",
        "plan",
        "a launch that begins early and waits for nothing",
        launch="""
M, N = x.shape
_kernel[(M,)](x, w, y, s, M, N, 0, BLOCK_N=config.block_n, num_warps=8, launch_pdl=True)
return y, s
""",
    ),
    _of(
        "limits",
        "plan",
        "more memory than there is",
        launch="more = x.new_empty(1 << 33)\nreturn launch(x, w, y, s, config)",
    ),
    _of(
        "limits",
        "plan",
        "a library of its own in the compiler",
        launch="""
M, N = x.shape
_kernel[(M,)](x, w, y, s, M, N, 0, BLOCK_N=config.block_n, extern_libs={"a": "/tmp/a.bc"})
return y, s
""",
    ),
    _of(
        "limits",
        "plan",
        "a number that no memory holds",
        launch="y.fill_(10**400)\nreturn launch(x, w, y, s, config)",
    ),
    _of(
        "limits",
        "plan",
        "two outputs in one memory",
        launch="""
M, N = x.shape
both = x.new_empty(M * N + M)
return launch(x, w, both[: M * N].view(M, N), both[M * N :], config)
""",
    ),
)
