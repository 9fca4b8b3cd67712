"""Erasure: contents go, counts stay."""

from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.task import State
from runner.operations.erase import erase
from runner.operations.results import Actor, Target
from runner.store.task_records import line_of, read_records
from tests.cli.conftest import Call, Store, _alone, call, cli, store  # noqa: F401 - fixtures
from tests.store.rows import add_attempt, add_live, add_past
from tests.triggers import accept, refuse

BY = Actor("ana", "desk", "request")
SECRET = "ana-lives-here"


async def add(database: Database, id: int) -> None:
    text = f'{{"street": "{SECRET}"}}'
    values = {"payload": text, "result": text, "headers": text, "error": SECRET, "attempt": 2, "key": "k"}
    await add_past(database, id, State.DEAD, **values)
    await add_attempt(database, id, message=SECRET, traceback=SECRET)
    async with database.writing() as tx:
        entry = {"operator": "a", "host": "b", "verb": "edit", "task_id": id, "before": f'{{"payload": "{SECRET}"}}'}
        await tx.execute(sa.insert(tx.tables.audit).values(**entry, after='{"priority": 9}'))
        entry |= {"verb": "retry_now", "before": f'{{"failed_steps": [{{"error": "{SECRET}"}}]}}'}
        await tx.execute(sa.insert(tx.tables.audit).values(**entry))
        await tx.execute(sa.insert(tx.tables.checkpoint).values(task_id=id, number=1, fence=1, attempt=1, state=text))


async def text_of(database: Database, id: int) -> str:
    async with database.reading() as tx:
        return line_of((await read_records(tx, tx.tables.history, [id]))[0])


async def test_contents_are_removed_and_counts_stay(database: Database) -> None:
    await add(database, 1)
    await add(database, 2)
    result = await database.write(erase, [Target(1)], BY)
    assert result.changed == [1]
    text = await text_of(database, 1)
    assert SECRET not in text
    for kept in ('"key":"k"', '"attempt":2', '"fingerprint":"f1"', '"error_type":"ValueError"', "priority", '"erase"'):
        assert kept in text, kept
    assert SECRET in await text_of(database, 2)


async def test_live_tasks_are_skipped(database: Database) -> None:
    id = await add_live(database)
    result = await database.write(erase, [Target(id), Target(99)], BY)
    assert not result.changed
    assert len(result.skipped) == 2


@pytest.mark.slow
@pytest.mark.one_database
def test_an_archive_is_written_anew_without_the_contents(cli: Call, store: Store, tmp_path: Path) -> None:  # noqa: F811
    store.use(partial(add, id=1))
    store.use(partial(add, id=2))
    folder = tmp_path / "archive"
    assert cli("prune", "--archive", folder, "--retention-dead", "1ms").code == 0
    before = list(folder.glob("*/*.gz"))
    refused = cli("erase", 1, "--archive", folder, "--reason", "request", "--yes", 2)
    assert refused.code == 6
    assert list(folder.glob("*/*.gz")) == before
    erase_one = ("erase", 1, "--archive", folder, "--reason", "request", "--yes", 1)
    store.use(partial(refuse, event="INSERT", table="task_audit", when="{row}.verb = 'erase'"))
    assert cli(*erase_one).code != 0
    assert list(folder.glob("*/*.gz")) == before
    store.use(partial(accept, table="task_audit"))
    done = cli(*erase_one)
    assert done.code == 0, done.err
    assert not set(folder.glob("*/*.gz")) & set(before)
    assert SECRET not in cli("show", 1, "--archive", folder, "--json").out
    assert SECRET in cli("show", 2, "--archive", folder, "--json").out
    entries = cli("audit", "--json").document["entries"]
    assert ["erased" in entry["after"] for entry in entries[:2]] == [True, False], entries
