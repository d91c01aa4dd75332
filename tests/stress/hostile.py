"""Kernel files whose hooks misbehave in every way, and the commands that read them.

Where the hook belongs to a config, the one of `block_n` 512 misbehaves: the others must have a
time. No file may end a command in a traceback, hang it, or leave a process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from mistaken_kernels import (
    BENCH,
    BLOCK,
    FLOPS,
    FROZEN,
    IMPL,
    INPUT,
    LAUNCH_FAULTS,
    LOADED,
    PLANNED,
    REFERENCE,
    RETURN,
    SPEC_FAULTS,
    WARPS,
    text_of,
)

from stress.cases import CODES, Case, Ended, Place, Violation
from stress.mischief import ENDS, HANGS, HARMLESS, RAISES, SPOILS, VALUES
from workbench.data import exits
from workbench.data.database import open_history
from workbench.data.record import Failure, Outcome, Record
from workbench.spec import WorkbenchError

NAME, COUNT, SAMPLE = "hostile", 400, 4
WHICH = (*("sweep",) * 5, "measure", "experiment", "compare")
LIMIT_S = 150.0
LIMITS = {"user_code": 4.0, "worker": 6.0}  # seconds; the product's are 60 and 60 to 120
ODD, HONEST = 512, (256, 1024)  # values of `block_n`
START = "from dataclasses import dataclass\n"
LAUNCH = "    x = x.contiguous()\n"
STORE = "    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), n < N)\n"
WORK = "    moved = config.block_n * itemsize\n"
KNOB = "block_n: int = "
NAMES = "import ctypes\nimport os\nimport signal\nimport sys\nimport threading\nimport time\n\n"
SMALL = {BLOCK: "tile(256, 1024, default=256)"}


@dataclass(frozen=True)
class File:
    """A kernel's file, what must come of it, and its name for a person."""

    about: str
    text: str
    honest: bool = False  # configs other than that of 512 must have a time
    wrong: bool = False  # that of 512 must have none
    spoils: bool = False  # it changes the process that plans, so nothing is certain of what it says


def _changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def _with(body: str, changes: dict[str, str], last: str = "") -> str:
    """The starter with a function `mischief` and these changes; `last` is its end."""
    defined = f"def mischief():\n{indent(body, '    ')}\n\n\n"
    # a function of the file, since device code and dataclasses look their module up
    text = _changed(text_of(SMALL), {"def reference(x):": f"{defined}def reference(x):"})
    return _changed(text, {START: f"{NAMES}{START}", **changes}) + last


def _if_odd(test: str = "") -> str:
    """Lines that call `mischief` for the config of 512, and return what it gives."""
    return (
        f"    if config.block_n == {ODD}{test}:\n        value = mischief()\n"
        "        if value is not None:\n            return value\n"
    )


