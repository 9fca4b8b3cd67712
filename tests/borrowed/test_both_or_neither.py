"""A task submitted in the application's transaction shares its fate, on every kind of connection."""

from typing import Any

from runner import TaskHandler
from tests.borrowed.applications import Application
from tests.borrowed.conftest import EACH_KIND, Books

pytestmark = EACH_KIND

Send = TaskHandler[[int], Any, Any]

WRITE = "INSERT INTO business VALUES (1)"


async def test_what_is_committed_is_there_with_its_task(application: Application, books: Books, send: Send) -> None:
    await application.execute(WRITE)
    ticket = await application.submit(send, 1)
    assert (await books.business(), await books.tasks()) == ([], [])
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [ticket])


async def test_what_is_rolled_back_leaves_neither(application: Application, books: Books, send: Send) -> None:
    await application.execute(WRITE)
    await application.submit(send, 1)
    await application.rollback()
    assert (await books.business(), await books.tasks()) == ([], [])


async def test_a_task_may_come_before_what_it_is_about(application: Application, books: Books, send: Send) -> None:
    ticket = await application.submit(send, 1)
    assert await books.tasks() == []
    await application.execute(WRITE)
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [ticket])


async def test_a_savepoint_takes_its_tasks_back(application: Application, books: Books, send: Send) -> None:
    await application.execute(WRITE)
    await application.execute("SAVEPOINT doubt")
    await application.submit(send, 1)
    await application.execute("ROLLBACK TO SAVEPOINT doubt")
    kept = await application.submit(send, 2)
    await application.commit()
    assert (await books.business(), await books.tasks()) == ([1], [kept])
