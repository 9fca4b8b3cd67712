"""Archives: finished tasks in files, complete or absent, and deleted only from there on."""

import multiprocessing
import resource
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import ArchiveFailed, ArchiveInUse
from runner.model.outcome import Dead
from runner.model.task import NewTask, NewWorkflow, State
from runner.policy.retention import Retention
from runner.store.archive.folder import Archive
from runner.store.archive.identity import database_id
from runner.store.archive.prune import prune_into
from runner.store.archive.restore import restore
from runner.store.retention import prune as prune_rows
from runner.store.submit import submit_many
from runner.store.task_records import read_records
from tests.store.rows import add_attempt, add_past, ahead, history_row
from tests.store.runners import Runner
from tests.store.table import put

DEAD = Retention({State.DEAD: timedelta(seconds=1)})
OURS = "ours"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


async def add_dead(database: Database, *ids: int, days: int = 2) -> None:
    for id in ids:
        await add_past(database, id, State.DEAD, finished_at=ahead(-days * 86_400), payload='{"to": "ana\\u2028"}')
        await add_attempt(database, id, traceback="Traceback\n  line\x85")


async def prune(database: Database, folder: Path, name: str = OURS) -> int:
    with Archive.writing(folder, name) as archive:
        async with aclosing(prune_into(database, archive, DEAD)) as rounds:
            return sum([sum(deleted.values()) async for deleted in rounds])


async def records_of(database: Database, *ids: int) -> list[dict[str, object]]:
    async with database.reading() as tx:
        return await read_records(tx, tx.tables.history, ids)


async def workflows(database: Database) -> list[tuple[object, ...]]:
    async with database.reading() as tx:
        return [tuple(row) for row in await tx.rows(sa.select(tx.tables.workflow))]


async def test_a_task_returns_from_the_archive_with_all_its_rows(database: Database, folder: Path) -> None:
    await add_dead(database, 1, 2)
    before = await records_of(database, 1, 2)
    assert await prune(database, folder) == 2
    assert await records_of(database, 1, 2) == []
    archive = Archive(folder, OURS)
    assert [await database.write(restore, records) for records in archive.newest_first()] == [[1, 2]]
    assert await records_of(database, 1, 2) == before
    assert [await database.write(restore, records) for records in archive.newest_first()] == [[]]


async def test_a_task_of_a_runner_returns_as_it_was(database: Database, runner: Runner, folder: Path) -> None:
    id = await put(database)
    (task,) = await runner.claim()
    await runner.end(task, Dead("no"))
    before = await records_of(database, id)
    with Archive.writing(folder, OURS) as archive:
        async with aclosing(prune_into(database, archive, Retention({State.DEAD: timedelta(0)}))) as rounds:
            assert [dict(deleted) async for deleted in rounds] == [{State.DEAD: 1}]
    record = Archive(folder).find(id)
    assert record == before[0]
    await database.write(restore, [record])
    assert await records_of(database, id) == before


async def test_restored_tasks_return_with_their_workflow(database: Database, runner: Runner, folder: Path) -> None:
    own = NewWorkflow("order 17")
    ids = await database.write(submit_many, [NewTask("work", workflow=own, max_attempts=1)] * 2)
    for task in await runner.claim():
        await runner.end(task, Dead("no"))
    before, named = await records_of(database, *ids), await workflows(database)
    everything = Retention({State.DEAD: timedelta(seconds=-1)})
    with Archive.writing(folder, OURS) as archive:
        async with aclosing(prune_into(database, archive, everything)) as rounds:
            assert [dict(deleted) async for deleted in rounds] == [{State.DEAD: 2}]
    await database.write(prune_rows, everything)
    assert (await workflows(database), [name for _, name, *_ in named]) == ([], ["order 17"])
    for record in [each for part in Archive(folder).newest_first() for each in part]:
        await database.write(restore, [record])
    assert (await records_of(database, *ids), await workflows(database)) == (before, named)


async def test_each_day_has_files_of_its_own_and_young_tasks_stay(database: Database, folder: Path) -> None:
    await add_dead(database, 1, days=1)
    await add_dead(database, 2, days=3)
    await add_past(database, 3, State.DEAD, finished_at=ahead(3_600))
    assert await prune(database, folder) == 2
    days = [file.name.split("/")[0] for file in Archive(folder).manifest.files]
    assert len(set(days)) == 2
    assert all(day.startswith("day=20") for day in days)
    assert await history_row(database, 3) is not None


async def test_a_task_that_changed_after_it_was_archived_stays(database: Database, folder: Path) -> None:
    await add_dead(database, 1)
    with Archive.writing(folder, OURS) as archive:
        archive.add("2026-11-25", await records_of(database, 1))
    await add_attempt(database, 1, fence=9)
    with Archive.writing(folder, OURS) as archive:
        rounds = prune_into(database, archive, Retention())
        assert [sum(deleted.values()) async for deleted in rounds] == [0]
    assert await prune(database, folder) == 1
    record = Archive(folder).find(1)
    assert record is not None
    assert [attempt["fence"] for attempt in record["attempts"]] == [1, 9]


async def test_the_next_prune_deletes_the_tasks_of_one_that_was_killed(database: Database, folder: Path) -> None:
    await add_dead(database, 1, 2)
    with Archive.writing(folder, OURS) as archive:
        archive.add("2026-11-25", await records_of(database, 1, 2))
    assert await prune(database, folder) == 2
    (file,) = Archive(folder).manifest.files
    assert file.pruned


