"""Baselines from other packages: each says in one sentence that its package is missing, and the
extra `peers` names every package that a launcher imports."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from workbench import catalog
from workbench.device.hardware import DEVICES
from workbench.spec import ITEMSIZE

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "workbench" / "kernels"
PACKAGES = {"fla": "fla-core", "liger_kernel": "liger-kernel"}  # by the module to import
THEIRS = {"packaging"}  # what the packages import without asking for it
OURS = {"workbench", "torch", "triton"} | sys.stdlib_module_names


def imports(nodes):
    """Top-level modules that statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


@cache
def peers():
    """Kernel and module of every import of another package, wherever it stands."""
    trees = {path.stem: ast.parse(path.read_text()) for path in sorted(KERNELS.glob("[!_]*.py"))}
    result = {(k, m) for k, tree in trees.items() for m in imports(ast.walk(tree)) if m not in OURS}
    return sorted(result)


def baselines(kernel, monkeypatch):
    """The Impls of a kernel that refuse because of a missing package, with what they say."""
    spec = catalog.spec_of(kernel)
    monkeypatch.setattr(catalog.module_of(kernel), "find_spec", lambda name: None)
    for impl in (i for i in spec.impls if i.backend == "torch"):
        reason = {refusal(impl, sizes) for sizes in spec.bench}
        if any(w and "[peers]" in w for w in reason):
            yield impl, reason


def refusal(impl, sizes, dtype="bf16"):
    limits = DEVICES["h200"].limits
    return impl.refuse(impl.config(), limits, itemsize=ITEMSIZE[dtype], **sizes)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_there_are_peers_and_a_name_is_known_for_each():
    assert {module for _, module in peers()} == set(PACKAGES)


def test_the_extra_names_what_launchers_import_and_nothing_else():
    wanted = project()["optional-dependencies"]["peers"]
    names = {re.match(r"[\w-]+", line)[0] for line in wanted}
    assert names == set(PACKAGES.values()) | THEIRS
    assert all("<" in line for line in wanted if re.match(r"[\w-]+", line)[0] not in THEIRS)


@pytest.mark.parametrize("kernel", sorted({kernel for kernel, _ in peers()}))
def test_a_file_is_read_without_its_peers(kernel):
    """They are imported inside a function, once."""
    tree = ast.parse((KERNELS / f"{kernel}.py").read_text())
    assert not set(imports(tree.body)) & set(PACKAGES)


@pytest.mark.parametrize(("kernel", "module"), peers())
def test_a_missing_peer_is_told_in_one_sentence(kernel, module, monkeypatch):
    text = f"{PACKAGES[module]} is not installed: pip install '{project()['name']}[peers]'"
    result = list(baselines(kernel, monkeypatch))
    assert result, f"an Impl of {kernel} imports {module} and does not refuse where it is missing"
    for impl, reason in result:
        assert reason == {text}, "at any sizes, and ahead of any other reason"
        loader = catalog.module_of(kernel).__dict__[f"_{module.split('_')[0]}"]
        loader.cache_clear()
        with pytest.raises(ImportError) as raised:
            impl(*[None] * len(impl.spec.inputs))
        assert str(raised.value) == text


@pytest.mark.parametrize("kernel", sorted({kernel for kernel, _ in peers()}))
def test_a_peer_runs_at_some_size_to_time(kernel, monkeypatch):
    results = [impl for impl, _ in baselines(kernel, monkeypatch)]
    monkeypatch.setattr(catalog.module_of(kernel), "find_spec", lambda name: object())
    for impl in results:
        assert any(refusal(impl, sizes) is None for sizes in impl.spec.bench), impl.title
