"""Names are the field's words: tests/words.toml lists the private ones that went."""

import ast
import io
import re
import tokenize
import tomllib
from collections import defaultdict
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((ROOT / "tests" / "words.toml").read_text(encoding="utf-8"))
WORDS, ALLOWED = TABLE["words"], set(TABLE["allowed"]["names"])
FOLDERS = ("workbench", "metal_shim", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
# Their names in code are the field's words, too; their file names are in commands of facts.md.
SCRIPTS = sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "docs").glob("*.py")])
PAGES = sorted((ROOT / "workbench" / "reports").glob("*.j2"))
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Measured records keep their words, as decisions that stand do.
RECORDS = {"facts.md", "log.md", "CHANGELOG.md"}
FORMS = {name: set(words.split()) for name, words in TABLE["forms"].items()}
FIELDS = set(chain.from_iterable(map(str.split, TABLE["fields"].values())))  # allowed as they are
# Names of device code are part of keys of stored results, and those of Impls are in every record.
DEVICE = re.compile(r"(\w+\.)*(jit|constexpr_function|impl)\b")

pytestmark = pytest.mark.unit


def parts(name):
    """The words of a name: `firstPass_s` is first, pass, s."""
    return [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


@cache  # most names stand in many files
def private(name):
    """Private words in a name, each with the word that replaces it."""
    if name in ALLOWED:
        return []
    return [f"{w} -> {WORDS[w]}" for w in parts(name) if w in WORDS]


def identifiers(path):
    text = io.StringIO(path.read_text(encoding="utf-8"))
    return {t.string for t in tokenize.generate_tokens(text.readline) if t.type == tokenize.NAME}


def test_identifiers_and_file_names_are_the_fields_words():
    bad = [
        (str(path.relative_to(ROOT)), name, private(name))
        for path in [*FILES, *SCRIPTS]
        for name in sorted(identifiers(path) | ({path.stem} if path in FILES else set()))
        if private(name)
    ]
    assert FILES and SCRIPTS and not bad


def test_options_are_the_fields_words():
    from workbench.commands.options import commands

    fields = [f for cls in commands().values() for f in cls.__dataclass_fields__.values()]
    names = [*commands(), *(f.metadata.get("name") or f.name for f in fields)]
    assert not {name: private(name) for name in names if private(name)}


def test_json_keys_are_the_fields_words():
    """What is stored and exported: records, events, tuned configs, portfolios."""
    from workbench.data import events, record, tuned_cache
    from workbench.tuner import portfolio

    keys = set()
    for module in (events, record, tuned_cache, portfolio):
        for value in vars(module).values():
            keys |= set(getattr(value, "__dataclass_fields__", {}))
    assert not {key: private(key) for key in keys if private(key)} and len(keys) > 100


def headings(text):
    """Markdown and HTML headings, without code in them and without words that templates put in."""
    marked = re.findall(r"^#+ (.*)$", text, flags=re.M)
    tagged = re.findall(r"<h[1-6][^>]*>(.*?)</h[1-6]>", text, flags=re.S)
    return [re.sub(r"`[^`]*`|\{\{.*?\}\}|<[^>]*>", "", heading) for heading in marked + tagged]


def test_headings_are_the_fields_words():
    pages = [p for p in (*PAGES, *DOCS) if p.name not in RECORDS and p.parent.name != "decisions"]
    bad = [
        (str(path.relative_to(ROOT)), heading, words)
        for path in pages
        for heading in headings(path.read_text(encoding="utf-8"))
        if (words := [word for word in parts(heading) if word in WORDS])
    ]
    assert pages and not bad


def test_a_class_name_means_one_thing():
    where = defaultdict(list)
    for path in FILES:
        if {"kernels", "variants", "kernelbench"} & set(path.parts):
            continue  # one file a kernel: its config classes are its own; a format names some
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                where[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}


def fault_of_form(name):
    """What is wrong with the form of a function's name, or None; dunder names are Python's."""
    is_free = name.startswith("__") or name in FORMS["words_of_knobs_and_flags"]
    words = [] if is_free else name.strip("_").split("_")
    if words and words[0] in FORMS["prepositions"]:
        return "begins with a preposition"
    if len(words) == 1 and words[0] not in FORMS["verbs_or_nouns"]:
        return "is a bare participle" if is_participle(words[0]) else None
    return None


def is_participle(word):
    return word in FORMS["participles"] or (word.endswith("ed") and len(word) > 3)


def is_device_code(function):
    return any(DEVICE.match(ast.unparse(each)) for each in function.decorator_list)


def faults_of_functions(tree):
    """Functions, methods and properties: `read_trace`, `occupancy`; not `kept`, not `of_tools`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_device_code(node):
            fault = fault_of_form(node.name)
            yield from [(node.lineno, node.name, fault)] if fault else []


def faults_of_fields(tree):
    """Fields: `kept_configs`, `is_stable`; not `kept`, not `by_name`. `before` and `after` are the
    two that are compared, and `left` is a direction. Options are named by their flags."""
    for cls in ast.walk(tree):
        if not isinstance(cls, ast.ClassDef) or is_options(cls):
            continue
        for node in cls.body:
            name = node.target.id if isinstance(node, ast.AnnAssign) else ""
            if name in ("before", "after", "before_s", "after_s", "left"):
                continue
            if f"{cls.name}.{name}" not in FIELDS and (fault := fault_of_form(name)):
                yield node.lineno, f"{cls.name}.{name}", fault


def is_options(cls):
    return any("Options" in name or name == "RunOutput" for name in (cls.name, *bases(cls)))


def bases(cls):
    return [ast.unparse(base) for base in cls.bases]


@pytest.mark.parametrize("faults", [faults_of_functions, faults_of_fields])
def test_names_are_verbs_with_their_object_or_nouns(faults):
    bad = [
        (str(path.relative_to(ROOT)), *fault)
        for path in [*FILES, *SCRIPTS]
        for fault in faults(ast.parse(path.read_text(encoding="utf-8")))
        if "api" not in path.parts or fault[1] not in FORMS["words_of_results"]
    ]
    assert SCRIPTS and not bad


def test_a_form_is_noticed():
    assert all(map(fault_of_form, ("kept", "_joined", "of_c", "_with", "as_json", "held")))
    fine = ("read_trace", "occupancy", "compiled_code", "is_measured", "feed", "__or__", "_", "red")
    assert not any(map(fault_of_form, fine))


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("def kept(): ...", ["kept"]), ("class A:\n def of_c(self): ...", ["of_c"]),
        ("@triton.jit\ndef kept(): ...", []), ("@copy.impl(Rows)\ndef looped(): ...", []),
        ("class A:\n held: int", ["A.held"]), ("class A:\n by_name: dict", ["A.by_name"]),
        ("class A:\n failed: bool", ["A.failed"]), ("class A:\n has_failed: bool", []),
        ("class Record:\n checked: str", []), ("class AOptions:\n to: Path", []),
        ("class A:\n before: int\n left: float\n kept_configs: int", []),
    ],
)  # fmt: skip
def test_a_form_is_noticed_where_it_stands(text, faults):
    tree = ast.parse(text)
    each = chain(faults_of_functions(tree), faults_of_fields(tree))
    assert [name for _, name, _ in each] == faults


def test_a_private_word_is_noticed():
    assert private("screened_s") and private("WhyNot") and private("found")
    assert not private("first_pass") and not private("foundation") and not private("armature")
    assert headings("# What was said\n") == ["What was said"]
