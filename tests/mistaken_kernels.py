"""Ordinary mistakes in a kernel's file: what is changed in the starter, and what is said of it.

Each is a mapping from texts of the starter to what stands there instead, and a part of the one
sentence that must come back.
"""

from __future__ import annotations

from pathlib import Path

from workbench.commands.new_kernel import STARTER

NAME = "mine"
IMPORTS = "import Spec, Tensor, Work, threads, tile"
BLOCK = "tile(256, 8192, default=2048)"
FROZEN = "@dataclass(frozen=True)"
SPEC_NAME = 'name="mine"'
INPUT = 'inputs={"x": Tensor("N")}'
OUTPUT = 'outputs={"y": Tensor("N")}'
FLOPS = "lambda N: 4 * N"
BENCH = 'bench=[{"N": 1 << 26}]'
CHECK = 'check=[{"N": 1}, {"N": 127}, {"N": 5000}]'
IMPL = "@mine.impl(Blocks, work=work)"
WARPS = "threads(1, 8, default=4)"
REFERENCE = "return x * torch.sigmoid(x)"
RETURN = "    return y\n"
BASELINE = "@baseline(mine)"
NO_NAME = "a name is of at most 64 letters, digits and _"
NO_FLOPS = "it must give a whole number, 0 or more"
NO_EXTENT = "an extent is a whole number above 0"


def text_of(changes: dict[str, str]) -> str:
    """The starter with these changes, each of which must have its place."""
    text = STARTER.read_text(encoding="utf-8").replace("NAME", NAME)
    text = text.replace(IMPORTS, f"{IMPORTS}, among, Extent, Tolerance")
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def write(folder: Path, changes: dict[str, str]) -> Path:
    """A kernel's file with these changes."""
    path = folder / f"{NAME}.py"
    path.write_text(text_of(changes), encoding="utf-8")
    return path


def made_by(expression: str) -> dict[str, str]:
    """An input that a maker makes."""
    return {INPUT: f'inputs={{"x": Tensor("N", make=lambda s, t, d, g: {expression})}}'}


def with_more(argument: str) -> dict[str, str]:
    """The Impl with one more argument."""
    return {IMPL: f"@mine.impl(Blocks, work=work, {argument})"}


def with_field(line: str) -> dict[str, str]:
    """The Spec with one more field."""
    return {BENCH: f"{BENCH}, {line}"}


