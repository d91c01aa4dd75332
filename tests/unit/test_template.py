"""The kernel file that `workbench new-kernel` writes."""

import ast

import pytest

from workbench.commands.new_kernel import STARTER, TemplateError, words_of, write_kernel


def test_the_file_is_a_kernel_of_that_name(tmp_path):
    path = write_kernel("my_gelu", tmp_path)
    assert path == tmp_path / "my_gelu.py"
    text = path.read_text()
    assert "NAME" not in text and text.startswith('"""my_gelu:')
    assigned = [n.targets[0].id for n in ast.parse(text).body if isinstance(n, ast.Assign)]
    assert assigned == ["my_gelu"]
    assert "NaN" in ast.get_docstring(ast.parse(text)), "built-in kernels must say what it becomes"


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
    assert words_of("x = f(y)  # z\n'w'\n") == {"x", "f", "y"}
    assert "memory" not in words_of(STARTER.read_text())


def test_a_folder_that_cannot_take_it_is_named(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "none"):
        with pytest.raises(TemplateError, match=r"cannot be written \(.*\); choose another --fol"):
            write_kernel("mine", folder)
