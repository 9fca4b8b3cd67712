"""Slices: runners divide the buckets, a change moves only its share, and no task is in two slices."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from runner.engine.claiming.scan_state import Gate
from runner.engine.runner import Engine
from runner.errors import InvalidSettings
from runner.model.task import BUCKETS, NewTask
from runner.store.submit import submit_many
from tests.engine.harness import Harness, at_work, until

QUICK_LEASE = {"lease_timeout": "3s", "heartbeat_interval": "100ms"}


def work(harness: Harness) -> list[int]:
    done: list[int] = []

    @harness.handler("work")
    async def run(number: int) -> None:
        done.append(number)

    return done


def owned(runner: Engine) -> frozenset[int]:
    assert runner.slices is not None
    return runner.slices._buckets


@asynccontextmanager
async def runners(harness: Harness, number: int, slices: str) -> AsyncIterator[list[Engine]]:
    """Runners that start together."""
    engines = [harness.runner(slice=slices, **QUICK_LEASE) for _ in range(number)]
    if number == 1:
        async with at_work(engines[0]):
            yield engines
        return
    async with at_work(engines[0]), runners(harness, number - 1, slices) as rest:
        yield [engines[0], *rest]


def divided(*engines: Engine) -> bool:
    """True if every bucket belongs to one of the runners, and each has its final share."""
    parts = [owned(engine) for engine in engines]
    final = all(part == engine.slices._shared[1] for part, engine in zip(parts, engines, strict=True) if engine.slices)
    return final and all(parts) and sum(map(len, parts)) == len(frozenset().union(*parts)) == BUCKETS


async def submit_everywhere(harness: Harness, start: int = 0) -> list[int]:
    """Submit a task to every tenth bucket."""
    tasks = [NewTask("work", f'{{"number": {start + bucket}}}', bucket=bucket) for bucket in range(0, BUCKETS, 10)]
    return list(await harness.database.write(submit_many, tasks))


@pytest.mark.slow
async def test_live_runners_divide_all_buckets_and_run_each_task_once(harness: Harness) -> None:
    done = work(harness)
    async with runners(harness, 3, "live") as engines:
        await until(lambda: divided(*engines))
        ids = await submit_everywhere(harness)
        await harness.wait_for(*ids)
        history = harness.database.tables.history
        rows = await harness.rows(history.select().where(history.c.id.in_(ids)))
        by_runner = {engine.lease.id: owned(engine) for engine in engines}
        assert all(row.bucket in by_runner[row.runner_id] for row in rows), "each by the runner of its bucket"
    assert sorted(done) == list(range(0, BUCKETS, 10))


@pytest.mark.slow
async def test_the_buckets_of_a_runner_that_leaves_move_and_no_others(harness: Harness) -> None:
    work(harness)
    leaver = harness.runner(slice="live", **QUICK_LEASE)
    async with runners(harness, 2, "live") as engines:
        async with at_work(leaver):
            await until(lambda: divided(leaver, *engines))
            before = [owned(engine) for engine in engines]
        await until(lambda: divided(*engines))
        assert all(part <= owned(engine) for part, engine in zip(before, engines, strict=True))


async def test_a_runner_that_comes_back_within_a_lease_moves_nothing(harness: Harness) -> None:
    work(harness)
    stays = harness.runner(slice="live", lease_timeout="1m", heartbeat_interval="50ms")
    first, second = (harness.runner(slice="live", lease_timeout="1m", heartbeat_interval="50ms") for _ in range(2))
    async with at_work(stays):
        async with at_work(first):
            await until(lambda: divided(stays, first))
            before = owned(stays), owned(first)
        async with at_work(second):
            await until(lambda: divided(stays, second))
            assert (owned(stays), owned(second)) == before


@pytest.mark.parametrize("slices", ["1/3", "single"])
async def test_a_standby_takes_over_when_the_runner_of_its_slice_stops(harness: Harness, slices: str) -> None:
    done = work(harness)
    first, standby = (harness.runner(slice=slices, **QUICK_LEASE) for _ in range(2))
    async with at_work(first):
        await until(lambda: bool(owned(first)))
        async with at_work(standby):
            await harness.submit("work", {"number": 1}, bucket=1)
            await until(lambda: done == [1])
            assert not owned(standby)
            first.stop()
            await until(lambda: bool(owned(standby)))
            await harness.submit("work", {"number": 2}, bucket=1)
            await until(lambda: done == [1, 2])


async def test_the_buckets_of_a_lost_runner_are_taken_over(harness: Harness) -> None:
    done = work(harness)
    lost = harness.runner(slice="single", lease_timeout="1h", heartbeat_interval="20m")
    async with at_work(lost):
        await until(lambda: bool(owned(lost)))
        async with harness.running(slice="single", **QUICK_LEASE) as standby:
            runner = harness.database.tables.runner
            past = datetime(2020, 1, 1, tzinfo=UTC)
            await harness.change(runner.update().where(runner.c.id == lost.lease.id).values(lease_until=past))
            await until(lambda: len(owned(standby)) == BUCKETS)
            lost.claims.gate = Gate.DRAINING  # as by its own clock, which this test does not move
            await harness.submit("work", {"number": 1})
            await until(lambda: done == [1])


class Halves:
    """Slices of an application: the members divide the buckets in their order."""

    def share(self, member: str, members: frozenset[str]) -> range:
        return range(sorted(members).index(member), BUCKETS, len(members))


class Greedy:
    """Slices in which each member takes all buckets."""

    def share(self, member: str, members: frozenset[str]) -> range:
        return range(BUCKETS)


async def test_runners_divide_the_buckets_by_an_own_class(harness: Harness) -> None:
    work(harness)
    async with runners(harness, 2, f"{__name__}:Halves") as engines:
        await until(lambda: divided(*engines))
        assert sorted(min(owned(engine)) for engine in engines) == [0, 1]
        assert all(len({bucket % 2 for bucket in owned(engine)}) == 1 for engine in engines)
        assert {row.slice for row in await harness.rows(harness.database.tables.runner.select())} == {
            f"{__name__}:Halves"
        }
        with pytest.raises(InvalidSettings, match=r"'live' overlaps '.*:Halves' of runner"):
            await harness.runner(slice="live").run()


async def test_no_bucket_belongs_to_two_runners_whatever_an_own_class_returns(harness: Harness) -> None:
    work(harness)
    async with runners(harness, 2, f"{__name__}:Greedy") as engines:
        await until(lambda: all(engine.slices is not None and engine.slices.is_valid for engine in engines))
        await until(lambda: sum(len(owned(engine)) for engine in engines) >= BUCKETS)
        assert sorted(len(owned(engine)) for engine in engines) == [0, BUCKETS]


async def test_a_slice_that_overlaps_another_one_is_refused(harness: Harness) -> None:
    work(harness)
    async with harness.running(slice="0/2") as runner:
        await until(lambda: bool(owned(runner)))
        with pytest.raises(InvalidSettings, match=r"'2/4' overlaps '0/2' of runner \d+ .* with the same handlers"):
            await harness.runner(slice="2/4").run()
        assert await harness.count(harness.database.tables.runner) == 1


async def test_a_runner_claims_nothing_while_it_cannot_confirm_its_slice(harness: Harness) -> None:
    work(harness)
    async with harness.running(slice="single", **QUICK_LEASE) as runner:
        await until(lambda: bool(owned(runner)))
        assert runner._may_claim()
        assert runner.slices is not None
        runner.slices._confirmed -= 3.0
        assert not runner._may_claim()
