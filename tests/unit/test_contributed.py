"""Kernels, devices and readers of installed packages: here of a made one, which is on sys.path."""

import sys
from pathlib import Path

import pytest

from workbench import catalog
from workbench.data.contributed import contributed_modules
from workbench.device.hardware import DEVICES, FOLDER, UNCOMPILED, device_named
from workbench.traces.readers import read, readers
from workbench.traces.readers.inputs.source import ReadError

pytestmark = pytest.mark.unit
TEMPLATE = Path(catalog.__file__).parents[1] / "kernels" / "copy.py"
ENTRY_POINTS = """\
[workbench.kernels]
their_copy = theirs.their_copy
softmax = theirs.their_copy

[workbench.devices]
x1 = theirs.devices

[workbench.readers]
ticks = theirs.ticks
"""
READER = """\
from workbench.traces.trace import Dispatch, Trace
from workbench.traces.readers import TraceReader


def read(source):
    names = source.content().decode().split()[1:]
    return Trace("ticks", dispatches=[Dispatch(name) for name in names])


READER = TraceReader("ticks of a test", lambda source: source.head.startswith(b"TICKS"), read)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package, as pip leaves it."""
    home = tmp_path / "theirs"
    (home / "devices").mkdir(parents=True)
    (home / "__init__.py").touch()
    text = (FOLDER / "h200.toml").read_text("utf-8")
    title = next(line for line in text.splitlines() if line.startswith("title"))
    text = text.replace(title, 'title = "X1"')
    (home / "devices" / "x1.toml").write_text(text, "utf-8")
    (home / "ticks.py").write_text(READER)
    (home / "their_copy.py").write_text(TEMPLATE.read_text("utf-8"))
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    contributed_modules.cache_clear()
    readers.cache_clear()
    yield home
    contributed_modules.cache_clear()
    readers.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "theirs"]:
        del sys.modules[name]


def test_a_kernel_of_a_package_is_one_by_its_name(package):
    assert catalog.is_kernel("their_copy") and not catalog.is_kernel("their_cpy")
    assert catalog.spec_of("their_copy").name == "copy"
    assert catalog.file_of("their_copy") == package / "their_copy.py"
    assert "their_copy" in catalog.known_kernels() and "their_copy" not in catalog.kernel_names()
    with pytest.raises(catalog.CatalogError, match="did you mean their_copy"):
        catalog.spec_of("their_cop")


def test_a_package_replaces_no_kernel_of_ours(package):
    assert catalog.file_of("softmax").parent.name == "kernels"
    assert catalog.module_of("softmax").__name__ == "workbench.kernels.softmax"


def test_a_device_of_a_package_is_one_by_its_name_and_in_the_list(package):
    assert device_named("X-1").title == "X1" and device_named("x1").name == "x1"
    assert "x1" in list(DEVICES) and "x1" not in list(UNCOMPILED)
    assert device_named("h200").title != "X1"


def test_a_reader_of_a_package_reads_its_format(package, tmp_path):
    (tmp_path / "a.ticks").write_bytes(b"TICKS add mul\n")
    trace = read([tmp_path / "a.ticks"])
    assert [d.name for d in trace.dispatches] == ["add", "mul"]
    assert trace.title == "ticks of a test" and "ticks" in readers()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_module", "the reader ticks of theirs.ticks cannot be imported"),
        ("READER = 1", "READER of theirs.ticks is not a"),
    ],
)
def test_a_broken_reader_is_named(package, tmp_path, text, words):
    (package / "ticks.py").write_text(text)
    (tmp_path / "a.ticks").write_bytes(b"TICKS add\n")
    with pytest.raises(ReadError, match=words):
        read([tmp_path / "a.ticks"])
