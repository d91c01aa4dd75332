"""The commands of the guide run to their end in a copy, and the kernel and the rule that the pages
explain pass all tests of their kind there."""

import re
from pathlib import Path

import pytest
from contributed import GUIDE, PAGES, ROOT, blocks_of, copied, python, shell

pytestmark = pytest.mark.newest
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.fixture
def with_kernel(tmp_path):
    """A copy with the kernel and the property of the page, and the kernel's name."""
    tree = copied(tmp_path)
    kernel, promise = blocks_of(PAGES["docs/kernel_file.md"])
    for block in (kernel, promise):
        (tree / block.path).write_text(block.text, encoding="utf-8")
    return tree, Path(kernel.path).stem


@pytest.mark.nightly  # a kernel tested, swept and evaluated: two minutes of CPU
@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if "```sh" in text])
def test_a_page_is_followed_to_its_end(page, tmp_path):
    """Its code is written to the files that it names, its commands run in their order."""
    tree = copied(tmp_path)
    for block in blocks_of(PAGES[page]):
        if block.language != "sh":
            (tree / block.path).write_text(block.text, encoding="utf-8")
        elif block.is_run:
            for line in filter(None, block.text.splitlines()):
                shell(tree, line, limit_s=280, XDG_DATA_HOME=str(tmp_path / "data"))


@pytest.mark.nightly
def test_the_addresses_of_the_kernel_have_the_bits_that_they_need(with_kernel):
    tree, name = with_kernel
    printed = python(tree, *PYTEST, "tests/compile/test_addresses.py", KERNELS=name)
    assert re.search(r"^[3-9] passed", printed, flags=re.M), printed


@pytest.mark.nightly  # 60 s of CPU
def test_the_kernel_passes_all_tests_of_a_kernel(with_kernel):
    """On both versions of Triton, and those of the pages once its own page is written."""
    tree, name = with_kernel
    words = ("interpret", "compile")
    printed = python(tree, "tests/run.py", *words, limit_s=280, KERNELS=name)
    assert int(re.search(r"(\d+) passed, 0 failed", printed)[1]) > 50
    python(tree, "docs/generate.py")
    python(tree, *PYTEST, "tests/unit/test_docs.py", "tests/unit/test_layers.py", "-m", "unit")


ENTRIES = {
    "test_trace_summary.py": (
        "PLANTED = {",
        '"heavy_writes": {"dram_written_bytes": 2.5e8, "dram_throughput": 0.65},',
    ),
    "test_responsible.py": ("OF_NO_INSTRUCTION = {", '"heavy_writes",'),
    "test_diagnose.py": ("WITHOUT_A_KERNEL = {", '"heavy_writes",'),
}


@pytest.mark.nightly  # all tests of rules once more: 21 s
def test_the_rule_passes_all_tests_of_a_rule(tmp_path):
    tree = copied(tmp_path)
    page = (ROOT / "docs" / "tutorials" / "add.md").read_text(encoding="utf-8")
    block = next(b for b in blocks_of(page) if b.text.startswith("# heavy_writes.py"))
    (tree / "workbench" / "traces" / "rules" / "heavy_writes.py").write_text(
        block.text.partition("\n")[2]
    )
    for file, (table, entry) in ENTRIES.items():
        path = tree / "tests" / "unit" / file
        text = path.read_text(encoding="utf-8")
        name = table.partition(" ")[0]
        assert text.count(table) == 1 and file in GUIDE and f"`{name}`" in GUIDE, (
            f"CONTRIBUTING.md does not name {name} of {file}"
        )
        path.write_text(text.replace(table, f"{table}\n    {entry}"), encoding="utf-8")
    files = [f"tests/unit/{file}" for file in ENTRIES]
    python(tree, *PYTEST, *files, "-m", "not nightly", "-k", "rule or planted or folded or healthy")
