"""Every public function, method and property of the workbench has a docstring that says what it
does and returns, in the imperative. Kernels and variants have a form of their own."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in ("workbench", "metal_shim", "examples/experiments", "examples/readers")
    for path in (ROOT / package).rglob("*.py")
    if not {"kernels", "variants"} & set(path.relative_to(ROOT).parts)
)

# First words that show that the sentence is a noun phrase or a clause instead of an imperative.
WORDS = """
    a all an and as at both by each every for from how in it its no of on one same see that the
    this those to two what when where whether which why with
"""
NO_VERBS = frozenset(WORDS.split())
VERBS_IN_S = frozenset(["address", "compress", "discuss", "express", "pass", "process"])
SILENT = frozenset(["AssertionError", "KeyboardInterrupt", "NotImplementedError", "Stop"])

FIXES = {
    "missing": "has no docstring; add one line, such as `Return the path of the page.`",
    "verb": "does not begin with a capitalised imperative verb (`Return`, not `Returns` or `The`)",
    "return": "returns a value that its docstring does not name; write `Return ...` or "
    "`... Returns ...`, with the unit of a number",
    "raises": "raises an error that its docstring does not name; write `Raises X where ...`",
}


@dataclass(frozen=True)
class Finding:
    """A rule that a function breaks."""

    line: int
    name: str
    rule: str

    def __str__(self):
        return f"line {self.line}: {self.name} {FIXES[self.rule]}"


def functions(body, prefix=""):
    """Yield each public function and method of a module or class body, with its dotted name."""
    for node in body:
        name = prefix + getattr(node, "name", "_")
        if name.split(".")[-1].startswith("_"):
            continue
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield name, node


def decorators(node):
    """Return the names of a function's decorators: `cached_property`, `setter`."""
    return [ast.unparse(d).partition("(")[0].rpartition(".")[2] for d in node.decorator_list]


def is_imperative(docstring):
    """Return whether a docstring begins with a capitalised word that may be an imperative."""
    word = docstring.split()[0].strip("`,.:")
    third_person = word.endswith("s") and word.lower() not in VERBS_IN_S
    return docstring[0].isupper() and word.lower() not in NO_VERBS and not third_person


def gives_value(node):
    """Return whether a function is annotated with a result other than None."""
    return node.returns is not None and ast.unparse(node.returns) not in ("None", "NoReturn")


def raised(node):
    """Return the names of the exceptions that a function creates and raises itself."""
    created = [
        ast.unparse(r.exc.func)
        for r in ast.walk(node)
        if isinstance(r, ast.Raise) and isinstance(r.exc, ast.Call)
    ]
    return {name.split(".")[-1] for name in created} - SILENT


def broken_rule(node):
    """Return the first rule that a function's docstring breaks, or None."""
    docstring = ast.get_docstring(node)
    if not docstring:
        return "missing"
    is_property = any(name.endswith("property") for name in decorators(node))
    if not is_property and not is_imperative(docstring):
        return "verb"
    if not is_property and gives_value(node) and not re.search("return|yield", docstring, re.I):
        return "return"
    return "raises" if raised(node) and not re.search("raise", docstring, re.I) else None


def findings(source):
    """Return what is wrong with the docstrings of a Python source."""
    return [
        Finding(node.lineno, name, rule)
        for name, node in functions(ast.parse(source).body)
        if not {"overload", "setter"} & set(decorators(node)) and (rule := broken_rule(node))
    ]


def test_public_functions_say_what_they_do():
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file in FILES}
    broken = [f"{file} {one}" for file, source in sources.items() for one in findings(source)]
    assert FILES and not broken, "\n".join(broken)


def rules(source):
    return [(each.name, each.rule) for each in findings(source)]


@pytest.mark.parametrize(
    "docstring",
    [
        "The size.",
        "What the size is; Returns it.",
        "Whether it returns.",
        "Returns the size.",
        "Says the size and returns it.",
        "return the size.",
        "`8`: the size that it returns.",
    ],
)
def test_the_first_word_is_an_imperative(docstring):
    assert rules(f'def size() -> int:\n    """{docstring}"""') == [("size", "verb")]


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("def f():\n    pass", "missing"),
        ('def f():\n    ""', "missing"),
        ("@property\ndef f(self):\n    return 1", "missing"),
        ('def f() -> int:\n    """Measure the size."""', "return"),
        ('async def f() -> int:\n    """Measure the size."""', "return"),
        ('def f() -> None:\n    """Check it."""\n    raise ValueError("no")', "raises"),
        ('@property\ndef f() -> int:\n    """Size."""\n    raise a.B("no")', "raises"),
    ],
)
def test_each_rule_finds_what_breaks_it(source, rule):
    assert rules(source) == [("f", rule)]
    inside = "class Outer:\n" + "\n".join(f"    {line}" for line in source.splitlines())
    assert rules(inside) == [("Outer.f", rule)]


@pytest.mark.parametrize(
    "source",
    [
        'def f() -> int:\n    """Return the size in bytes."""',
        'def f() -> int:\n    """Write the page. Returns its size in bytes."""',
        'def f() -> Iterator[int]:\n    """Yield each size."""',
        'def f() -> None:\n    """Pass it on."""',
        'def f() -> NoReturn:\n    """Stop. Raises E."""\n    raise E("now")',
        'def f() -> None:\n    """Stop."""\n    raise KeyboardInterrupt()',
        'def f() -> None:\n    """Try it."""\n    try:\n        g()\n    except E:\n        raise',
        '@functools.cached_property\ndef f(self) -> int:\n    """Size in bytes."""',
        "@f.setter\ndef f(self, value):\n    pass",
        "@typing.overload\ndef f() -> int: ...",
        "def _f():\n    pass",
        "class _Hidden:\n    def f(self):\n        pass",
        "class Shown:\n    def __len__(self):\n        return 1",
    ],
)
def test_what_keeps_the_rules_is_left_alone(source):
    assert rules(source) == []


def test_the_message_says_where_and_what_to_do():
    (finding,) = findings('\n\ndef size() -> int:\n    """Measure it."""')
    assert str(finding).startswith("line 3: size returns a value") and "Return" in str(finding)
