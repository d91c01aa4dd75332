"""Baselines from other packages: each says in one sentence that its package is missing, and the
extra `peers` names every package that a launcher imports."""

import ast
import re
import sys
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from oldest import bounds

from workbench import catalog, dsl
from workbench.device.hardware import DEVICES
from workbench.dsl import ThirdParty

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
    """Kernel and package of every baseline of another project."""
    result = {
        (kernel, value)
        for kernel in catalog.kernel_names()
        for value in vars(catalog.module_of(kernel)).values()
        if isinstance(value, ThirdParty)
    }
    return sorted(result, key=str)


def of_peers():
    return pytest.mark.parametrize(
        ("kernel", "package"), peers(), ids=[f"{k}-{p.module}" for k, p in peers()]
    )


def baselines(kernel, monkeypatch):
    """The Impls of a kernel that refuse because of a missing package, with what they say."""
    spec = catalog.spec_of(kernel)
    monkeypatch.setattr(dsl, "find_spec", lambda name: None)
    for impl in (i for i in spec.impls if i.backend == "torch"):
        reason = {refusal(impl, sizes) for sizes in spec.bench}
        if any(w and "[peers]" in w for w in reason):
            yield impl, reason


def refusal(impl, sizes, dtype="bf16"):
    limits = DEVICES["h200"].limits
    return impl.rejection_reason(impl.config(), limits, dtype, sizes)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_there_are_peers_and_a_name_is_known_for_each():
    assert {(p.module, p.distribution) for _, p in peers()} == set(PACKAGES.items())


def test_the_extra_names_what_launchers_import_and_nothing_else():
    wanted = project()["optional-dependencies"]["peers"]
    names = {re.match(r"[\w-]+", line)[0] for line in wanted}
    assert names == set(PACKAGES.values()) | THEIRS
    assert all("<" in line for line in wanted if re.match(r"[\w-]+", line)[0] not in THEIRS)


@pytest.mark.parametrize("kernel", catalog.kernel_names())
def test_a_file_imports_no_peer_itself(kernel):
    """A `ThirdParty` of workbench.dsl does, at the first launch."""
    tree = ast.parse((KERNELS / f"{kernel}.py").read_text())
    assert set(imports(ast.walk(tree))) <= OURS


@of_peers()
def test_a_missing_peer_is_told_in_one_sentence(kernel, package, monkeypatch):
    text = f"{package.distribution} is not installed: pip install '{project()['name']}[peers]'"
    result = list(baselines(kernel, monkeypatch))
    assert result, f"no Impl of {kernel} refuses where {package.module} is missing"
    dsl._import_name.cache_clear()
    for impl, reason in result:
        assert reason == {text}, "at any sizes, and ahead of any other reason"
        with pytest.raises(ImportError) as raised:
            impl(*[None] * len(impl.spec.inputs))
        assert str(raised.value) == text


@of_peers()
def test_a_peer_runs_at_some_size_to_time(kernel, package, monkeypatch):
    results = [impl for impl, _ in baselines(kernel, monkeypatch)]
    monkeypatch.setattr(dsl, "find_spec", lambda name: object())
    for impl in results:
        assert any(refusal(impl, sizes) is None for sizes in impl.spec.bench), impl.title


def test_a_call_is_compiled_once_at_its_first_launch(monkeypatch):
    wanted = []
    compile = lambda call, dynamic, backend: wanted.append((call, dynamic)) or call  # noqa: E731
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(compile=compile))
    launch = dsl.compile_call(max)
    assert not wanted
    assert (launch(1, 2), launch(4, 3), wanted) == (2, 4, [(max, False)])


def test_what_was_compiled_ahead_is_checked_and_launched_without_another_compilation(monkeypatch):
    import torch

    from workbench.measurement import correctness

    compilations, launches = [], []

    def compile_fx(graph, examples):
        compilations.append(graph)
        return lambda *given: launches.append(given) or graph(*given)

    fake = SimpleNamespace(compile_fx=compile_fx)
    monkeypatch.setitem(sys.modules, "torch._inductor.compile_fx", fake)
    spec = catalog.spec_of("softmax")
    impl = next(i for i in spec.impls if i.name == "torch.compile")
    impl = replace(impl, launch=dsl.compile_call(lambda x: torch.softmax(x, -1)))
    impl.launch.compile_only(torch.randn(4, 8))
    assert (len(compilations), len(launches)) == (1, 0)
    x = torch.randn(4, 8)
    (checked,) = correctness.launch(impl, impl.config(), (x,)).outputs
    assert torch.equal(impl(x, config=impl.config()), checked)
    assert torch.allclose(checked, torch.softmax(x, -1))
    assert (len(compilations), len(launches)) == (1, 2)


def test_a_launcher_that_calls_itself_compiled_is_guarded_as_all_others():
    """Its attribute is its own to set; the memory of its outputs is poisoned all the same."""
    import torch

    from workbench.measurement import correctness

    def launch(x, *, config=None):
        return torch.empty_like(x)

    launch.compile_only = lambda *given: None
    spec = catalog.spec_of("softmax")
    for impl in spec.impls[:1], [i for i in spec.impls if i.name == "torch"]:
        changed = replace(impl[0], launch=launch)
        assert not correctness.is_traced(changed)
        (output,) = correctness.launch(changed, None, (torch.randn(4, 8),)).outputs
        assert torch.isnan(output).all()


def test_every_dependency_has_a_lower_bound_that_a_nightly_job_installs():
    """Without one pip leaves a release in place that ends every command in an error."""
    extras = [name for name in project()["optional-dependencies"] if name != "test"]
    found = bounds(*extras)
    assert found["typer"] == "0.12.4" and found["triton"] == "3.6"
    assert not [name for name, version in found.items() if version is None]
