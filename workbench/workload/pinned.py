"""Pin the configs of a tuned table: an `@triton.autotune` function launches the one for its key,
and times nothing.

    import workbench.workload

    workbench.workload.pin("tuned.json")

The autotuner's own cache is asked first, so that only the first launch of a key looks into the
table. Replaces `Autotuner.run` until an autotuner's first launch, which gives it a cache that looks
into the table, and Triton's own `run` again. Tested with Triton 3.6.0 and 3.9.0.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from workbench.workload.errors import WorkloadError
from workbench.workload.identity import function_of
from workbench.workload.ranks import PinError, digest_of, verify_ranks
from workbench.workload.signature import KernelFunction
from workbench.workload.tuned_table import PinnedEntry, read

# What a key that the table lacks gets: the nearest key of a family that was measured, or else the
# first config; the first config of the list; what Triton does; an error.
MissPolicy = Literal["nearest", "first", "tune", "error"]
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")

# The result of a lookup: the table has the key, or why it does not serve.
LookupResult = Literal["hit", "absent", "other device", "changed", "other triton", "refused"]
STALE: tuple[LookupResult, ...] = ("changed", "other triton")
# What the launch gets: a config of the table, of a near key, the first one, what Triton does.
Given = Literal["table", "nearest", "first", "tune", "error"]

_log = logging.getLogger("workbench")


@dataclass(frozen=True)
class TableLookup:
    """A key of an autotuner that was looked up; each is once."""

    function: str  # with its module
    key: tuple[str, ...]
    result: LookupResult
    given: Given
    config: str  # as JSON; empty where Triton is to choose


class PinnedTable:
    """A table that is pinned in this process, until `remove`."""

    active: PinnedTable | None = None

    def __init__(
        self,
        entries: Sequence[PinnedEntry],
        policy: MissPolicy,
        arch: str | None,
        on_lookup: Callable[[TableLookup], object] | None = None,
    ) -> None:
        self.choices: dict[str, str] = {}  # config by function and key, of all that were looked up
        self.lookups: list[TableLookup] = []
        self._policy, self._arch, self._on_lookup = policy, arch, on_lookup
        self._bound: list[Any] = []  # autotuners whose `run` is Triton's own again
        self._by_function: dict[tuple[str, str], list[PinnedEntry]] = defaultdict(list)
        for entry in entries:
            self._by_function[entry.module, entry.function].append(entry)
        self._reported: set[str] = set()
        self._real: Any = None

    def install(self) -> None:
        """Replace `Autotuner.run`. Raises WorkloadError where Triton is missing, or where another
        table is pinned."""
        if PinnedTable.active is not None:
            raise WorkloadError("A tuned table is pinned already; remove that one first.")
        try:
            from triton.runtime.autotuner import Autotuner
        except ImportError as error:
            raise WorkloadError(
                f"Triton cannot be imported ({error}): pip install triton."
            ) from None
        real = self._real = Autotuner.run
        table = self

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if type(self.cache) is not PinnedCache or self.cache.table is not table:
                self.cache = PinnedCache(table, self)
            if Autotuner.run is run:  # a recording replaces it, and is to see each launch
                self.run = real.__get__(self)
                table._bound.append(self)
            return real(self, *args, **kwargs)

        Autotuner.run = run
        PinnedTable.active = self

    def unbind(self) -> None:
        """Let the next launch of each autotuner go through the class' `run` again, for those who
        replace it."""
        for tuner in self._bound:
            tuner.__dict__.pop("run", None)
        self._bound.clear()

    def remove(self) -> None:
        """Let autotuners choose by themselves again. What they have chosen until now stays."""
        if PinnedTable.active is self:
            from triton.runtime.autotuner import Autotuner

            Autotuner.run = self._real
            PinnedTable.active = None
            self.unbind()

    def __enter__(self) -> PinnedTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def is_active(self) -> bool:
        """Whether launches of this process take their configs from this table."""
        return PinnedTable.active is self

    def digest(self) -> str:
        """Return 16 hex digits that are equal on ranks that made the same choices."""
        return digest_of(self.choices)

    def verify(self) -> int:
        """Compare the choices of all ranks of torch.distributed; each rank must call it. Returns
        the number of ranks, 1 without torch.distributed. Raises PinError where two ranks chose
        differently for one key."""
        return verify_ranks(self)

    def choice(
        self, tuner: Any, function: KernelFunction, key: tuple[Any, ...], more: Mapping[str, Any]
    ) -> Any | None:
        """Return the `triton.Config` for a key, or None where Triton is to choose. Raises PinError
        under the policy `error`."""
        texts = key_texts(key)
        result, config = self._looked_up(tuner, function, texts)
        source: Given = "table"
        if config is None:
            source, config = self._policy_choice(tuner, function, texts, more)
        name = f"{function.module}.{function.name}"
        text = "" if config is None else config_text(config)
        lookup = TableLookup(name, texts, result, source, text)
        self.lookups.append(lookup)
        if config is not None:
            self.choices[f"{name} {list(texts)}"] = text
        if self._on_lookup is not None:
            self._on_lookup(lookup)
        if source == "error":
            raise PinError(
                f"The tuned table has no config of {function.name} for {', '.join(texts)} on "
                f"{self.arch or 'this machine'}; tune it, or pin with another policy."
            )
        return config

    def _looked_up(
        self, tuner: Any, function: KernelFunction, key: tuple[str, ...]
    ) -> tuple[LookupResult, Any | None]:
        """Return the config of the entry for exactly this key, and what became of the lookup. An
        entry of other code, or of another Triton, is stale."""
        there = [e for e in self._entries_here(function) if e.key == key]
        usable = [e for e in there if not self._stale(function, e)]
        if usable:
            config = config_of(usable[0], tuner)
            if config is None:
                self._report_once(function, "this function cannot have its config")
            return ("refused" if config is None else "hit"), config
        if there:
            self._report_once(function, f"its entry is stale ({self._stale(function, there[0])})")
            changed = there[0].text_hash != function.text_hash
            return ("changed" if changed else "other triton"), None
        entries = self._by_function.get((function.module, function.name), [])
        return ("other device" if any(e.key == key for e in entries) else "absent"), None

    def _entries_here(self, function: KernelFunction) -> list[PinnedEntry]:
        entries = self._by_function.get((function.module, function.name), [])
        arch = self.arch
        return [entry for entry in entries if entry.arch == arch]

    @property
    def arch(self) -> str:
        """Architecture of the GPU, as tables name it: `sm_90`, `gfx942`; empty without a GPU."""
        if self._arch is None:
            from triton.runtime.driver import driver

            try:
                name = driver.active.get_current_target().arch
            except RuntimeError:  # "0 active drivers": no GPU, as under the interpreter
                name = ""
            self._arch = f"sm_{name}" if isinstance(name, int) else str(name)
        return self._arch

    def _stale(self, function: KernelFunction, entry: PinnedEntry) -> str:
        import triton

        if entry.text_hash != function.text_hash:
            return "the function has changed since"
        if entry.triton != triton.__version__:
            return f"it is of Triton {entry.triton}, and this is {triton.__version__}"
        return ""

    def _policy_choice(
        self, tuner: Any, function: KernelFunction, key: tuple[str, ...], more: Mapping[str, Any]
    ) -> tuple[Given, Any | None]:
        """Return what the policy gives for a key that the table does not serve."""
        if self._policy in ("tune", "error"):
            return self._policy, None
        if self._policy == "nearest":
            usable = [e for e in self._entries_here(function) if not self._stale(function, e)]
            near = nearest(usable, key)
            config = None if near is None else config_of(near, tuner)
            if config is not None:
                self._report_once(function, f"sizes between measured ones, such as {list(key)}")
                return "nearest", config
        self._report_once(function, f"{list(key)} is not in it: the first config of the list")
        return "first", first_config(tuner, more)

    def _report_once(self, function: KernelFunction, text: str) -> None:
        name = f"{function.module}.{function.name}"
        if name not in self._reported:
            self._reported.add(name)
            _log.warning("tuned table: %s: %s", name, text)


class PinnedCache(dict[Any, Any]):
    """The cache of one autotuner, which looks into the table for a key that it lacks. A key is
    looked up once; then this is a plain dict."""

    def __init__(self, table: PinnedTable, tuner: Any) -> None:
        super().__init__(tuner.cache)
        self.table, self._tuner = table, tuner
        self._function: KernelFunction | None = None

    def __contains__(self, key: object) -> bool:
        """Return whether there is a config for a key, by now."""
        if super().__contains__(key):
            return True
        if PinnedTable.active is not self.table or not isinstance(key, tuple):
            return False
        if self._function is None:
            self._function = function_of(self._tuner)
        config = self.table.choice(self._tuner, self._function, key, launch_arguments())
        if config is None:
            return False
        self[key] = config
        return True


def launch_arguments() -> Mapping[str, Any]:
    """Return the arguments by name of the launch whose `Autotuner.run` asks its cache: two frames
    up. Wrapping each launch instead would cost 1.3 us of it."""
    kwargs: Mapping[str, Any] = sys._getframe(2).f_locals.get("kwargs", {})
    return kwargs


def config_text(config: Any) -> str:
    """Return a `triton.Config` as JSON."""
    return json.dumps(config.all_kwargs(), sort_keys=True, default=str)


def key_texts(key: tuple[Any, ...]) -> tuple[str, ...]:
    """Return an autotuner's key as a table has it: values by their `repr`, then dtypes, of which a
    launch has at least one for each tensor."""
    dtypes = 0
    while dtypes < len(key) and isinstance(part := key[-1 - dtypes], str) and "." in part:
        dtypes += 1  # "torch.float32"
    values = max(len(key) - dtypes, 0)
    return (*map(repr, key[:values]), *key[values:])


def config_of(entry: PinnedEntry, tuner: Any) -> Any | None:
    """Return the `triton.Config` of an entry: the function's own if it lists it, with its hook.
    None where it names what the function has no argument for, and where the function's configs have
    hooks and it is not one of them."""
    knobs = dict(entry.config)
    if not set(knobs) <= {*tuner.arg_names, *OPTIONS}:
        return None
    for config in tuner.configs:
        own = config.all_kwargs()
        if {**own, **knobs} == own and set(knobs) >= set(config.kwargs):
            return config
    if any(config.pre_hook is not None for config in tuner.configs):
        return None
    from triton import Config

    options = {n: knobs.pop(n) for n in OPTIONS if n in knobs}
    return Config(knobs, **{n: v for n, v in options.items() if v is not None})


def first_config(tuner: Any, more: Mapping[str, Any]) -> Any:
    """Return the first config that the function's own pruning leaves; the first of all where that
    fails."""
    try:
        return next(iter(tuner.prune_configs(dict(more))), tuner.configs[0])
    except Exception:
        return tuner.configs[0]


def nearest(entries: Sequence[PinnedEntry], key: tuple[str, ...]) -> PinnedEntry | None:
    """Return the entry of a family whose whole numbers are nearest in ratio to those of the key,
    and whose other parts are equal; None where the key lies outside of every family."""
    families: dict[str, list[PinnedEntry]] = defaultdict(list)
    for entry in entries:
        if entry.family is not None and _alike(entry.key, key):
            families[entry.family].append(entry)
    inside = [e for of in families.values() if _covers(of, key) for e in of]
    return min(inside, key=lambda e: (_distance(e.key, key), e.key), default=None)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def _alike(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    both_numbers = [_number(x) is not None and _number(y) is not None for x, y in zip(a, b)]  # noqa: B905
    return len(a) == len(b) and all(
        number or x == y for number, x, y in zip(both_numbers, a, b, strict=True)
    )


def _covers(entries: Sequence[PinnedEntry], key: tuple[str, ...]) -> bool:
    for place, part in enumerate(key):
        number = _number(part)
        if number is None:
            continue
        extents = [n for e in entries if (n := _number(e.key[place])) is not None]
        if not min(extents) <= number <= max(extents):
            return False
    return True


def _distance(a: tuple[str, ...], b: tuple[str, ...]) -> float:
    pairs = ((_number(x), _number(y)) for x, y in zip(a, b, strict=True))
    return sum(
        abs(math.log2(max(x, 1) / max(y, 1))) for x, y in pairs if x is not None and y is not None
    )


def check_policy(policy: str) -> None:
    """Raise WorkloadError where there is no such policy."""
    if policy not in get_args(MissPolicy):
        policies = ", ".join(get_args(MissPolicy))
        raise WorkloadError(f"There is no policy {policy!r} for a miss; there are {policies}.")


def pin_table(
    table: str | Path,
    policy: MissPolicy,
    arch: str | None,
    on_lookup: Callable[[TableLookup], object] | None = None,
) -> PinnedTable:
    """Pin a table but for its predicted entries. Returns it; `remove` ends it. `on_lookup` is
    called with each lookup. Raises TunedError where the table cannot be read, and WorkloadError
    where there is no such policy."""
    check_policy(policy)
    entries = read(Path(table))
    proven = [entry for entry in entries if not entry.is_predicted]
    if left_out := len(entries) - len(proven):
        _log.warning("%s: %d predicted entries are not pinned", table, left_out)
    pinned = PinnedTable(proven, policy, arch, on_lookup)
    pinned.install()
    return pinned
