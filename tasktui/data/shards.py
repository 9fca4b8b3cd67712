"""The overview of all shards of a profile: the queues of each, and their totals."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from runner.db.transaction import Transaction
from runner.model.alert import Silence
from runner.model.shard import ShardId
from runner.queries.alerts.facts import NO_SLOW_FACTS, AlertFacts, SlowFacts
from runner.queries.alerts.records import read_silences
from runner.queries.alerts.thresholds import Thresholds
from runner.queries.counting import Count, WaitingCounts
from runner.queries.counts import QueueCounts, QueueTotals, queue_totals
from runner.queries.counts import waiting as read_backlog
from runner.queries.overview import Overview, deepened, read_overview
from runner.queries.runners import used_slots
from tasktui.data.alerts import Attention, attention
from tasktui.data.background import read_present
from tasktui.data.queue_order import sorted_queues
from tasktui.render.render import line
from tasktui.session.cache import DEEP_EVERY, SILENCE_EVERY, TROUBLE_EVERY, TtlCache
from tasktui.session.session import Session
from tasktui.session.shard_reads import ShardAnswer

LONGEST_ERROR = 300
"""Characters of the error of a shard."""


class ShardOverview(NamedTuple):
    """The overview of a shard.

    Args:
        facts: the other figures of its alerts; None until they are read.
        silences: the silences in force.
    """

    overview: Overview
    facts: SlowFacts | None = None
    silences: tuple[Silence, ...] = ()


class OverviewReader:
    """Reads the overview of a shard again and again."""

    def __init__(self) -> None:
        self._last: Overview | None = None
        self._backlog = TtlCache[Mapping[str, WaitingCounts]](DEEP_EVERY)
        self._facts = TtlCache[SlowFacts](TROUBLE_EVERY)
        self._dead = TtlCache[dict[str, Count]](0.0)
        self._silences = TtlCache[tuple[Silence, ...]](SILENCE_EVERY)

    async def read(self, session: Session) -> ShardOverview:
        """Read the overview; from the second time on with counts that go further, and the facts of its alerts."""
        if (last := self._last) is None:
            self._last = await session.read(read_overview)
            return ShardOverview(self._last)
        now, facts, silences = await session.read(self._read, session, last)
        self._last = now
        if not any(queue.is_capped for queue in last.queues):
            return ShardOverview(now, facts, silences)
        backlog = await self._backlog.get(None, lambda: session.read(read_backlog), session.distance)
        return ShardOverview(now._replace(queues=deepened(now.queues, backlog)), facts, silences)

    async def _read(
        self, tx: Transaction, session: Session, last: Overview
    ) -> tuple[Overview, SlowFacts, tuple[Silence, ...]]:
        thresholds, distance = Thresholds.of(session.settings), session.distance
        present, silences = await tx.gather(
            read_present(tx, last, thresholds, self._facts, self._dead, distance),
            self._silences.get(None, partial(read_silences, tx), distance),
        )
        return *present, silences


@dataclass(frozen=True)
class ShardOverviews:
    """The overviews of all shards at one moment.

    Args:
        answers: the overview of each shard by its name, or why there is none.
    """

    answers: Mapping[str, ShardAnswer[ShardOverview]]

    @cached_property
    def known(self) -> Mapping[str, Overview]:
        """The overviews of the shards that answered."""
        return {name: answer.value.overview for name, answer in self.answers.items() if answer.value is not None}

    @property
    def complete(self) -> bool:
        """True if the facts of the alerts of all shards that answered are read."""
        return all(answer.value.facts is not None for answer in self.answers.values() if answer.value is not None)

    @property
    def missing(self) -> list[str]:
        """The shards without an answer: a total is partial without them."""
        return [name for name in self.answers if name not in self.known]

    @property
    def total(self) -> QueueTotals:
        """The sum over the shards that answered."""
        return queue_totals(overview.queues for overview in self.known.values())

    @cached_property
    def queues(self) -> Mapping[str, Mapping[str, QueueCounts]]:
        """The figures of each queue by shard; those in trouble in any shard come first."""
        ranks: dict[str, float] = {}
        queues: dict[str, dict[str, QueueCounts]] = {}
        for shard, overview in self.known.items():
            for place, queue in enumerate(sorted_queues(overview)):
                ranks[queue.queue] = min(place, ranks.get(queue.queue, place))
                queues.setdefault(queue.queue, {})[shard] = queue
        return {name: queues[name] for name in sorted(queues, key=lambda name: (ranks[name], name))}

    def total_of(self, queue: str) -> QueueTotals:
        """The sum of a queue over the shards that answered; a lower bound if one of them may hide it."""
        shards = self.queues[queue]
        hidden = any(overview.hides_queues for name, overview in self.known.items() if name not in shards)
        return queue_totals([[*shards.values()]], more=hidden)

    def slots_of(self, shards: Iterable[str]) -> tuple[int, int]:
        """The running tasks in some shards, and the slots of their live runners; a process shares its slots."""
        known = {name: self.known[name] for name in shards if name in self.known}
        alive = [
            each._replace(id=ShardId(name, each.id)) for name, overview in known.items() for each in overview.alive
        ]
        return used_slots(alive)


def problems(overviews: ShardOverviews, shards: Sequence[Session]) -> Iterator[Attention]:
    """The shards without an answer, then the problems of the others, each with the name of its shard."""
    for name in overviews.missing:
        error = line(overviews.answers[name].error, LONGEST_ERROR)
        yield Attention("lost", f"{line(name)} is unknown, retrying", error)
    for shard in shards:
        if shard.name not in overviews.known or (value := overviews.answers[shard.name].value) is None:
            continue
        facts = AlertFacts(value.overview, value.facts or NO_SLOW_FACTS, shard.zone, Thresholds.of(shard.settings))
        for alert in attention(facts, value.silences):
            yield alert._replace(title=f"{line(shard.name)}: {alert.title}", name="", key="", label="")
