"""A runner without an engine: what a process does with the store, one verb at a time."""

from collections.abc import Mapping
from typing import Self

from runner.columns import EARLIEST
from runner.outcome import Done, Outcome
from runner.policy.selection import Lane, Lanes, Place
from runner.store.claim import Claimant, Terms, claim, claim_suspect
from runner.store.database import Database
from runner.store.rescue import rescue
from runner.store.runners import Identity, register
from runner.store.settle import Settled, Settlement, settle
from runner.store.survey import survey
from runner.task import Claimed

TERMS = Terms(3, None)
GRACE = 5.0
LEASE = 60.0


class Runner:
    """A registered runner and the lanes that it knows."""

    def __init__(self, database: Database, who: Claimant, terms: Mapping[str, Terms]) -> None:
        self.database = database
        self.who = who
        self.terms = terms
        self.start = Place(database.dialect.instant(EARLIEST), 0)
        self.lanes = Lanes(lambda lane: lane.handler in terms, self.start)

    @classmethod
    async def enter(
        cls, database: Database, *handlers: str, lease: float = LEASE, host: str = "here", terms: Terms = TERMS
    ) -> Self:
        names = handlers or ("work",)
        runner_id = await database.write(register, Identity(host, 1, "test", names, 10), lease)
        return cls(database, Claimant(runner_id, host), dict.fromkeys(names, terms))

    @property
    def id(self) -> int:
        return self.who.runner_id

    async def survey(self) -> Mapping[Lane, Place]:
        """Look at the lanes anew, and return those that are due."""
        self.lanes.survey(await self.database.state(survey))
        return self.lanes.places

    async def claim(self, limit: int = 100) -> list[Claimed]:
        """Claim with fresh eyes: what is due now, from the start of every lane."""
        await self.survey()
        return await self.claim_on(limit)

    async def claim_on(self, limit: int = 100) -> list[Claimed]:
        """Claim from where the last claim ended."""
        lanes = dict(self.lanes.places)
        claimed = await self.database.state(claim, self.who, lanes, self.terms, limit)
        self.lanes.advance(lanes, claimed, limit)
        return claimed

    async def claim_suspect(self) -> list[Claimed]:
        await self.survey()
        return await self.database.state(claim_suspect, self.who, self.lanes.known, self.terms)

    async def settle(self, *settlements: Settlement) -> Settled:
        return await self.database.write(settle, self.id, settlements)

    async def end(self, task: Claimed, outcome: Outcome | None = None) -> Settled:
        return await self.settle(ended(task, outcome))

    async def rescue(self) -> dict[int, str]:
        return {task_id: task.verb for task_id, task in (await self.database.write(rescue, GRACE)).items()}


def ended(task: Claimed, outcome: Outcome | None = None, retry: str = "30s") -> Settlement:
    """How an attempt of a tenth of a second ended: well, if nothing else is said."""
    return Settlement(task.id, task.fence, outcome or Done(), 0.1, retry)
