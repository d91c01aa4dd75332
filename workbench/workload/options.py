"""What is recorded, as the command line and a program state it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RecordOptions:
    """Options of one recording."""

    profile_steps: int = 3  # steps under torch.profiler; 0 for none
    values: bool = False  # keep the values of small integer tensors
    device: str | None = None  # that answers for the GPU, by its name

    def text(self) -> str:
        """Return the options as JSON, for the processes of a program."""
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> RecordOptions:
        """Return the options of `text`."""
        return RecordOptions(**json.loads(text))
