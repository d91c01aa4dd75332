"""The wheel, installed where no clone is: into an environment that has torch, by pip itself."""

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from workbench.data.contributed import EXAMPLE_MODULES

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))
OWN = ("kernel_workbench", "_kernel_workbench", "__editable__")


def pip(environment, *words):
    """Run pip for an environment; returns the finished process."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(environment / "bin" / "python"),
    ]
    return subprocess.run([*command, *map(str, words)], capture_output=True, text=True, check=False,
                          env=plain_environment(environment))  # fmt: skip


def plain_environment(folder):
    """Variables of a user who has no clone, and whose files lie in `folder`."""
    own = ("PYTHONPATH", "VIRTUAL_ENV")
    kept = {k: v for k, v in os.environ.items() if k not in own and not k.startswith("PIP_")}
    homes = {n: str(folder / "home") for n in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")}
    return {**kept, **homes, "PIP_CONFIG_FILE": os.devnull}


def environment_with(folder, packages):
    """Make an environment with what lies in the folder `packages`, without copying it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree. hatchling builds it in place and leaves nothing behind."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", *words, "-w", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel):
    named = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "workbench", "metal_shim"]
    tracked = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    assert set(filter(None, tracked.split("\0"))) <= named
    for folder, package in EXAMPLE_MODULES.items():
        cloned = {path.name for path in (ROOT / "examples" / folder).glob("*.py")}
        assert cloned and {f"{package.replace('.', '/')}/{name}" for name in cloned} <= named
    assert {n.partition("/")[0] for n in named} == {"workbench", "metal_shim"}


@pytest.mark.nightly
def test_two_commands_lead_from_the_wheel_to_the_first_answer(wheel, tmp_path):
    """The environment has the packages of this one, but for the workbench."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in SITE.iterdir():
        if not path.name.startswith(OWN) and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    environment = environment_with(tmp_path / "env", packages)
    done = pip(environment, "install", "--no-index", wheel)
    assert done.returncode == 0, done.stderr
    installed = [line for line in done.stdout.splitlines() if line.startswith("Successfully")]
    assert installed == [f"Successfully installed kernel-workbench-{stated(wheel)['Version']}"]

    words = ["sweep", "tile_size", "--kernel", "copy", "--device", "h200", "--budget", "2"]
    command = [str(environment / "bin" / "workbench"), *words]
    done = subprocess.run(command, cwd=tmp_path, env=plain_environment(tmp_path), text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "predicted" in done.stdout and f"report  {tmp_path}" in done.stdout
    assert str(ROOT) not in done.stdout + done.stderr
    asked = [
        str(environment / "bin" / "python"),
        "-c",
        "import workbench; print(workbench.__file__)",
    ]
    done = subprocess.run(asked, cwd=tmp_path, env=plain_environment(tmp_path), text=True,
                          capture_output=True, check=True)  # fmt: skip
    assert Path(done.stdout.strip()).is_relative_to(environment)


# What pip would do


def stated(wheel):
    """The metadata of a wheel."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (n for n in file.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(file.read(name))


def requirements(wheel):
    """Names of the packages that the wheel requires."""
    every = stated(wheel).get_all("Requires-Dist")
    return [re.match(r"[\w.-]+", r)[0] for r in every if "extra ==" not in r]


def lay(folder, name, version):
    """Lay down what pip reads of an installed package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text)
    (info / "RECORD").write_text("")
    (info / "INSTALLER").write_text("pip\n")


def empty_wheel(folder, name, version):
    """Write a wheel without content, such as an index would offer."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        file.writestr(f"{info}/WHEEL", tags)
        file.writestr(f"{info}/RECORD", "")


def planned(environment, *words):
    """Return what pip would install, with the versions; None where it refuses."""
    report = environment / "report.json"
    done = pip(environment, "install", "--dry-run", "--no-index", "--report", report, *words)
    if done.returncode:
        assert "conflicting dependencies" in done.stderr
        return None
    install = json.loads(report.read_text())["install"]
    return {i["metadata"]["name"].lower(): i["metadata"]["version"] for i in install}


@pytest.mark.nightly
@pytest.mark.parametrize(("torch", "triton"), [("2.11.0+cu128", "3.6.0"), ("2.10.0", "3.5.1")])
def test_torch_and_triton_stay_as_they_are_or_pip_refuses(wheel, tmp_path, torch, triton):
    """Newer ones are offered. Where torch is too old pip would replace it, and refuses if the
    versions are held, as README tells."""
    packages, offered = tmp_path / "packages", tmp_path / "offered"
    for name in requirements(wheel):
        lay(packages, name, {"torch": torch, "triton": triton}.get(name, "2026.1"))
    for name in ("torch", "triton"):
        empty_wheel(offered, name, "9.0")
    environment = environment_with(tmp_path / "env", packages)
    held = tmp_path / "held.txt"
    held.write_text(f"torch=={torch}\ntriton=={triton}\n")
    freely = planned(environment, "--find-links", offered, wheel)
    firmly = planned(environment, "--find-links", offered, "-c", held, wheel)
    own = {"kernel-workbench": stated(wheel)["Version"]}
    if torch == "2.10.0":
        assert freely == {**own, "torch": "9.0", "triton": "9.0"} and firmly is None
    else:
        assert freely == firmly == own
    assert {p.name for p in packages.glob("torch-*")} == {f"torch-{torch}.dist-info"}
