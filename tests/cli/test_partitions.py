"""History partitions on PostgreSQL: creation, removal and checks."""

import psycopg
import pytest

from runner.cli.exit_codes import Exit
from runner.db.database import Database
from runner.db.schema.partitions import WIDTH
from runner.model.task import State
from tests.cli.conftest import Call, Store
from tests.store.rows import add_past, ahead

pytestmark = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)

OLD = ahead(-8 * 86_400)


@pytest.fixture
def old(store: Store) -> Store:
    """A database whose first partition is full and contains two old tasks."""

    async def arrange(database: Database) -> None:
        for id in (1, 2):
            await add_past(database, id, finished_at=OLD)

    store.use(arrange)
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(f"SELECT setval('task_id_seq', {WIDTH})")
    return store


def history(cli: Call) -> tuple[str, str]:
    (entry,) = [check for check in cli("check", "--json").document["checks"] if check["topic"] == "history"]
    return entry["verdict"], entry["found"]


@pytest.mark.slow
def test_an_old_partition_is_dropped_and_new_ones_are_created(cli: Call, old: Store) -> None:
    dry = cli("prune", "--dry-run")
    assert "the partition with tasks 1 to 5,000,000 would be dropped" in dry.out
    assert cli("prune", "--dry-run", "--json").document["partitions"] == [{"first": 1, "end": WIDTH + 1}]
    assert history(cli) == ("ok", "1 partition for succeeded tasks, up to id 5,000,000")
    result = cli("prune")
    assert result.code == Exit.OK
    assert "succeeded tasks older than 7d deleted: 2" in result.out
    assert "the partition with tasks 1 to 5,000,000 was dropped" in result.out
    assert cli("prune", "--json").document["partitions"] == []
    assert history(cli) == ("ok", "3 partitions for succeeded tasks, up to id 20,000,000")


def test_a_partition_with_retained_tasks_is_kept(cli: Call, old: Store) -> None:
    done = cli("prune", "--retention-succeeded", "never", "--json").document
    assert (done["partitions"], done["tasks"].get(State.SUCCEEDED)) == ([], None)
    assert cli("show", 1).code == Exit.OK


def test_tasks_beyond_all_partitions_are_reported(cli: Call, store: Store) -> None:
    store.use(lambda database: add_past(database, WIDTH + 1))
    verdict, text = history(cli)
    assert verdict == "note"
    assert "tasks beyond the last one" in text


def test_a_partition_that_cannot_be_created_does_not_stop_the_pruning(cli: Call, old: Store) -> None:
    with psycopg.connect(old.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE task_history_from_{WIDTH + 1} (id int)")
    result = cli("prune", "--json")
    assert result.code == Exit.OK
    assert result.document["tasks"][State.SUCCEEDED]["number"] == 2
    assert f'"task_history_from_{WIDTH + 1}" already exists' in result.err
