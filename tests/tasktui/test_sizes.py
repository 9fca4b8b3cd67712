"""Every screen, and every key and dialog of it, at every size of the terminal."""

import pytest

from runner.db.database import Database
from runner.model.task import State
from tasktui.screens import MODES
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.tasktui.conftest import ON_ONE_DATABASE, Operator, Watch

SIZES = ((10, 3), (20, 8), (39, 10), (61, 15), (400, 60))

LEAVES = frozenset({"q", "ctrl+c", "ctrl+q", "ctrl+z", "escape"})
"""Keys that leave the console or the screen."""


async def fill(database: Database) -> int:
    """Write a row of each kind, and return the id of a dead task."""
    runner = await add_runner(database, 1e6, handlers='["mail.send"]', capacity=8)
    await add_live(database, "mail.send", id=40, queue="mail")
    await add_live(database, "mail.send", id=41, queue="mail", state=State.RUNNING, runner_id=runner)
    await add_past(database, 42, State.DEAD, handler="mail.send", queue="mail", key="注文-" + "17" * 40)
    await add_attempt(database, 42, handler="mail.send", message="timeout " * 40, ended_at=ahead(-60))
    return 42


async def press_each(operator: Operator, mode: str) -> None:
    """Press each key of the screen, and close the dialogs that open."""
    app = operator.console
    keys = [key for key, active in operator.screen.active_bindings.items() if active.enabled and key not in LEAVES]
    for key in keys:
        await operator.press(key)
        await operator.pilot.pause(0.02)
        assert operator.text.strip(), (mode, key)
        while len(app.screen_stack) > 1:
            await operator.press("escape")
            await operator.pilot.pause(0.01)
        if app.current_mode != mode:
            app.switch_mode(mode)
            await operator.until(lambda: app.current_mode == mode and operator.screen.feed.read_at is not None)


@pytest.mark.slow
@ON_ONE_DATABASE
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("mode", MODES)
async def test_each_key_works_at_each_size(database: Database, watch: Watch, mode: str, size: tuple[int, int]) -> None:
    async with watch(mode, size, task_id=await fill(database)) as operator:
        await press_each(operator, mode)


@pytest.mark.slow
@ON_ONE_DATABASE
@pytest.mark.parametrize("size", SIZES[:3], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_help_opens_in_a_tiny_terminal(database: Database, watch: Watch, size: tuple[int, int]) -> None:
    await fill(database)
    async with watch("failures", size) as operator:
        await operator.press("question_mark")
        await operator.until(lambda: type(operator.screen).__name__ == "HelpScreen")
        await operator.press("escape", "7")
        await operator.until(lambda: operator.console.current_mode == "reports" and operator.screen.feed.read_at)
