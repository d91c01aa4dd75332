"""The kernel file that `workbench new-kernel` writes."""

import ast

import pytest

from workbench.commands.new_kernel import STARTER, TemplateError, words_of, write_kernel


def test_the_file_is_a_kernel_of_that_name(tmp_path):
    path, computes = write_kernel("my_gelu", tmp_path)
    assert path == tmp_path / "my_gelu.py" and computes == "gelu, element by element"
    text = path.read_text()
    assert "NAME" not in text and text.startswith('"""my_gelu:')
    assigned = [n.targets[0].id for n in ast.parse(text).body if isinstance(n, ast.Assign)]
    assert assigned == ["my_gelu"]
    assert "NaN" in ast.get_docstring(ast.parse(text)), "built-in kernels must say what it becomes"


@pytest.mark.parametrize(
    "name, computes, line",
    [
        (
            "my_gelu",
            "gelu, element by element",
            "y = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))",
        ),
        ("swish", "silu, element by element", "y = x * tl.sigmoid(x)"),
        ("new", "silu, element by element", "torch.nn.functional.silu(x)"),
        ("row_softmax", "softmax of rows", "return torch.softmax(x, dim=-1)"),
        ("my_transpose", "a transpose in tiles", "return x.mT.contiguous()"),
        ("gemm2_gemm", "a matrix product", "return a @ b"),
        ("flash", "attention", "scaled_dot_product_attention"),
    ],
)
def test_a_file_computes_what_its_name_says(name, computes, line, tmp_path):
    path, said = write_kernel(name, tmp_path)
    text = path.read_text()
    assert said == computes and line in text and "NAME" not in text
    assert max(map(len, text.splitlines())) <= 100 and "NaN" in ast.get_docstring(ast.parse(text))


def test_another_file_can_be_named_and_built_in_names_are_taken(tmp_path):
    assert write_kernel("my_gelu", tmp_path, "rows")[1] == "softmax of rows"
    with pytest.raises(TemplateError, match=r"did you mean rows\? Known: attention, elements,"):
        write_kernel("mine", tmp_path, "row")
    with pytest.raises(TemplateError, match="is a built-in kernel; take another name, as my_soft"):
        write_kernel("softmax", tmp_path)


def test_a_file_that_exists_is_left_alone(tmp_path):
    (tmp_path / "mine.py").write_text("precious")
    with pytest.raises(TemplateError, match=r"mine\.py exists; choose another name"):
        write_kernel("mine", tmp_path)
    assert (tmp_path / "mine.py").read_text() == "precious"


@pytest.mark.parametrize("name", ["my-gelu", "2d", "class", "", "a b", "../up", "a.b"])
def test_a_kernel_is_called_by_a_python_name(name, tmp_path):
    with pytest.raises(TemplateError, match="is not a Python name; take letters"):
        write_kernel(name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["torch", "tl", "Spec", "x", "N", "blocks", "work", "tile"])
def test_names_that_the_file_itself_needs_are_refused(name, tmp_path):
    with pytest.raises(TemplateError, match="already means something"):
        write_kernel(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_words_are_names_alone():
    assert words_of("x = f(y.u)  # z\n'w'\n") == {"x", "f", "y"}
    assert "memory" not in words_of(STARTER.read_text())


def test_a_folder_that_cannot_take_it_is_named(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "none"):
        with pytest.raises(TemplateError, match=r"cannot be written \(.*\); choose another --fol"):
            write_kernel("mine", folder)
