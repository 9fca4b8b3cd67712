"""The mouse: a click does what the text under the pointer says, and nothing else."""

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from textual.events import MouseScrollDown

from runner.db.database import Database
from runner.filter.sort import Sort, SortField
from runner.model.task import State
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.dialogs.help import HelpScreen
from tasktui.shell.frame import Keys
from tasktui.shell.heading import Heading
from tasktui.widgets.table import Table
from tests.store.rows import add_live, add_past, ahead, stored
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Operator, Watch

pytestmark = ON_ONE_DATABASE


async def click(operator: Operator, text: str, row: int | None = None) -> None:
    """Click at the first cell of a text on the screen, in a row from the top or the last row with the text."""
    lines = [strip.text for strip in operator.screen._compositor.render_strips()]
    rows = [number for number, line in enumerate(lines) if text in line]
    assert rows, f"{text!r} is not on the screen:\n{operator.text}"
    y = rows[-1] if row is None else row
    await operator.pilot.click(offset=(lines[y].index(text), y))


@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_a_click_on_a_tab_opens_its_screen(watch: Watch, size: tuple[int, int]) -> None:
    async with watch("overview", size) as operator:
        assert operator.screen.query_one(Heading)
        await click(operator, "2" if size == NARROW else "Tasks", 1)
        await operator.until(lambda: operator.screen.title == "Tasks")


async def test_a_click_moves_the_cursor_and_a_second_one_opens_the_task(database: Database, watch: Watch) -> None:
    ids = [await add_live(database) for _ in range(3)]
    async with watch("tasks") as operator:
        table = operator.screen.query_one(Table)
        await operator.until(lambda: table.cursor == ids[2])
        await click(operator, f"{ids[0]}  ○ ready")
        await operator.until(lambda: table.cursor == ids[0])
        await click(operator, f"{ids[0]}  ○ ready")
        await operator.until(
            lambda: operator.screen.title == "Task" and operator.console.databases.opened.task.id == ids[0]
        )


@pytest.mark.slow
async def test_a_click_on_a_head_sorts_and_a_second_one_reverses(database: Database, watch: Watch) -> None:
    late, soon = await add_live(database, run_at=ahead(900)), await add_live(database, run_at=ahead(300))
    async with watch("tasks") as operator:
        table = operator.screen.query_one(Table)
        await operator.until(lambda: table.keys == (soon, late))
        await click(operator, "WHEN")
        await operator.until(lambda: operator.console.databases.opened.tasks.sort.by is SortField.RUN_AT)
        await operator.until(lambda: table.keys == (soon, late))
        await click(operator, "WHEN")
        await operator.until(lambda: table.keys == (late, soon))
        await click(operator, "HANDLER")
        await click(operator, "ID")
        await operator.until(lambda: operator.console.databases.opened.tasks.sort.by is SortField.ID)


@pytest.mark.parametrize("filter_text", ["state:dead", "-state:succeeded", ""])
async def test_a_click_on_when_keeps_the_total_exact(database: Database, watch: Watch, filter_text: str) -> None:
    columns = {"handler": "h", "queue": "mail", "state": State.DEAD.value, "finished_at": datetime.now(UTC)}
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.history), [{"id": id, **columns} for id in range(1, 232)])
    await add_live(database, queue="mail", run_at=ahead(60))
    async with watch("tasks", filter_text=filter_text) as operator:
        shown = 231 + (filter_text != "state:dead")
        await operator.sees(f"{shown} tasks, 200 loaded")
        operator.screen.opened.sort = Sort(SortField.FINISHED_AT)
        operator.screen.on_screen_resume()
        await operator.sees("ended last first", "231 tasks, 200 loaded")


async def test_when_sorts_finished_tasks_by_their_end(database: Database, watch: Watch) -> None:
    await add_past(database, 5, finished_at=ahead(-60))
    await add_past(database, 6, finished_at=ahead(-600))
    async with watch("tasks", filter_text="state:succeeded") as operator:
        await operator.until(lambda: operator.screen.query_one(Table).keys == (6, 5))
        await click(operator, "WHEN")
        await operator.until(lambda: operator.screen.query_one(Table).keys == (5, 6))


async def test_a_click_on_a_chip_edits_the_filter(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail")
    async with watch("tasks", filter_text="queue:mail") as operator:
        await operator.sees("1 task")
        await click(operator, "mail", 3)
        await operator.until(lambda: getattr(operator.screen.focused, "id", "") == "filter")


async def test_a_click_on_a_key_cap_presses_the_key(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        assert operator.screen.query_one(Keys)
        await click(operator, "terminate")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        await operator.press("escape")
        await click(operator, "help")
        await operator.until(lambda: isinstance(operator.screen, HelpScreen))
    assert (await stored(database, id)).version == 0


@pytest.mark.slow
async def test_a_click_on_a_key_cap_of_a_dialog_confirms_or_cancels(database: Database, watch: Watch) -> None:
    id = await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        for label in ("cancel", "terminate 1 task"):
            await operator.press("T", "y")
            await operator.sees("terminate 1 task")
            assert (await stored(database, id)).version == 0
            await click(operator, label)
            await operator.until(lambda: not isinstance(operator.screen, ConfirmScreen))
        await operator.sees_notice("1 changed")
    assert await stored(database, id) is None


async def test_a_locked_key_cap_changes_nothing(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks", writable=False) as operator:
        await operator.sees("○ ready")
        await click(operator, "terminate")
        await operator.pilot.pause()
        assert not isinstance(operator.screen, ConfirmScreen)


async def test_the_wheel_scrolls_the_list_and_keeps_the_cursor(database: Database, watch: Watch) -> None:
    ids = [await add_live(database) for _ in range(60)]
    async with watch("tasks", NARROW) as operator:
        table = operator.screen.query_one(Table)
        await operator.until(lambda: table.cursor == ids[-1])
        await operator.pilot._post_mouse_events([MouseScrollDown], table, offset=(10, 5))
        await operator.until(lambda: table.scroll_offset.y > 0)
        assert table.cursor == ids[-1]
