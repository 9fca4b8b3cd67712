"""`runner show --log` and `runner rewind`, and the notes of a task in `runner show`."""

import asyncio
import threading
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.model.outcome import Done, Failure, Retry
from runner.model.task import NewTask
from runner.store.notes import LogLine, Progress, write_notes
from tests.cli.conftest import Call, Store
from tests.databases import database_at
from tests.store.runners import Runner

AT = datetime(2026, 11, 22, 14, 30, tzinfo=UTC)


@pytest.fixture
def task(store: Store) -> int:
    """A waiting task of an attempt that stored checkpoints, progress and lines."""
    (task,) = store.submit(NewTask("work"))

    async def write(tx: Transaction) -> None:
        rows = [{"task_id": task, "number": n, "fence": 1, "attempt": 1, "state": f'{{"line": {n}}}'} for n in (1, 2)]
        await tx.execute(sa.insert(tx.tables.checkpoint), rows)
        lines = [LogLine(task, 1, n, 1, AT, "info", f"file {n}\x1b[31m password=hunter2") for n in (1, 2, 3)]
        await write_notes(tx, 0, [], lines)
        await tx.execute(sa.insert(tx.tables.progress).values(task_id=task, fence=1, done=42, total=105, unit="files"))

    store.write(write)
    return task


def test_lines_are_printed_without_control_characters_and_secrets(cli: Call, task: int) -> None:
    printed = cli("show", task, "--log", "--limit", 2)
    assert printed.code == 0
    assert [line.split("attempt 1  ")[1][:6] for line in printed.out.splitlines()] == ["file 2", "file 3"]
    assert "\x1b" not in printed.out
    assert "hunter2" not in printed.out
    assert len(cli("show", task, "--log", "--json").document["lines"]) == 3
    assert cli("show", 99, "--log").code == 5
    assert "--limit is 0; it must be at least 1" in cli("show", task, "--log", "--limit", 0).err


def test_follow_prints_new_lines_until_the_task_has_finished(cli: Call, store: Store, task: int) -> None:
    async def work() -> None:
        async with database_at(store.url) as database:
            runner = await Runner.enter(database)
            (claimed,) = await runner.claim()
            line = LogLine(task, claimed.fence, 4, 2, AT, "warning", "the last line")
            await database.write(write_notes, runner.id, [Progress(task, claimed.fence, 1, 2, None, None)], [line])
            await runner.end(claimed, Done())

    worker = threading.Timer(0.2, lambda: asyncio.run(work()))
    worker.start()
    printed = cli("show", task, "--log", "--follow")
    worker.join()
    assert printed.out.splitlines()[-1].endswith("attempt 2  warning: the last line")
    assert len(printed.out.splitlines()) == 4


def test_follow_prints_the_events_of_a_task_until_it_has_finished(cli: Call, store: Store, task: int) -> None:
    async def work() -> None:
        async with database_at(store.url) as database:
            runner = await Runner.enter(database)
            (claimed,) = await runner.claim()
            line = LogLine(task, claimed.fence, 4, 2, AT, "warning", "nearly\x1b[31m done")
            await database.write(write_notes, runner.id, [Progress(task, claimed.fence, 1, 2, None, None)], [line])
            failure = Failure("LookupError", "no shop at https://ana:hunter2@shop\x1b[31m", "")
            await runner.end(claimed, Retry(failure=failure, delay=0))
            (claimed,) = await runner.claim()
            await runner.end(claimed, Done())

    worker = threading.Timer(0.2, lambda: asyncio.run(work()))
    worker.start()
    printed = cli("show", task, "--follow")
    worker.join()
    texts = [line.partition("attempt ")[2] for line in printed.out.splitlines()]
    assert texts[-1] == "2  succeeded"
    assert any(text.startswith("1  failed: LookupError: no shop at") and "next attempt in" in text for text in texts)
    assert "\x1b" not in printed.out
    assert "hunter2" not in printed.out
    assert cli("show", 99, "--follow").code == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--log", "--stack"), "choose --log or --stack"),
        (("--attempt", 5), "--attempt and --limit apply to --log"),
        (("--limit", 5), "--attempt and --limit apply to --log"),
        (("--follow", "--stack"), "choose --follow or --stack"),
        (("--follow", "--json"), "use it without --json"),
        (("--log", "--reason", "why"), "--reason applies to --stack"),
        (("--log", "--follow", "--json"), "use it without --json"),
    ],
)
def test_options_of_another_view_are_refused(cli: Call, task: int, options: tuple[object, ...], message: str) -> None:
    refused = cli("show", task, *options)
    assert (refused.code, message in refused.err) == (2, True)


def test_rewind_lists_and_changes_the_checkpoints(cli: Call, task: int) -> None:
    assert '{"line": 2}' in cli("rewind", task).out
    assert cli("rewind", task, "--to", 1, "--dry-run").out == "would continue from checkpoint 1\n"
    assert len(cli("rewind", task, "--json").document["checkpoints"]) == 2
    assert cli("rewind", task, "--to", 1, "--reason", "line 2 is wrong").out == "rewind: 1 changed\n"
    listed = cli("rewind", task, "--json").document["checkpoints"]
    assert [(row["number"], row["state"]) for row in listed] == [(1, {"line": 1}), (2, {"line": 2}), (3, {"line": 1})]
    assert "it has no checkpoint 9; its checkpoints: 1, 2, 3" in cli("rewind", task, "--to", 9).err
    assert "line 2 is wrong" in cli("audit").out


def test_show_has_progress_checkpoints_and_lines(cli: Call, task: int) -> None:
    shown = cli("show", task).out
    assert "42 of 105 files (40 %)" in shown
    assert shown.count("file 3") == 1
    assert "2  attempt 1" in shown


def test_a_stack_is_refused_for_a_task_that_no_runner_can_describe(cli: Call, store: Store, task: int) -> None:
    waiting = cli("show", task, "--stack")
    assert (waiting.code, "is not running on a registered runner" in waiting.err) == (6, True)
    assert cli("show", 99, "--stack").code == 5

    async def claim(lease: float, command: str | None) -> None:
        async with database_at(store.url) as database:
            runner = await Runner.enter(database)
            await runner.claim()
            table = database.tables.runner
            async with database.writing() as tx:
                until = db_later(db_now(), lease)
                values = {"lease_until": until, "command": command}
                await tx.execute(sa.update(table).where(table.c.id == runner.id).values(values))

    asyncio.run(claim(60.0, " ".join(f"stack={id}" for id in range(100, 120))))
    assert "has not received its requests for 20 stacks yet" in cli("show", task, "--stack").err
