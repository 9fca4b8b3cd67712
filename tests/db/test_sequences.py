"""Ids are used once: sequences that are behind the rows are repaired, and no earlier task loses its row."""

import asyncio
import logging
from contextlib import suppress

import pytest
import sqlalchemy as sa

from runner.client.client import connect, disconnect, get_client
from runner.db.database import Database
from runner.db.migrations.sequences import late_sequences, repair_sequences, reused_ids
from runner.db.schema.partitions import full_name
from runner.engine.periodic.schema_watch import SchemaWatch
from runner.errors import DatabaseRefused, SequenceLate
from runner.model.outcome import Dead, Done, Failure, Outcome
from runner.model.task import NewTask
from runner.store.complete import complete_steps
from runner.store.history import FinishedTask
from runner.store.settle import settle
from tests.conftest import on_postgresql
from tests.postgres.logins import logins
from tests.store.plans import watch
from tests.store.runners import Runner, settle_done, settlement
from tests.store.table import change, count, live, past, put

pytestmark = pytest.mark.both_databases

OLD = Failure("ValueError", "old failure", "ValueError: old failure")
OUTCOMES: dict[str, Outcome] = {"success": Done('"new"'), "failure": Dead(failure=OLD)}


async def set_back(database: Database) -> None:
    """Set all sequences back to their start, as a restore of the rows alone leaves them."""
    tables = database.tables
    for table in (tables.task, tables.dependency, tables.runner, tables.audit):
        if database.dialect.is_server:
            name = full_name(table)
            await change(database, sa.text(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), 1, false)"))
        else:
            await change(database, sa.text(f"DELETE FROM sqlite_sequence WHERE name = '{table.name}'"))


async def finished(runner: Runner, outcome: Outcome) -> int:
    """Run a task to its end, and return its id."""
    id = await put(runner.database, key="old")
    (task,) = await runner.claim()
    await runner.database.write(settle, runner.id, [settlement(task, outcome)])
    return id


async def test_sequences_of_a_sound_database_are_not_late(database: Database) -> None:
    assert await database.read(late_sequences) == []
    runner = await Runner.enter(database)
    await finished(runner, Done())
    assert await database.read(late_sequences) == []
    assert await database.write(repair_sequences) == []


@on_postgresql
@pytest.mark.usefixtures("new_database")
async def test_the_look_reads_no_dead_entries_of_finished_tasks(database: Database, migrated_url: str) -> None:
    """With seven million of them, each runner and each new producer read for two seconds."""
    opened = Database.open(migrated_url)
    looking, pages = watch(opened), list[int]()
    rows = sa.select(sa.literal("work")).select_from(sa.func.generate_series(1, 10_000).table_valued("number"))
    try:
        for _ in range(2):
            async with looking.seeing() as cost:
                assert await opened.read(late_sequences) == []
            pages.append(cost.pages)
            await change(database, sa.insert(database.tables.task).from_select(["handler"], rows))
            await change(database, sa.delete(database.tables.task))
    finally:
        await opened.dispose()
    assert pages[1] < pages[0] + 50


async def test_late_sequences_are_found_and_repaired(database: Database) -> None:
    runner = await Runner.enter(database)
    old = await finished(runner, Done())
    await set_back(database)
    late = await database.read(late_sequences)
    assert {sequence.table.split(".")[-1] for sequence in late} == {"task", "task_runner"}
    task = next(sequence for sequence in late if sequence.table.endswith("task"))
    assert (task.last, task.highest) == (0, old)
    assert await database.write(repair_sequences) == late
    assert await database.read(late_sequences) == []
    assert await put(database) > old
    assert (await Runner.enter(database)).id > runner.id


@pytest.mark.parametrize("kept", ["history", "attempt"])
async def test_ids_in_other_tables_count_too(database: Database, kept: str) -> None:
    runner = await Runner.enter(database)
    old = await finished(runner, Dead(failure=OLD))
    for table in {database.tables.history, database.tables.attempt} - {getattr(database.tables, kept)}:
        await change(database, sa.delete(table))
    await set_back(database)
    assert ("task", old) in [(late.table.split(".")[-1], late.highest) for late in await database.read(late_sequences)]


@pytest.mark.parametrize("old_outcome", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("new_outcome", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("way", ["fast", "single", "own transaction"])
async def test_no_way_to_the_history_replaces_an_earlier_task(
    database: Database, old_outcome: Outcome, new_outcome: Outcome, way: str
) -> None:
    runner = await Runner.enter(database)
    old = await finished(runner, old_outcome)
    before = await past(database, old)
    await set_back(database)
    assert await put(database, key="new") == old
    (task,) = await runner.claim()
    item = settlement(task, new_outcome)
    if way == "fast" and isinstance(new_outcome, Done):
        with suppress(DatabaseRefused):  # by the key of the partition
            assert await database.write(settle_done, runner.id, [item]) == set()
    elif way == "own transaction":
        with pytest.raises(DatabaseRefused, match=f"an earlier task with the id {old}"):
            await database.write(lambda tx: tx.follow(complete_steps(tx, runner.id, FinishedTask(old, task.fence))))
    with pytest.raises(DatabaseRefused, match=rf"an earlier task with the id {old}; probably .*runner migrate"):
        await database.write(settle, runner.id, [item])
    assert await past(database, old) == before
    assert await count(database, database.tables.history) == 1
    row = await live(database, old)
    assert row
    assert row["key"] == "new"
    assert await database.read(reused_ids) == [old]


@on_postgresql
async def test_a_login_that_may_not_repair_names_the_command(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = await Runner.enter(database)
    await finished(runner, Done())
    await set_back(database)

    async def refuse(*_: object) -> None:
        raise DatabaseRefused(why="42501 permission denied for sequence task_id_seq")

    with monkeypatch.context() as patch:
        patch.setattr("runner.engine.periodic.schema_watch.repair_sequences", refuse)
        for _ in range(2):
            await SchemaWatch(database).check_sequences()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "Run as the owner of the tables: runner migrate" in errors[0]


@pytest.mark.usefixtures("connected")
async def test_a_program_that_starts_gives_no_new_task_an_earlier_id(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    old = await finished(await Runner.enter(database), Done())
    await set_back(database)
    result = await asyncio.to_thread(get_client().submit, [NewTask("sample")])
    assert result.ids[0] > old
    assert "repaired the sequences of ids" in caplog.text
    assert await database.read(late_sequences) == []


@on_postgresql
async def test_a_login_that_may_only_submit_looks_at_no_sequence(database: Database, migrated_url: str) -> None:
    with logins(migrated_url) as urls:
        connect(url=urls["producer"])
        try:
            assert (await asyncio.to_thread(get_client().submit, [NewTask("sample")])).ids
        finally:
            await asyncio.to_thread(disconnect)


@on_postgresql
@pytest.mark.usefixtures("connected")
async def test_a_program_that_may_not_repair_submits_no_task_with_an_earlier_id(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finished(await Runner.enter(database), Done())
    await set_back(database)

    async def refuse(*_: object) -> None:
        raise DatabaseRefused(why="42501 permission denied for sequence task_id_seq")

    monkeypatch.setattr("runner.db.migrations.sequences.repair_sequences", refuse)
    with pytest.raises(SequenceLate, match="runner migrate"):
        await asyncio.to_thread(get_client().submit, [NewTask("sample")])
    assert await count(database, database.tables.task) == 0
