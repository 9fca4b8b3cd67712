"""A workflow of 1,000 tasks with random failures, whose runners are killed, and the retry of its failed part."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.task import BatchMember, DependsOn, NewTask, NewWorkflow, State
from runner.operations.bulk import to_all
from runner.operations.results import Actor
from runner.operations.retry import retry_now
from runner.queries.workflows.graph import workflow_graph
from runner.queries.workflows.list import WorkflowRow, workflow_rows
from runner.store.submit import submit_with_result

TASKS = 1_000
LONGEST = 240.0
ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("runner")

HANDLERS = """
from pathlib import Path
from random import Random

from runner import Context, Dead, handler


@handler("flow.step", max_attempts=3, retry="10ms")
def step(ctx: Context, number: int) -> int | Dead:
    parents = ctx.batch.results(return_exceptions=True) if ctx.batch else []
    if not Path("mended").exists():
        chance = Random(1000 * number + ctx.attempt).random()
        if chance < 0.02:
            return Dead("bad luck")
        if chance < 0.2:
            raise OSError("try again")
    return 1 + max([0, *(each for each in parents if isinstance(each, int))])
"""


@contextmanager
def at_work(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A runner process, which is killed at the end of the block."""
    environment = {
        **os.environ,
        "TASKTUI_URL": url,
        "TASKTUI_LEASE_TIMEOUT": "3s",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
    }
    command = [str(PROGRAM), "work", "-H", "flow_steps", "--concurrency", "8", "--threads", "8"]
    with (folder / "runner.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def until(database: Database, id: int, condition: Callable[[WorkflowRow], bool]) -> WorkflowRow:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        (row,) = await database.read(workflow_rows, [id])
        if condition(row):
            return row
        time.sleep(0.2)
    raise AssertionError(row)


def is_still(row: WorkflowRow) -> bool:
    return row.state not in (State.WAITING, State.RUNNING)


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_large_workflow_survives_failures_and_kills(
    database: Database, migrated_url: str, tmp_path: Path
) -> None:
    (tmp_path / "flow_steps.py").write_text(HANDLERS)
    chance, own, tasks = random.Random(5), NewWorkflow("large"), list[NewTask]()
    for number in range(TASKS):
        parents = (
            {chance.randrange(max(0, number - 60), number) for _ in range(chance.randrange(3))} if number else set()
        )
        rules = {parent: chance.choice(["wait", "cancel", "run"]) for parent in sorted(parents)}
        after = tuple(DependsOn(BatchMember(parent), rule) for parent, rule in rules.items())  # type: ignore[arg-type]
        tasks.append(NewTask("flow.step", f'{{"number": {number}}}', workflow=own, after=after or None))
    id = (await database.write(submit_with_result, tasks)).workflow
    assert id is not None
    for part in (0.1, 0.25):
        with at_work(migrated_url, tmp_path):
            await until(database, id, lambda row, part=part: row.done > part * TASKS or is_still(row))  # type: ignore[misc]
    with at_work(migrated_url, tmp_path):
        first = await until(database, id, is_still)
        assert first.total == TASKS
        assert first.failed
        (tmp_path / "mended").touch()
        failed = Filter((Term("workflow", Operator.EQ, id), Term("state", Operator.IN, ("dead", "cancelled"))))
        for _ in range(TASKS):
            (row,) = await database.read(workflow_rows, [id])
            if not row.failed:
                break
            await to_all(database, partial(retry_now, by=Actor("ana", "desk")), failed)
            await until(database, id, is_still)
        last = await until(database, id, lambda row: row.state is State.SUCCEEDED)
    assert last.tasks == {"succeeded": TASKS}
    graph = await database.read(workflow_graph, id)
    assert sum(len(node.parents) for node in graph.tasks) == sum(len(task.after or ()) for task in tasks)
    dependency, history = database.tables.dependency.c, database.tables.history
    child, parent = history.alias("child"), history.alias("parent")
    early = sa.select(sa.func.count()).where(
        *(child.c.id == dependency.task_id, parent.c.id == dependency.parent_id, dependency.on_failure != "run"),
        child.c.claimed_at < parent.c.finished_at,
    )
    async with database.reading() as tx:
        assert await tx.scalar(early) == 0
