"""Dependencies on the task screen, and unblocking them there."""

import pytest

from runner.db.database import Database
from runner.model.task import State
from tasktui.dialogs.ask import ConfirmScreen
from tests.store.dependencies import put_after
from tests.store.rows import stored
from tests.store.table import put
from tests.tasktui.conftest import ON_ONE_DATABASE, Watch
from tests.tasktui.test_actions import confirm


async def test_the_family_of_a_task_is_shown(database: Database, watch: Watch) -> None:
    root = await put(database, handler="fetch")
    child = await put_after(database, root, ("pay", "o-\x1b[31m17"), on_failure="cancel")
    grandchild = await put_after(database, child)
    async with watch("task") as operator:
        await operator.press("colon")
        await operator.press(*f"task {child}", "enter")
        await operator.sees(
            "0 of 2 have ended",
            "DEPENDENCIES",
            f"[1]  waits for task {root} fetch: ready; on failure: cancel",
            "not submitted yet; on failure: cancel",
            "DEPENDENTS",
            f"[3]  task {grandchild} work waits for it: blocked; on failure: wait",
        )
        assert "\x1b" not in operator.text


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_dependency_is_unblocked_on_the_task_screen(database: Database, watch: Watch) -> None:
    root = await put(database)
    child = await put_after(database, root, ("pay", "o-17"))
    async with watch("task") as operator:
        await operator.press("colon")
        await operator.press(*f"task {child}", "enter")
        await operator.sees("[2]  waits for pay o-17")
        await operator.press("U")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        operator.screen.query_one("#answer").value = "2"
        await confirm(operator, reason="paid by hand")
        await operator.sees("waited for pay o-17", "unblocked by")
        assert (await stored(database, child)).blocked_by == 1
        await operator.press("U")
        await confirm(operator)
        await operator.sees("○ ready")
    assert (await stored(database, child)).state == State.WAITING


async def test_the_list_shows_how_many_parents_a_blocked_task_waits_for(database: Database, watch: Watch) -> None:
    await put_after(database, *[await put(database) for _ in range(3)])
    async with watch("tasks") as operator:
        await operator.sees("◇ blocked", "waits for 3 tasks")
