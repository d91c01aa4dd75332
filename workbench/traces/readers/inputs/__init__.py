"""Shared by all readers: files under limits, text, tables, streams of JSON events, SQLite."""
