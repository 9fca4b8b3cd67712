"""When a runner believes in its own lease, and in the loss of others."""

import pytest

from runner.engine.lease import MARGIN, Lease
from runner.store.database import Database
from runner.store.runners import Identity

LEASE = 100.0
ME = Identity("here", 1, "1", ["work"], 4)


class Clock:
    """The monotonic clock, set by hand."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("runner.engine.lease.time", clock)
    return clock


@pytest.fixture
async def lease(database: Database, clock: Clock) -> Lease:
    lease = Lease(database, LEASE, ME)
    await lease.take()
    return lease


def struck_out(lease: Lease) -> bool:
    return lease.struck_out


async def renewed(lease: Lease) -> None:
    await lease.renew(0, lambda answer: None)


def test_nobody_holds_a_lease_before_taking_it(database: Database) -> None:
    assert not Lease(database, LEASE, ME).held


async def test_a_lease_is_held_for_a_little_less_than_it_lasts(lease: Lease, clock: Clock) -> None:
    clock.now += MARGIN * LEASE - 1
    assert lease.held
    clock.now += 2
    assert not lease.held


async def test_a_fresh_runner_may_rescue_at_once(lease: Lease) -> None:
    assert lease.may_rescue


async def test_who_could_not_beat_leaves_the_others_time_to_beat_first(lease: Lease, clock: Clock) -> None:
    clock.now += 2 * LEASE
    assert not lease.may_rescue
    await renewed(lease)
    assert (lease.held, lease.may_rescue) == (True, False)
    clock.now += LEASE / 2
    assert lease.may_rescue


async def test_ordinary_beats_take_no_right_away(lease: Lease, clock: Clock) -> None:
    clock.now += LEASE / 5
    await renewed(lease)
    assert lease.may_rescue


async def test_a_runner_that_was_struck_out_hears_of_it(lease: Lease, database: Database) -> None:
    async with database.writing() as tx:
        await tx.execute(tx.tables.runner.delete())
    first = lease.id
    await renewed(lease)
    assert struck_out(lease)
    await lease.take()
    assert not struck_out(lease)
    assert lease.id > first
