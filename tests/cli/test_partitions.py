"""The partitions of a history on PostgreSQL, as the command line makes, drops and tells of them."""

import psycopg
import pytest

from runner.cli.ending import Exit
from runner.schema.partitions import WIDTH
from runner.store.database import Database
from runner.task import State
from tests.cli.conftest import Call, Store
from tests.store.rows import add_past, ahead

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

OLD = ahead(-8 * 86_400)


@pytest.fixture
def old(store: Store) -> Store:
    """A database whose first partition is used up and holds two old tasks."""

    async def arrange(database: Database) -> None:
        for id in (1, 2):
            await add_past(database, id, finished_at=OLD)

    store.use(arrange)
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"SELECT setval('task_id_seq', {WIDTH})")
    return store


def history(called: Call) -> tuple[str, str]:
    (found,) = [check for check in called("check", "--json").document["checks"] if check["topic"] == "history"]
    return found["verdict"], found["found"]


def test_a_partition_that_is_old_is_dropped_and_others_are_made(called: Call, old: Store) -> None:
    dry = called("prune", "--dry-run")
    assert "the partition of the tasks 1 to 5,000,000 would be dropped" in dry.out
    assert called("prune", "--dry-run", "--json").document["partitions"] == [{"first": 1, "end": WIDTH + 1}]
    assert history(called) == ("ok", "1 partition for succeeded tasks, up to id 5,000,000")
    told = called("prune")
    assert told.code == Exit.OK
    assert "succeeded tasks older than 7d deleted: 2" in told.out
    assert "the partition of the tasks 1 to 5,000,000 was dropped" in told.out
    assert called("prune", "--json").document["partitions"] == []
    assert history(called) == ("ok", "3 partitions for succeeded tasks, up to id 20,000,000")


def test_a_partition_is_kept_that_holds_what_is_to_be_kept(called: Call, old: Store) -> None:
    done = called("prune", "--keep-succeeded", "never", "--json").document
    assert (done["partitions"], done["tasks"].get(State.SUCCEEDED)) == ([], None)
    assert called("show", 1).code == Exit.OK


def test_tasks_beyond_all_partitions_are_told_of(called: Call, store: Store) -> None:
    store.use(lambda database: add_past(database, WIDTH + 1))
    verdict, found = history(called)
    assert verdict == "note"
    assert "some stand beyond" in found


def test_a_partition_that_cannot_be_made_keeps_nothing_from_being_deleted(called: Call, old: Store) -> None:
    with psycopg.connect(old.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE task_history_from_{WIDTH + 1} (id int)")
    told = called("prune", "--json")
    assert told.code == Exit.OK
    assert told.document["tasks"][State.SUCCEEDED]["number"] == 2
    assert f'"task_history_from_{WIDTH + 1}" already exists' in told.err
