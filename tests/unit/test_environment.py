"""The fingerprint says what changes a result, and nothing that names a person or a machine."""

import getpass
import os
import socket
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

import workbench
from workbench.data import environment
from workbench.data.environment import environment_id, fingerprint
from workbench.data.record import dumps, loads

ROOT = Path(workbench.__file__).parents[1]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with one commit, whatever the user's own git settings are."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    (folder / "kernel.py").write_text("1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "one")
    return folder


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit_of(folder: Path):
    env = fingerprint(None, folder)
    return env.commit, env.dirty


def test_a_clean_repository_gives_its_commit(repository):
    head = git(repository, "rev-parse", "HEAD")
    assert commit_of(repository) == (head, False)
    assert commit_of(repository / "inner") == (head, False)


def test_a_changed_file_or_an_unknown_kernel_makes_it_dirty(repository):
    (repository / "report.html").write_text("a run may leave its report here")
    assert commit_of(repository)[1] is False
    (repository / "mine.py").write_text("2\n")
    assert commit_of(repository / "inner")[1] is True
    (repository / "mine.py").unlink()
    (repository / "kernel.py").write_text("2\n")
    assert commit_of(repository)[1] is True


def test_git_dir_of_a_hook_does_not_point_elsewhere(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit_of(repository)[1] is False


def test_no_repository_no_commit_and_no_git_give_none(repository, tmp_path, monkeypatch):
    (tmp_path / "plain").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert commit_of(tmp_path / "plain") == (None, None)
    assert commit_of(tmp_path / "absent") == (None, None)
    git(tmp_path / "plain", "init", "-q")
    assert commit_of(tmp_path / "plain") == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path / "plain"))
    assert commit_of(repository) == (None, None)
    assert fingerprint(None, None).commit is None


def test_without_a_gpu_nothing_is_claimed_about_one():
    env = fingerprint(None, None)
    assert (env.gpu, env.driver, env.gpu_memory_bytes, env.power_limit_w) == (None,) * 4
    assert env.clock_policy == "unknown" and env.others_on_gpu is None
    assert env.os and env.cpu and env.python == "{}.{}.{}".format(*sys.version_info)
    assert env.versions["workbench"] == workbench.__version__
    assert loads(dumps(env)) == env


def test_versions_agree_with_the_packages_and_import_none_of_them():
    code = (
        "import sys; from workbench.data.environment import fingerprint;"
        "e = fingerprint(None, None);"
        "print({'torch', 'triton', 'numpy', 'pynvml'} & {*sys.modules}); import torch, numpy;"
        # a package's own version may lack the build that torch names behind a plus sign
        "print(torch.__version__.startswith(e.versions['torch']), e.versions.get('cuda') == "
        "torch.version.cuda, e.versions.get('hip') == torch.version.hip,"
        "e.versions['numpy'] == numpy.__version__)"
    )
    message = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert message.stdout == "set()\nTrue True True True\n", message.stderr


def test_packages_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr(environment, "installed_version", lambda name: None)
    monkeypatch.setattr(environment, "_home", lambda package: None)
    assert fingerprint(None, None).versions == {"workbench": workbench.__version__}


def test_ptxas_is_the_one_that_triton_is_told_to_use(tmp_path, monkeypatch):
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 99.1, V99.1.7'\n")
    tool.chmod(0o755)
    bundled = fingerprint(None, None).versions.get("ptxas")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    assert fingerprint(None, None).versions["ptxas"] == "99.1.7"
    tool.unlink()  # Triton then falls back to its own
    assert fingerprint(None, None).versions.get("ptxas") == bundled


def test_settings_are_an_allow_list_without_folders(monkeypatch):
    for name in environment.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/home/somebody/cuda/bin/ptxas")
    monkeypatch.setenv("TRITON_PLUGIN_PATHS", "/home/somebody/a.so:/opt/b.so")
    monkeypatch.setenv("PTXAS_OPTIONS", "-O1 --options-file=/home/somebody/o.txt")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/home/somebody/cache")
    monkeypatch.setenv("TRITON_REDIS_HOST", "secret.example")
    first = fingerprint(None, None).settings
    assert {name: value.partition(" #")[0] for name, value in first.items()} == {
        "TRITON_DEFAULT_FP_FUSION": "0",
        "TRITON_PTXAS_PATH": "ptxas",
        "TRITON_PLUGIN_PATHS": "a.so:b.so",
        "PTXAS_OPTIONS": "-O1 --options-file=o.txt",
    }
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/home/else/cuda/bin/ptxas")
    assert fingerprint(None, None).settings["TRITON_PTXAS_PATH"] != first["TRITON_PTXAS_PATH"]


def test_no_setting_only_prints_or_names_a_place():
    words = ("DUMP", "CACHE", "REDIS", "HOME", "PRINT", "TIMING", "DIAGNOSTICS")
    assert not [name for name in environment.SETTINGS if any(word in name for word in words)]


def test_neither_host_nor_user_nor_home_is_told(repository):
    line = dumps(fingerprint(None, repository))
    for secret in (socket.gethostname(), str(Path.home()), str(repository)):
        assert len(secret) < 2 or f'"{secret}' not in line
    assert f'"{getpass.getuser()}"' not in line


