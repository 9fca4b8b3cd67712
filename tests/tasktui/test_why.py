"""Asking the console why a task is not running."""

from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import By, Kind, Place
from tests.store.rows import add_live, add_runner
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, Watch

BY = By("ana", "web-1", "restore of db-2")


async def test_w_in_the_list_tells_of_the_task_under_the_cursor(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["other"]')
    await add_live(database, "other")
    id = await add_live(database, "smtp.send", queue="mail")
    await database.write(intervene.pause, Place(Kind.QUEUE, "mail"), BY)
    async with watch("tasks", NARROW) as operator:
        await operator.sees("smtp.send")
        await operator.press("w")
        await operator.sees(
            f"Task {id} smtp.send is not running because:", "1. Queue mail was paused by ana", "2. No live"
        )
        await operator.press("escape")
        await operator.until(lambda: operator.screen.title == "Tasks")


@ON_ONE_DATABASE
async def test_what_is_said_follows_what_happens(database: Database, watch: Watch) -> None:
    id = await add_live(database, "smtp.send")
    async with watch("task", task_id=id) as operator:
        await operator.sees("smtp.send")
        await operator.press("w")
        await operator.sees("no runner is alive at all")
        await add_runner(database, handlers='["smtp.send"]', capacity=2)
        await operator.sees("such tasks")


@ON_ONE_DATABASE
async def test_without_a_task_there_is_nothing_to_ask(watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.press("w")
        await operator.is_told("Put the cursor on a task")
