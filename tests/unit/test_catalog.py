"""The catalogue finds kernels by name, module and file, and says in a sentence what is wrong."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from workbench import catalog
from workbench.catalog import CatalogError
from workbench.catalog.source import code_hash

GOOD = '''
"""Twice: y = 2 x."""
from dataclasses import dataclass
from workbench.spec import Spec, Tensor, tile

twice = Spec(
    name="twice",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=lambda x: 2 * x,
    flops=lambda N: N,
    check=[{"N": 3}],
    bench=[{"N": 4096}],
)

@dataclass(frozen=True)
class Blocks:
    block_n: int = tile(64, 256, default=128)

@twice.impl(Blocks)
def blocks(x, *, config):
    return 2 * x
'''


def extended(line):
    """GOOD with one more field of its Spec."""
    more = GOOD.replace("flops=lambda", f"{line},\n    flops=lambda")
    return more.replace("import Spec,", "import Extent, Spec, Tolerance,")


@pytest.fixture
def kernel(tmp_path):
    """Write a kernel file and return its path as a person would type it."""

    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(dedent(text))
        return str(path)

    return write


def refused(kernel_):
    with pytest.raises(CatalogError) as caught:
        catalog.spec_of(kernel_)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


# What is found


def test_names_are_the_files_of_the_folder():
    assert {"copy", "matmul", "rms_norm", "softmax"} <= set(catalog.kernel_names())
    assert catalog.kernel_names() == sorted(catalog.kernel_names())
    assert catalog.names_in("no_such_package") == []


def test_a_users_own_file(kernel):
    path = kernel(GOOD)
    spec = catalog.spec_of(path)
    assert (spec.name, [impl.title for impl in spec.impls]) == ("twice", ["twice.blocks"])
    assert catalog.spec_of(path) is spec, "a second look must not load the file again"


def test_two_files_of_one_name_are_two_kernels(kernel, tmp_path):
    (tmp_path / "other").mkdir()
    one, other = kernel(GOOD), kernel(GOOD.replace("twice", "double"), "other/mine.py")
    assert (catalog.spec_of(one).name, catalog.spec_of(other).name) == ("twice", "double")


def test_a_dotted_module(kernel, tmp_path, monkeypatch):
    (tmp_path / "their_project").mkdir()
    kernel(GOOD, "their_project/kernels_of_theirs.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert catalog.spec_of("their_project.kernels_of_theirs").name == "twice"


def test_a_spec_that_was_imported_is_not_the_files_own(kernel, tmp_path, monkeypatch):
    kernel(GOOD, "base_of_theirs.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = GOOD.replace("twice", "thrice") + "\nfrom base_of_theirs import twice\n"
    assert catalog.spec_of(kernel(own, "own.py")).name == "thrice"


def test_a_file_may_import_those_beside_it(kernel, tmp_path):
    """Two folders may have files of one name, and none of them hides a module of Python's."""
    head = GOOD.replace("reference=lambda x: 2 * x", "reference=beside.reference")
    head = "import copy\nimport beside\n" + head
    for at, factor in (("one", 2), ("two", 3)):
        (tmp_path / at).mkdir()
        (tmp_path / at / "copy.py").write_text("raise ImportError('not this one')")
        (tmp_path / at / "beside.py").write_text(f"def reference(x):\n    return {factor} * x\n")
    before = list(sys.path)
    one, two = (catalog.spec_of(kernel(head, f"{at}/mine.py")) for at in ("one", "two"))
    assert (one.reference(5), two.reference(5)) == (10, 15)
    assert sys.path == before and "beside" not in sys.modules