def test_the_id_changes_with_every_field_and_with_nothing_else():
    env = fingerprint(None, None)
    assert environment_id(env) == environment_id(loads(dumps(env)))
    turned = replace(env, versions=dict(reversed(list(env.versions.items()))))
    assert environment_id(turned) == environment_id(env)
    others = [replace(env, **{name: "other"}) for name in env.__dataclass_fields__]
    assert len({environment_id(e) for e in [env, *others]}) == len(others) + 1


# A GPU, played by two small modules


class NVMLError(Exception):
    pass


REASONS = "nvmlDeviceGetCurrentClocksEventReasons"


def fake_gpu(
    monkeypatch, *, hip=None, pids=(1,), clocks=(1980, 1980), reasons=0x1, nvml=True, lost=()
):
    """torch and pynvml as they answer on a machine with one H200 behind index 0."""
    properties = types.SimpleNamespace(name="NVIDIA H200", total_memory=1 << 37, uuid="ab-12")
    cuda = types.SimpleNamespace(get_device_properties=lambda index: properties)
    torch = types.SimpleNamespace(cuda=cuda, version=types.SimpleNamespace(hip=hip))
    monkeypatch.setitem(sys.modules, "torch", torch)

    def by_uuid(uuid):
        assert uuid == "GPU-ab-12"
        return "handle"

    answers = {
        "nvmlSystemGetDriverVersion": lambda: "570.86.15",
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetApplicationsClock": lambda handle, kind: clocks[0],
        "nvmlDeviceGetDefaultApplicationsClock": lambda handle, kind: clocks[1],
        REASONS: lambda handle: reasons,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            types.SimpleNamespace(pid=pid) for pid in pids
        ],
    }

    def fail(*_):
        raise NVMLError("not supported")

    library = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=(lambda: None) if nvml else fail,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=by_uuid,
        **(answers | dict.fromkeys(lost, fail)),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)


def gpu_fields(index=0):
    e = fingerprint(index, None)
    return e.gpu, e.driver, e.gpu_memory_bytes, e.power_limit_w, e.clock_policy, e.others_on_gpu


@pytest.fixture
def no_torch_build(monkeypatch):
    monkeypatch.setattr(environment, "_home", lambda package: None)


@pytest.mark.usefixtures("no_torch_build")
class TestGpu:
    def test_an_nvidia_gpu(self, monkeypatch):
        fake_gpu(monkeypatch, pids=(1, 2, os.getpid()))
        text = ("NVIDIA H200", "570.86.15", 1 << 37, 700.0, "default", 2)
        assert gpu_fields() == text

    def test_clocks_off_their_default_are_locked(self, monkeypatch):
        fake_gpu(monkeypatch, clocks=(1200, 1980), lost=[REASONS])
        assert gpu_fields()[4] == "locked"

    def test_clocks_that_a_setting_holds_down_are_locked(self, monkeypatch):
        fake_gpu(monkeypatch, reasons=0x6)
        assert gpu_fields()[4] == "locked"

    def test_clocks_are_at_their_default_only_where_all_of_it_is_told(self, monkeypatch):
        for which in ("nvmlDeviceGetApplicationsClock", REASONS):
            fake_gpu(monkeypatch, lost=[which])
            assert gpu_fields()[4] == "unknown"
        fake_gpu(monkeypatch, lost=[REASONS])
        older = "nvmlDeviceGetCurrentClocksThrottleReasons"
        monkeypatch.setattr(sys.modules["pynvml"], older, lambda handle: 0x5, raising=False)
        assert gpu_fields()[4] == "default"

    def test_what_nvml_does_not_answer_is_none(self, monkeypatch):
        wanted = ["Applications", "DefaultApplications"]
        lost = [f"nvmlDeviceGet{which}Clock" for which in wanted]
        lost += ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetEnforcedPowerLimit"]
        fake_gpu(monkeypatch, lost=lost)
        assert gpu_fields() == ("NVIDIA H200", "570.86.15", 1 << 37, None, "unknown", None)

    def test_a_gpu_that_nvml_does_not_know(self, monkeypatch):
        fake_gpu(monkeypatch)

        def unknown(uuid):
            raise NVMLError("not found")

        monkeypatch.setattr(sys.modules["pynvml"], "nvmlDeviceGetHandleByUUID", unknown)
        assert gpu_fields() == ("NVIDIA H200", "570.86.15", 1 << 37, None, "unknown", None)

    @pytest.mark.parametrize("how", ["no driver", "not installed"])
    def test_without_nvml(self, monkeypatch, how):
        fake_gpu(monkeypatch, nvml=False)
        if how == "not installed":
            monkeypatch.setitem(sys.modules, "pynvml", None)
        assert gpu_fields() == ("NVIDIA H200", None, 1 << 37, None, "unknown", None)

    def test_an_amd_gpu_is_not_looked_up_in_nvml(self, monkeypatch):
        fake_gpu(monkeypatch, hip="6.4")
        monkeypatch.setattr(environment, "_first_line", lambda path: "6.12.12")
        assert gpu_fields() == ("NVIDIA H200", "6.12.12", 1 << 37, None, "unknown", None)

    def test_a_gpu_that_is_not_there_is_none(self, monkeypatch):
        fake_gpu(monkeypatch)

        def absent(index):
            raise AssertionError("Torch not compiled with CUDA enabled")

        monkeypatch.setattr(sys.modules["torch"].cuda, "get_device_properties", absent)
        assert gpu_fields() == (None, None, None, None, "unknown", None)
