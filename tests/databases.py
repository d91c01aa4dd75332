"""Small SQLite files of other tools."""

import sqlite3


def database(path, **tables):
    """Write a file with these tables, each its columns and rows. Returns the path."""
    with sqlite3.connect(path) as connection:
        for name, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            marks = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    connection.close()
    return path
