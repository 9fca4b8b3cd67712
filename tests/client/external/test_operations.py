"""A task is read and changed in the application's transaction, on every kind of connection."""

from typing import Any

import pytest
import sqlalchemy as sa

from runner import TaskHandler
from runner.db.database import Database
from runner.errors import SyncAsyncMismatch, TaskNotFound, TaskUnchanged
from runner.model.task import State
from tests.client.external.applications import Application, done
from tests.client.external.conftest import EACH_KIND, Books

pytestmark = EACH_KIND

Send = TaskHandler[[int], Any, Any]


async def call(application: Application, task: Any, name: str, *args: Any, **options: Any) -> Any:
    form = f"{name}_async" if application.awaited else name
    return await done(getattr(task, form)(*args, tx=application.tx, **options))


async def audit(database: Database) -> list[tuple[Any, ...]]:
    columns = database.tables.audit.c
    async with database.reading() as tx:
        rows = await tx.rows(sa.select(columns.verb, columns.operator, columns.reason).order_by(columns.id))
    return [(row.verb, row.operator.partition(" ")[0], row.reason) for row in rows]


async def test_a_task_is_cancelled_and_retried_with_the_transaction(
    application: Application, books: Books, database: Database, send: Send
) -> None:
    task = await application.submit(send, 1)
    assert (await call(application, task, "status")).state is State.WAITING
    await call(application, task, "cancel", "no stock", by="ana")
    assert (await call(application, task, "status")).state is State.CANCELLED
    with pytest.raises(TaskUnchanged, match="cancelled"):
        await call(application, task, "cancel")
    await application.execute("SAVEPOINT doubt")
    await call(application, task, "retry", by="bo")
    await call(application, task, "reschedule", "1h", by="bo")
    assert (await call(application, task, "status")).state is State.WAITING
    await application.execute("ROLLBACK TO SAVEPOINT doubt")
    assert (await call(application, task, "status")).state is State.CANCELLED
    assert await audit(database) == []
    await application.commit()
    assert await audit(database) == [("terminate", "ana", "no stock")]


async def test_the_transaction_continues_after_an_unknown_task_with_its_own_lock_timeout(
    application: Application, books: Books, database: Database, send: Send
) -> None:
    task = await application.submit(send, 1)
    with pytest.raises(TaskNotFound):
        await call(application, send.task_handle(task + 1), "cancel")
    await call(application, task, "signal", "stop", {"by": "ana"})
    if database.dialect.row_locks:
        await application.execute("CREATE TEMP TABLE seen AS SELECT current_setting('lock_timeout') AS value")
        await application.execute("INSERT INTO business SELECT 1 FROM seen WHERE value = '0'")
    await application.commit()
    assert [verb for verb, *_ in await audit(database)] == ["signal"]
    assert await books.business() == ([1] if database.dialect.row_locks else [])


async def test_a_connection_of_the_other_form_is_refused(application: Application, send: Send) -> None:
    task = send.task_handle(1)
    with pytest.raises(SyncAsyncMismatch, match="Use cancel"):
        await done(getattr(task, "cancel" if application.awaited else "cancel_async")(tx=application.tx))
