"""A workflow of 1,000 tasks with random failures: console and command line show the figures of SQL."""

import asyncio
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.outcome import Dead, Done, Failure, Outcome, Retry
from runner.model.task import FINAL, BatchMember, DependsOn, NewTask, NewWorkflow, State
from runner.store.heartbeat import heartbeat
from runner.store.submit import submit_with_result
from tests.store.dependencies import resolve_parents
from tests.store.runners import Runner
from tests.tasktui.conftest import WIDE, Operator, Watch

TASKS = 1_000
CLAIMED = 40
HOUR = 3_600.0
EVERY = 8
"""Claims between two comparisons."""

PROGRAM = Path(sys.executable).with_name("runner")
NAME = "nightly [large]"


async def put(database: Database, chance: random.Random) -> int:
    """Submit the workflow; each task has up to two of the 60 tasks before it as parents."""
    own, tasks = NewWorkflow(NAME), list[NewTask]()
    for number in range(TASKS):
        parents = {chance.randrange(max(0, number - 60), number) for _ in range(chance.randrange(3) if number else 0)}
        rules = {parent: chance.choice(["wait", "cancel", "run"]) for parent in sorted(parents)}
        after = tuple(DependsOn(BatchMember(parent), rule) for parent, rule in rules.items())  # type: ignore[arg-type]
        tasks.append(NewTask("work", workflow=own, after=after or None, max_attempts=3))
    id = (await database.write(submit_with_result, tasks)).workflow
    assert id is not None
    return id


def outcome(draw: float) -> Outcome:
    """A random outcome: 3 % die, 17 % fail."""
    if draw < 0.03:
        return Dead("bad luck")
    return Retry(failure=Failure("OSError", "try again", ""), delay=0.0) if draw < 0.2 else Done()


async def finished(database: Database, ids: list[int]) -> list[int]:
    """Those of some tasks that have finished."""
    async with database.reading() as tx:
        history = tx.tables.history.c
        return [row.id for row in await tx.rows(sa.select(history.id).where(history.id.in_(ids)))]


async def document(url: str, *words: str) -> Any:
    """The JSON document of a command."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, *words, "--json", env=os.environ | {"TASKTUI_URL": url}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)


async def states(database: Database, id: int) -> Counter[str]:
    """The number of tasks by state."""
    part = "SELECT state, count(*) FROM {} WHERE workflow = :id GROUP BY state"
    statement = sa.text(" UNION ALL ".join(part.format(table) for table in ("task", "task_history")))
    counts = Counter[str]()
    async with database.reading() as tx:
        for state, number in await tx.rows(statement, {"id": id}):
            counts[state] += number
    return counts


async def compare(database: Database, url: str, operator: Operator, id: int) -> None:
    """Compare the command line and the console with SQL, while nothing changes."""
    counts = await states(database, id)
    done = sum(counts[state] for state in FINAL)
    failed = counts[State.DEAD] + counts[State.CANCELLED]
    (row,) = (await document(url, "workflows", "nightly*"))["workflows"]
    assert (row["tasks"], row["done"], row["failed"], row["total"]) == (counts, done, failed, TASKS)
    graph = await document(url, "workflow", str(id))
    assert Counter(task["state"] for task in graph["tasks"]) == counts
    dead = await document(url, "tasks", f'workflow:"{NAME}" state:dead', "--limit", str(TASKS))
    assert len(dead["tasks"]) == counts[State.DEAD]
    await operator.sees(NAME, f" {done:,}/{TASKS:,} {failed:>6} ", f" {row['state']} ")


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_large_workflow_is_shown_as_sql_has_it(
    database: Database, migrated_url: str, runner: Runner, watch: Watch
) -> None:
    assert (await database.write(heartbeat, runner.id, HOUR, 0, HOUR)).alive
    chance = random.Random(38)
    id = await put(database, chance)
    async with watch("workflows", WIDE) as operator:
        await compare(database, migrated_url, operator, id)
        claims = 0
        while claimed := await runner.claim(CLAIMED):
            claims += 1
            if claims % EVERY == 0:  # while they run
                await compare(database, migrated_url, operator, id)
            for task in claimed:
                await runner.end(task, outcome(chance.random()))
            await resolve_parents(database, *await finished(database, [task.id for task in claimed]))
            if claims % EVERY == EVERY // 2:
                await compare(database, migrated_url, operator, id)
        await compare(database, migrated_url, operator, id)
        assert (await states(database, id))[State.SUCCEEDED] > TASKS / 2