async def test_the_next_prune_removes_files_that_the_manifest_does_not_list(database: Database, folder: Path) -> None:
    await add_dead(database, 1)
    with Archive.writing(folder, OURS):
        pass
    day = folder / "day=2026-11-25"
    day.mkdir()
    for name in ("000001.jsonl.gz", "000002.jsonl.gz.part"):
        (day / name).write_bytes(b"half")
    assert await prune(database, folder) == 1
    assert [path.name for path in day.iterdir() if path.read_bytes() == b"half"] == []
    assert Archive(folder).find(1) is not None


async def test_a_changed_file_is_refused_and_deletes_nothing(database: Database, folder: Path) -> None:
    await add_dead(database, 1)
    with Archive.writing(folder, OURS) as archive:
        file = archive.add("2026-11-25", await records_of(database, 1))
    (folder / file.name).write_bytes(b"other")
    for call in (lambda: Archive(folder).find(1), lambda: Archive(folder).read(file)):
        with pytest.raises(ArchiveFailed, match="the file was changed"):
            call()
    with pytest.raises(ArchiveFailed, match="the file was changed"):
        await prune(database, folder)
    assert await history_row(database, 1) is not None


async def test_the_archive_of_another_database_is_refused(database: Database, folder: Path) -> None:
    await prune(database, folder)
    with pytest.raises(ArchiveFailed, match="its manifest is of database ours, and this is theirs"):
        await prune(database, folder, "theirs")
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(ArchiveFailed, match="it is not a manifest"):
        await prune(database, folder)


async def test_a_lost_manifest_is_not_replaced(database: Database, folder: Path) -> None:
    await add_dead(database, 1)
    await prune(database, folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(ArchiveFailed, match=r"it has files, but no manifest\.json"):
        await prune(database, folder)


def test_one_process_writes_at_a_time(folder: Path) -> None:
    with (
        Archive.writing(folder, OURS),
        pytest.raises(ArchiveInUse, match="writes to it"),
        Archive.writing(folder, OURS),
    ):
        pass


def test_a_folder_that_is_a_file_is_refused(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(ArchiveFailed, match="errno 17"), Archive.writing(folder, OURS):
        pass


async def test_each_database_has_an_id_of_its_own(database: Database) -> None:
    assert len(await database.read(database_id)) >= 32


def prune_forever(url: str, folder: Path) -> None:
    import asyncio

    async def run() -> None:
        database = Database.open(url)
        await prune(database, folder)

    asyncio.run(run())


@pytest.mark.slow
async def test_a_kill_at_any_point_loses_no_task(database: Database, folder: Path, migrated_url: str) -> None:
    ids = list(range(1, 2_001))
    for id in ids:
        await add_past(database, id, State.DEAD, finished_at=ahead(-86_400 * (1 + id % 5)))
    context, delay = multiprocessing.get_context("spawn"), 0.3
    while True:
        child = context.Process(target=prune_forever, args=(migrated_url, folder))
        child.start()
        child.join(delay)
        if ended := child.exitcode is not None:
            assert child.exitcode == 0
        else:
            assert child.pid is not None
            child.kill()
            child.join()
            assert child.exitcode == -signal.SIGKILL
        remaining = {
            row["id"]
            for first in range(0, len(ids), 500)
            for row in await records_of(database, *ids[first : first + 500])
        }
        archived = (
            {record["id"] for records in Archive(folder).newest_first() for record in records}
            if (folder / "manifest.json").exists()
            else set()
        )
        assert remaining | archived == set(ids)
        delay += 0.05
        if ended:
            break
    assert not remaining
    assert archived == set(ids)


@pytest.mark.one_database
async def test_duckdb_reads_the_files(database: Database, folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    await add_dead(database, 1, 2)
    await add_dead(database, 3, days=4)
    await prune(database, folder)
    files = f"read_json('{folder}/*/*.jsonl.gz', hive_partitioning = true)"
    query = f"SELECT handler, count(*), count(DISTINCT day), max(payload->>'$.to') FROM {files} GROUP BY handler"
    assert duckdb.sql(query).fetchall() == [("h", 3, 2, "ana\u2028")]
    errors = f"SELECT error.error_type, count(*) FROM (SELECT unnest(attempts) AS error FROM {files}) GROUP BY 1"
    assert duckdb.sql(errors).fetchall() == [("ValueError", 3)]


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let the system refuse files of this process beyond a size in bytes, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_takes_no_more_keeps_the_tasks_and_no_part_of_a_file(
    database: Database, folder: Path
) -> None:
    await add_dead(database, 1)
    assert await prune(database, folder) == 1
    await add_dead(database, 2, 3, days=9)
    before = sorted(path.name for path in folder.rglob("*.gz*"))
    refused = r"File too large \(errno 27\); tasks that are not in the archive are still in the database"
    with small_files(64), pytest.raises(ArchiveFailed, match=refused):
        await prune(database, folder)
    assert [bool(await history_row(database, id)) for id in (2, 3)] == [True, True]
    assert sorted(path.name for path in folder.rglob("*.gz*")) == before
    assert await prune(database, folder) == 2
    assert {record["id"] for records in Archive(folder, OURS).newest_first() for record in records} == {1, 2, 3}
