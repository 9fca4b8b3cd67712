"""The SQL of an operation, pasted into psql or sqlite3, does the same as the operation, guard and audit included."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import NoSqlEquivalent
from runner.filter.sort import parse_sort
from runner.model.task import DependsOn, NewTask, State, UniqueKey
from runner.operations.bulk import Operation
from runner.operations.delay import delay
from runner.operations.edit import edit_each
from runner.operations.edit_values import Changes
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target
from runner.operations.resume import resume
from runner.operations.retry import retry_now
from runner.operations.silence import silence, unsilence
from runner.operations.sql_export import command_script, pause_script, script, silence_script, undo_script
from runner.operations.terminate import terminate
from runner.operations.unblock import unblock
from runner.operations.undo.undo import undo
from runner.queries.alerts.records import alert_records
from runner.queries.audit import audit
from runner.queries.registries import pauses
from runner.queries.runners import runners
from runner.queries.task_list.search import page, page_script
from runner.store.submit import submit, submit_many
from tests.shells import Refused, Shell, shell_of
from tests.store.rows import add_live, add_past, add_runner, ahead, filtered, history_row, stored

BEN = Actor("ben", "desk")
ANA = Actor("ana", "laptop", "it's 50% \\ :x $seen$ -- /* done */")
PAYLOAD = '{"to": "it\'s \\"ana\\" $$ :name % \\u00fc", "n": [1, null]}'

TIMES = {"run_at", "finished_at", "at", "submitted_at", "claimed_at", "started_at"}
"""What depends on the moment; compared only by whether it is there, and whether it is due."""


EVERYTHING = Changes(datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC), 6, 9, "1m,5m", 2.5, PAYLOAD, "it's")

OPERATIONS: dict[str, tuple[Operation, dict[str, Any]]] = {
    "retry": (partial(retry_now, by=ANA), {"run_at": ahead(600), "attempt": 2}),
    "retry of a dead one": (partial(retry_now, by=ANA), {"state": State.DEAD, "error": "no", "attempt": 4}),
    "terminate": (partial(terminate, by=ANA), {"run_at": ahead(600), "error": "no"}),
    "terminate a running one": (partial(terminate, by=ANA), {"state": State.RUNNING, "runner_id": 3, "fence": 7}),
    "delay": (partial(delay, seconds=600.0, by=ANA), {"run_at": ahead(600)}),
    "edit": (partial(edit_each, changes=EVERYTHING, by=ANA), {"payload": '{"to": "ben"}'}),
    "edit to none": (partial(edit_each, changes=Changes(key=None, timeout=None), by=ANA), {"key": "k", "timeout": 3.0}),
}  # fmt: skip


async def add(database: Database, state: State = State.WAITING, **values: Any) -> int:
    columns = {"version": 7, **values}
    if state.final:
        return await add_past(database, 1_000 + await add_live(database), state, **columns)
    return await add_live(database, state=state.value, **columns)


async def everything(database: Database, id: int) -> Any:
    """All fields of a task with its audit entries, except fields that always differ between two tasks."""
    live, past = await stored(database, id), await history_row(database, id)
    async with database.reading() as tx:
        audit = tx.tables.audit.c
        entries = (
            (await tx.execute(sa.select(tx.tables.audit).where(audit.task_id == id).order_by(audit.id)))
            .mappings()
            .all()
        )
    audit_rows = [_comparable(dict(entry)) for entry in entries]
    return [row and _comparable(dict(row._mapping)) for row in (live, past)], audit_rows


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC)
    for name in ("before", "after"):
        if isinstance(row.get(name), str):
            values = json.loads(row[name])
            row[name] = {key: key if key in TIMES else value for key, value in values.items()}
    alike = {name: row[name] and (row[name] - now).total_seconds() > 1 for name in TIMES & row.keys()}
    return row | alike | {"id": 0, "task_id": 0, "bucket": 0}


@pytest.fixture
def shell(migrated_url: str) -> Shell:
    return shell_of(migrated_url)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_pasted_sql_does_the_same_as_the_operation(database: Database, shell: Shell, name: str) -> None:
    operation, values = OPERATIONS[name]
    one, other = await add(database, **values), await add(database, **values)
    before = await everything(database, other)
    text = await database.write(script, operation, [Target(other, 7)])
    assert await everything(database, other) == before, "writing it down has changed something"
    await database.write(operation, [Target(one, 7)])
    shell(text)
    (rows, audit_rows), expected = await everything(database, other), await everything(database, one)
    assert (rows, audit_rows) == expected
    assert len(audit_rows) == 1


@pytest.mark.parametrize("name", OPERATIONS)
async def test_pasted_sql_changes_nothing_after_a_conflict(database: Database, shell: Shell, name: str) -> None:
    operation, values = OPERATIONS[name]
    id = await add(database, **values)
    text = await database.write(script, operation, [Target(id)])
    async with database.writing() as tx:
        for table in (tx.tables.task, tx.tables.history):
            await tx.execute(sa.update(table).where(table.c.id == id).values(version=8))
    before = await everything(database, id)
    assert "nothing was changed" in answer(shell, text)
    assert await everything(database, id) == before
    async with database.reading() as tx:
        assert await tx.scalar(sa.select(sa.func.count()).select_from(tx.tables.minute)) == 0


async def test_sql_pasted_twice_applies_once(database: Database, shell: Shell) -> None:
    id = await add(database, run_at=ahead(60))
    text = await database.write(script, partial(delay, seconds=60.0, by=ANA), [Target(id)])
    shell(text)
    first = await everything(database, id)
    assert "nothing was changed" in answer(shell, text)
    assert await everything(database, id) == first


async def test_each_of_several_tasks_has_a_transaction_of_its_own(database: Database, shell: Shell) -> None:
    ids = [await add(database, run_at=ahead(60)) for _ in range(3)]
    finished = await add(database, State.SUCCEEDED)
    operation = partial(terminate, by=ANA._replace(change_group="b1"))
    text = await database.write(script, operation, [*(Target(id) for id in ids), Target(finished)])
    assert text.count("COMMIT;") == 3
    assert f"-- task {finished}: it has succeeded" in text
    if not database.dialect.is_server:
        async with database.writing() as tx:
            await tx.execute(sa.update(tx.tables.task).where(tx.tables.task.c.id == ids[1]).values(version=8))
    shell(text)
    remaining = [id for id in ids if await stored(database, id)]
    assert remaining == ([] if database.dialect.is_server else [ids[1]])


async def test_a_key_that_another_task_took_stays_with_that_task(database: Database, shell: Shell) -> None:
    mine = NewTask("h", unique_key=UniqueKey("k"))
    first = await database.write(submit, mine)
    await database.write(terminate, [Target(first)], ANA)
    text = await database.write(script, partial(retry_now, by=ANA), [Target(first)])
    second = await database.write(submit, mine)
    assert "nothing was changed" in answer(shell, text)
    assert await stored(database, first) is None
    await database.write(terminate, [Target(second)], ANA)
    shell(text)
    assert await stored(database, first)
    assert await database.write(submit, mine) == first


async def test_an_unblocked_task_runs(database: Database, shell: Shell) -> None:
    (parent,) = await database.write(submit_many, [NewTask("h", delay=60)])
    (child,) = await database.write(submit_many, [NewTask("h", after=(DependsOn(parent),))])
    shell(await database.write(script, partial(unblock, by=ANA), [Target(child)]))
    row = await stored(database, child)
    assert (row.state, row.blocked_by) == (State.WAITING, 0)


@pytest.mark.parametrize("name", ["edit", "delay", "terminate", "terminate a running one"])
async def test_pasted_sql_undoes_a_change(database: Database, shell: Shell, name: str) -> None:
    operation, values = OPERATIONS[name]
    ids = [await add(database, **values) for _ in range(2)]
    for id in ids:
        await database.write(operation, [Target(id)])
    (second,), (first,) = [await database.read(audit, task_id=id) for id in reversed(ids)]
    text = await database.write(undo_script, second, ANA)
    await database.write(undo, [first.id], ANA)
    shell(text)
    one, other = [await everything(database, id) for id in ids]
    for entry in (*one[1], *other[1]):
        entry["undo_of"] = entry["undo_of"] is not None
    assert one == other
    with pytest.raises(NoSqlEquivalent):
        await database.write(undo_script, second, ANA)


async def test_an_undo_without_a_task_has_no_script(database: Database) -> None:
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), ANA)
    (entry,) = await database.read(audit)
    with pytest.raises(NoSqlEquivalent, match="not a change of a task"):
        await database.write(undo_script, entry, ANA)


@pytest.mark.parametrize("sort", ["id", "run_at", "attempts"])
async def test_pasted_sql_of_a_list_shows_the_same_tasks(database: Database, shell: Shell, sort: str) -> None:
    ids = [await add(database, key="it's %s :x", run_at=ahead(-60 * number)) for number in range(3)]
    conditions = filtered('key:"it\'s %s :x" state:ready')
    printed = shell(await database.read(page_script, conditions, parse_sort(sort), 50))
    listed = [task.id for task in (await database.read(page, conditions, sort=parse_sort(sort))).tasks]
    shown = [int(line.split("|")[sort != "id"]) for line in printed.splitlines()[:3]]
    assert (shown, sorted(shown)) == (listed, ids)
    with pytest.raises(NoSqlEquivalent, match="secret"):
        await database.read(page_script, filtered("error~password=geheim1"), parse_sort("id"), 50)


@pytest.mark.parametrize(
    "changes", [Changes(payload='{"password": "geheim"}'), Changes(payload='{"n": 2}'), Changes(key="token=abc123def")]
)
async def test_a_script_with_masked_values_is_refused(database: Database, changes: Changes) -> None:
    id = await add(database, payload='{"token": "geheim", "n": 1}')
    with pytest.raises(NoSqlEquivalent, match="secrets"):
        await database.write(script, partial(edit_each, changes=changes, by=ANA), [Target(id)])
    assert "geheim" not in await database.write(
        script, partial(edit_each, changes=Changes(priority=3), by=ANA), [Target(id)]
    )


async def test_operations_without_sql_give_a_reason(database: Database) -> None:
    id = await add(database, State.SUCCEEDED)
    terminating = partial(terminate, by=ANA)
    for targets, why in (
        ([Target(id)], "it has succeeded"),
        ([Target(1)] * 101, "limited to 100 tasks"),
        ([], "nothing"),
    ):
        with pytest.raises(NoSqlEquivalent, match=why):
            await database.write(script, terminating, targets)
    waiting = await add(database, run_at=ahead(60))
    with pytest.raises(NoSqlEquivalent, match="has changed"):
        await database.write(script, terminating, [Target(waiting, 3)])
    with pytest.raises(NoSqlEquivalent, match="characters"):
        await database.write(script, partial(terminate, by=Actor("a", "b", "x\x1b[201~y")), [Target(waiting)])


def answer(shell: Shell, text: str) -> str:
    """The output of the shell, or its error message."""
    try:
        return shell(text)
    except Refused as refused:
        return str(refused)


MAIL = PauseTarget(PauseKind.QUEUE, "it's mail")
STEERING: dict[str, Any] = {
    "pause": (pause_script, MAIL, partial(pause, target=MAIL, by=ANA)),
    "resume": (pause_script, MAIL, partial(resume, target=MAIL, by=ANA)),
    "command": (command_script, 1, "drain", ANA),
}


@pytest.mark.parametrize("name", STEERING)
async def test_pasted_sql_changes_a_place_once_and_only_if_unchanged(
    database: Database, shell: Shell, name: str
) -> None:
    await add_runner(database)
    if name == "resume":
        await database.write(pause, MAIL, BEN)
    text = await database.write(*STEERING[name])
    assert len(await database.read(audit)) == (name == "resume")
    shell(text)
    entry, *_ = await database.read(audit)
    assert (entry.verb, entry.operator, entry.reason, entry.target) == (
        name, "ana", ANA.reason, "runner 1" if name == "command" else str(MAIL),
    )  # fmt: skip
    pause_list = await database.read(pauses)
    assert (MAIL.name in pause_list.queues) is (name == "pause")
    assert (await database.read(runners))[0].command == ("drain" if name == "command" else None)
    entries = len(await database.read(audit))
    assert "nothing was changed" in answer(shell, text)
    assert len(await database.read(audit)) == entries


async def test_an_operation_without_effect_has_no_script(database: Database) -> None:
    with pytest.raises(NoSqlEquivalent, match="is not paused"):
        await database.write(*STEERING["resume"])
    with pytest.raises(NoSqlEquivalent, match="runner 1 does not exist"):
        await database.write(*STEERING["command"])


async def test_pasted_sql_of_a_silence_changes_it_once_and_only_if_unchanged(database: Database, shell: Shell) -> None:
    name, until = "queue-late", datetime.now(UTC) + timedelta(days=1)

    async def silenced_by() -> list[str | None]:
        return [each.by for each in (await database.read(alert_records)).silences.values()]

    begin = await database.write(silence_script, name, partial(silence, name=name, until=until, by=ANA))
    with pytest.raises(NoSqlEquivalent, match="alert queue-late is not silenced"):
        await database.write(silence_script, name, partial(unsilence, name=name, by=ANA))
    assert await silenced_by() == []
    shell(begin)
    assert await silenced_by() == ["ana"]
    assert "nothing was changed" in answer(shell, begin)
    end = await database.write(silence_script, name, partial(unsilence, name=name, by=ANA))
    await database.write(silence, name, until + timedelta(days=1), BEN)
    assert "nothing was changed" in answer(shell, end)
    assert await silenced_by() == ["ben"]
    shell(await database.write(silence_script, name, partial(unsilence, name=name, by=ANA)))
    assert await silenced_by() == []
    assert [entry.verb for entry in await database.read(audit)] == ["unsilence", "silence", "silence"]
