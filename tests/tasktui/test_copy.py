"""Copying: each text of a task by two keys, a dragged selection, and the program of the desktop."""

import os
import shutil
from pathlib import Path

import pytest
from textual import events

from runner.db.database import Database
from runner.model.schedule import ScheduleSpec
from runner.model.task import State
from runner.operations.results import Actor
from runner.operations.schedule import add_schedule
from tasktui.dialogs.copy import CopyScreen
from tasktui.startup.arguments import parse
from tasktui.terminal import clipboard
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Operator, Watch

KEYS = {
    "i": "ID",
    "k": "order-88126␛[31m",
    "p": '{"to": "ana", "card_token": "***"}',
    "e": "OSError: password=*** is gone\nTraceback: here",
    "l": "tasktui --task ID --profile shop",
}
"""The text of each key, with ID for the id."""


async def copied(operator: Operator, text: str) -> None:
    await operator.until(lambda: operator.console.clipboard == text)
    await operator.until(lambda: not isinstance(operator.screen, CopyScreen))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "size"), [("tasks", NARROW), ("task", WIDE)])
async def test_a_text_of_a_task_is_copied_by_two_keys(
    database: Database, watch: Watch, mode: str, size: tuple[int, int]
) -> None:
    payload = '{"to": "ana", "card_token": "tok_live"}'
    error = "OSError: password=hunter2 is gone"
    id = await add_live(database, key="order-88126\x1b[31m", payload=payload, error=error, attempt=1)
    await add_attempt(database, id, ended_at=ahead(-1), traceback="Traceback: here")
    async with watch(mode, size, task_id=id, profile="shop") as operator:
        await operator.sees("order-88126")
        await operator.press("y")
        await operator.sees(
            f"Copy of task {id}", " i  id", " k  key", " p  payload", " e  error", "+1 line", " l  link"
        )
        box = operator.screen.query_one(".dialog").region
        assert (box.x > 0, box.y > 2) == (True, True), "in the middle, as other dialogs"
        for _ in range(2):  # The second key finds the dialog closed.
            operator.screen.post_message(events.Key("i", "i"))
        await copied(operator, str(id))
        await operator.press("y")
        await operator.sees("Copy of task")
        await operator.press("escape")
        for key, text in KEYS.items():
            await operator.press("y", key)  # The second key waits for the dialog.
            await copied(operator, text.replace("ID", str(id)))
        await operator.sees_notice(f"Copied the link: tasktui --task {id}")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_failure_group_is_copied_and_an_empty_screen_copies_nothing(database: Database, watch: Watch) -> None:
    async with watch("failures") as operator:
        await operator.press("y")
        await operator.sees_notice("Nothing to copy here")
        await add_past(database, 7, State.DEAD)
        await add_attempt(database, 7, ended_at=ahead(-1), traceback="Traceback: here")
        await operator.press("r")
        await operator.sees("ValueError")
        await operator.press("y", "k", "i")  # A group has no key: the dialog ignores it.
        await copied(operator, "f1")
        await operator.press("y", "e")
        await copied(operator, "ValueError: no\nTraceback: here")
        await operator.press("y", "l")
        await operator.until(lambda: operator.console.clipboard.startswith("runner tasks failure:f1 --url "))


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_other_rows_have_texts_too(database: Database, watch: Watch) -> None:
    runner = await add_runner(database, host="web-3", pid=4117)
    await add_live(database, "mail.send", id=7, queue="mail")
    spec = ScheduleSpec("mail.send", "every 1h", payload='{"to": "ana", "password": "hunter2"}')
    await database.write(add_schedule, "nightly", spec, Actor("ana", "desk", "new"))
    texts = {
        "overview": {"i": "mail", "l": "runner tasks queue:mail"},
        "runners": {"i": str(runner), "n": "web-3:4117", "l": f"runner tasks runner:{runner}"},
        "schedules": {
            "i": "nightly",
            "r": "every 1h",
            "p": '{"to": "ana", "password": "***"}',
            "l": "runner schedules show nightly",
        },
        "reports": {"i": "all", "l": "runner reports --since 1h"},
        "audit": {"i": "1", "t": "schedule nightly", "r": "new", "l": "runner audit --of 'schedule nightly'"},
    }
    for mode, keys in texts.items():
        async with watch(mode, profile="shop") as operator:
            for key, text in keys.items():
                await operator.press("y", key)
                await copied(operator, text if key != "l" else f"{text} --profile shop")


@ON_ONE_DATABASE
@pytest.mark.parametrize(("mode", "text"), [("tasks", "mail.send"), ("task", "order-88126")])
async def test_a_dragged_selection_is_copied(database: Database, watch: Watch, mode: str, text: str) -> None:
    id = await add_live(database, "mail.send", key="order-88126")
    async with watch(mode, task_id=id) as operator:
        await operator.sees(text)
        lines = [strip.text for strip in operator.screen._compositor.render_strips()]
        y = next(number for number, line in enumerate(lines) if text in line)
        x = lines[y].index(text)
        for kind, moved in ((events.MouseDown, 0), (events.MouseMove, len(text)), (events.MouseUp, len(text))):
            operator.console.post_message(  # as a terminal: a press and a release in one widget are also a click
                kind(None, x + moved, y, 0, 0, 1, False, False, False, x + moved, y)
            )
            await operator.pilot.pause()
        await operator.until(lambda: operator.console.clipboard == text)
        await operator.sees_notice(f"Copied {len(text)} characters")
        assert operator.screen.title == mode.capitalize()


def test_the_program_of_this_desktop_copies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name != "wl-copy" else None)
    assert clipboard.programs({"DISPLAY": ":0", "WAYLAND_DISPLAY": "w"}) == [("xclip", "-selection", "clipboard")]
    assert clipboard.programs({"DISPLAY": ":0", "SSH_CONNECTION": "x", "TMUX": "y"}) == [
        ("tmux", "load-buffer", "-w", "-")
    ]
    assert clipboard.programs({}) == [("pbcopy",)]


async def test_a_text_reaches_the_program_and_a_failing_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, program = tmp_path / "text", tmp_path / "xclip"
    program.write_text(f"#!/bin/sh\ncat > {target}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    await clipboard.put("order-88126\nü", {"DISPLAY": ":0"})
    assert target.read_text(encoding="utf-8") == "order-88126\nü"
    program.write_text("#!/bin/nowhere\n")
    await clipboard.put("x", {"DISPLAY": ":0"})


def test_the_link_is_an_argument_of_the_console() -> None:
    assert parse(["--task", "1832022"]).task == 1832022
