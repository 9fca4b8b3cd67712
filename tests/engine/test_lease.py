"""When a runner believes in its own lease, and in the loss of others."""

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.engine.lease.identity import release
from runner.engine.lease.lease import MARGIN, STEADY, Lease
from runner.store.registration import Identity, leave
from runner.store.rescue import any_lost
from tests.engine.harness import Harness, until

LEASE = 100.0
ME = Identity("here", 1, "1", ["work"], 4)


class Clock:
    """The clock of the lease, set by hand."""

    now = 1_000.0

    def elapsed(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("runner.engine.lease.lease.elapsed", clock.elapsed)
    return clock


@pytest.fixture
async def lease(database: Database, clock: Clock) -> Lease:
    lease = Lease(database, LEASE, ME)
    await lease.register()
    return lease


def declared_lost(lease: Lease) -> bool:
    return lease.declared_lost


async def renewed(lease: Lease) -> None:
    await lease.renew(0, lambda answer: None)


def test_a_lease_is_invalid_before_registration(database: Database) -> None:
    assert not Lease(database, LEASE, ME).is_valid


async def test_a_lease_is_held_for_a_little_less_than_it_lasts(lease: Lease, clock: Clock) -> None:
    clock.now += MARGIN * LEASE - 1
    assert lease.is_valid
    clock.now += 2
    assert not lease.is_valid


async def renewed_for(lease: Lease, clock: Clock, seconds: float) -> None:
    """Renew as a runner does, every fifth of its lease."""
    for _ in range(round(5 * seconds / LEASE)):
        clock.now += LEASE / 5
        await renewed(lease)


async def heard_last(lease: Lease, database: Database, ago: float) -> None:
    """Let the database believe that the last heartbeat came a while ago."""
    runner = database.tables.runner
    async with database.writing() as tx:
        past = runner.update().where(runner.c.id == lease.id)
        await tx.execute(
            past.values(heartbeat_at=db_later(db_now(), -ago), lease_until=db_later(db_now(), LEASE - ago))
        )


async def test_a_fresh_runner_asks_the_database_whether_it_may_rescue(lease: Lease, database: Database) -> None:
    assert (lease.is_valid, lease.may_rescue) == (True, True)
    other = Lease(database, LEASE, ME)
    await other.register()
    runner = database.tables.runner
    async with database.writing() as tx:
        await tx.execute(runner.update().where(runner.c.id == other.id).values(lease_until=db_later(db_now(), -1)))
    assert not await database.read(any_lost, lease.rescuer, 0.0)


async def test_a_runner_that_could_not_renew_gives_others_one_lease(lease: Lease, clock: Clock) -> None:
    clock.now += 2 * LEASE
    assert not lease.may_rescue
    await renewed(lease)
    assert (lease.is_valid, lease.may_rescue) == (True, False)
    await renewed_for(lease, clock, 0.8 * LEASE)
    assert not lease.may_rescue
    await renewed_for(lease, clock, 0.2 * LEASE)
    assert lease.may_rescue


@pytest.mark.parametrize(("silent", "judges"), [(STEADY + 0.05, False), (STEADY - 0.05, True)])
async def test_a_gap_by_the_clock_of_the_database_counts_as_an_outage(
    lease: Lease, clock: Clock, database: Database, silent: float, judges: bool
) -> None:
    await renewed_for(lease, clock, LEASE)
    await heard_last(lease, database, silent * LEASE)
    await renewed(lease)
    assert lease.may_rescue is judges


async def test_heartbeats_that_are_rare_by_setting_are_no_gap(database: Database, clock: Clock) -> None:
    lease = Lease(database, LEASE, ME, LEASE / 2)
    await lease.register()
    clock.now += LEASE / 2
    await heard_last(lease, database, 0.7 * LEASE)
    await renewed(lease)
    clock.now += LEASE / 2
    assert lease.may_rescue


async def test_ordinary_heartbeats_do_not_begin_another_wait(lease: Lease, clock: Clock) -> None:
    await renewed_for(lease, clock, LEASE)
    await renewed_for(lease, clock, LEASE / 5)
    assert lease.may_rescue


async def test_a_runner_declared_lost_learns_it_from_the_heartbeat(lease: Lease, database: Database) -> None:
    async with database.writing() as tx:
        await tx.execute(tx.tables.runner.delete())
    first = lease.id
    await renewed(lease)
    assert declared_lost(lease)
    await lease.register()
    assert not declared_lost(lease)
    assert lease.id > first


@pytest.mark.parametrize("version", [None, "4.12.0"])
async def test_a_runner_registers_with_the_version_of_the_application(harness: Harness, version: str | None) -> None:
    async with harness.running(app_version=version) as runner:
        await until(lambda: runner.claimer.idle)
        async with harness.database.reading() as tx:
            assert await tx.scalar(sa.select(tx.tables.runner.c.version)) == (version or release())


async def test_a_heartbeat_beside_the_deregistration_finds_no_lost_runner(lease: Lease) -> None:
    replies = list[object]()
    lease._is_leaving = True
    async with lease._database.writing() as tx:
        await leave(tx, lease.id)
    assert await lease.renew(0, replies.append) is None
    assert (replies, lease.declared_lost) == ([], False)
