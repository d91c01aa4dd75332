"""What the tuning of one signature gave, and the file that keeps it as soon as it is known."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from workbench.data.clock import timestamp
from workbench.data.plain import read_as
from workbench.tuner.portfolio import PortfolioError, portfolio
from workbench.workload.plan import WorkItem
from workbench.workload.signature import plain_value
from workbench.workload.tuned_table import ConfigValue, MeasuredTime

# A faster config was measured, or is predicted; the config in use stays; nothing could be tried.
Status = Literal["faster", "predicted", "kept", "failed"]


@dataclass(frozen=True)
class TunedSignature:
    """The result of one signature."""

    digest: str  # of the signature
    status: Status
    reason: str  # one sentence
    config: tuple[tuple[str, ConfigValue], ...] = ()
    before_s: MeasuredTime | None = None
    after_s: MeasuredTime | None = None
    protocol: str = ""
    text_hash: str = ""  # of the function that was tuned
    checked: bool = True  # False: nothing here could run it to check its results
    at: str = ""
    page: str = ""
    gpu: str = ""  # of a cluster: host and GPU that gave the times; see `Run.gpu`
    # ends of measured over predicted time, for predicted times of a device that was compared
    band: tuple[float, float] | None = None

    @property
    def speedup(self) -> float:
        """Time before over time after; 1 where the config in use stays."""
        if self.before_s is None or self.after_s is None:
            return 1.0
        return self.before_s.median / self.after_s.median


Tuned = tuple[WorkItem, TunedSignature]
RECORDED = "recorded, mean by torch.profiler"  # protocol of an entry that was not tuned


def keep_config(item: WorkItem) -> TunedSignature:
    """Return a result that keeps the config in use, with the mean time of the recording: an item of
    `plan.configs_in_use`."""
    assert item.launch_s is not None
    time = MeasuredTime(item.launch_s, item.launch_s, item.launch_s)
    config = {n: plain_value(v) for n, v in item.signature.config.items()}
    return TunedSignature(
        item.digest,
        "kept",
        "the config in use stays: it was not tuned",
        tuple(sorted((n, v) for n, v in config.items() if isinstance(v, (int, str, type(None))))),
        time,
        time,
        RECORDED,
        item.signature.function.text_hash,
        at=timestamp(),
    )


@dataclass
class TuningJournal:
    """Results of one command, a line each, so that the same command goes on after a kill."""

    path: Path
    results: dict[str, TunedSignature] = field(default_factory=dict)

    def load(self) -> None:
        """Read what earlier commands stored. A damaged line, such as the last one of a command that
        was killed, is left out."""
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            try:
                result: TunedSignature = read_as(TunedSignature, json.loads(line), "the result")
            except (ValueError, RecursionError):
                continue
            self.results[result.digest] = result

    def add(self, result: TunedSignature) -> None:
        """Store a result at the end of the file."""
        self.results[result.digest] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(asdict(result)))


def family_choices(
    times_s: Mapping[str, Mapping[str, float]], used: Mapping[str, str]
) -> dict[str, str]:
    """Return the config for each member of a family: of the smallest set that is within 3 % of the
    best of each, and the config in use where that is as near.

    Args:
        times_s: seconds by member and config.
        used: the config in use by member, which is a choice beside the set.
    """
    try:
        chosen = portfolio(times_s)
    except PortfolioError:
        return dict(used)
    result = {}
    for member, times in times_s.items():
        served = chosen.served[member].member
        own = used.get(member)
        stays = own is not None and times.get(own, float("inf")) <= times[served]
        result[member] = own if stays and own is not None else served
    return result


def saving(results: Sequence[tuple[float, TunedSignature]]) -> float:
    """Return the share of the recorded kernels' time that is saved, weighted by time.

    Args:
        results: the share of the time and the result of each signature.
    """
    return sum(share * (1 - 1 / result.speedup) for share, result in results)
