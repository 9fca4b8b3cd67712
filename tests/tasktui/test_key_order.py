"""Keys act in the order in which they were typed, at any speed."""

import asyncio
from typing import Any

import pytest
from textual.events import Key
from textual.widgets import Input

from runner.db.database import Database
from runner.queries.audit import audit
from runner.queries.registries import pauses
from tasktui.actions.action import Confirmation
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.dialogs.command_line import CommandScreen
from tasktui.session.session import Job, Session
from tasktui.terminal import typed_ahead
from tasktui.widgets.table import Table
from tests.store.rows import add_live, add_past, add_runner, ahead
from tests.tasktui.conftest import ON_ONE_DATABASE, Operator, Watch
from tests.tasktui.test_actions import confirm

pytestmark = ON_ONE_DATABASE
LONG_BURST = 60.0
NAMES = {
    " ": "space",
    "!": "exclamation_mark",
    ":": "colon",
    "/": "slash",
    "<": "backspace",
    "\n": "enter",
    "^": "ctrl+u",
    "~": "left",
    "%": "escape",
}


def burst(operator: Operator, text: str) -> None:
    """Type a text at once: no key waits until the console has handled the one before."""
    for character in text:
        named = character in "<\n^~%"
        operator.console.post_message(Key(NAMES.get(character, character), None if named else character))


@pytest.fixture
async def ids(database: Database) -> list[int]:
    return [await add_live(database, "mail.send", queue="mail", key=f"order-{number}") for number in range(3)]


@pytest.mark.slow
async def test_characters_do_not_overtake_other_keys_in_the_filter(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, "/state:deaf<d\n")
        await operator.until(lambda: operator.console.databases.opened.tasks.filter_text == "state:dead")
        burst(operator, "/^queue:mial<<<ail\n")
        await operator.until(lambda: operator.console.databases.opened.tasks.filter_text == "queue:mail")
        burst(operator, "/^queu:mail~~~~~e\n")
        await operator.until(lambda: operator.screen.query_one("#filter", Input).value == "queue:mail")


async def test_a_command_runs_before_the_next_key(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, f":task {ids[0]}\nw")
        await operator.until(lambda: type(operator.screen).__name__ == "WhyScreen")
        assert operator.console.databases.opened.task.id == ids[0]
        assert not operator.notices


async def test_an_action_takes_the_row_that_the_keys_before_it_chose(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, "jT")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        await operator.sees("order-1")
        assert operator.screen._question.words(Confirmation()) == ["terminate", ids[1]]


async def test_escape_acts_before_the_command_after_it(ids: list[int], watch: Watch) -> None:
    async with watch("overview") as operator:
        burst(operator, "%:tasks state:dead\n")
        await operator.until(lambda: operator.console.databases.opened.tasks.filter_text == "state:dead")
        await operator.pilot.pause()
        assert operator.console.current_mode == "tasks"


@pytest.mark.slow
async def test_a_pause_by_command_is_previewed_and_confirmed(database: Database, ids: list[int], watch: Watch) -> None:
    async with watch("tasks", production=True, profile="shop") as operator:
        await operator.sees("order-1")
        burst(operator, ":p mail\n")
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        await operator.sees("Pause queue mail", "3 ready")
        assert (await database.read(pauses)).queues == {}
        burst(operator, "30m\nrelay is down\nshop\n")
        await operator.until(lambda: not isinstance(operator.screen, ConfirmScreen))
        await operator.sees_notice("Queue mail paused until")
    (entry,) = await database.read(audit)
    assert (entry.verb, entry.reason) == ("pause", "relay is down")


@pytest.mark.slow
async def test_the_confirmation_warns_about_a_queue_that_was_never_used(
    database: Database, ids: list[int], watch: Watch
) -> None:
    await add_runner(database, handlers='["mail.send"]')
    async with watch("tasks") as operator:
        await operator.command("resume mial")
        await operator.sees_notice("Queue mial is not paused: queue mial has never been used, did you mean 'mail'")
        await operator.command("pause mial 30m typo")
        await operator.sees("Pause queue mial", "never been used, did you mean 'mail'; the pause holds its first")
        await operator.press("escape")
        assert (await database.read(pauses)).queues == {}
        await operator.command("pause mial 30m before the deploy")
        await confirm(operator, reason="before the deploy")
        await operator.sees_notice("Queue mial paused until")


