"""Launchers in C that compilers build beside a kernel."""

from types import SimpleNamespace

import pytest

from workbench.compile import launchers


class Driver(SimpleNamespace):
    """A driver of Triton that notes what it builds."""

    def __init__(self, **more):
        super().__init__(built=[], **more)

    def CudaLauncher(self, src, metadata):
        self.built.append(src.signature)
        if src.signature == {0: "fails"}:
            raise RuntimeError("no C compiler")


def kernel(signature):
    return SimpleNamespace(src=SimpleNamespace(signature=signature), metadata=SimpleNamespace())


@pytest.fixture
def built(monkeypatch):
    """Build the launchers of kernels with a driver; returns the signatures that it built."""

    def build(driver, *signatures):
        monkeypatch.setattr(launchers, "_built", set())
        monkeypatch.setattr(launchers, "import_module", lambda name: driver)
        launchers.build_launchers(map(kernel, signatures), "cuda")
        return driver.built

    return build


def test_each_signature_is_built_once(built):
    first, other = {0: "*bf16", 1: "i32"}, {0: "*fp32", 1: "i32"}
    assert built(Driver(make_launcher=None), first, other, dict(first)) == [first, other]


def test_one_that_fails_is_left_to_the_launch(built):
    assert built(Driver(make_launcher=None), {0: "fails"}, {0: "i32"}) == [
        {0: "fails"},
        {0: "i32"},
    ]


def test_a_triton_that_compiles_no_launcher_builds_none(built):
    assert built(Driver(), {0: "i32"}) == []
