"""The queue of submissions in the database: what was judged, what runs, and how it ended."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import sqlalchemy as sa

from workbench.data.clock import timestamp
from workbench.data.database import History

State = Literal["waiting", "running", "judged", "failed"]
TRIES = 2  # of a submission whose evaluation gave no verdict, or was stopped with the queue

_METADATA = sa.MetaData()
_SUBMISSIONS = sa.Table(
    "submissions",
    _METADATA,
    sa.Column("key", sa.Text, primary_key=True),  # of the submission, the judge and the options
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("verdict", sa.Text),
    sa.Column("rule", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("seconds", sa.Double),
    sa.Column("at", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class QueuedSubmission:
    """A submission in the queue; `verdict` is None where there is none, and `reason` says why."""

    key: str
    name: str
    state: State = "waiting"
    tries: int = 0
    verdict: str | None = None
    rule: str | None = None
    reason: str | None = None
    seconds: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether it is not tried again."""
        return self.state == "judged" or (self.state == "failed" and self.tries >= TRIES)


class Submissions:
    """The queue. Each change is committed before the next step, so a kill costs one evaluation."""

    def __init__(self, history: History) -> None:
        """Create the table if it is missing."""
        self._history = history
        with history._writing() as db:
            _METADATA.create_all(db)

    def add(self, some: Iterable[QueuedSubmission]) -> None:
        """Add submissions that are not there yet."""
        with self._history._writing() as db:
            keys = set(db.scalars(sa.select(_SUBMISSIONS.c.key)))
            rows = [{**asdict(one), "at": timestamp()} for one in some if one.key not in keys]
            if rows:
                db.execute(_SUBMISSIONS.insert(), rows)

    def put(self, one: QueuedSubmission) -> None:
        """Store how a submission is now."""
        with self._history._writing() as db:
            changed = {**asdict(one), "at": timestamp()}
            db.execute(_SUBMISSIONS.update().where(_SUBMISSIONS.c.key == one.key), changed)

    def get(self, keys: Iterable[str]) -> dict[str, QueuedSubmission]:
        """Return the submissions of these keys, by key."""
        names = set(keys)
        with self._history._reading() as db:
            rows: list[Any] = list(db.execute(sa.select(_SUBMISSIONS)).mappings())
        fields = QueuedSubmission.__dataclass_fields__
        return {
            row["key"]: QueuedSubmission(**{name: row[name] for name in fields})
            for row in rows
            if row["key"] in names
        }