# Said when the file is loaded, so by every command.
LOADED: dict[str, tuple[dict[str, str], str]] = {
    "a knob without a word": ({BLOCK: "2048"}, "block_n of Blocks is a plain 2048; declare it by"),
    "a knob without a default": ({f" = {BLOCK}": ""}, "block_n of Blocks has no default; declare"),
    "a config that can change": ({FROZEN: "@dataclass"}, "Blocks is not frozen; write @dataclass"),
    "a config with a hash of its own": (
        {f": int = {WARPS}": f": int = {WARPS}\n    def __hash__(self):\n        return 1 // 0"},
        "Blocks has a function __hash__ of its own; leave it out",
    ),
    "a config that is compared in its own way": (
        {f": int = {WARPS}": f": int = {WARPS}\n    def __eq__(self, other):\n        return True"},
        "Blocks has a function __eq__ of its own; leave it out",
    ),
    "a config that is no dataclass": ({f"{FROZEN}\n": ""}, "not a dataclass; write @dataclass"),
    "a config that is an object": ({IMPL: "@mine.impl(Blocks())"}, "not a dataclass"),
    "choices that are true": ({BLOCK: "among(True, False, default=True)"}, "not a whole number"),
    "choices that are text": ({BLOCK: 'among("1", "2", default="1")'}, "'1' is not a whole number"),
    "choices that are None": ({BLOCK: "among(None, 1, default=1)"}, "None is not a whole number"),
    "choices with a point": ({BLOCK: "tile(1.5, 4, default=2)"}, "the ends are whole numbers"),
    "choices upside down": ({BLOCK: "tile(64, 1, default=2)"}, "the smaller first"),
    "a choice twice": ({BLOCK: "among(1, 1, default=1)"}, "names a choice twice"),
    "an impl twice": (
        {BASELINE: f"@mine.library('blocks')\n{BASELINE}"},
        "two impls called blocks",
    ),
    "a long name": ({SPEC_NAME: 'name="m" * 5000'}, NO_NAME),
    "a name that a terminal obeys": ({SPEC_NAME: r'name="m\x1b[2J"'}, NO_NAME),
    "a name with a line's end": ({SPEC_NAME: r'name="m\n"'}, NO_NAME),
    "a name that is a path": ({SPEC_NAME: 'name="../../etc/mine"'}, NO_NAME),
    "no name": ({SPEC_NAME: "name=None"}, NO_NAME),
    "an empty name": ({SPEC_NAME: 'name=""'}, NO_NAME),
    "an impl's long name": (with_more("name='a' * 65"), NO_NAME),
    "an impl that is a path": (with_more("name='a/b'"), NO_NAME),
    "a lambda": (
        {IMPL: "mine.impl(Blocks)(lambda x, *, config: x)\n" + IMPL},
        "'<lambda>'; a name",
    ),
    "a library that is a path": ({BASELINE: "@mine.library('a/b')"}, "a library's version also ."),
    **{
        f"FLOPs that are {count}": ({FLOPS: f"lambda N: {count}"}, NO_FLOPS)
        for count in ("float('nan')", "-1", "float('inf')", "N / 3", "4.0 * N", "None", "True")
    },
    "FLOPs that are a tensor": ({FLOPS: "lambda N: torch.tensor(4)"}, NO_FLOPS),
    "FLOPs beyond any device": ({FLOPS: "lambda N: 1 << 2000"}, "gives more than 2^100 at N=1"),
    "FLOPs that fail": ({FLOPS: "lambda N: 1 // 0"}, "fails at N=1 (ZeroDivisionError"),
    "FLOPs of another axis": ({FLOPS: "lambda M: M"}, "must take the axes N as keywords"),
    "FLOPs that are a number": ({FLOPS: "4"}, "`flops` is 4, not a function"),
    **{
        f"a size of {extent}": ({BENCH: f'bench=[{{"N": {extent}}}]'}, NO_EXTENT)
        for extent in ('"4096"', "4096.0", "0", "-4", "True", "None")
    },
    "a size beyond all devices": ({BENCH: 'bench=[{"N": 1 << 70}]'}, "need terabytes"),
    "sizes that are one": ({CHECK: 'check={"N": 1}'}, "it is a list of sizes"),
    "sizes that are text": ({CHECK: 'check=["N=1"]'}, "not a mapping from axis to extent"),
    "axes that are a number": ({INPUT: 'inputs={"x": Tensor(5)}'}, "axes are text, as in"),
    "an axis over zero": ({INPUT: 'inputs={"x": Tensor("N/0")}'}, "an axis holds no 0"),
    "an axis that is not a name": (
        {INPUT: 'inputs={"x": Tensor("2N")}'},
        "x has the axis '2N'; an axis",
    ),
    "an axis of another meaning": (
        {INPUT: 'inputs={"x": Tensor("N config")}'},
        "another, short name",
    ),
    "a dtype of torch's": ({INPUT: 'inputs={"x": Tensor("N", "float32")}'}, "known are fp32, fp16"),
    "a dtype that is a type": ({INPUT: 'inputs={"x": Tensor("N", torch.int8)}'}, "unknown dtype"),
    "a maker that is none": (
        {INPUT: 'inputs={"x": Tensor("N", None, 5)}'},
        "`make` of x is 5, not",
    ),
    "inputs in a list": ({INPUT: 'inputs=[Tensor("N")]'}, "name its tensors, as in"),
    "inputs that are text": ({INPUT: 'inputs={"x": "N"}'}, "x is 'N', not a Tensor"),
    "no outputs": ({OUTPUT: "outputs={}"}, "`outputs` is {}; name its tensors"),
    "a reference that is none": ({"reference=reference": "reference=None"}, "`reference` is None"),
    "no tolerance": (with_field("tolerance={}"), "it maps each dtype to a Tolerance"),
    "a tolerance of an unknown dtype": (
        with_field('tolerance={"float32": Tolerance(0.1)}'),
        "names the unknown dtype 'float32'",
    ),
    "a tolerance that is a number": (with_field('tolerance={"fp32": 0.1}'), "not a Tolerance"),
    "a tolerance of no size": (
        with_field('tolerance={"fp32": Tolerance(float("nan"))}'),
        "its numbers are finite",
    ),
    "an extent of zero": (with_field('extents={"N": Extent(multiple=0)}'), "whole numbers above 0"),
    "an extent that is a number": (with_field('extents={"N": 16}'), "write Extent(multiple=16)"),
    "mutates that is text": (with_more("mutates='x'"), "mutates is a tuple of names of inputs"),
    "mutates that is a number": (with_more("mutates=5"), "mutates is a tuple of names of inputs"),
    "mutates an output": (with_more("mutates=('y',)"), "which is not an input of mine"),
    "a refuse that is text": (
        with_more("refuse='no'"),
        "`refuse` of blocks is 'no', not a function",
    ),
    "a work that is a number": ({IMPL: "@mine.impl(Blocks, work=5)"}, "`work` of blocks is 5, not"),
    "a default of another type": (with_more("defaults={'fp32': 5}"), "gives fp32 5, not a Blocks"),
    "defaults that cannot be": (
        {
            FROZEN: FROZEN.replace(")", ", kw_only=True)"),
            f": int = {WARPS}": f": int = {WARPS}\n"
            "    def __post_init__(self):\n        raise ValueError('never')",
        },
        "cannot be made of its defaults (ValueError: never)",
    ),
    "a backend that is none": (
        {BASELINE: f"@mine.impl(name='own', backend='cuda')\n{BASELINE}"},
        "the backend 'cuda'; it is triton",
    ),
}

