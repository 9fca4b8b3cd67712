"""Keys act in the order in which they were typed, at any speed."""

import asyncio
from typing import Any

import pytest
from textual.events import Key
from textual.widgets import Input

from runner.db.database import Database
from runner.queries.audit import audit
from runner.queries.registries import pauses
from tasktui.dialogs.ask import CommandScreen, ConfirmScreen
from tasktui.session.session import Job
from tests.store.rows import add_live, add_runner
from tests.tasktui.conftest import ON_ONE_DATABASE, Operator, Watch

pytestmark = ON_ONE_DATABASE
NAMES = {" ": "space", ":": "colon", "/": "slash", "<": "backspace", "\n": "enter", "^": "ctrl+u", "~": "left"}


def burst(operator: Operator, text: str) -> None:
    """Type a text at once: no key waits until the console has handled the one before."""
    for character in text:
        named = character in "<\n^~"
        operator.console.post_message(Key(NAMES.get(character, character), None if named else character))


@pytest.fixture
async def ids(database: Database) -> list[int]:
    return [await add_live(database, "mail.send", queue="mail", key=f"order-{number}") for number in range(3)]


async def test_characters_do_not_overtake_other_keys_in_the_filter(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, "/state:deaf<d\n")
        await operator.until(lambda: operator.console.session.filter_text == "state:dead")
        burst(operator, "/^queue:mial<<<ail\n")
        await operator.until(lambda: operator.console.session.filter_text == "queue:mail")
        burst(operator, "/^queu:mail~~~~~e\n")
        await operator.until(lambda: operator.screen.query_one("#filter", Input).value == "queue:mail")


async def test_a_command_runs_before_the_next_key(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        burst(operator, f":task {ids[0]}\nw")
        await operator.until(lambda: type(operator.screen).__name__ == "WhyScreen")
        assert operator.console.session.task_id == ids[0]
        assert not operator.notices


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


async def test_a_queue_that_was_never_used_is_not_paused(database: Database, ids: list[int], watch: Watch) -> None:
    await add_runner(database, handlers='["mail.send"]')
    async with watch("tasks") as operator:
        await operator.command("pause mial 30m typo")
        await operator.sees_notice("queue mial has never been used")
        assert (await database.read(pauses)).queues == {}


async def test_escape_closes_the_command_line_before_the_next_key(ids: list[int], watch: Watch) -> None:
    async with watch("tasks") as operator:
        await operator.sees("order-1")
        operator.console.post_message(Key("colon", ":"))
        for key in ("x", "escape", "2"):
            operator.console.post_message(Key(key, key if len(key) == 1 else None))
        await operator.pilot.pause()
        assert not isinstance(operator.screen, CommandScreen)


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
