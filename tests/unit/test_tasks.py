"""Tasks of other formats: what their Specs say, what of a submission is read, and mistakes in one
sentence each."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from task_files import ADD, NORM, OF_MODEL, SOFTPLUS, SOLUTION

from workbench.cli import main
from workbench.evaluation.launcher_text import opaque_reason
from workbench.evaluation.problem import reference_bytes
from workbench.evaluation.tasks import flashinfer_bench, gpu_mode, kernelbench, prepare_task
from workbench.evaluation.tasks.text import TaskError, portable
from workbench.measurement import inputs
from workbench.measurement.correctness import PreparedProblem, check_outputs
from workbench.spec import Tolerance


def reference_of(form, task, submission, folder, monkeypatch):
    """Import the judge's files of a task, as the checker does, and return its Spec."""
    for name, data in form.files(task, submission).trusted_files.items():
        (folder / name).write_bytes(data)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("task", "utils"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    path = folder / "workbench_reference.py"
    spec = importlib.util.spec_from_file_location("workbench_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return form.spec_of(module, "mine")


def test_numbers_at_the_top_are_the_axes_and_parameters_are_inputs(tmp_path, monkeypatch):
    spec = reference_of(kernelbench, SOFTPLUS, OF_MODEL, tmp_path, monkeypatch)
    axes = {n: (t.axes, t.dtype) for n, t in spec.inputs.items()}
    assert axes == {"x": ("batch_size num_features", None), "state_weight": ("num_features", None)}
    assert {n: t.axes for n, t in spec.outputs.items()} == {"y": "batch_size num_features"}
    assert spec.bench == [{"batch_size": 4096, "num_features": 8192}]
    assert spec.tolerance["fp32"] == Tolerance(1e-4, 1e-4)
    for sizes in spec.check:  # multiples of powers of two that divide the task's own, and small
        assert sizes["batch_size"] % 16 == 0 and spec.bytes(sizes, "fp32") < 1 << 20
    sizes = {"batch_size": 32, "num_features": 64}
    x, w = inputs.make(spec, sizes, "bf16", "cpu", 7)
    assert x.dtype == torch.bfloat16 and x.shape == (32, 64) and w.shape == (64,)
    assert torch.equal(x, inputs.make(spec, sizes, "bf16", "cpu", 7)[0])
    wide = x.double(), w.double()
    expected = torch.log1p(torch.exp(wide[0])) * wide[1] * 0.5
    assert torch.allclose(spec.reference(*wide), expected, rtol=1e-12)

    class Doubled(torch.nn.Module):
        def __init__(self, num_features):
            super().__init__()
            self.other = torch.nn.Parameter(torch.empty(num_features))

        def forward(self, x, scale):
            return x * self.other * scale

    called = spec.call_submission(Doubled, wide)  # parameters of other names count by their place
    assert torch.equal(called, wide[0] * wide[1] * 0.5)


def test_the_arguments_of_generate_input_are_the_axes_and_its_check_decides(tmp_path, monkeypatch):
    spec = reference_of(gpu_mode, ADD, ADD / "submission.py", tmp_path, monkeypatch)
    axes = {n: (t.axes, t.dtype) for n, t in spec.inputs.items()}
    assert axes == {f"data{i}": ("rows columns", "fp16") for i in range(3)}
    assert spec.mutates == ("data2",), "the reference writes its output there"
    small = {"rows": 3, "columns": 5}
    assert reference_bytes(spec, small, "fp16", 1) == 3 * 3 * 5 * 2, "and reads it nowhere"
    assert spec.check[0] == {"rows": 3, "columns": 77} and len(spec.bench) == 2
    assert spec.tolerance["fp16"] == Tolerance(1e-3, 1e-3)
    problem = PreparedProblem.make(spec, {"rows": 2, "columns": 5}, "fp16", "cpu", 3)
    a, b, _ = problem.inputs
    assert torch.equal(problem.expected_outputs[0], 2 * a.double() + b.double())
    assert not check_outputs((2 * a + b,), problem).wrong
    off = (2 * a + b).clone()
    off[0, 0] += 1
    assert check_outputs((off,), problem).rule == "values"
    assert spec.objection(problem.inputs, problem.sizes, (off,)) == (
        "the task's check refuses it: mismatch found"
    )
    seen = []
    spec.call_submission(lambda data: seen.append(data), problem.inputs)
    assert type(seen[0]) is tuple and all(
        x is y for x, y in zip(seen[0], problem.inputs, strict=True)
    )


def test_open_axes_of_a_definition_are_the_axes_and_outputs_are_arguments(tmp_path, monkeypatch):
    spec = reference_of(flashinfer_bench, NORM, SOLUTION, tmp_path, monkeypatch)
    axes = {n: (t.axes, t.dtype) for n, t in spec.inputs.items()}
    assert axes == {"x": ("rows 512", "bf16"), "weight": ("512", "bf16")}
    assert spec.bench == [{"rows": 8192}, {"rows": 32}, {"rows": 7}]
    x, w = torch.full((2, 512), 3.0), torch.full((512,), 2.0)

    def run(x, weight, eps, y):
        assert (eps, y.shape, y.dtype) == (1e-6, (2, 512), torch.bfloat16)
        y.fill_(1.0)

    (y,) = spec.call_submission(run, (x, w))
    assert float(y.sum()) == 1024.0
    expected = spec.reference(x.double(), w.double())  # in fp32 by the reference's own word
    assert torch.allclose(expected[0], torch.full((2, 512), 2.0, dtype=torch.float64), rtol=1e-2)


EMBEDDING = """
import torch

words, width, tokens = 0, 0, 0
words = 4096
width = 128
tokens = 256
SCALE = torch.full((), 2.0)

class Model(torch.nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.table = torch.nn.Embedding(words, width)

    def forward(self, at):
        return self.table(at) * SCALE

def get_inputs():
    return [torch.randint(0, 2, (tokens,)) * (words - 1)]

def get_init_inputs():
    return [words, width]
"""
CACHE = """
import torch

def generate_input(tokens, slots, width, seed):
    chance = torch.Generator(device="cuda").manual_seed(seed)
    cache = torch.randn(slots, width, device="cuda", generator=chance).half()
    new = torch.randn(tokens, width, device="cuda", generator=chance).half()
    return cache, new, torch.randperm(slots, device="cuda", generator=chance)[:tokens]

def ref_kernel(data):
    cache, new, at = data
    cache[at] = new
    return cache

def check_implementation(data, output):
    return ""
"""
PAGES = """
import torch

def run(q, cache, pages):
    keys = cache.to(torch.float32)[pages.long() % 4096]
    return (keys @ q.to(torch.float32)[:, :, None]).squeeze(-1)
"""


def test_the_bytes_of_a_model_are_those_of_the_rows_that_it_takes(tmp_path, monkeypatch):
    """And numbers that its file makes once keep their values."""
    (tmp_path / "task.py").write_text(EMBEDDING)
    (tmp_path / "mine.py").write_text("ModelNew = None")
    files = tmp_path / "task.py", tmp_path / "mine.py"
    spec = reference_of(kernelbench, *files, tmp_path, monkeypatch)
    (sizes,) = spec.bench
    assert reference_bytes(spec, sizes, "fp32", 1) == 256 * 8 + 2 * 128 * 4 + 256 * 128 * 4
    assert spec.bytes(sizes, "fp32") == 256 * 8 + 4096 * 128 * 4 + 256 * 128 * 4
    problem = PreparedProblem.make(spec, sizes, "fp32", "cpu", 3)
    at, table = problem.inputs
    assert torch.equal(problem.expected_outputs[0], 2 * table.double()[at])


def test_the_bytes_of_a_cache_are_those_of_the_rows_that_are_replaced(tmp_path, monkeypatch):
    folder = tmp_path / "cached"
    folder.mkdir()
    (folder / "reference.py").write_text(CACHE)
    case = '- {"tokens": 64, "slots": 8192, "width": 256, "seed": 1}'
    (folder / "task.yml").write_text(f"tests:\n  {case}\nbenchmarks:\n  {case}\n")
    (folder / "mine.py").write_text("custom_kernel = None")
    spec = reference_of(gpu_mode, folder, folder / "mine.py", tmp_path, monkeypatch)
    (sizes,) = spec.bench
    assert spec.mutates == ("data0",)
    assert reference_bytes(spec, sizes, "fp16", 1) == 64 * 8 + 2 * 64 * 256 * 2


def test_the_bytes_of_pages_are_those_that_a_table_names(tmp_path, monkeypatch):
    """Though the reference casts all of the cache first."""
    axes = {n: {"type": "const", "value": v} for n, v in (("P", 8), ("N", 4096), ("D", 128))}
    inputs = {"q": (["B", "D"], "bfloat16"), "cache": (["N", "D"], "bfloat16"),
              "pages": (["B", "P"], "int32")}  # fmt: skip
    definition = {
        "name": "paged", "axes": axes | {"B": {"type": "var"}}, "reference": PAGES,
        "inputs": {n: {"shape": shape, "dtype": kind} for n, (shape, kind) in inputs.items()},
        "outputs": {"y": {"shape": ["B", "P"], "dtype": "float32"}},
    }  # fmt: skip
    task, mine = tmp_path / "paged.json", tmp_path / "mine.py"
    task.write_text(json.dumps(definition))
    task.with_suffix(".jsonl").write_text(json.dumps({"axes": {"B": 2}, "inputs": {}}))
    mine.write_text("def run(q, cache, pages): ...")
    spec = reference_of(flashinfer_bench, task, mine, tmp_path, monkeypatch)
    (sizes,) = spec.bench
    assert spec.bytes(sizes, "bf16") > 1 << 20
    pages = spec.joint_inputs(sizes, "bf16", 1)[2]
    rows = len((pages % 4096).unique())
    q, ids, out = 2 * 128 * 2, 16 * 4, 16 * 4
    assert reference_bytes(spec, sizes, "bf16", 1) == q + rows * 128 * 2 + ids + out


def test_a_format_is_recognised_by_its_files(tmp_path):
    cases = ((SOFTPLUS, OF_MODEL, "KernelBench", "ModelNew", "fp32"),
             (ADD, ADD / "submission.py", "GPU MODE", "custom_kernel", "fp16"),
             (ADD / "task.yml", ADD / "submission.py", "GPU MODE", "custom_kernel", "fp16"),
             (NORM, SOLUTION, "flashinfer-bench", "run", "bf16"))  # fmt: skip
    for number, (task, submission, form, entry, dtype) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        given = prepare_task(task, submission, folder)
        assert (given.format, given.entry, given.dtype) == (form, entry, dtype)
        assert given.spec.is_file() and given.kernel.read_bytes().startswith(given.audited_text)


@pytest.mark.parametrize(("task", "title"), [
    (SOFTPLUS, "KernelBench"), (ADD, "GPU MODE"), (ADD / "task.yml", "GPU MODE"),
    (NORM, "flashinfer-bench"),
])  # fmt: skip
def test_a_task_that_is_named_as_a_spec_is_told_where_it_belongs(task, title, capsys):
    code = main(["evaluate", str(OF_MODEL), "--spec", str(task), "--device", "h200"])
    message = " ".join(capsys.readouterr().err.split())
    assert code == 2 and f"is a task of {title}; give it as --task, not as --spec." in message


@pytest.mark.parametrize(("task", "submission", "part"), [
    ("missing", OF_MODEL, "There is no task missing"),
    (OF_MODEL, OF_MODEL, "is in no known format of a task"),
    (SOFTPLUS, SOFTPLUS, "has no class ModelNew"),
    (SOFTPLUS, "missing.py", "missing.py cannot be read (no such file or directory)"),
    (ADD, OF_MODEL, "has no custom_kernel"),
    (NORM, ADD / "submission.py", "defines no run"),
    (NORM, NORM, "is not a Solution: it lacks 'spec'"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(task, submission, part, tmp_path):
    with pytest.raises(TaskError) as error:
        prepare_task(Path(task), Path(submission), tmp_path)
    assert part in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("change", "part"), [
    ({"definition": "another"}, "is a Solution of another"),
    ({"sources": [{"path": "../main.py", "content": "x"}, {"path": "main.py", "content": "x"}]},
     "outside of its folder"),
    ({"spec": {"entry_point": "other.py::run", "language": "triton"}}, "has no source other.py"),
    ({"spec": {"entry_point": "main.py::run", "language": "cuda"}}, "only Python and Triton"),
])  # fmt: skip
def test_a_solution_holds_to_its_definition(change, part, tmp_path):
    path = tmp_path / "solution.json"
    path.write_text(json.dumps(json.loads(SOLUTION.read_text()) | change))
    with pytest.raises(TaskError, match=part):
        flashinfer_bench.files(NORM, path)


def test_what_only_a_gpu_fulfils_is_left_out_line_by_line():
    text = b"""def run(x, y):
    assert x.is_cuda and \\
        y.device.type == "cuda"
    assert x.is_cuda or x.sum() > 0
    assert x.shape[0] > 1, "\xc3\xa9"
    return empty(3, device="cuda"), zeros(2, device='cuda:0')
"""
    assert (
        portable(text)
        == b"""def run(x, y):
    assert (True
)
    assert x.is_cuda or x.sum() > 0
    assert x.shape[0] > 1, "\xc3\xa9"
    return empty(3, device=workbench_device), zeros(2, device=workbench_device)
"""
    )


def test_a_model_that_keeps_nothing_is_read():
    text = portable(OF_MODEL.read_bytes())
    assert opaque_reason(text, {}, "ModelNew") is None
    assert opaque_reason(b"import torch\n", {}, "Other") == "it defines no Other"


@pytest.mark.parametrize(("old", "new", "part"), [
    ("        y = torch", "        self.weight = x\n        y = torch", "sets the attribute"),
    ("        y = torch", "        if x.data_ptr():\n            x = y\n        y = torch",
     "uses the attribute data_ptr"),
    ("        self.weight =", "        self.calls = []\n        self.weight =", "could be changed"),
    ("        self.weight =", "        self.data_ptr = 1\n        self.weight =",
     "names a field data_ptr, as values of other types have"),
    ("        self.weight =", "        open('x')\n        self.weight =", "holds Expr in __init__"),
    ("torch.randn(num_features)", "torch.load(num_features)",
     "stores the result of torch.load in a model"),
    ("torch.randn(num_features)", "torch.randn(num_features, out=exec('1'))", "names exec"),
    ("torch.randn(num_features)", "torch.randn(exec('1'))", "names exec"),
    ("nn.Parameter(", "nn.Linear(bias=exec('1'), in_features=", "names exec"),
    ("num_features):", "num_features=exec('1')):", "names exec"),
    ("def forward(self, x, scale)", "def forward(self, x, scale=exec('1'))", "names exec"),
    ("    def forward", "    @staticmethod\n    def forward", "holds FunctionDef in a model"),
    ("    def forward", "    def __call__(self, *a):\n        return a\n\n    def forward",
     "defines __call__"),
    ("class ModelNew(nn.Module)", "class ModelNew(triton.Module)", "derives a class"),
    ("    def forward", "    count = 0\n\n    def forward", "holds Assign in a model"),
])  # fmt: skip
def test_a_model_that_could_remember_or_look_around_is_a_claim(old, new, part):
    text = portable(OF_MODEL.read_bytes()).decode()
    assert part in opaque_reason(text.replace(old, new, 1).encode(), {}, "ModelNew")
