"""The SQL of hot statements is the SQL that was reviewed: `SQL=write pytest ...` rewrites the files in `sql/`."""

import os
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.sql_text import Recording
from runner.db.statement import StatementFrame
from runner.db.types import EARLIEST
from runner.filter.sort import parse_sort
from runner.model.outcome import Dead, Retry, Snooze
from runner.model.step import StepWrite
from runner.model.task import NewTask
from runner.policy.lanes import Lane
from runner.policy.positions import TenantPositions, Visit
from runner.policy.selection import TaskSelection
from runner.policy.suspicion import Ask
from runner.queries.task_list.by_lane import walk_lanes
from runner.queries.why.ahead import ahead, suspects_ahead
from runner.store.claim.limited import LimitedLanes, claim_limited
from runner.store.claim.next_due import claim_with_next_due
from runner.store.claim.plain import claim, claim_suspect, first_due
from runner.store.claim.running_count import LastCount
from runner.store.claim.survey import pending, survey
from runner.store.claim.tenants import visit
from runner.store.complete import complete_steps
from runner.store.dependencies.followers import release_followers
from runner.store.dependencies.resolve import (
    FinishedParent,
    any_open,
    close_moot,
    find_strays,
    open_dependencies,
    resolve,
)
from runner.store.heartbeat import heartbeat
from runner.store.history import FinishedTask
from runner.store.locked import locked
from runner.store.notes import last_checkpoints
from runner.store.rescue import any_lost, rescue
from runner.store.settle import settle
from runner.store.signals import any_new, notice, receive
from runner.store.steps import StepOwner, load_steps, save_step
from runner.store.submit import single_insert, submit, submit_many
from tests.store.dependencies import put_after
from tests.store.rows import filtered
from tests.store.runners import GRACE, LEASE, Runner, settle_done, settlement
from tests.store.sql_text import compiled, sql_text
from tests.store.table import edit, expire, put
from tests.store.test_limits import count_running, settled

FOLDER = Path(__file__).parent / "sql"

Verb = Callable[..., Awaitable[Any]]


