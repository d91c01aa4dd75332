"""SQLite files of others: read only, their own SQL trusted with nothing and stopped in time."""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import plain

MAGIC = b"SQLite format 3\0"
ALLOWED = frozenset(
    [sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_PRAGMA]
)
PRAGMAS = frozenset(["table_info", "trusted_schema", "query_only", "table_xinfo"])


class Tables:
    """The tables and views of a file, each with its columns."""

    def __init__(self, connection: sqlite3.Connection, source: Source) -> None:
        self.connection, self.source = connection, source
        names = self._run("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')")
        self.kinds = {str(name): str(kind) for name, kind in names}

    def columns(self, name: str) -> list[str]:
        """Return the columns of a table or view; none where it does not exist."""
        if name not in self.kinds:
            return []
        return [str(row[1]) for row in self._run(f"PRAGMA table_info({quote_name(name)})")]

    def rows(
        self, name: str, *choices: tuple[str, ...], views: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table with one value for each choice: of the first column that the table
        has, None where it has none. A view is read only with `views`."""
        have = set(self.columns(name))
        if not have or (self.kinds[name] == "view" and not views):
            return
        picked = [next((c for c in names if c in have), None) for names in choices]
        select = ", ".join("NULL" if column is None else quote_name(column) for column in picked)
        self.source.place = f"table {plain(name)[:80]}"
        for row in self._run(f"SELECT {select} FROM {quote_name(name)}"):
            self.source.count()
            yield row

    def _run(self, query: str) -> Iterable[tuple[Any, ...]]:
        ends = time.monotonic() + self.source.limits.query_seconds
        self.connection.set_progress_handler(lambda: time.monotonic() > ends, 10_000)
        return self.connection.execute(query)


def choices(words: str) -> list[tuple[str, ...]]:
    """Return what `rows` takes: one choice a word, its columns with `|` between them."""
    return [tuple(word.split("|")) for word in words.split()]


def quote_name(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def tables(source: Source) -> Iterator[Tables]:
    """Open the file of a source. Yields its tables. Raises ReadError where it is damaged, or where
    its own SQL asks for more than it may."""
    with source.file() as path:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 << 20)
                connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
                connection.text_factory = lambda data: data.decode("utf-8", "replace")
                connection.execute("PRAGMA trusted_schema=OFF")
                connection.execute("PRAGMA query_only=ON")
                connection.set_authorizer(_allow)
                yield Tables(connection, source)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of its own messages
            reason = str(error)
            if "interrupted" in reason:
                reason = f"a query took longer than {source.limits.query_seconds:g} s"
            elif "prohibited" in reason or "not authorized" in reason or "unsafe" in reason:
                reason = f"its own SQL asks for what a reader refuses, {reason}"
            source.fail(f"this SQLite file cannot be read ({reason})", "export it again")


def _allow(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """Allow reading alone: no recursion, no other files, no extensions."""
    if action not in ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and first not in PRAGMAS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in ("load_extension", "edit"):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def has_table(source: Source, *names: str) -> bool:
    """Return whether a file is SQLite's and its head or its schema names one of some tables."""
    if source.head[:16] != MAGIC:
        return False
    head = source.head
    if any(name.encode() in head for name in names):
        return True
    with tables(source) as database:
        return any(kind.startswith(name) for kind in database.kinds for name in names)
