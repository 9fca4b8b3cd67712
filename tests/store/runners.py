"""A runner without an engine: its calls to the store, one verb at a time."""

from collections.abc import Mapping, Sequence
from typing import Self

from runner.db.database import Database
from runner.db.needs import Needs, needs
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST
from runner.model.outcome import Done, Outcome
from runner.model.task import Claimed
from runner.policy.lanes import Lane, Lanes, lane_of
from runner.policy.positions import LanePosition
from runner.policy.suspicion import Ask
from runner.store.claim.plain import Claimant, HandlerDefaults, claim, claim_suspect
from runner.store.claim.survey import MANY, SurveyScope, survey
from runner.store.registration import Identity, register
from runner.store.rescue import Rescuer, rescue
from runner.store.retention import SubmitWatch
from runner.store.settle import Settled, Settlement, SettleShape, settle
from runner.text.hosts import admits

TERMS = HandlerDefaults(3, None)
GRACE = 60.0
LEASE = 60.0


class Runner:
    """A registered runner and its lanes."""

    def __init__(self, database: Database, who: Claimant, terms: Mapping[str, HandlerDefaults]) -> None:
        self.database = database
        self.who = who
        self.terms = terms
        self.start = LanePosition(database.dialect.position(EARLIEST), 0)
        self.lanes = Lanes(lambda lane: lane.handler in terms and admits(lane.hosts, who.host), self.start)

    @classmethod
    async def enter(
        cls,
        database: Database,
        *handlers: str,
        lease: float = LEASE,
        host: str = "here",
        terms: HandlerDefaults = TERMS,
    ) -> Self:
        names = handlers or ("work",)
        runner_id = await database.write(register, Identity(host, 1, "test", names, 10), lease)
        return cls(database, Claimant(runner_id, host), dict.fromkeys(names, terms))

    @property
    def id(self) -> int:
        return self.who.runner_id

    async def survey(self) -> Mapping[Lane, LanePosition]:
        """Survey the lanes again, and return the due ones."""
        scope = SurveyScope(list(self.terms), (), MANY, host=self.who.host)
        self.lanes.survey(await self.database.read(survey, scope))
        return self.lanes.positions

    async def claim(self, limit: int = 100) -> list[Claimed]:
        """Claim due tasks from the start of every lane, after a new survey."""
        await self.survey()
        return await self.claim_on(limit)

    async def prefetch(self, limit: int = 100) -> list[Claimed]:
        """Claim as `claim` does, beyond the free slots."""
        await self.survey()
        return await self.claim_on(limit, starts=False)

    async def claim_on(self, limit: int = 100, starts: bool = True) -> list[Claimed]:
        """Claim from the end of the last claim."""
        lanes = dict(self.lanes.positions)
        claimed = await self.database.write(claim, self.who, lanes, self.terms, limit, starts)
        if len(claimed) < limit:
            self.lanes.remove(lanes)
        self.lanes.advance({lane_of(task): LanePosition(task.run_at, task.id) for task in claimed}, 0.0)
        return claimed

    async def claim_suspect(self, limit: int = 1, width: int = 1, among: int = 1) -> list[Claimed]:
        await self.survey()
        ask = Ask(limit, width, among)
        return await self.database.write(claim_suspect, self.who, self.lanes.heads, self.terms, ask)

    async def settle(self, *settlements: Settlement) -> Settled:
        return await self.database.write(settle, self.id, settlements)

    async def end(self, task: Claimed, outcome: Outcome | None = None) -> Settled:
        return await self.settle(settlement(task, outcome))

    @property
    def rescuer(self) -> Rescuer:
        """This runner as one that may rescue as soon as it is registered."""
        return Rescuer(self.id, 0.0)

    async def rescue(self, available_for: float = 0.0) -> dict[int, str]:
        rescued = await self.database.write(rescue, Rescuer(self.id, available_for), GRACE)
        return {task_id: task.verb for task_id, task in rescued.items()}


@needs(Needs.PREPARED)
async def settle_done(
    tx: Transaction, holder: int, batch: Sequence[Settlement], watch: SubmitWatch | None = None
) -> set[int]:
    """Settle successes, and return the ids of the accepted ones."""
    settled = await settle(tx, holder, batch, SettleShape.SUCCESSES, watch)
    assert settled == Settled(dict.fromkeys(settled.verbs, "succeed"), saw_none=settled.saw_none)
    return {*settled.verbs}


def settlement(task: Claimed, outcome: Outcome | None = None, retry: str = "30s") -> Settlement:
    """The end of an attempt of a tenth of a second; successful by default."""
    return Settlement(task.id, task.fence, outcome or Done(), 0.1, retry, address=task.address)