class Statements:
    """The SQL of the store's verbs, by the name of its file."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.sql: dict[str, list[str]] = {}

    async def of(self, name: str, verb: Verb, *args: Any) -> Any:
        """Call a verb in its own transaction, and keep its SQL under a name."""
        async with self.database.writing() as tx:
            recording = Recording(tx)
            await recording.keep_to_indexes()  # as the connections of a runner do
            recording.executed.clear()
            answer = await verb(recording, *args)
            self.sql[name] = [compiled(executed, tx.dialect.name) for executed in recording.executed]
        return answer


async def record(database: Database) -> dict[str, list[str]]:
    """Record the hot statements."""
    statements = Statements(database)
    runner = await Runner.enter(database)
    await _claim(statements, runner)
    await _settle(statements, runner)
    await _rescue(statements, runner)
    await _resolve(statements, runner)
    await statements.of("heartbeat", heartbeat, runner.id, LEASE, 1, LEASE)
    await statements.of("pending", pending, runner.id, runner.who.host, ["work"])
    await statements.of("submit_one", submit, NewTask("work", payload="{}"))
    frame = StatementFrame(database.tables, database.dialect, database.dialect.by_position)
    alone = single_insert(frame, NewTask("work"), notify=True)
    assert alone is not None
    statements.sql["submit_alone"] = [alone.sql]
    tasks = [NewTask("work", payload="{}", queue="mail"), NewTask("work", delay=60, priority=9)]
    await statements.of("submit_many", submit_many, tasks)
    return statements.sql


async def _claim(statements: Statements, runner: Runner) -> None:
    database = statements.database
    task_id = await put(database)
    await put(database, queue="mail")
    suspect = await put(database, queue="mail")
    await edit(database, suspect, rescues=2)
    await statements.of("survey", survey)
    lanes = dict(await runner.survey())
    lane, *_ = lanes
    run_at = database.dialect.instant(EARLIEST)
    await statements.of("position", ahead, task_id, run_at, lane.priority, [Lane("mail", "work", 9), *lanes], 10)
    await statements.of("position_when_due", ahead, task_id, None, lane.priority, [*lanes], 10)
    await statements.of("position_of_suspect", suspects_ahead, suspect, 10)
    await statements.of("list_by_lane", walk_lanes, filtered("state:waiting"), parse_sort("priority"), 10, None, 100)
    await statements.of("claim_lane", claim, runner.who, {lane: runner.start}, runner.terms, 1)
    await statements.of("claim_lanes", claim, runner.who, lanes, runner.terms, 1)
    if database.dialect.writing_ctes:
        await statements.of(
            "claim_with_next_due", claim_with_next_due, runner.who, {lane: runner.start}, runner.terms, 1
        )
    apart = runner.who._replace(selection=TaskSelection(without="1,2"))
    await statements.of("claim_lane_without", claim, apart, {lane: runner.start}, runner.terms, 1)
    await statements.of("claim_lanes_without", claim, apart, lanes, runner.terms, 1)
    part = runner.who._replace(selection=TaskSelection(only="3,4"))
    await statements.of("claim_part", claim, part, lanes, runner.terms, 1)
    await statements.of("first_due", first_due, apart, lanes, 1)
    await statements.of("locked", locked, [task_id])
    await statements.of("claim_suspects", claim_suspect, runner.who, lanes, runner.terms, Ask(1, 1))
    for name, limited in (("claim_limited_lane", [lane]), ("claim_limited_lanes", [*lanes])):
        await statements.of(name, claim_limited, runner.who, LimitedLanes(limited, runner.start), runner.terms, 1)
    of_mail = Lane("mail", "work", 1)
    await statements.of("count_by_age", count_running, of_mail, {})
    now = time.monotonic()
    last = settled({("queue", "mail"): LastCount(time.time(), now, now, frozenset((1,)))})
    await statements.of("count_from_the_last", count_running, of_mail, last)
    positions = TenantPositions(runner.start)
    positions.meet([Visit("acme", True, runner.start)], 0.0)
    await statements.of("visit_tenants", visit, of_mail, "", 9)
    await statements.of("visit_known_tenants", visit, of_mail, "", 9, None, positions)


async def _settle(statements: Statements, runner: Runner) -> None:
    for _ in range(6):
        await put(statements.database)
    done, concluded, retried, snoozed, died = await runner.claim(5)
    await statements.of("settle_success", settle_done, runner.id, [settlement(done)])
    ending = FinishedTask(concluded.id, concluded.fence)
    assert await statements.of("settle_own_transaction", lambda tx: tx.follow(complete_steps(tx, runner.id, ending)))
    outcomes = [
        settlement(retried, Retry("1h")),
        settlement(snoozed, Snooze("1h", "later")),
        settlement(died, Dead("broken")),
    ]
    await statements.of("settle_outcomes", settle, runner.id, outcomes)
    waits = (await runner.claim(1))[0]
    owner = StepOwner(waits.id, waits.fence, 1, runner.id)
    await statements.of("save_step", save_step, owner, StepWrite("charge", "function", 1, done=True, result="7"))
    await statements.of("load_steps", load_steps, waits.id)
    await statements.of(
        "receive_nothing", partial(receive, timed_out=False), owner, StepWrite("go", "wait", 2, signal="go")
    )
    await statements.of("any_new_signal", any_new)
    async with statements.database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.signal), {"task_id": waits.id, "name": "go"})
    await statements.of("notice_signals", notice, [waits.id])
    await statements.of("last_checkpoints", last_checkpoints, [retried.id, snoozed.id])


async def _rescue(statements: Statements, runner: Runner) -> None:
    lost = await Runner.enter(statements.database)
    await put(statements.database)
    assert len(await lost.claim(1)) == 1
    await expire(statements.database, lost.id)
    assert await statements.of("any_lost", any_lost, runner.rescuer, GRACE)
    assert await statements.of("rescue", rescue, runner.rescuer, GRACE)


async def _resolve(statements: Statements, runner: Runner) -> None:
    database = statements.database
    parent = await put(database, priority=9)
    await put_after(database, parent)
    await put_after(database, parent, on_failure="cancel")
    freed = await put_after(database, parent)
    await edit(database, freed, state="waiting", blocked_by=0)
    (task,) = await runner.claim(1)
    assert task.id == parent
    await runner.end(task, Dead("broken"))
    assert await statements.of("any_open_dependency", any_open)
    await statements.of("dependents", open_dependencies, [FinishedParent(task.id, task.handler, task.key)])
    await statements.of("release_followers", release_followers, [task.id])
    stray = await statements.of("sweep", find_strays)
    await statements.of("sweep_moot", close_moot, stray.moot)
    resolved = await statements.of("resolve_dependencies", resolve, stray.dependencies)
    assert resolved.cancelled


@pytest.fixture
def folder(database: Database) -> Path:
    return FOLDER / database.dialect.name


async def test_the_sql_of_hot_statements_is_as_reviewed(new_database: None, database: Database, folder: Path) -> None:
    sql = await record(database)
    texts = {name: "".join(f"{sql_text(part)};\n" for part in parts) for name, parts in sql.items()}
    if os.environ.get("SQL") == "write":
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("*.sql"):
            file.unlink()
        for name, text in texts.items():
            (folder / f"{name}.sql").write_text(text, encoding="utf-8")
    reviewed = {file.stem: file.read_text(encoding="utf-8") for file in folder.glob("*.sql")}
    assert texts == reviewed


@pytest.mark.slow
async def test_the_text_for_reviewers_differs_from_the_sql_in_whitespace_only(database: Database) -> None:
    for parts in (await record(database)).values():
        for sql in parts:
            assert _without_space(sql_text(sql)) == _without_space(sql)


def _without_space(text: str) -> str:
    return re.sub(r"\s", "", text)
