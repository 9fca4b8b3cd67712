"""Keys that lead from one screen to another, and those that move within a screen."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import sqlalchemy as sa
from textual.binding import Binding
from textual.events import Key
from textual.screen import Screen
from textual.widgets import Input

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.task import State
from runner.policy.breaker import Breaker
from runner.policy.histogram import Histogram
from runner.store.breaker import declare_breakers
from tasktui.actions.action import Action
from tasktui.actions.actions import ACTIONS
from tasktui.app import Console
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.dialogs.form import FormScreen
from tasktui.dialogs.palette import PaletteScreen
from tasktui.screens import MODES
from tasktui.shell.heading import Heading
from tasktui.shell.live import unbound
from tasktui.widgets.input import TextLine
from tasktui.widgets.table import Table
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_runner, ahead
from tests.tasktui.conftest import ON_ONE_DATABASE, Operator, Watch


async def opens(operator: Operator, key: str, title: str, filter_text: str) -> None:
    await operator.press(key)
    await operator.until(lambda: operator.screen.title == title)
    await operator.until(lambda: operator.console.databases.opened.tasks.filter_text == filter_text)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_enter_lists_the_tasks_of_a_queue_and_of_a_runner(database: Database, watch: Watch) -> None:
    runner = await add_runner(database)
    await add_live(database, queue="mail", state=State.RUNNING, runner_id=runner, claimed_at=ahead(-1))
    async with watch("overview") as operator:
        await operator.sees("mail")
        await opens(operator, "enter", "Tasks", "queue:mail")
        await operator.press("5")
        await operator.sees("web-1:7")
        await opens(operator, "enter", "Tasks", f"runner:{runner} state:running")
        await operator.sees("1 task")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_keys_of_the_list_discard_a_typed_filter_turn_pages_and_hide_the_preview(
    database: Database, watch: Watch
) -> None:
    ids = [await add_live(database, run_at=ahead(60), payload='{"colour": 1}') for _ in range(60)]
    async with watch("tasks", filter_text="handler:h") as operator:
        await operator.sees("scheduled")
        await operator.press("slash")
        await operator.type("state:dead")
        await operator.press("escape")
        assert operator.console.databases.opened.tasks.filter_text == "handler:h"
        first = operator.screen.table.cursor
        await operator.press("pagedown")
        await operator.until(lambda: operator.screen.table.cursor != first)
        await operator.press("pageup")
        await operator.until(lambda: operator.screen.table.cursor == first)
        await operator.sees('"colour"')
        await operator.press("p")
        await operator.until(lambda: '"colour"' not in operator.text)
        await operator.press("slash")
        assert operator.screen.focused.value == "handler:h"
    assert first in ids


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_keys_of_a_failure_group_limit_its_handler_and_open_its_breaker(database: Database, watch: Watch) -> None:
    await add_attempt(database, await add_live(database), started_at=ahead(-2), ended_at=ahead(-1))
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.handler).values(name="h", last_seen_at=ahead(0)))
    await database.write(declare_breakers, ["h"], {"h": Breaker("10/min").columns})
    async with watch("failures") as operator:
        await operator.sees("ValueError")
        for key, question in (("K", "Limit handler h?"), ("C", "Open the breaker of h?")):
            await operator.press(key)
            await operator.sees(question)
            assert isinstance(operator.screen, ConfirmScreen)
            await operator.back("Failures")


@ON_ONE_DATABASE
async def test_the_palette_finds_an_action_by_its_words(watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.press("ctrl+p")
        await operator.until(lambda: operator.screen.focused is not None)
        await operator.type("pause handler")
        await operator.sees("Pause handler", " ▸ pause handler ")
        assert "Drain" not in operator.text
        assert operator.screen.query(Heading), "the state of safety stays bright"
        palette = operator.screen
        palette.dismiss(None)
        palette.dismiss(None)  # Two clicks in one burst do the same.
        await operator.until(lambda: operator.screen.title == "Tasks")


@ON_ONE_DATABASE
async def test_a_wide_and_tall_overview_plots_the_run_times_of_the_last_hour(database: Database, watch: Watch) -> None:
    at = (await database.read(clock)).replace(second=0, microsecond=0)
    minute = Minute(at - timedelta(minutes=3), "mail", "h", durations=Histogram())
    minute.counts["succeeded"] = 4
    minute.durations.add([0.02, 0.02, 0.02, 5.0])
    await database.write(write_statistics, await add_runner(database), [minute], {})
    async with watch("overview", (200, 60)) as operator:
        await operator.sees("RUN TIME", "p50", "p95")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_enter_lists_the_tasks_of_a_queue_at_a_past_time(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail", run_at=ahead(-900), submitted_at=ahead(-900))
    async with watch("overview") as operator:
        await operator.command("at 5m ago")
        await operator.sees("As of", "mail")
        await opens(operator, "enter", "Tasks", "queue:mail")
        await operator.sees("As of", "1 task")
        await operator.press("r")
        await operator.sees("1 task")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_enter_leads_to_the_next_input_of_the_edit_form(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("○ ready")
        await operator.press("E")
        await operator.sees("Max attempts")
        operator.screen.query_one("#priority").focus()
        await operator.pilot.pause()
        fields = [field.id for field in operator.screen.query(Input) if not field.disabled]
        await operator.press("enter")
        assert operator.screen.focused.id == fields[fields.index("priority") + 1]


@ON_ONE_DATABASE
@pytest.mark.parametrize(("key", "text"), [("slash", "queue:mail"), ("colon", "tasks queue:mail")])
async def test_a_prompt_keeps_its_sign_while_text_is_typed(watch: Watch, key: str, text: str) -> None:
    sign = {"slash": "/", "colon": ":"}[key]
    async with watch("tasks") as operator:
        await operator.press(key)
        await operator.sees(f"\n {sign} ")
        await operator.type(text)
        await operator.sees(f"\n {sign} {text}")
        await operator.type("")
        await operator.sees(f"\n {sign} ")


@pytest.mark.parametrize("action", {action.key: action for action in reversed(ACTIONS.values())}.values())
def test_a_letter_without_a_binding_names_a_screen_that_has_it(action: Action) -> None:
    (mode,) = (mode for mode in MODES.values() if f"{mode.key} {mode.title}" in unbound(action.key))
    assert action.key in {binding.key for binding in mode.screen.BINDINGS if isinstance(binding, Binding)}
    assert action.label.lower() in unbound(action.key)


def test_a_letter_that_no_screen_has_leads_to_the_help() -> None:
    assert unbound("G") == "G is not a key of this screen; ? lists its keys"


@ON_ONE_DATABASE
async def test_a_burst_of_keys_moves_in_the_palette_and_runs_its_entry(watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.pilot.press("ctrl+p", "pagedown", "end", *"audit go", "up", "down", "up", "enter")
        await operator.until(lambda: operator.screen.title == "Audit")


@ON_ONE_DATABASE
async def test_enter_in_a_burst_runs_the_entry_that_its_letters_find(watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.press("ctrl+p")
        for letter in "audit":
            operator.console.post_message(Key(letter, letter))
        operator.console.post_message(Key("enter", "\r"))
        await operator.until(lambda: operator.screen.title == "Audit")


@ON_ONE_DATABASE
async def test_a_click_keeps_the_letters_for_the_search_of_the_palette(watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.press("ctrl+p")
        table = operator.screen.query_one("#choices", Table)
        await operator.until(lambda: table.size.height > 4)
        await operator.pilot.click(table, (5, 3))
        assert table.cursor == table.keys[2]
        await operator.type("nothing like it")
        await operator.until(lambda: not table.keys)
        await operator.press("enter")
        await operator.type("fail")
        await operator.until(lambda: table.cursor is not None)
        assert isinstance(operator.screen, PaletteScreen)
        await operator.pilot.click(table, (5, 1))  # the row under the cursor
        await operator.until(lambda: operator.screen.title == "Failures")


@ON_ONE_DATABASE
async def test_a_palette_that_closes_as_it_opens_is_harmless(watch: Watch) -> None:
    async with watch("tasks") as operator:
        console = operator.console
        opening = console.push_screen(PaletteScreen(console, console.screen))
        console.screen.dismiss()
        await opening
        await operator.press("ctrl+p")
        assert isinstance(operator.screen, PaletteScreen)


@ON_ONE_DATABASE
async def test_the_palette_opens_again_while_the_last_one_closes(watch: Watch) -> None:
    async with watch("tasks") as operator:
        console = operator.console
        await operator.press("ctrl+p")
        console.screen.dismiss()
        console.action_command_palette()
        await operator.pilot.pause()
        assert isinstance(operator.screen, PaletteScreen)


@ON_ONE_DATABASE
async def test_a_console_that_ends_while_the_palette_opens_ends_without_a_crash(watch: Watch) -> None:
    async with watch("tasks") as operator:
        console, opened = operator.console, list[PaletteScreen]()

        def push(screen: PaletteScreen) -> None:
            opened.append(screen)
            Console.push_screen(console, screen)
            console.exit()

        console.push_screen = push
        await operator.pilot.press("ctrl+p")
        await operator.until(lambda: opened and opened[0].is_mounted)
    assert console.return_code == 0
    assert console._exception is None


@ON_ONE_DATABASE
async def test_a_console_that_ends_while_a_form_opens_ends_without_a_crash(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("ready")
        console, opened = operator.console, list[Screen[object]]()

        def push(screen: Screen[object], on_close: Callable[..., None]) -> None:
            opened.append(screen)
            Console.push_screen(console, screen, on_close)
            console.exit()

        console.push_screen = push
        await operator.pilot.press("N")
        await operator.until(lambda: opened and opened[0].is_mounted)
        assert isinstance(opened[0], FormScreen)
    assert console.return_code == 0


@ON_ONE_DATABASE
async def test_a_confirmation_that_closes_while_it_is_resized_is_not_drawn(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("ready")
        await operator.press("T")
        dialog = operator.screen
        assert isinstance(dialog, ConfirmScreen)
        await dialog.dismiss()
        assert not dialog.query(TextLine)
        dialog.on_resize()
        await operator.pilot.pause()
        dialog._draw()
    assert operator.console._exception is None


@ON_ONE_DATABASE
async def test_a_console_that_ends_while_a_confirmation_opens_ends_without_a_crash(
    database: Database, watch: Watch
) -> None:
    await add_live(database)
    async with watch("tasks") as operator:
        await operator.sees("ready")
        console, opened = operator.console, list[ConfirmScreen]()

        def push(screen: ConfirmScreen, on_close: Callable[..., None]) -> None:
            opened.append(screen)
            Console.push_screen(console, screen, on_close)
            console.exit()  # Textual composes nothing from now on, and mounts the dialog nevertheless.

        console.push_screen = push
        await operator.pilot.press("T")
        await operator.until(lambda: opened and opened[0].is_mounted)
        assert not opened[0].query(TextLine)
    assert console.return_code == 0