CALL = "value = mischief()"
OF_FILE: dict[str, tuple[dict[str, str], str]] = {
    "import": ({}, "\n\nmischief()\n"),
    "import in workers": (
        {},
        "\n\nimport multiprocessing\n\nif multiprocessing.parent_process() is not None:\n"
        "    mischief()\n",
    ),
    "maker": (
        {
            INPUT: 'inputs={"x": Tensor("N", make=maker)}',
            "mine = Spec(": "def maker(shape, dtype, device, generator):\n    "
            f"{CALL}\n    if value is not None:\n        return value\n"
            "    return torch.randn(shape, generator=generator, device=device).to(dtype)\n\n\n"
            "mine = Spec(",
        },
        "",
    ),
    "reference": (
        {REFERENCE: f"{CALL}\n    return {REFERENCE[7:]} if value is None else value"},
        "",
    ),
    "flops": (
        {
            FLOPS: "counted",
            "mine = Spec(": f"def counted(N):\n    {CALL}\n"
            "    return 4 * N if value is None else value\n\n\nmine = Spec(",
        },
        "",
    ),
}
OF_CONFIG: dict[str, dict[str, str]] = {
    "refuse": {
        IMPL: f"def refused(config, limits, **at):\n{_if_odd()}    return None\n\n\n"
        "@mine.impl(Blocks, work=work, refuse=refused)",
    },
    "resolve": {
        WARPS: "threads(1, 8, default=-1)",
        IMPL: f"def resolved(config, limits, **at):\n{_if_odd()}"
        "    return Blocks(config.block_n, 4)\n\n\n"
        "@mine.impl(Blocks, work=work, resolve=resolved)",
    },
    "work": {WORK: _if_odd() + WORK},
    "config": {
        f"    {KNOB}": "    def __post_init__(self):\n"
        f"        if self.block_n == {ODD}:\n            mischief()\n\n    {KNOB}",
    },
    "hash of a config": {
        f"    {KNOB}": "    def __hash__(self):\n"
        f"        if self.block_n == {ODD}:\n            return mischief()\n"
        f"        return hash(self.block_n)\n\n    {KNOB}",
    },
    "repr of a config": {
        f"    {KNOB}": f"    def __repr__(self):\n        return mischief()\n\n    {KNOB}",
    },
}
# In worker processes alone, so the other configs are none the worse.
OF_LAUNCH = {
    "launcher": {LAUNCH: _if_odd() + LAUNCH},
    "launcher when it is compiled": {LAUNCH: _if_odd(" and x.is_meta") + LAUNCH},
    "launcher when it is checked": {LAUNCH: _if_odd(" and not x.is_meta") + LAUNCH},
}
# Statements of device code at 512, of which none may get a time.
DEVICE: dict[str, str] = {
    "an unknown name": "y = nothing",
    "an assertion": "tl.static_assert(BLOCK_N < 0, 'no')",
    "a huge block": "y = tl.zeros((1 << 24,), tl.float32)\n        tl.store(y_ptr + n, y, n < N)",
    "no power of two": "y = tl.arange(0, 100)\n        tl.store(y_ptr + n, y, n < N)",
    "another shape": "tl.store(y_ptr + n, tl.zeros((7, 3), tl.float32), n < N)",
    "no store": "y = 1",
    "every second element": "tl.store(y_ptr + n, x, (n < N) & (n % 2 == 0))",
    "beyond the end": "tl.store(y_ptr + n + N * 16, x, n < N + 64)",
    "far beyond": "tl.store(y_ptr + n + (1 << 44), x, n < N)",
    "before the start": "tl.store(y_ptr - 4096 - n, x, n < N)",
    "no mask": "tl.store(y_ptr + n * 1000, x)",
    "NaN": "tl.store(y_ptr + n, x / 0.0 - x / 0.0, n < N)",
    "zeros": "tl.store(y_ptr + n, x * 0.0, n < N)",
    "the input": "tl.store(y_ptr + n, x, n < N)",
    "changes the input": "tl.store(x_ptr + n, x + 1.0, n < N)",
    "one element": "tl.store(y_ptr + n, tl.where(n == N - 1, 7.0, x * tl.sigmoid(x)), n < N)",
    "garbage for the assembler": (
        "y = tl.inline_asm_elementwise('no such thing;', '=r,r', [n.to(tl.int32)], tl.int32, True, "
        "1)\n        tl.store(y_ptr + n, y, n < N)"
    ),
    "a static loop without end": (
        "for i in tl.static_range(10 ** 7):\n            x += i\n"
        "        tl.store(y_ptr + n, x, n < N)"
    ),
    "a loop without end": (
        "while tl.load(x_ptr) != 12345.5:\n            x += 1\n"
        "        tl.store(y_ptr + n, x, n < N)"
    ),
    "Python's print": "print('x', BLOCK_N)",
    "recursion": "_blocks(x_ptr, y_ptr, N, BLOCK_N)",
    "an exception": "raise ValueError('no')",
    "a barrier alone": "tl.debug_barrier()",
}
# What a launcher at 512 may return; none may get a time.
RETURNS: dict[str, str] = {
    "its input": "return x",
    "a view": "return y[::2]",
    "an expanded one": "return y[:1].expand(N)",
    "strided memory": "return torch.stack([y, y], 1)[:, 0] * 2",
    "another dtype": "return y.float() if y.dtype != torch.float32 else y.half()",
    "whole numbers": "return y.to(torch.int32)",
    "another shape": "return y.reshape(1, -1)",
    "one more element": "return torch.cat([y, y[:1]])",
    "sparse": "return y.to_sparse()",
    "quantised": "return torch.quantize_per_tensor(y.float(), 1.0, 0, torch.qint8)",
    "on meta": "return y.to('meta') if not y.is_meta else None",
    "twice": "return y, y",
    "none": "return None",
    "a list of numbers": "return [1.0, 2.0]",
    "nothing in a tuple": "return ()",
    "a subclass": "return torch.nn.Parameter(y * 0, requires_grad=False)",
    "a memory of zeros": "return torch.zeros_like(y)",
    "half of it": "y[N // 2:] = 0; return y",
    "one element": "y[-1] = 12345.0; return y",
    "NaN": "y[0] = float('nan'); return y",
    "infinity": "y[0] = float('inf'); return y",
    "the negative": "return -y",
    "a changed input": "x.add_(1); return y",
    "negated lazily": "return torch._neg_view(y * 0 + 3) if not y.is_meta else y",
}
# Specs that are odd besides `mistaken_kernels`; nothing is known of what must come of them.
SPECS: dict[str, dict[str, str]] = {
    "escapes in a name": {'name="mine"': r'name="mi\u202ene"'},
    "a long axis": {INPUT: f'inputs={{"{"x" * 5000}": Tensor("N")}}'},
    "an axis of escapes": {INPUT: r'inputs={"x\x1b[2J": Tensor("N")}'},
    "many inputs": {INPUT: 'inputs={f"x{i}": Tensor("N") for i in range(2000)}'},
    "many sizes": {BENCH: 'bench=[{"N": n} for n in range(1, 5000)]'},
    "many checks": {'check=[{"N": 1}, {"N": 127}, {"N": 5000}]': 'check=[{"N": 3}] * 100_000'},
    "large checks": {'{"N": 5000}': '{"N": 1 << 33}'},
    "no checks": {'check=[{"N": 1}, {"N": 127}, {"N": 5000}]': "check=[]"},
    "no sizes": {BENCH: "bench=[]"},
    "many choices": {BLOCK: "among(*range(1, 100_000), default=1)"},
    "choices beyond all": {BLOCK: "tile(1, 1 << 300, default=1)"},
    "a tolerance that is infinite": {
        BENCH: f"{BENCH}, tolerance={{'bf16': Tolerance(1e300, 1e300)}}"
    },
    "a Spec that is cleared": {IMPL: "mine.impls.clear()\n" + IMPL},
    "a launcher of C": {"@baseline(mine)": "mine.library('own', len)\n@baseline(mine)"},
    "a Spec that is deleted": {
        "@baseline(mine)": "other = mine\ndel mine\n@baseline(other)"
    },
    "a second Spec": {"@baseline(mine)": "import copy\nother = copy.copy(mine)\n@baseline(mine)"},
    "a frozen config with a default factory": {FROZEN: "@dataclass(frozen=True, slots=True)"},
    "an unhashable config": {FROZEN: "@dataclass(frozen=True, unsafe_hash=False, eq=False)"},
    "a config that is ordered": {FROZEN: "@dataclass(frozen=True, order=True)"},
}  # fmt: skip