def test_a_file_may_import_a_package_beside_it(kernel, tmp_path):
    for at, factor in (("one", 2), ("two", 3)):
        (tmp_path / at / "parts").mkdir(parents=True)
        (tmp_path / at / "parts" / "__init__.py").write_text("")
        text = f"def reference(x):\n    return {factor} * x\n"
        (tmp_path / at / "parts" / "inner.py").write_text(text)
    head = "from parts import inner\n" + GOOD.replace("lambda x: 2 * x", "inner.reference")
    one, two = (catalog.spec_of(kernel(head, f"{at}/mine.py")) for at in ("one", "two"))
    assert (one.reference(5), two.reference(5)) == (10, 15)
    assert not {"parts", "parts.inner"} & set(sys.modules)


@pytest.mark.nightly
def test_a_module_of_an_installed_package_is_not_forgotten():
    """A kernel of the library that is named by its path imports others of its folder."""
    code = """
import sys
from workbench import catalog
catalog.spec_of("workbench/variants/matmul_one_stage_traffic.py")
assert "workbench.variants.matmul_traffic" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=catalog.EXAMPLES.parent, check=True)


def test_an_example_is_asked_for_by_its_path(monkeypatch):
    monkeypatch.chdir(catalog.EXAMPLES.parent)
    sentence = refused("rwkv7_layer")
    assert sentence.endswith("--kernel examples/rwkv7/kernels/rwkv7_layer.py.")
    assert catalog.spec_of("examples/rwkv7/kernels/rwkv7_layer.py").name == "rwkv7_layer"


def test_the_hash_of_shared_device_code_counts(tmp_path):
    folder = Path(catalog.module_of("attention").__file__).parent
    hashes = []
    for number, change in enumerate(("", "# changed", "\n\nCHANGED = 1")):
        copied = tmp_path / str(number)
        copied.mkdir()
        for name in ("attention", "causal_attention"):
            tail = change if name == "attention" else ""
            (copied / f"{name}.py").write_text((folder / f"{name}.py").read_text() + tail)
        spec = catalog.spec_of(str(copied / "causal_attention.py"))
        hashes.append(code_hash(spec.impls[0]))
    assert hashes[0] == hashes[1] != hashes[2] and len(hashes[0]) == 16


def test_a_version_takes_the_device_code_of_its_own_checkout(tmp_path):
    ours = catalog.module_of("attention")
    home, name = tmp_path / "workbench" / "kernels", "causal_attention.py"
    home.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (home / name).write_text((Path(ours.__file__).parent / name).read_text())
    text = Path(ours.__file__).read_text()
    (home / "attention.py").write_text(text + "\nEDITION = 2\n")
    spec = catalog.version_of(home / name)
    theirs = sys.modules[spec.reference.__module__].unmasked
    assert theirs.EDITION == 2 and not hasattr(ours, "EDITION")
    assert sys.modules["workbench.kernels.attention"] is ours
    assert catalog.module_of("causal_attention").unmasked is ours


# What is not


@pytest.mark.parametrize(
    ("context", "nearest"), [("matmull", "matmul"), ("softmx", "softmax"), ("rmsnorm", "rms_norm")]
)
def test_an_unknown_kernel_names_the_nearest(context, nearest):
    sentence = refused(context)
    assert f"There is no kernel '{context}'; did you mean {nearest}" in sentence
    assert all(name in sentence for name in catalog.kernel_names())


def test_an_unknown_kernel_like_none_lists_all():
    assert "did you mean" not in refused("zzzzzz")


def test_an_unknown_impl_names_the_nearest(kernel):
    spec = catalog.spec_of(kernel(GOOD))
    assert catalog.impl_of(spec, "blocks").name == "blocks"
    with pytest.raises(CatalogError, match=r"no impl of twice 'block'; did you mean blocks\?"):
        catalog.impl_of(spec, "block")


@pytest.mark.parametrize("path", ["nowhere/mine.py", "mine.py", "./mine"])
def test_a_missing_file(path):
    sentence = refused(path)
    assert sentence.startswith("There is no kernel file") and "new-kernel" in sentence


def test_a_missing_module():
    assert "ModuleNotFoundError" in refused("no.such.module")


def test_a_syntax_error_names_its_line(kernel):
    sentence = refused(kernel("x = 1\n\ndef broken(:\n    pass\n"))
    assert "SyntaxError, line 3" in sentence and "correct it first" in sentence


def test_an_error_on_import_names_its_line(kernel):
    assert "ZeroDivisionError, line 4" in refused(kernel("x = 1\n\n\ny = x / 0\n"))


def test_an_error_on_import_of_a_module_names_its_line(kernel, tmp_path, monkeypatch):
    kernel("x = 1\ny = x / 0\n", "broken_of_theirs.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pack_of_theirs").mkdir()
    kernel("x = 1\n\ny = x / 0\n", "pack_of_theirs/broken.py")
    assert "ZeroDivisionError, line 3" in refused("pack_of_theirs.broken")


def test_a_file_that_failed_can_be_mended_and_asked_for_again(kernel):
    path = kernel("1 / 0")
    refused(path)
    kernel(GOOD)
    assert catalog.spec_of(path).name == "twice"


@pytest.mark.parametrize(
    ("text", "lack"),
    [
        ("x = 1", "lacks a Spec"),
        (
            "import triton, triton.language as tl\n@triton.jit\n"
            "def gelu(x, n, BM: tl.constexpr, BN: tl.constexpr): pass",
            "mine.py:gelu --arg x=... --arg n=... --config BM=64,BN=64 --grid 'cdiv(..., BM)'`",
        ),
        (GOOD.replace('Tensor("N")', 'Tensor("M", "N")'), "if it is an axis, write Tensor('M N')"),
        (GOOD.replace('Tensor("N")', 'Tensor("M,N")'), "write Tensor('M N'), with spaces"),
        (GOOD.replace("@twice.impl(Blocks)", ""), "lacks an impl"),
        (GOOD + GOOD.replace("twice", "thrice"), "holds 2 Specs (twice, thrice)"),
        (GOOD.replace("impl(Blocks)", "impl(Blocks, backend='library')"), "no Triton impl and no"),
        (GOOD.replace('check=[{"N": 3}]', "check=[]"), "names no sizes to check"),
        (GOOD.replace('bench=[{"N": 4096}]', "bench=[]"), "names no sizes to bench"),
        (GOOD.replace('{"N": 3}', '{"M": 3}'), "the check sizes {'M': 3} lack N"),
        (GOOD.replace('{"N": 4096}', "{}"), "the bench sizes {} lack N"),
        (GOOD.replace('{"N": 4096}', '{"N": 8, "K": 1}'), "name K, which no tensor has"),
        (
            GOOD.replace('Tensor("N")', 'Tensor("N/2")'),
            "do not fit: N/2 is not a whole number at N=3",
        ),
        (GOOD.replace('Tensor("N")', 'Tensor("N+1")'), "x has the axis 'N+1'"),
        (GOOD.replace('Tensor("N")', 'Tensor("N", dtype="fp12")'), "unknown dtype 'fp12'"),
        (extended('extents={"K": Extent(multiple=2)}'), "extents names K, which no tensor has"),
        (extended('extents={"N": Extent(multiple=2)}'), "N is a multiple of 2, which 3 is not"),
        (
            extended('tolerance={"bf16": Tolerance(0.01)}').replace(
                'outputs={"y": Tensor("N")}', 'outputs={"y": Tensor("N", dtype="fp32")}'
            ),
            "an output is always fp32, and tolerance says nothing of it",
        ),
    ],
)
def test_a_file_that_is_no_kernel_says_what_it_lacks(kernel, text, lack):
    path = kernel(text)
    sentence = refused(path)
    assert lack in sentence and path in sentence


def test_a_name_twice_bound_is_one_spec(kernel):
    assert catalog.spec_of(kernel(GOOD + "\nalias = twice\n")).name == "twice"


def test_asking_leaves_nothing_half_loaded(kernel):
    before = set(sys.modules)
    refused(kernel("1 / 0", "half.py"))
    assert not [name for name in set(sys.modules) - before if "half" in name]
