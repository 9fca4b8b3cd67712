"""A task submitted in the application's transaction commits and rolls back with it, on every kind of connection."""

from typing import Any

from runner import TaskHandler
from tests.client.external.applications import Application
from tests.client.external.conftest import EACH_KIND, Books

pytestmark = EACH_KIND

Send = TaskHandler[[int], Any, Any]

WRITE = "INSERT INTO business VALUES (1)"


async def test_a_commit_stores_the_row_and_its_task(application: Application, books: Books, send: Send) -> None:
    await application.execute(WRITE)
    handle = await application.submit(send, 1)
    assert (await books.business(), await books.tasks()) == ([], [])
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [handle])


async def test_a_rollback_stores_neither(application: Application, books: Books, send: Send) -> None:
    await application.execute(WRITE)
    await application.submit(send, 1)
    await application.rollback()
    assert (await books.business(), await books.tasks()) == ([], [])


async def test_a_task_can_be_submitted_before_the_row_it_belongs_to(
    application: Application, books: Books, send: Send
) -> None:
    handle = await application.submit(send, 1)
    assert await books.tasks() == []
    await application.execute(WRITE)
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [handle])


async def test_rolling_back_to_a_savepoint_removes_its_tasks(
    application: Application, books: Books, send: Send
) -> None:
    await application.execute(WRITE)
    await application.execute("SAVEPOINT doubt")
    await application.submit(send, 1)
    await application.execute("ROLLBACK TO SAVEPOINT doubt")
    kept = await application.submit(send, 2)
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [kept])
