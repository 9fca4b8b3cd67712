"""A claim under limits costs the same with any number of tenants and of waiting tasks, without fresh statistics."""

from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import NewTask
from runner.policy.lanes import Lane
from runner.queries.counting import MOST_OF_TENANT, TenantTurn, capped, due_of_tenants, first_of_tenants
from runner.store.claim.limited import LimitedClaim, LimitedLanes, claim_limited
from runner.store.submit import submit_many
from tests.store.plans import Cost, watch
from tests.store.runners import Runner
from tests.store.table import change
from tests.store.test_limits import limit

pytestmark = pytest.mark.one_database

FEW, SOME, MANY = (100, 3_000), (3_000, 30_000), (100_000, 1_000_000)
"""Tenants with one task each, and tasks of the tenant before them, which is at its limit."""

LANE = Lane("default", "work", 1)


async def fill(database: Database, tenants: int, tasks: int) -> None:
    """Add the tasks of a tenant that comes first in time and in order, and one task of each other tenant."""
    task = database.tables.task
    for number, tenant, ago in ((tasks, sa.literal("a"), -7_200), (tenants, None, -3_600)):
        n = sa.select(sa.literal_column("1").label("i")).cte("n", recursive=True)
        n = n.union_all(sa.select(n.c.i + 1).where(n.c.i < number))
        name: Any = sa.literal("b") + sa.cast(n.c.i + 10_000_000, sa.Text) if tenant is None else tenant
        rows = sa.select(sa.literal("work"), name, db_later(db_now(), ago)).select_from(n)
        await change(database, sa.insert(task).from_select(["handler", "tenant", "run_at"], rows))


async def claim(runner: Runner, number: int = 20, after: str = "") -> LimitedClaim:
    lanes = LimitedLanes([LANE], runner.start, {LANE: after})
    return await runner.database.write(claim_limited, runner.who, lanes, runner.terms, number)


async def costs(url: str, size: tuple[int, int]) -> tuple[Cost, ...]:
    """Record a claim that meets the full tenant first, one from the middle of the round, and reads of full tenants."""
    database = Database.open(url)
    looking = watch(database)
    runner = await Runner.enter(database, lease=3_600)
    await fill(database, *size)
    await limit(database, "handler", "work", per_tenant="1", concurrency="500")
    assert len((await claim(runner, 1)).claimed) == 1
    async with looking.seeing() as first:
        claimed = (await claim(runner)).claimed
    assert len(claimed) == 20
    async with looking.seeing() as middle:
        assert len((await claim(runner, after="b10000050")).claimed) == 20
    async with looking.seeing() as heads:
        names = [f"b{10_000_000 + number}" for number in range(1, 20)]
        assert len(await database.read(first_of_tenants, [TenantTurn(*LANE, name) for name in ("a", *names)])) == 1
    async with looking.seeing() as counted:
        counts = await database.read(due_of_tenants, [TenantTurn(*LANE, "a")])
    assert counts == {TenantTurn(*LANE, "a"): capped(size[1] - 1, MOST_OF_TENANT)}
    assert counted.rows <= 5 * min(size[1], MOST_OF_TENANT) + 500
    counted.rows = counted.pages = 0  # these grow up to the bound
    await change(database, sa.delete(database.tables.task))
    await database.dispose()
    return first, middle, heads, counted


async def check(url: str, few: tuple[int, int], many: tuple[int, int]) -> None:
    for before, after in zip(await costs(url, few), await costs(url, many), strict=True):
        report = f"{before}\n    -> {after}"
        assert not after.whole & {"task", "due", "beyond", "candidate"}, report
        assert "task_tenant" in after.indexes, report
        assert after.rows <= 1.5 * before.rows + 500, report
        assert after.pages <= 2 * before.pages + 200, report


async def test_a_claim_does_not_grow_with_tenants_or_with_their_tasks(new_database: None, migrated_url: str) -> None:
    await check(migrated_url, FEW, SOME)


@pytest.mark.slow
async def test_a_claim_costs_the_same_with_a_hundred_thousand_tenants(new_database: None, migrated_url: str) -> None:
    await check(migrated_url, FEW, MANY)


@pytest.mark.both_databases
async def test_a_claim_reads_no_more_tasks_of_a_tenant_than_it_takes(new_database: None, migrated_url: str) -> None:
    database = Database.open(migrated_url)
    looking = watch(database)
    runner = await Runner.enter(database, lease=3_600)
    await limit(database, "handler", "work", per_tenant="100", concurrency="5000")
    totals: list[Cost] = []
    for _ in range(2):
        tasks = [NewTask("work", tenant=f"t{number % 20}") for number in range(2_000)]
        await database.write(submit_many, tasks)
        async with looking.seeing() as claimed:
            assert len((await claim(runner, 100)).claimed) == 100
        totals.append(claimed)
    assert totals[0].rows <= 10_000, totals
    assert totals[1].rows <= 1.5 * totals[0].rows, totals
    await database.dispose()
