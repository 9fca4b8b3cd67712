"""ShardFleet: the runners of all shards, and the submitters and the operator of one of them, as real processes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos.evidence import FAULTS
from tests.chaos.fleet import Fleet
from tests.chaos.journal import SHARD, Event, read
from tests.programs import Program
from tests.shards import write_config

RUNNER = "tests.chaos.work"


class ShardFleet(Fleet):
    """The fleet of a shard. The fleets of all shards have the same runners.

    Args:
        shard: its name.
        urls: the URL of each shard for the processes.
        home: a folder for the folders of all shards.
        runners: those that the fleets of the other shards started.
        settings: settings of the runners by name.
    """

    def __init__(
        self, shard: str, urls: Mapping[str, str], home: Path, runners: list[Program], **settings: str
    ) -> None:
        own = home / shard
        (own / "tasktui").mkdir(parents=True)
        write_config(own / "tasktui" / "config.toml", urls)
        super().__init__(urls[shard], own, **settings)
        self.shard = shard
        self.runners = runners
        self._all_journals: Sequence[Path] = [home / name / self.journals.name for name in urls]

    def history(self) -> list[Event]:
        """The events of this shard, and the faults of all."""
        events = [event for folder in self._all_journals for event in read(folder)]
        own = (event for event in events if event.what in FAULTS or event.data.get("shard") == self.shard)
        return sorted(own, key=lambda event: event.at)

    def _database_of(self, module: str) -> Mapping[str, str]:
        return {"TASKTUI_PROFILE": "orders"} if module == RUNNER else {"TASKTUI_URL": self.url, SHARD: self.shard}
