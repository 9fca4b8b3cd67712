"""Hostile text from the database is displayed and has no effect on any screen."""

import pytest
from textual.strip import Strip

from runner.db.database import Database
from runner.queries.audit import audit
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.messages import Tone
from tasktui.screens import MODES
from tests.store.rows import add_live
from tests.tasktui.conftest import ON_ONE_DATABASE, WIDE, Operator, Watch
from tests.tasktui.hostile import fill

START, TITLE, CLEAR = "\x1b\x9b", "\x1b]0;owned\x07", "\x1b[2J\x1b[1;1H"
BUTTON, CLOSING, LINK = "[@click=app.quit]press[/]", "[/nothing]", "[link=https://evil.example]l[/link]"
TURNED, HIDDEN, TOWER = "\u202etxt.exe\u2066", "in\u200bvis\u2060ible\ufeff", "z" + "\u0301" * 40
HOSTILE = f"{START}{BUTTON}{CLOSING}{LINK}{TITLE}{CLEAR}{TURNED}{HIDDEN}{TOWER}\r\n\ttail"


@pytest.fixture
async def task_id(database: Database) -> int:
    """A task whose every text is hostile, with rows of the same kind in the other tables."""
    return await fill(database, HOSTILE)


def strips(operator: Operator) -> list[Strip]:
    return operator.console.screen._compositor.render_strips()


def assert_harmless(operator: Operator) -> None:
    for strip in strips(operator):
        assert strip.text.isprintable(), ascii(strip.text)
        for segment in strip:
            assert not (segment.style and segment.style.link)
            assert "app.quit" not in str(segment.style.meta if segment.style else "")


@pytest.mark.parametrize("size", [WIDE, pytest.param((200, 60), marks=pytest.mark.slow)])
async def test_hostile_text_does_nothing_on_any_screen(task_id: int, size: tuple[int, int], watch: Watch) -> None:
    async with watch(task_id=task_id, size=size) as operator:
        for mode in ("overview", "tasks", "task", "failures", "runners", "schedules", "audit"):
            await operator.press(MODES[mode].key)
            await operator.until(lambda title=MODES[mode].title: operator.screen.title == title)
            await operator.until(lambda: operator.screen.feed.read_at is not None)
            await operator.sees("␛\\x9b[@cl")
            if mode == "failures":
                await operator.sees("deploy ", "LATEST", "breaker open")
            assert_harmless(operator)


@pytest.mark.representatives(1)
@ON_ONE_DATABASE
@pytest.mark.parametrize("key", ["T", "P", "Z"])
async def test_hostile_text_does_nothing_in_a_question(key: str, task_id: int, watch: Watch) -> None:
    async with watch("task", task_id=task_id) as operator:
        await operator.sees("○ ready")
        await operator.press(key)
        await operator.until(lambda: isinstance(operator.screen, ConfirmScreen))
        await operator.sees("␛\\x9b[@click")
        assert_harmless(operator)


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_hostile_text_does_nothing_in_a_form(task_id: int, watch: Watch) -> None:
    async with watch("task", task_id=task_id) as operator:
        await operator.sees("○ ready")
        await operator.press("E")
        await operator.sees("Edit", "Payload", "␛")
        assert_harmless(operator)


@ON_ONE_DATABASE
async def test_hostile_text_does_nothing_in_a_notice(watch: Watch) -> None:
    async with watch() as operator:
        operator.screen.app.show_notice(HOSTILE, tone=Tone.ERROR)
        await operator.sees("press")
        assert_harmless(operator)


@ON_ONE_DATABASE
async def test_secrets_are_masked_until_they_are_revealed(database: Database, watch: Watch) -> None:
    id = await add_live(database, payload='{"user": "ana", "password": "hunter2"}')
    async with watch("task", task_id=id) as operator:
        await operator.sees('"user": "ana"', "***")
        assert "hunter2" not in operator.text
        await operator.press("v")
        await operator.sees("hunter2")
        await operator.press("v")
        await operator.until(lambda: "hunter2" not in operator.text)
    (entry,) = await database.read(audit)
    assert (entry.verb, entry.task_id) == ("reveal", id)


@ON_ONE_DATABASE
async def test_secrets_stay_masked_where_a_look_at_them_cannot_be_written_down(
    database: Database, watch: Watch
) -> None:
    id = await add_live(database, payload='{"password": "hunter2"}')
    async with watch("task", task_id=id, writable=False) as operator:
        await operator.sees("***")
        await operator.press("v")
        await operator.pilot.pause()
        assert operator.screen.check_action("reveal", ()) is None
        assert "hunter2" not in operator.text
    assert await database.read(audit) == []