def files() -> Iterator[tuple[float, str]]:
    """Kinds of files, each with its weight."""
    yield from ((3.0, f"file {hook}") for hook in OF_FILE)
    yield from ((2.0, f"config {hook}") for hook in OF_CONFIG)
    yield from ((5.0, f"launch {hook}") for hook in OF_LAUNCH)
    yield from ((3.0, "device"), (3.0, "return"), (2.0, "spec"), (3.0, "mistake"))


def file_of(rng: random.Random) -> File:
    """A file."""
    kinds = list(files())
    (kind,) = rng.choices([k for _, k in kinds], [w for w, _ in kinds])
    group, _, hook = kind.partition(" ")
    if group == "device":
        name = rng.choice(list(DEVICE))
        lines = f"    if BLOCK_N == {ODD}:\n        {DEVICE[name]}\n    else:\n    {STORE}"
        return File(f"device code: {name}", _with("pass", {STORE: lines}), honest=True, wrong=True)
    if group == "return":
        name = rng.choice(list(RETURNS))
        lines = f"    if config.block_n == {ODD}:\n        {RETURNS[name]}\n{RETURN}"
        return File(f"returns {name}", _with("pass", {RETURN: lines}), honest=True, wrong=True)
    if group == "spec":
        name = rng.choice(list(SPECS))
        return File(f"the Spec: {name}", text_of(SPECS[name]), spoils=True)
    if group == "mistake":
        table = rng.choice((LOADED, PLANNED, SPEC_FAULTS, LAUNCH_FAULTS))
        name = rng.choice(list(table))
        return File(f"mistake: {name}", text_of(table[name][0]))
    which, name, body = _body(rng, group)
    if group == "launch":
        # what changes its process may cost the configs that come after it there
        text = _with(body, OF_LAUNCH[hook])
        wrong = which in (RAISES, HANGS) or (which is VALUES and "compiled" not in hook)
        honest = which is not SPOILS
        return File(f"{hook}: {name}", text, honest=honest, wrong=wrong)
    spoils = which in (SPOILS, HARMLESS)
    if group == "config":
        return File(f"{hook}: {name}", _with(body, OF_CONFIG[hook]), spoils=spoils)
    changes, last = OF_FILE[hook]
    return File(f"{hook}: {name}", _with(body, changes, last), spoils=spoils)


