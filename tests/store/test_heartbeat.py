import json

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import seconds_until
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.store.heartbeat import HeartbeatReply, heartbeat, running_tasks
from runner.store.registration import Identity, leave, register
from tests.store.runners import Runner
from tests.store.table import Row, change, count, edit, expire, put_many

IDENTITY = Identity("here", 4711, "1.2.3", ("b", "a"), 50)


async def entry(database: Database, runner_id: int) -> Row:
    table = database.tables.runner
    async with database.reading() as tx:
        (row,) = await tx.rows(sa.select(table).where(table.c.id == runner_id))
    return dict(row._mapping)


async def lease_left(database: Database, runner_id: int) -> float:
    table = database.tables.runner
    async with database.reading() as tx:
        return float(await tx.scalar(sa.select(seconds_until(table.c.lease_until)).where(table.c.id == runner_id)))


async def test_a_runner_registers_its_identity(database: Database) -> None:
    row = await entry(database, await database.write(register, IDENTITY, 30))
    assert [row[name] for name in ("host", "pid", "version", "capacity", "running", "command")] == [
        *("here", 4711, "1.2.3", 50, 0, None)
    ]
    assert json.loads(row["handlers"]) == ["a", "b"]
    assert (row["lease_until"] - row["heartbeat_at"]).total_seconds() == 30


async def test_an_incarnations_number_is_never_used_again(database: Database) -> None:
    first = await database.write(register, IDENTITY, 30)
    await database.write(leave, first)
    assert await database.write(register, IDENTITY, 30) > first


async def test_a_heartbeat_renews_the_lease(database: Database, runner: Runner) -> None:
    reply = await database.write(heartbeat, runner.id, 500, 7, 500)
    assert reply == HeartbeatReply(True, None, frozenset())
    assert 490 < await lease_left(database, runner.id) <= 500
    assert (await entry(database, runner.id))["running"] == 7


async def test_a_heartbeat_renews_an_expired_lease_that_no_rescue_used(database: Database, runner: Runner) -> None:
    await expire(database, runner.id)
    assert (await database.write(heartbeat, runner.id, 60, 0, 60)).alive
    assert await runner.rescue() == {}


async def test_a_removed_runner_learns_it_with_its_heartbeat(database: Database, runner: Runner) -> None:
    await expire(database, runner.id)
    await (await Runner.enter(database)).rescue()
    assert await database.write(heartbeat, runner.id, 60, 0, 60) == HeartbeatReply(False, None, frozenset())
    assert await count(database, database.tables.runner) == 1


async def test_a_heartbeat_returns_runner_commands(database: Database, runner: Runner) -> None:
    await change(database, sa.update(database.tables.runner).values(command="drain"))
    assert (await database.write(heartbeat, runner.id, 60, 0, 60)).command == "drain"


async def test_a_heartbeat_returns_the_runners_own_terminated_tasks(
    database: Database, runner: Runner, other: Runner
) -> None:
    ours, spared, theirs = await put_many(database, 3)
    assert [task.id for task in await runner.claim(2)] == [ours, spared]
    assert [task.id for task in await other.claim(1)] == [theirs]
    for task_id in (ours, theirs):
        await edit(database, task_id, cancel_requested=True)
    reply = await database.write(heartbeat, runner.id, 60, 2, 60, tasks=[ours, spared, theirs])
    assert reply.cancelled == {ours}
    assert await database.read(running_tasks, runner.id) == {(ours, 1), (spared, 1)}


async def test_leaving_affects_no_other_runner(database: Database, runner: Runner, other: Runner) -> None:
    await database.write(leave, runner.id)
    await database.write(leave, runner.id)
    assert (await database.write(heartbeat, other.id, 60, 0, 60)).alive


async def test_a_runner_registers_its_handlers_and_keeps_their_pauses(database: Database) -> None:
    await database.write(pause, PauseTarget(PauseKind.HANDLER, "mail"), Actor("ana", "desk", "relay is down"))
    await database.write(register, Identity("web-1", 1, "0", ["mail", "bills"], 1), 60.0)
    async with database.reading() as tx:
        handlers = await tx.rows(sa.select(tx.tables.handler.c.name, tx.tables.handler.c.paused_by))
    assert sorted(tuple(row) for row in handlers) == [("bills", None), ("mail", "ana")]
