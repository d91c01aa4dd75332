"""Timestamps of stored results, and the ids of runs that begin with one."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def timestamp() -> str:
    """Return the present time in UTC, ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def run_id(*words: str) -> str:
    """Return the id of a run that begins now: `20261121-214153-tile_size-matmul-0f5b`."""
    return "-".join((f"{datetime.now(UTC):%Y%m%d-%H%M%S}", *words, secrets.token_hex(2)))