def _body(rng: random.Random, group: str) -> tuple[dict[str, str], str, str]:
    """A table of misdeeds, and the name and the lines of one of them."""
    tables = [RAISES, ENDS, HANGS, SPOILS, HARMLESS, VALUES]
    (which,) = rng.choices(tables, (5, 4, 1, 4, 3, 4))
    name = rng.choice(list(which))
    return which, name, f"return {which[name]}" if which is VALUES else which[name]


def commands_of(rng: random.Random, place: Place, file: File) -> list[str]:
    """A command that reads the file."""
    path = str(place.here / "mine.py")
    more = ["--device", "h200", "--database", place.database, "--out", str(place.folder / "out")]
    kind = "sweep" if file.honest else rng.choice(WHICH)
    if kind == "sweep":
        return ["sweep", "tile_size", "--kernel", path, "--only", "--budget", "6", *more]
    if kind == "measure":
        return ["measure", path, "--impl", f"blocks:block_n={ODD}", "--sizes", "N=1024", *more]
    if kind == "experiment":
        return ["experiment", "expected", "--kernel", path, *more]
    return ["compare", "blocks", f"blocks:block_n={ODD}", "--kernel", path, *more[2:]]


def run(case: Case, place: Place) -> list[Violation]:
    """Run a case; gives what is wrong."""
    rng = case.random()
    file = file_of(rng)
    (place.here / "mine.py").write_text(file.text, encoding="utf-8")
    words = commands_of(rng, place, file)
    place.ran.append(f"# {file.about}")
    ended = place.forked(words, LIMIT_S, limits=LIMITS)
    codes = set(CODES)
    if file.spoils:
        codes.add(exits.INTERNAL)
    codes |= {exits.stopped_by(n) for n in (1, 2, 15)}  # a file that sends itself such a signal
    faults = [f for f in ended.faults(codes) if not (file.spoils and "no sentence" in f.text)]
    faults += _outcomes(file, place, words, ended)
    return faults + left_after_the_next_start(place, file.spoils)


def _outcomes(file: File, place: Place, words: Sequence[str], ended: Ended) -> list[Violation]:
    """What the database lacks, or should not hold."""
    if ended.hung:
        return []
    by_block = {o.case.config.get("block_n"): o for o in stored(place)}
    faults = []
    if file.wrong and isinstance(by_block.get(ODD), Record):
        faults.append(Violation("accepted", f"{file.about} has a time"))
    if not file.honest:
        return faults
    for block in HONEST:
        outcome = by_block.get(block)
        if outcome is None:
            faults.append(Violation("lost", f"block_n {block} has no outcome: {ended.err[-800:]}"))
        elif isinstance(outcome, Failure):
            faults.append(Violation("false failure", f"block_n {block}: {outcome.reason}"))
    if ODD not in by_block:
        faults.append(Violation("lost", f"block_n {ODD} has no outcome: {ended.err[-800:]}"))
    return faults


def stored(place: Place) -> list[Outcome]:
    """The outcomes of the last run in the case's database."""
    if not (place.folder / "runs.db").is_file():
        return []
    try:
        with open_history(place.database, reading=True) as history:
            return history.outcomes(history.run("last").id)
    except WorkbenchError:
        return []


def left_after_the_next_start(place: Place, spoils: bool) -> list[Violation]:
    """Temporary files that the next sweep does not remove. The traceback of a fault stays."""
    if not _left(place, spoils):
        return []
    path = Path(place.here / "honest.py")
    path.write_text(text_of(SMALL), encoding="utf-8")
    words = ["sweep", "tile_size", "--kernel", str(path), "--only", "--budget", "1", "--device"]
    words += ["h200", "--database", f"sqlite:///{place.folder / 'honest.db'}"]
    ended = place.forked([*words, "--out", str(place.folder / "out")], LIMIT_S)
    faults = ended.faults()
    if names := _left(place, spoils):
        faults.append(Violation("leftover", f"temporary files: {', '.join(names)}"))
    return faults


def _left(place: Place, spoils: bool) -> list[str]:
    """Names of temporary files that must not stay; torch keeps a cache there."""
    kept = ("torchinductor_", *(("workbench-fault-",) if spoils else ()))
    return [name for name in place.temporary() if not name.startswith(kept)]
