"""Run a command on another machine, over ssh: `workbench sweep softmax --on me@gpu-host`.

The package is sent as a wheel and installed beside the torch of that machine, once for each state
of its files. The command's local files are sent, its output is shown as it comes, and what it wrote
comes back: files, the history and tuned configs. `ssh` is the system's, with its keys and config.
"""

from __future__ import annotations

import hashlib
import io
import shlex
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

import workbench
from workbench.commands.console import note, say
from workbench.commands.options import CommandError
from workbench.commands.tuned import merge
from workbench.data.contributed import EXAMPLE_MODULES, EXAMPLES
from workbench.data.database import open_history
from workbench.data.files import reason_of
from workbench.data.temporary import temporary_folder
from workbench.data.tuned_cache import default_path
from workbench.data.units import amount
from workbench.spec import WorkbenchError

NEEDS_REPOSITORY = ("gate", "bisect", "site")  # whose history of commits is not sent
OUTPUTS = ("--out", "--json", "--events-file", "--markdown", "--sarif", "--export")
CACHE = ".cache/kernel-workbench"  # on the other machine, in the home folder
BESIDE = 100  # files at most that are sent from a kernel's folder
UNREACHABLE = 255  # exit code of ssh itself
LACKS = 97  # exit code of the script that installs, where torch is missing

INSTALL = """\
set -e
home="$HOME/{cache}/{digest}"
work="$(mktemp -d "${{TMPDIR:-/tmp}}/workbench-on-XXXXXX")"
if [ ! -f "$home/ready" ]; then
    {python} -c 'import torch' 2> /dev/null || exit {lacks}
    mkdir -p "$home"
    cat > "$home/{wheel}"
    {python} -m venv --clear --without-pip "$home/venv" >&2
    site="$("$home/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    {python} -c 'import sys; print(*(p for p in sys.path if p[-9:] == "-packages"), sep="\\n")' \\
        > "$site/beside.pth"
    {python} -m pip list --format=freeze | grep -iE '^(torch|triton)==' > "$home/held" || true
    {python} -m pip --python "$home/venv/bin/python" install --quiet \\
        --disable-pip-version-check -c "$home/held" "$home/{wheel}" >&2
    touch "$home/ready"
else
    cat > /dev/null
fi
echo "$home $work"
"""
RUN = "cd {work} && XDG_DATA_HOME={work}/.data {home}/venv/bin/python -m workbench {words}"
TUNED = ".data/kernel-workbench/tuned.json"
# Writes nothing there: the disk may be full.
BACK = f"""\
cd {{work}} && find . -type f -newer .sent \\( ! -path './.data/*' -o -path ./{TUNED} \\) -print0 \
    | tar -czf - --null -T -
"""


@dataclass(frozen=True)
class RemoteHost:
    """Another machine: what ssh is given, and the Python there."""

    name: str
    python: str

    @classmethod
    def parse(cls, text: str) -> RemoteHost:
        """Return the host of `me@gpu` or `me@gpu:/opt/env/bin/python`. Raises CommandError."""
        name, _, python = text.partition(":")
        if not name or name.startswith("-"):
            raise CommandError(f"--on {text} names no host; write --on me@gpu-host.")
        return cls(name, python or "python3")


def run_on(where: str, words: Sequence[str]) -> int:
    """Run a command line on another machine. Returns its exit code there. Raises CommandError where
    it cannot be reached or prepared, or where the command cannot run without the repository."""
    host = RemoteHost.parse(where)
    if not words:
        raise CommandError("Name the command to run there: workbench sweep softmax --on HOST.")
    if words[0] in NEEDS_REPOSITORY:
        raise CommandError(
            f"{words[0]} needs the whole repository, which --on does not send; run it there."
        )
    files, there = sent_files(words)
    content, digest = package()
    with _connection(host) as ssh:
        wheel = f"kernel_workbench-{workbench.__version__}-py3-none-any.whl"
        script = INSTALL.format(
            cache=CACHE, digest=digest, wheel=wheel, python=shlex.quote(host.python), lacks=LACKS
        )
        home, work = ssh.prepare(script, content).split()
        ssh.send(files, work)
        note(f"running on {host.name}")
        line = RUN.format(work=shlex.quote(work), home=shlex.quote(home), words=shlex.join(there))
        with name_results(host, work):
            code = ssh.run(line)
            bring_back(ssh, work)
    return code


@contextmanager
def name_results(host: RemoteHost, work: str) -> Iterator[None]:
    """Return a context manager that adds the folder with the results to an error. Raises
    CommandError."""
    try:
        yield
    except (CommandError, OSError, tarfile.TarError) as error:  # an archive may be cut short
        reason = f"The results cannot be written here ({reason_of(error)})"
        if isinstance(error, CommandError):
            reason = str(error).rstrip(".")
        raise CommandError(f"{reason}; look for results in {work} on {host.name}.") from error


def bring_back(ssh: RemoteShell, work: str) -> None:
    """Write what a command left in its folder into the current one, then remove that folder. Raises
    CommandError or OSError and removes nothing where they cannot be read or written."""
    place = shlex.quote(work)
    _take_back(ssh.output(BACK.format(work=place)))
    ssh.run(f"rm -rf {place}")


