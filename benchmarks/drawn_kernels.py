"""Draw 57 kernels of published packages by a seed, for trying `wb.tune` on what others wrote.

    pip download --no-deps -d WHEELS liger_kernel==0.8.5 ...  # as in data/drawn_kernels.tsv
    python benchmarks/drawn_kernels.py WHEELS > drawn.tsv

Candidates are functions with `@triton.jit` that code outside such functions launches by name, in
the same package. A function whose text a package before it in the alphabet has, too, counts once.
Backends of chips that have a Triton of their own are left out (`_ascend`, `_mthreads`, ...), and
so are tests. A package is drawn, then a function of it, until there are enough.
"""

from __future__ import annotations

import ast
import random
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

SEED, COUNT, MOST_OF_ONE = 4320261127, 57, 8
OWN_BACKENDS = ("_nvidia", "_amd")  # of the folders `backend/_NAME`, those of upstream Triton


def sources(archive: Path) -> Iterator[tuple[str, str]]:
    """Return the Python files of a wheel or an sdist, as pairs of path and text."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            for name in sorted(opened.namelist()):
                if name.endswith(".py"):
                    yield name, opened.read(name).decode(errors="replace")
        return
    with tarfile.open(archive) as opened:
        for member in sorted(opened.getmembers(), key=lambda m: m.name):
            if member.name.endswith(".py") and (data := opened.extractfile(member)) is not None:
                yield member.name, data.read().decode(errors="replace")


def is_jit(node: ast.AST) -> bool:
    """Return whether a function has `@triton.jit` or `@jit` imported from Triton."""
    decorators = getattr(node, "decorator_list", [])
    named = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in decorators]
    return any(name in ("jit", "triton.jit") for name in named)


def launched_names(tree: ast.AST) -> Iterator[str]:
    """Return the names in `name[...](...)` outside of functions that Triton compiles."""
    for node in ast.iter_child_nodes(tree):
        if is_jit(node):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            yield ast.unparse(node.func.value).rpartition(".")[2]
        yield from launched_names(node)


def is_out(path: str) -> bool:
    """Return whether a file is a test or of a backend with a Triton of its own."""
    parts = path.split("/")
    own = [b for a, b in pairwise(parts) if a == "backend" and b[0] == "_"]
    return any(p in ("tests", "test") for p in parts) or any(p not in OWN_BACKENDS for p in own)


def candidates(archive: Path) -> Iterator[tuple[str, str, str]]:
    """Return file, name and text of each function of a package that is launched in it."""
    functions, names = [], set()
    for path, text in sources(archive):
        if is_out(path) or ("jit" not in text and "](" not in text):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        names.update(launched_names(tree))
        functions += [
            (path, node.name, ast.dump(node))
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and "triton" in text and is_jit(node)
        ]
    yield from (each for each in functions if each[1] in names)


def main() -> None:
    """Print the drawn functions: package, version, file, function."""
    texts, by_package = set(), {}
    for archive in sorted(Path(sys.argv[1]).iterdir(), key=lambda p: p.name.lower()):
        package = tuple(archive.name.removesuffix(".tar.gz").split("-")[:2])
        new = by_package.setdefault(package, [])
        for path, name, text in candidates(archive):
            if text not in texts:
                texts.add(text)
                new.append((path, name))
    by_package = {package: functions for package, functions in by_package.items() if functions}
    for package, functions in by_package.items():
        print("#", *package, len(functions), sep="\t", file=sys.stderr)
    dice, drawn = random.Random(SEED), []
    taken = dict.fromkeys(by_package, 0)
    while len(drawn) < COUNT:
        package = dice.choice([p for p in by_package if by_package[p] and taken[p] < MOST_OF_ONE])
        functions = by_package[package]
        drawn.append((*package, *functions.pop(dice.randrange(len(functions)))))
        taken[package] += 1
    print(f"# seed {SEED}; columns: package, version, file, function")
    for row in sorted(drawn):
        print(*row, sep="\t")


if __name__ == "__main__":
    main()
