"""Tasks that differ only in their payload: the store uses another representation, with the same rows."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from runner.db.database import Database
from runner.db.dialects import DIALECTS
from runner.db.needs import Needs, needs_of
from runner.db.statement import Prepared
from runner.db.transaction import Transaction
from runner.errors import InvalidTask
from runner.model.task import DependsOn, NewTask, UniqueKey
from runner.model.task_batch import TaskBatch
from runner.store.submit import CHUNK, submit_many
from tests.store.table import count, live

pytestmark = pytest.mark.one_database

OF_THEIR_OWN = {"id", "payload", "submitted_at"}
LEFT_TO_THE_DATABASE = {"run_at", "bucket"}
SAID: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a time": {"run_at": datetime(2100, 1, 1, 12, 30, tzinfo=UTC)},
    "all else": {
        "queue": "slow",
        "key": "order-17",
        "priority": 9,
        "max_attempts": 2,
        "retry": "30s",
        "timeout": 1.5,
        "tags": '["red"]',
        "headers": '{"traceparent": "00-1-2-3"}',
        "submitted_by": "somebody",
        "bucket": 17,
    },
}


async def stored(database: Database, tasks: Any) -> list[dict[str, Any]]:
    ids = await database.write(submit_many, tasks)
    return [await live(database, task_id) or {} for task_id in ids]


@pytest.mark.parametrize("options", SAID.values(), ids=SAID)
async def test_a_bulk_is_stored_as_its_tasks_would_be_one_by_one(database: Database, options: dict[str, Any]) -> None:
    bulk = TaskBatch(NewTask("work", **options), [f'{{"n": {number}}}' for number in range(3)])
    together, apart = await stored(database, bulk), await stored(database, list(bulk))
    assert [row["payload"] for row in together] == [row["payload"] for row in apart] == bulk.payloads
    for one, other in zip(together, apart, strict=True):
        values = one.keys() - OF_THEIR_OWN - (LEFT_TO_THE_DATABASE - options.keys())
        assert {name: one[name] for name in values} == {name: other[name] for name in values}


async def test_a_delay_of_a_bulk_counts_from_the_databases_now(database: Database) -> None:
    for row in await stored(database, TaskBatch(NewTask("work", delay=600.0), ["{}", "{}"])):
        assert abs((row["run_at"] - row["submitted_at"]).total_seconds() - 600) < 0.002


async def test_ids_of_a_bulk_come_back_in_the_order_of_its_payloads(database: Database) -> None:
    payloads = [f'{{"n":{number}}}' for number in range(2 * CHUNK + 1)]
    ids = await database.write(submit_many, TaskBatch(NewTask("work"), payloads))
    for place in (0, CHUNK - 1, CHUNK, 2 * CHUNK):
        assert (await live(database, ids[place]) or {})["payload"] == payloads[place]
    assert len(set(ids)) == len(payloads)


@pytest.mark.parametrize(
    "bulk", [TaskBatch(NewTask("work", priority=99), ["{}"]), TaskBatch(NewTask("work"), ["{}", '{"a": NaN}'])]
)
async def test_a_bulk_that_cannot_be_stored_is_refused_and_nothing_is_written(
    database: Database, bulk: TaskBatch
) -> None:
    with pytest.raises(InvalidTask):
        await database.write(submit_many, bulk)
    assert await count(database, database.tables.task) == 0


def test_a_bulk_is_a_sequence_of_tasks() -> None:
    bulk = TaskBatch(NewTask("work", key="k"), ["1", "2", "3"])
    assert list(bulk) == [NewTask("work", payload, key="k") for payload in ("1", "2", "3")]
    assert (bulk[1], list(bulk[1:]), len(bulk)) == (NewTask("work", "2", key="k"), list(bulk)[1:], 3)


def is_alone(tasks: Sequence[NewTask]) -> bool:
    """True if one statement submits them, which needs no transaction."""
    return needs_of(submit_many, DIALECTS["postgresql"], tasks) is Needs.PREPARED


@pytest.mark.parametrize("options", [{"unique_key": UniqueKey("k")}, {"after": (DependsOn(1),)}])
def test_only_tasks_without_dependencies_are_submitted_without_a_transaction(options: dict[str, Any]) -> None:
    plain, other = NewTask("work"), NewTask("work", **options)
    assert is_alone(TaskBatch(plain, ["{}"] * CHUNK))
    assert not is_alone(TaskBatch(plain, ["{}"] * (CHUNK + 1)))
    assert not is_alone(TaskBatch(other, ["{}"]))
    assert not is_alone([plain, other])


class Counted(Transaction):
    """Counts its statements."""

    __slots__ = ("statements",)

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx.connection, tx.tables, tx.dialect)
        self.statements = 0

    async def run(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any]:
        self.statements += 1
        return await super().run(prepared, parameters)


async def test_a_bulk_predicted_to_take_one_statement_takes_one(database: Database) -> None:
    bulk = TaskBatch(NewTask("work", **SAID["all else"]), ["{}"] * 3)
    async with database.writing() as tx:
        counted = Counted(tx)
        assert len(await submit_many(counted, bulk)) == len(bulk)
    assert (is_alone(bulk), counted.statements) == (True, 1)