# Said when a sweep is planned, of a config or of all.
PLANNED: dict[str, tuple[dict[str, str], str]] = {
    **{
        f"a refuse that returns {value}": (
            with_more(f"refuse=lambda config, limits, **at: {value}"),
            f"`refuse` of mine.blocks returned {value}; return one sentence, or None; correct it",
        )
        for value in ("False", "True", "3", "''")
    },
    "a refuse that raises": (
        with_more("refuse=lambda config, limits, **at: 1 // 0"),
        "`refuse` of mine.blocks failed (ZeroDivisionError",
    ),
    **{
        f"a resolve that returns {value}": (
            {WARPS: "threads(1, 8, default=-1)"}
            | with_more(f"resolve=lambda config, limits, **at: {value}"),
            sentence,
        )
        for value, sentence in (
            ("None", "returned None; return a config"),
            ("5", "returned 5; return a config"),
            ("config", "leaves num_warps AUTO; correct it"),
            ("1 // 0", "failed at N=67108864 (ZeroDivisionError"),
        )
    },
    "a config that rejects its own choice": (
        {
            f": int = {WARPS}": f": int = {WARPS}\n    def __post_init__(self):\n"
            "        assert self.block_n > 256"
        },
        "let `refuse` reject such a config instead",
    ),
    "a config whose error has no text": (
        {
            f": int = {WARPS}": f": int = {WARPS}\n    def __post_init__(self):\n"
            "        if self.block_n > 256:\n"
            "            class Silent(Exception):\n"
            "                def __str__(self): raise ValueError('no')\n"
            "            raise Silent"
        },
        "it raised Silent, which has no text",
    ),
}

# Said when a config is checked: the Spec is wrong, and no kernel is blamed.
SPEC_FAULTS: dict[str, tuple[dict[str, str], str]] = {
    "a reference that raises": ({REFERENCE: "raise ValueError('no')"}, "fails (ValueError: no)"),
    "a reference with two outputs": ({REFERENCE: "return x, x"}, "returned 2 outputs where 1"),
    "a reference of another shape": (
        {REFERENCE: "return x[None]"},
        "gives y the shape (1, 1), where",
    ),
    "a reference in fp32": ({REFERENCE: "return x.float()"}, "in torch.float32, no more exact"),
    "a reference that is a number": (
        {REFERENCE: "return 3"},
        "returned 3 where the Spec declares y",
    ),
    "a reference without return": ({REFERENCE: "x + 1"}, "returned None where the Spec declares y"),
    "a reference elsewhere": (
        {REFERENCE: "return x.to('meta')"},
        "gives y on meta, while its inputs",
    ),
    "a reference that exits": ({REFERENCE: "raise SystemExit(3)"}, "it called sys.exit(3)"),
    "a reference of complex numbers": ({REFERENCE: "return x + 1j"}, "not as numbers"),
    "an output of other axes": ({OUTPUT: 'outputs={"y": Tensor("N 1")}'}, "say (1, 1)"),
    "a maker that raises": (made_by("1 // 0"), "fails (ZeroDivisionError"),
    "a maker of another shape": (made_by("torch.zeros(3, dtype=t)"), "tensor of shape (3,) where"),
    "a maker of another dtype": (made_by("torch.zeros(s, dtype=torch.int64)"), "dtype torch.int64"),
    "a maker elsewhere": (
        made_by("torch.zeros(s, dtype=t, device='meta')"),
        "tensor of device meta",
    ),
    "a maker of a number": (made_by("5"), "returned 5, not a tensor"),
}

# Said when a config is checked, of the launch.
LAUNCH_FAULTS: dict[str, tuple[dict[str, str], str]] = {
    "a launch without return": ({RETURN: ""}, "the launch returned None where the Spec declares y"),
    "a launch with two outputs": (
        {RETURN: "    return y, y\n"},
        "the launch returned 2 outputs where 1",
    ),
    "a launch of another shape": ({RETURN: "    return y[None]\n"}, "(the Spec's axes 'N')"),
    "a launch that returns a number": ({RETURN: "    return 7\n"}, "the launch returned 7 where"),
    "a launch elsewhere": (
        {RETURN: "    return y.to('meta')\n"},
        "y is on meta where the inputs are",
    ),
    "a launch of another dtype": ({RETURN: "    return y.double()\n"}, "y has dtype torch.float64"),
    "a launch that raises": (
        {RETURN: "    raise ValueError('no')\n"},
        "the interpreter stopped at",
    ),
}