async def test_escape_closes_the_command_line_before_the_next_key(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        operator.console.post_message(Key("colon", ":"))
        for key in ("x", "escape", "2"):
            operator.console.post_message(Key(key, key if len(key) == 1 else None))
        await operator.pilot.pause()
        assert not isinstance(operator.screen, CommandScreen)


@pytest.fixture
def typing(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all keys of a test belong to one burst, however slowly the machine handles them."""
    monkeypatch.setattr(typed_ahead, "BURST", LONG_BURST)


async def after_a_pause(operator: Operator, key: str) -> None:
    event = Key(key, key)
    event.time += 2 * LONG_BURST
    operator.console.post_message(event)
    await operator.pilot.pause()


REASON = "quite 2d overdue: x/8\n"
"""A text whose letters would quit, switch screens and databases, open the command line and the filter."""


@pytest.mark.usefixtures("typing")
@pytest.mark.parametrize(
    "mode",
    [
        "overview",
        "tasks",
        *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("failures", "runners", "schedules", "audit")),
    ],
)
async def test_keys_after_a_key_refused_in_read_only_are_ignored(ids: list[int], watch: Watch, mode: str) -> None:
    key = {"overview": "P", "runners": "L", "schedules": "P", "audit": "Z"}.get(mode, "T")
    async with watch(mode, writable=False) as operator:
        screen = operator.screen
        burst(operator, key + REASON)
        await operator.sees_notice(f"{len(REASON)} keys typed after it ignored; pause before the next key")
        assert operator.screen is screen
        assert operator.console.is_running
        await after_a_pause(operator, "8")
        assert operator.screen.title == "Audit"


@pytest.mark.usefixtures("typing")
async def test_keys_after_a_letter_without_a_binding_are_ignored(ids: list[int], watch: Watch) -> None:
    async with watch("runners") as operator:
        burst(operator, "X" + REASON)
        await operator.sees_notice(
            f"X (delete) is a key of 6 Schedules, not of this screen\n{len(REASON)} keys typed after it"
        )
        assert operator.screen.title == "Runners"


@pytest.mark.usefixtures("typing")
async def test_keys_after_a_key_refused_by_the_state_are_ignored(database: Database, watch: Watch) -> None:
    id = await add_past(database, 7)
    async with watch("task", task_id=id) as operator:
        await operator.sees("succeeded")
        burst(operator, "Ty\n" + REASON)  # refused at the key
        await operator.sees_notice(f"{len(REASON) + 2} keys typed after it ignored")
        assert operator.screen.title == "Task"


@pytest.mark.usefixtures("typing")
async def test_keys_after_a_key_refused_by_the_database_are_ignored(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, "Z" + REASON)  # refused after a read
        await operator.sees_notice("has no change to undo")
        await operator.sees_notice(f"{len(REASON)} keys typed after it ignored")
        assert operator.screen.title == "Tasks"


@pytest.mark.usefixtures("typing")
async def test_keys_after_a_refused_command_are_ignored(ids: list[int], watch: Watch) -> None:
    async with watch("tasks", writable=False) as operator:
        await operator.sees("order-1")
        burst(operator, ":pause mail\n" + REASON)
        await operator.sees_notice(f"{len(REASON)} keys typed after it ignored")
        assert operator.screen.title == "Tasks"


@pytest.mark.slow
async def test_keys_after_a_command_wait_for_its_dialog(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, ":pause mail\n90s\nquite overdue\ny")
        await operator.until(lambda: any(field.value == "y" for field in operator.screen.query("#word").results(Input)))
        values = [operator.screen.query_one(f"#{name}", Input).value for name in ("answer", "reason")]
        assert values == ["90s", "quite overdue"]


@pytest.mark.usefixtures("typing")
async def test_a_held_key_ends_the_keys_that_are_ignored(ids: list[int], watch: Watch) -> None:
    async with watch("tasks", writable=False) as operator:
        await operator.until(lambda: len(operator.screen.pages.listing.ids) == len(ids))
        table = operator.screen.query_one(Table)
        first = table.cursor
        burst(operator, "Tjj")
        await operator.sees_notice("2 keys typed after it ignored")
        assert table.cursor == first
        burst(operator, "j")
        await operator.until(lambda: table.cursor != first)


@pytest.mark.usefixtures("typing")
async def test_escape_ends_the_keys_that_are_ignored(ids: list[int], watch: Watch) -> None:
    async with watch("tasks", writable=False) as operator:
        burst(operator, "Tx")
        operator.console.post_message(Key("escape", None))
        burst(operator, "8")
        await operator.until(lambda: operator.screen.title == "Audit")


async def test_quitting_waits_for_a_bulk_change(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        console: Any = operator.console
        console.session.work = work = Job("Retry", 4_000, 0.0, 200)
        await operator.press("q")
        await operator.sees_notice("q again stops it and quits")
        assert console.is_running
        await operator.press("q")
        await operator.until(lambda: work.stopping)
        await asyncio.sleep(0)
        assert console.is_running
        console.session.work = None
        await operator.until(lambda: not console.is_running or console._exit)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the database answer the reads of dialogs only once the event is set."""
    event, read = asyncio.Event(), Session.read

    async def slowly(session: Session, verb: Any, *args: Any, **kwargs: Any) -> Any:
        if verb.__name__ in ("task_detail", "queue_tasks", "preview", "clock", "_facts"):
            await event.wait()
        return await read(session, verb, *args, **kwargs)

    monkeypatch.setattr(Session, "read", slowly)
    return event


@pytest.mark.slow
async def test_escape_cancels_a_dialog_that_the_database_delays(
    ids: list[int], watch: Watch, answers: asyncio.Event
) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, "E8q")
        await operator.sees("Edit waits for the database, and keys for its dialog; escape cancels")
        await operator.press("escape")
        await operator.sees_notice("Edit cancelled before its dialog opened; 2 keys typed after it ignored")
        answers.set()
        await operator.until(lambda: not [worker for worker in operator.console.workers if worker.group == "act"])
        await operator.pilot.pause()
        assert operator.screen.title == "Tasks"
        await operator.press("8")
        assert operator.screen.title == "Audit"


async def test_the_notice_of_a_wait_ends_with_the_wait(
    ids: list[int], watch: Watch, answers: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed_ahead, "PATIENCE", 0.01)
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        await operator.press("E")
        await operator.sees("Edit waits for the database")
        answers.set()
        await operator.until(lambda: type(operator.screen).__name__ == "EditScreen")
        await operator.back("Tasks")
        assert "waits for the database" not in operator.text


@pytest.mark.parametrize(
    ("keys", "shown"), [("!w", "WhyManyScreen"), ("!H", "ConfirmScreen"), ("!q", "OverviewScreen")]
)
async def test_keys_typed_while_the_alerts_are_read_act_on_the_first_one(
    database: Database, watch: Watch, answers: asyncio.Event, keys: str, shown: str
) -> None:
    await add_runner(database, handlers='["other"]', lease=600)
    await add_live(database, "mail.send", run_at=ahead(-600))
    async with watch("overview") as operator:
        burst(operator, keys)
        if shown != "OverviewScreen":
            await operator.until(lambda: type(operator.screen).__name__ == "AttentionScreen")
            answers.set()
        await operator.until(lambda: type(operator.screen).__name__ == shown)


@pytest.mark.slow
async def test_a_key_after_escape_opens_its_own_dialog_only(
    ids: list[int], watch: Watch, answers: asyncio.Event
) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        operator.console.post_message(Key("E", "E"))
        operator.console.post_message(Key("escape", None))
        burst(operator, "E+15m")
        await operator.sees_notice("Edit cancelled before its dialog opened")
        answers.set()
        await operator.until(lambda: type(operator.screen).__name__ == "EditScreen")
        await operator.until(
            lambda: [field.value for field in operator.screen.query("#run_at").results(Input)] == ["+15m"]
        )
        await operator.press("escape")
        assert operator.screen.title == "Tasks"


async def test_escape_cancels_the_dialog_of_a_command(ids: list[int], watch: Watch, answers: asyncio.Event) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, ":submit mail.send\n")
        await operator.press("escape")
        await operator.sees_notice("cancelled before its dialog opened")
        answers.set()
        await operator.until(lambda: not [worker for worker in operator.console.workers if worker.group == "act"])
        assert operator.screen.title == "Tasks"


async def test_keys_act_again_once_the_screen_of_a_delayed_dialog_is_removed(
    ids: list[int], watch: Watch, answers: asyncio.Event
) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, "Eq")
        await operator.until(lambda: [worker for worker in operator.console.workers if worker.group == "act"])
        await operator.console.switch_mode("overview")
        await operator.console.remove_mode("tasks")
        await operator.pilot.pause()
        await operator.press("8")
        assert operator.screen.title == "Audit"
