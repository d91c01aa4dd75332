"""Index of the runs in a folder: one row for each page, the newest first."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from workbench.reports import ReportError, render, write_page

ENGINES: tuple[str, ...] = ()  # it lists runs of all engines, but is no engine's own page
PAGE, INDEX = "report.html", "index.html"

_MARK = '<meta name="generator" content="workbench index">'  # of an index that may be replaced
_READ = 1 << 16  # bytes of a page, in which its head and its answer stand
_RUN = re.compile(r'<meta name="run" content="(.*?)">')
_TITLE = re.compile(r"<title>(.*?)</title>", re.S)
_SENTENCE = re.compile(r'id="answer"[^>]*>(.*?)</p>', re.S)
_BEGUN = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)\d\d")  # at the start of a run's id


@dataclass(frozen=True)
class IndexedRun:
    """One run of the index, as its page states it; what that does not state is empty."""

    id: str
    title: str
    sentence: str
    date: str  # 2026-11-21 09:30, in UTC
    command: str = ""
    kernel: str = ""
    sizes: str = ""
    dtype: str = ""
    device: str = ""
    state: str = ""  # "predicted" or "measured"


def write_run_page(folder: Path, html: str) -> Path:
    """Write the page of a run into its folder, and the index of the folder that holds it. Returns
    the page's path. Raises ReportError where the page cannot be written."""
    path = write_page(folder / PAGE, html)
    write_index(folder.parent)
    return path


def write_index(folder: Path) -> None:
    """Write the index of the runs in a folder. An `index.html` of somebody else stays, and so does
    everything where the folder cannot be written to: the runs' pages do not depend on it."""
    index = folder / INDEX
    with contextlib.suppress(OSError, ReportError):
        if not index.exists() or _MARK in _head_of(index):
            write_page(index, page(folder))


def page(folder: Path) -> str:
    """Return the index of the runs in a folder as HTML."""
    runs = sorted(map(_index_run, folder.glob(f"*/{PAGE}")), key=lambda r: (r.date, r.id))
    return render("run_index.html.j2", runs=runs[::-1], folder=folder.resolve().name)


def _head_of(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_READ).decode("utf-8", "replace")


def _index_run(path: Path) -> IndexedRun:
    """Return a run from the head of its page; a page that cannot be read has its name alone."""
    text = ""
    with contextlib.suppress(OSError):
        text = _head_of(path)
    name = path.parent.name
    facts = _facts(text)
    at = _BEGUN.match(name)
    begun = "{}-{}-{} {}:{}".format(*at.groups()) if at else ""
    stated = facts.pop("started", "")[:16].replace("T", " ")
    return IndexedRun(name, _plain(_TITLE, text) or name, _plain(_SENTENCE, text), stated or begun,
                      **facts)  # fmt: skip


def _facts(text: str) -> dict[str, str]:
    result = _RUN.search(text)
    try:
        facts = json.loads(unescape(result[1])) if result else {}
    except ValueError:
        return {}
    names = {"started", "command", "kernel", "sizes", "dtype", "device", "state"}
    mapping = facts if isinstance(facts, Mapping) else {}
    return {name: str(value) for name, value in mapping.items() if name in names}


def _plain(pattern: re.Pattern[str], text: str) -> str:
    result = pattern.search(text)
    return " ".join(unescape(re.sub(r"<[^>]+>", "", result[1])).split()) if result else ""
