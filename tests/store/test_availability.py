"""Who may rescue: after an outage living runners keep their tasks; a fleet that crashes in a loop rescues in time.

The times of the runners' rows move into the past in place of a clock that moves forward.
"""

import random
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.store.heartbeat import heartbeat
from runner.store.registration import Identity, leave, register
from runner.store.rescue import Rescuer, any_lost, rescue
from tests.store.runners import Runner
from tests.store.table import change, put

LEASE, GRACE = 1_000.0, 6_000.0
"""Seconds, long enough that a slow machine changes no result."""
BEAT, GAP = LEASE / 5, 0.6 * LEASE
ME = Identity("here", 1, "test", ["work"], 10)
TIMES = ("heartbeat_at", "lease_until", "available_since", "available_until", "started_at")


class Fleet:
    """Runners of one database, and its clock."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.beats: dict[int, float] = {}
        """The living runners, with the time of their next heartbeat."""
        self.now = 0.0

    async def enter(self) -> int:
        id = await self.database.write(register, ME, LEASE, GAP)
        self.beats[id] = self.now + BEAT
        return id

    async def advance(self, seconds: float, *, available: bool = True) -> None:
        """Let time pass; living runners renew whenever the database is available."""
        end = self.now + seconds
        while self.now < end:
            step = min(end, *self.beats.values(), end) - self.now if available else end - self.now
            await self._pass(max(step, 0.0))
            for id, due in [*self.beats.items()] if available else []:
                if due <= self.now + 1e-6:
                    await self.beat(id)

    async def _pass(self, seconds: float) -> None:
        runner = self.database.tables.runner
        values: dict[str, Any] = {name: db_later(runner.c[name], -seconds) for name in TIMES}
        await change(self.database, sa.update(runner).values(values))
        self.now += seconds

    async def beat(self, id: int) -> bool:
        self.beats[id] = self.now + BEAT
        return (await self.database.write(heartbeat, id, LEASE, 0, GAP)).alive

    def resume(self, rng: random.Random) -> None:
        """End an outage: each living runner finds out within one interval."""
        self.beats = {id: self.now + rng.uniform(0, BEAT) for id in self.beats}

    def crash(self, id: int) -> None:
        del self.beats[id]

    async def leave(self, id: int) -> None:
        del self.beats[id]
        await self.database.write(leave, id, GAP)

    async def rescue(self, id: int) -> set[int]:
        """Let a runner rescue what it may; return the lost runners."""
        before = await self.registered()
        rescuer = Rescuer(id, LEASE)
        if await self.database.read(any_lost, rescuer, GRACE):
            await self.database.write(rescue, rescuer, GRACE)
        return before - await self.registered()

    async def registered(self) -> set[int]:
        async with self.database.reading() as tx:
            return {row.id for row in await tx.rows(sa.select(tx.tables.runner.c.id))}


@pytest.fixture
def fleet(database: Database) -> Fleet:
    return Fleet(database)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("life", [0.1, 0.3, 0.55])
@pytest.mark.parametrize("end", ["crash", "leave"])
async def test_short_lives_together_rescue_within_the_lease_and_one_life(fleet: Fleet, life: float, end: str) -> None:
    lost = await fleet.enter()
    await fleet.advance(BEAT)
    fleet.crash(lost)
    crashed = fleet.now
    runner = await fleet.enter()
    while lost not in await fleet.rescue(runner):
        await fleet.advance(life * LEASE)
        if end == "crash":
            fleet.crash(runner)
        else:
            await fleet.leave(runner)
        runner = await fleet.enter()
        assert fleet.now - crashed <= LEASE + life * LEASE
    assert fleet.now - crashed >= LEASE - BEAT


async def test_the_task_of_the_lost_runner_runs_again(database: Database, fleet: Fleet) -> None:
    runner = await Runner.enter(database, lease=LEASE)
    task = await put(database)
    await runner.claim()
    for _ in range(4):
        newcomer = await fleet.enter()
        await fleet.advance(0.3 * LEASE)
        fleet.crash(newcomer)
    newcomer = await fleet.enter()
    assert set(await database.write(rescue, Rescuer(newcomer, LEASE), GRACE)) == {task}


@pytest.mark.parametrize("outage", [1.1, 3.0])
async def test_a_newcomer_after_an_outage_gives_living_runners_one_lease(fleet: Fleet, outage: float) -> None:
    living = [await fleet.enter() for _ in range(3)]
    await fleet.advance(3 * LEASE)
    await fleet.advance(outage * LEASE, available=False)
    newcomer = await fleet.enter()
    assert await fleet.rescue(newcomer) == set()
    assert await fleet.beat(living[0])
    assert await fleet.rescue(living[0]) == set(), "its proof of availability has begun anew"
    fleet.crash(living[0])
    await fleet.advance(BEAT)
    newcomer = await fleet.enter()
    assert await fleet.rescue(newcomer) == set()
    fleet.crash(living[1])
    crashed = fleet.now
    while living[1] in await fleet.registered():
        await fleet.advance(0.1 * LEASE)
        await fleet.rescue(newcomer)
        assert fleet.now - crashed <= 1.1 * LEASE
    assert living[2] in await fleet.registered()


async def test_a_clock_that_steps_forward_proves_nothing(fleet: Fleet) -> None:
    living = [await fleet.enter() for _ in range(2)]
    await fleet.advance(2 * LEASE)
    await fleet._pass(3_600)
    assert await fleet.rescue(living[0]) == set()
    assert await fleet.beat(living[0])
    assert await fleet.rescue(living[0]) == set()
    assert await fleet.rescue(await fleet.enter()) == set()


async def test_a_clock_that_steps_back_delays_rescues_by_one_lease(database: Database, fleet: Fleet) -> None:
    lost, rescuer = await fleet.enter(), await fleet.enter()
    await fleet.advance(LEASE)
    await fleet._pass(-3_600)
    fleet.resume(random.Random(1))
    fleet.crash(lost)
    await fleet.advance(BEAT)
    runner = database.tables.runner
    await change(database, sa.update(runner).where(runner.c.id == lost).values(lease_until=db_later(db_now(), -1)))
    assert await fleet.rescue(rescuer) == set()
    await fleet.advance(LEASE)
    assert await fleet.rescue(rescuer) == {lost}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
async def test_no_living_runner_is_ever_lost(fleet: Fleet, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2):
        await fleet.enter()
    rescues = 0
    steps = ["pass"] * 25 + ["enter"] * 14 + ["crash"] * 9 + ["leave"] * 4 + ["outage"] * 8
    rng.shuffle(steps)
    for step in steps:
        match step:
            case "pass":
                await fleet.advance(rng.uniform(0, LEASE))
            case "enter":
                await fleet.enter()
            case "crash" if fleet.beats:
                fleet.crash(rng.choice([*fleet.beats]))
            case "leave" if fleet.beats:
                await fleet.leave(rng.choice([*fleet.beats]))
            case "outage":
                # A shorter outage than the gap expires no lease of a runner that renews in time.
                seconds = rng.choice((rng.uniform(0, GAP - BEAT), rng.uniform(LEASE, 4 * LEASE)))
                await fleet.advance(seconds, available=False)
                fleet.resume(rng)
        for id in rng.sample([*fleet.beats], min(2, len(fleet.beats))):
            lost = await fleet.rescue(id)
            rescues += len(lost)
            assert not lost & fleet.beats.keys()
    assert rescues
