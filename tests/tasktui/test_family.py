"""What a task waits for on the screen of a task, and letting go of it there."""

from runner.store.database import Database
from runner.task import State
from tasktui.screens.confirm import ConfirmScreen
from tests.store.family import put_after
from tests.store.rows import stored
from tests.store.table import put
from tests.tasktui.conftest import Watch
from tests.tasktui.test_acting import say_yes


async def test_the_family_of_a_task_is_shown(database: Database, watch: Watch) -> None:
    root = await put(database, handler="fetch")
    child = await put_after(database, root, ("pay", "o-\x1b[31m17"), on_failure="cancel")
    grandchild = await put_after(database, child)
    async with watch("task") as operator:
        await operator.press("colon")
        await operator.press(*f"task {child}", "enter")
        await operator.sees(
            "0 of 2 have ended",
            "what it waits for",
            f"[1]  waits for task {root} fetch: ready; if that fails: cancel",
            "not submitted yet; if that fails: cancel",
            "what waits for it",
            f"[3]  task {grandchild} work waits for it: blocked; if it fails: wait",
        )
        assert "\x1b" not in operator.text


async def test_an_edge_is_satisfied_on_the_screen_of_its_task(database: Database, watch: Watch) -> None:
    root = await put(database)
    child = await put_after(database, root, ("pay", "o-17"))
    async with watch("task") as operator:
        await operator.press("colon")
        await operator.press(*f"task {child}", "enter")
        await operator.sees("[2]  waits for pay o-17")
        await operator.press("U")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        operator.screen.query_one("#answer").value = "2"
        await say_yes(operator, reason="paid by hand")
        await operator.sees("waited for pay o-17", "let go by")
        assert (await stored(database, child)).blocked_by == 1
        await operator.press("U")
        await say_yes(operator)
        await operator.sees("○ ready")
    assert (await stored(database, child)).state == State.WAITING


async def test_a_list_says_how_many_tasks_a_blocked_one_waits_for(database: Database, watch: Watch) -> None:
    await put_after(database, *[await put(database) for _ in range(3)])
    async with watch("tasks") as operator:
        await operator.sees("◌ blocked", "waits for 3 tasks")
