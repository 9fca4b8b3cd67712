"""The journal: the events of every process, in files outside the database."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.model.shard import CURRENT_SHARD

FOLDER = "CHAOS_JOURNAL"
"""The environment variable that names the folder of the journals."""

SHARD = "CHAOS_SHARD"
"""The environment variable with the shard of a program that works on one of several databases."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Args:
        what: submit, start, end, kill, freeze or thaw.
        at: when, in seconds of the epoch; all processes and the database share one machine's clock.
        pid: of the process that did it, or for kill, freeze and thaw that it was done to.
        data: additional values.
    """

    what: str
    at: float
    pid: int
    data: dict[str, Any] = field(default_factory=dict)


class Journal:
    """One process's file; a line that was written survives the death of its writer.

    Args:
        folder: of all journals.
        name: of the writer.
    """

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}-{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, pid: int | None = None, **data: Any) -> None:
        """Append an event."""
        self.write_all(what, [data], pid)

    def write_all(self, what: str, data: Iterable[Mapping[str, Any]], pid: int | None = None) -> None:
        """Append events of a kind that happened together, each with its data and its shard, if there are several."""
        shard = CURRENT_SHARD.get() or os.environ.get(SHARD)
        place = {} if shard is None else {"shard": shard}
        line = {"what": what, "at": time.time(), "pid": pid or os.getpid()}
        lines = "".join(json.dumps(line | {"data": {**place, **values}}) + "\n" for values in data).encode()
        while lines:
            lines = lines[os.write(self._file, lines) :]

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path) -> list[Event]:
    """All events of all processes, by time."""
    lines = (line for path in folder.glob("*.jsonl") for line in complete_lines(path))
    return sorted((Event(**json.loads(line)) for line in lines), key=lambda event: event.at)


def complete_lines(path: Path) -> Iterable[bytes]:
    """Return the lines of a file that may still grow."""
    return path.read_bytes().split(b"\n")[:-1]
