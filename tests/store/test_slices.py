"""Claims with a selection, and slices that runners divide in the database."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from runner.db.database import Database
from runner.model.task import BUCKETS, NewTask
from runner.policy.selection import TaskSelection, mask, parse_buckets, share
from runner.store.claim.slices import is_double, join_slices, leave_slices, overlapping, slice_peers, take_buckets
from runner.store.registration import Identity, register
from runner.store.submit import submit_many
from tests.store.runners import Runner

pytestmark = pytest.mark.one_database

LEASE = 60.0
NO_PROCESS = 2**31 - 1


def identity(host: str = "here", slices: str = "live", handlers: tuple[str, ...] = ("work",)) -> Identity:
    return Identity(host, 1, "test", handlers, 10, slice=slices, buckets="")


async def enter(database: Database, who: Identity, lease: float = LEASE) -> int:
    return await database.write(register, who, lease)


async def test_a_claim_takes_the_tasks_of_its_buckets(database: Database) -> None:
    runner = await Runner.enter(database)
    tasks = [NewTask("work", "{}", bucket=bucket) for bucket in (0, 499, 500, 999)]
    tasks.append(NewTask("work", "{}", bucket=999, queue=f"@{runner.id}"))
    ids = await database.write(submit_many, tasks)
    runner.who = runner.who._replace(selection=TaskSelection(mask(parse_buckets("0-499"))))
    assert {task.id for task in await runner.claim()} == {ids[0], ids[1], ids[4]}, "with its part of a broadcast"


async def test_a_claim_from_several_lanes_takes_the_tasks_of_its_buckets(database: Database) -> None:
    tasks = [NewTask("work", "{}", bucket=bucket, queue=queue) for bucket in (1, 2) for queue in ("mail", "sms")]
    ids = await database.write(submit_many, tasks)
    runner = await Runner.enter(database)
    runner.who = runner.who._replace(selection=TaskSelection(mask(parse_buckets("2"))))
    assert {task.id for task in await runner.claim()} == set(ids[2:])


@pytest.mark.both_databases
async def test_a_claim_of_a_runner_that_renewed_too_late_takes_nothing_from_buckets_it_may_have_lost(
    database: Database,
) -> None:
    runner, who, table = await Runner.enter(database), identity(), database.tables.runner
    async with database.writing() as tx:
        await tx.execute(table.update().values(slice="live", buckets=""))
    await database.write(take_buckets, who, runner.id, range(BUCKETS))
    (peer,) = await database.read(slice_peers, who)
    runner.who = runner.who._replace(selection=TaskSelection(mask(peer.buckets), until=peer.until))
    ids = await database.write(submit_many, [NewTask("work", "{}"), NewTask("work", "{}")])
    assert [task.id for task in await runner.claim(1)] == ids[:1]
    other = await enter(database, who)
    for until in (datetime.now(UTC) - timedelta(seconds=1), datetime.now(UTC) + timedelta(seconds=LEASE)):
        async with database.writing() as tx:
            await tx.execute(table.update().where(table.c.id == runner.id).values(lease_until=until))
        await database.write(take_buckets, who, other, range(BUCKETS))
    (late, _) = await database.read(slice_peers, who)
    assert (late.id, len(late.buckets)) == (runner.id, BUCKETS), "its row still has what it lost"
    passed = (datetime.now(UTC) - timedelta(seconds=1)).timestamp()
    runner.who = runner.who._replace(selection=TaskSelection(mask(late.buckets), until=passed))
    assert await runner.claim(1) == []


async def test_a_claim_leaves_tasks_with_more_failures(database: Database) -> None:
    ids = await database.write(submit_many, [NewTask("work", "{}"), NewTask("work", "{}")])
    task = database.tables.task
    async with database.writing() as tx:
        await tx.execute(task.update().where(task.c.id == ids[0]).values(attempt=2))
    runner = await Runner.enter(database)
    runner.who = runner.who._replace(selection=TaskSelection(failures=1))
    assert [task.id for task in await runner.claim()] == ids[1:]
    runner.who = runner.who._replace(selection=TaskSelection(failures=2))
    assert [task.id for task in await runner.claim()] == ids[:1]


async def test_runners_that_join_together_have_names_of_their_own(database: Database) -> None:
    who = identity()
    runners = [await enter(database, who) for _ in range(4)]
    names = await asyncio.gather(*(database.write(join_slices, who, runner) for runner in runners))
    assert sorted(names) == ["here#0", "here#1", "here#2", "here#3"]


async def test_a_runner_that_follows_a_killed_one_gets_its_name_before_the_lease_ends(database: Database) -> None:
    who, killed = identity(), identity()._replace(pid=NO_PROCESS)
    first = await enter(database, killed)
    name = await database.write(join_slices, killed, first)
    follower, beside = await enter(database, who), await enter(database, who)
    assert await database.write(join_slices, who, follower) == name
    assert await database.write(join_slices, who, beside) != name
    assert not is_double(await database.read(slice_peers, who), follower)
    runner = database.tables.runner
    async with database.writing() as tx:  # it was a process of another container
        await tx.execute(runner.update().where(runner.c.id == first).values(heartbeat_at=datetime.now(UTC)))
    assert is_double(await database.read(slice_peers, who), follower)
    assert await database.write(join_slices, who, follower) != name


async def test_no_bucket_is_taken_twice_however_many_runners_want_all(database: Database) -> None:
    who = identity()
    runners = [await enter(database, who) for _ in range(4)]
    shares = await asyncio.gather(*(database.write(take_buckets, who, runner, range(BUCKETS)) for runner in runners))
    assert sorted(map(len, shares)) == [0, 0, 0, BUCKETS]
    peers = await database.read(slice_peers, who)
    assert sorted(len(peer.buckets) for peer in peers) == [0, 0, 0, BUCKETS]


async def test_only_what_others_have_freed_is_taken(database: Database) -> None:
    who, members = identity(), ["a", "b"]
    one, two = await enter(database, who), await enter(database, who)
    await database.write(take_buckets, who, one, range(BUCKETS))
    assert not await database.write(take_buckets, who, two, share("b", members))
    await database.write(take_buckets, who, one, share("a", members))
    assert await database.write(take_buckets, who, two, range(BUCKETS)) == share("b", members)


async def test_a_runner_that_drains_or_whose_lease_has_expired_has_no_bucket(database: Database) -> None:
    who = identity()
    for leaves in (True, False):
        former, other = await enter(database, who, LEASE if leaves else 0.001), await enter(database, who)
        await database.write(take_buckets, who, former, range(BUCKETS))
        if leaves:
            await database.write(leave_slices, former)
        assert len(await database.write(take_buckets, who, other, range(BUCKETS))) == BUCKETS
        await database.write(leave_slices, other)


@pytest.mark.both_databases
async def test_a_runner_whose_lease_has_expired_takes_no_bucket(database: Database) -> None:
    who, runner = identity(), database.tables.runner
    late, other = await enter(database, who), await enter(database, who)
    async with database.writing() as tx:
        expired = runner.update().where(runner.c.id == late)
        await tx.execute(expired.values(lease_until=datetime.now(UTC) - timedelta(seconds=1)))
    assert await database.write(take_buckets, who, late, range(BUCKETS)) == frozenset()
    assert len(await database.write(take_buckets, who, other, range(BUCKETS))) == BUCKETS
    async with database.writing() as tx:
        renewed = runner.update().where(runner.c.id == late)
        await tx.execute(renewed.values(lease_until=datetime.now(UTC) + timedelta(seconds=LEASE)))
    assert {peer.id: len(peer.buckets) for peer in await database.read(slice_peers, who)} == {late: 0, other: BUCKETS}


async def test_other_handlers_are_another_group(database: Database) -> None:
    who, other = identity(), identity(handlers=("work", "other"))
    one, two = await enter(database, who), await enter(database, other)
    await database.write(take_buckets, who, one, range(BUCKETS))
    assert len(await database.write(take_buckets, other, two, range(BUCKETS))) == BUCKETS
    assert [peer.id for peer in await database.read(slice_peers, who)] == [one]


async def test_slices_that_overlap_in_part_are_found(database: Database) -> None:
    who = identity(slices="0/2")
    one = await enter(database, who)
    await database.write(take_buckets, who, one, range(0, BUCKETS, 2))
    peers = await database.read(slice_peers, who)
    assert overlapping(peers, "0/2", range(0, BUCKETS, 2)) is None, "a standby"
    assert overlapping(peers, "1/2", range(1, BUCKETS, 2)) is None
    for slices, buckets in (("2/4", range(2, BUCKETS, 4)), ("live", None)):
        other = overlapping(peers, slices, buckets)
        assert other is not None, slices
        assert other.id == one
