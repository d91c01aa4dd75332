"""Config of kernels that hold a row in the registers of one threadgroup."""

from __future__ import annotations

from dataclasses import dataclass, replace

from workbench.spec import AUTO, Limits, among, given, threads


@dataclass(frozen=True)
class HeldRows:
    """Threads of a threadgroup and values of its row in each thread. AUTO: the fewest that hold a
    row, see `size_rows`."""

    threads: int = threads(32, 1024, default=AUTO)
    values: int = among(4, 8, 16, 32, default=AUTO)


def size_rows(config: HeldRows, limits: Limits, *, itemsize: int, M: int, N: int) -> HeldRows:
    """Return the config with what is AUTO chosen by the length of the rows: 256 threads until each
    would hold more than 16 values, then as many as keep it at 16."""
    sixteen = 1 << (-(-N // 16) - 1).bit_length()
    count = given(config.threads, min(1024, max(256, sixteen)))
    least = next((v for v in (4, 8, 16, 32) if v * count >= N), 32)
    return replace(config, threads=count, values=given(config.values, least))


def refuse_rows(config: HeldRows, limits: Limits, *, itemsize: int, M: int, N: int) -> str | None:
    """Return why the threads do not hold a row, or None if they do."""
    return reject_rows(config.threads * config.values, N)


def reject_rows(held: int, N: int) -> str | None:
    """Return why so many values of a threadgroup are no whole row of N, or None if they are."""
    return f"{held} values are held, and a row has {N}" if held < N else None


def checked_rows(config: HeldRows, N: int) -> dict[str, int]:
    """Return the template values of the body. Raises ValueError where the threads do not hold a row
    of N values."""
    if reason := reject_rows(config.threads * config.values, N):
        raise ValueError(f"{reason}; take more threads, or an impl for rows of any length")
    return {"TG": config.threads, "VALUES": config.values}