@dataclass(frozen=True)
class RemoteShell:
    """One connection that all steps share."""

    host: RemoteHost
    words: tuple[str, ...]

    def run(self, line: str) -> int:
        """Run a line, with our output; return its exit code."""
        return self._exit_code(subprocess.run([*self.words, line], stdin=subprocess.DEVNULL))

    def output(self, line: str, given: bytes = b"") -> bytes:
        """Return what a line prints. Raises CommandError where it fails."""
        done = subprocess.run([*self.words, line], input=given, stdout=subprocess.PIPE)
        code = self._exit_code(done)
        if code == LACKS:
            raise CommandError(
                f"{self.host.python} on {self.host.name} has no torch; install it there, or name "
                f"another Python: --on {self.host.name}:/path/to/python."
            )
        if code:
            raise CommandError(f"A step on {self.host.name} failed (exit code {code}; see above).")
        return done.stdout

    def prepare(self, script: str, wheel: bytes) -> str:
        """Install the wheel where it is missing; return the folders of it and of this command."""
        return self.output(f"sh -c {shlex.quote(script)}", wheel).decode().strip()

    def send(self, files: Sequence[tuple[Path, str]], work: str) -> None:
        """Copy files into the folder of the command."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            for path, name in files:
                tar.add(path, name, recursive=False)
        place = shlex.quote(work)
        line = f"tar -xzmf - -C {place} && touch {place}/.sent && sleep 0.02"
        self.output(line, archive.getvalue())

    def _exit_code(self, done: subprocess.CompletedProcess[bytes]) -> int:
        if done.returncode == UNREACHABLE:
            raise CommandError(f"ssh could not reach {self.host.name}, or lost it; see above.")
        return done.returncode


@contextmanager
def _connection(host: RemoteHost) -> Iterator[RemoteShell]:
    """Yield a connection that is opened once: a password is asked for once."""
    program = shutil.which("ssh")
    if program is None:
        raise CommandError("--on needs ssh, which is not on the path; install OpenSSH.")
    with temporary_folder() as folder:
        shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={folder}/c")
        words = (program, *shared, "-o", "ControlPersist=30", host.name)
        try:
            yield RemoteShell(host, words)
        finally:
            end = (program, *shared, "-O", "exit", host.name)
            subprocess.run(end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def sent_files(words: Sequence[str]) -> tuple[list[tuple[Path, str]], list[str]]:
    """Return the local files that a command line names with their names on the other machine, and
    the words of the line there. With a Python file go those beside it, which it may import. Raises
    CommandError for an output outside the current folder: it could not come back."""
    files: dict[str, Path] = {}
    there = [words[0]]
    for before, word in pairwise(words):
        if before in OUTPUTS:
            if Path(word).is_absolute() or ".." in Path(word).parts:
                raise CommandError(
                    f"{before} {word} is outside the current folder, and --on brings back only "
                    "what is inside; name a path below it."
                )
            there.append(word)
            continue
        path, colon, rest = word.partition(":")
        if not Path(path).is_file():
            there.append(word)
            continue
        name = _name_there(Path(path))
        files[name] = Path(path)
        if path.endswith(".py"):
            beside = sorted(Path(path).resolve().parent.glob("*.py"))[:BESIDE]
            files |= {str(PurePosixPath(name).parent / file.name): file for file in beside}
        there.append(f"{name}{colon}{rest}")
    return [(path, name) for name, path in files.items()], there


def _name_there(path: Path) -> str:
    full, here = path.resolve(), Path.cwd().resolve()
    return full.relative_to(here).as_posix() if full.is_relative_to(here) else full.name


def package() -> tuple[bytes, str]:
    """Return this package as a wheel, and a hash of its files."""
    digest, stream = hashlib.sha256(), io.BytesIO()
    info = f"kernel_workbench-{workbench.__version__}.dist-info"
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, path in sorted(_package_files().items()):
            content = path.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
            wheel.writestr(name, content)
        for name, text in _metadata().items():
            wheel.writestr(f"{info}/{name}", text)
        listed = "".join(f"{name},,\n" for name in (*wheel.namelist(), f"{info}/RECORD"))
        wheel.writestr(f"{info}/RECORD", listed)
    return stream.getvalue(), digest.hexdigest()[:16]


def _package_files() -> dict[str, Path]:
    """Return the files of this package by their names in its wheel."""
    home = Path(workbench.__file__).resolve().parents[1]
    folders = {part: home / part for part in ("workbench", "metal_shim")}
    folders |= {EXAMPLE_MODULES[name]: EXAMPLES / name for name in EXAMPLE_MODULES}
    return {
        (Path(*package.split(".")) / path.relative_to(folder)).as_posix(): path
        for package, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def _metadata() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        needed = [each for each in requires("kernel-workbench") or () if "extra ==" not in each]
    except PackageNotFoundError as error:
        raise CommandError(
            "--on sends the installed package, and it is not installed; run pip install ."
        ) from error
    head = ["Metadata-Version: 2.1", "Name: kernel-workbench", f"Version: {workbench.__version__}"]
    return {
        "METADATA": "\n".join([*head, *(f"Requires-Dist: {each}" for each in needed), ""]),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: workbench\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }


def _take_back(archive: bytes) -> None:
    """Write the files that came back into the current folder, and store runs and tuned configs."""
    with temporary_folder() as home:
        folder = home / "back"
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            tar.extractall(folder, filter="data")
        tuned = folder / TUNED
        if tuned.is_file():
            _try("tuned configs", lambda: merge(tuned, default_path()))
        shutil.rmtree(folder / ".data", ignore_errors=True)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in files:
            to = Path.cwd() / path.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
        events = [path for path in files if path.suffix == ".jsonl"]
        if events:
            _try("history", lambda: _import(events))
        pages = [str(p.relative_to(folder)) for p in files if p.name == "report.html"]
        say(" ".join(["came back ", amount(len(files), "file"), *pages]))


def _import(files: Sequence[Path]) -> None:
    with open_history(None) as history:
        for file in files:
            history.import_events(file)


def _try(what: str, action: Callable[[], object]) -> None:
    try:
        action()
    except WorkbenchError as error:
        note(f"the {what} that came back cannot be stored: {error}")
