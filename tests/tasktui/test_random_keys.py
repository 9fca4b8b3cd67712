"""Random keys, words, mouse events, sizes and faults of the database over all screens: no crash, no unintended write.

`RANDOM_STEPS=100000` makes the run longer, and `RANDOM_SEED=7` repeats one.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import chdir
from math import inf
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from textual.events import (
    InputEvent,
    Key,
    MouseDown,
    MouseEvent,
    MouseMove,
    MouseScrollDown,
    MouseScrollUp,
    MouseUp,
)
from textual.keys import _character_to_key
from textual.widgets import Input

from runner.db.database import Database
from tasktui.actions.action import Confirmation
from tasktui.app import Console
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.dialogs.form import EditScreen
from tasktui.screens import MODES
from tasktui.terminal import typed_ahead
from tests.shop import fill
from tests.tasktui.conftest import Operator, Watch

STEPS = int(os.environ.get("RANDOM_STEPS", "400"))
SEED = int(os.environ.get("RANDOM_SEED", "1"))

LOCKED = 0.2
"""Seconds for which a file is locked."""

EVERY = 200
"""Steps between two comparisons of the audit with the confirmations."""

KEYS = (
    *"abcdfghijklmnoprstuvwxyzABCDEHKLMNPQRSTUVWXYZ123456789*\\!/:?[]{}<>=- ",
    *("up", "down", "left", "right", "pageup", "pagedown", "home", "end", "tab", "shift+tab", "backspace", "delete"),
    *("enter", "enter", "escape", "escape", "escape", "ctrl+a", "ctrl+s", "ctrl+t", "ctrl+x", "ctrl+y", "ctrl+p"),
)
"""Keys without those that leave the console or open an editor."""

WORDS = (
    *("tasks queue:mail", "tasks state:dead error~Timeout", "task 1000", "failures", "compare 30m ago", "at 20m ago"),
    *("at now", "health", "pause mail 5m", "resume mail", "limit queue mail concurrency=2", "sort run_at", "views"),
    *("breaker payments.charge", "submit mail.receipt", "write 1m", "lock", "silence tasks-dead", "help", "nonsense"),
    *("incident 0:00 0:05", "tasks (", "task 99999999999999999999", "theme light", "theme dark"),
)
SIZES = ((10, 3), (40, 10), (80, 24), (120, 40), (200, 60), (400, 60), (61, 15))

HABITS = {
    "tasks state:dead": ("R", " R", "  R", "*R", "vjjvR", "yp", "N"),
    "tasks !state:succeeded": ("T", " T", "*T", "*D", "D", "E", "P", "w", "U"),
    "failures": ("R", "T", "jR", "jD", "w"),
    "overview": ("P", "M", "K", "C", "!R", "Q", "w"),
    "runners": ("L", "S"),
    "schedules": ("P", "N", "X", "E"),
    "audit": ("Z", "B", "jZ"),
}
"""The keys of changes, by the command that opens their screen; the operator confirms them."""

PAUSES = (0.0, 0.0, 0.02, 0.1)
"""Seconds between two bursts: a query has ended before the next key, or has not."""

Step = tuple[str, Any]


def step_of(chance: random.Random) -> Step:
    """The next step; after a pause, the console has handled the steps before it."""
    kinds = {"key": 66, "pause": 15, "habit": 4, "word": 4, "click": 4, "drag": 1, "scroll": 3, "resize": 2, "fault": 1}
    (kind,) = chance.choices(list(kinds), list(kinds.values()))
    match kind:
        case "habit":
            opening = chance.choice(list(HABITS))
            return kind, (opening, chance.choice(HABITS[opening]))
        case "key" | "word" | "resize" | "pause":
            values = {"key": KEYS, "word": WORDS, "resize": SIZES, "pause": PAUSES}
            return kind, chance.choice(values[kind])
        case _:
            return kind, tuple(chance.random() for _ in range(4))


def press(console: Console, *keys: str) -> None:
    """Send keys as a terminal does, without waiting for the console."""
    for key in keys:
        character = key if len(key) == 1 else None
        send(console, Key(_character_to_key(key) if character else key, character))


def mouse(console: Console, kind: type[MouseEvent], place: tuple[float, ...], button: int = 0) -> None:
    """Send a mouse event at a place in fractions of the screen."""
    x, y = int(place[0] * console.size.width), int(place[1] * console.size.height)
    send(console, kind(None, x, y, 0, 0, button, False, False, False))


def send(console: Console, event: InputEvent) -> None:
    """Send an event through the driver, which knows the buttons that are down."""
    if console._driver is not None:  # A console that has crashed has none.
        console._driver.process_message(event)


async def do(operator: Operator, database: Database, step: Step) -> None:
    """Do a step."""
    console, (kind, value) = operator.console, step
    match kind:
        case "key":
            press(console, value)
        case "habit":
            await settle(operator, 0.0)
            press(console, "escape", "escape", "escape", ":", *value[0], "enter")
            await settle(operator, LOCKED)
            press(console, *value[1])
            await settle(operator, LOCKED)
            await confirm(operator)
        case "word":
            press(console, "escape", "escape", ":", *value, "enter")
        case "resize":
            await operator.pilot.resize_terminal(*value)
        case "fault":
            await fail(database)
        case "scroll":
            mouse(console, MouseScrollDown if value[2] < 0.5 else MouseScrollUp, value)
        case "click" | "drag":
            end = value[2:] if kind == "drag" else value
            mouse(console, MouseDown, value, 1)
            mouse(console, MouseMove, end, 1)
            mouse(console, MouseUp, end, 1)
    if kind in ("pause", "fault", "resize"):
        await settle(operator, value if kind == "pause" else 0.0)


async def confirm(operator: Operator) -> None:
    """Confirm a change with its word, once a dialog asks for one."""
    for _ in range(20):
        screen = operator.screen if operator.console.screen_stack else None
        if isinstance(screen, ConfirmScreen) and screen.query("#word"):
            screen.query_one("#word", Input).value = screen._required.word
            screen.query_one("#reason", Input).value = "random"
            screen.action_submit()
            return
        await asyncio.sleep(LOCKED / 4)


async def settle(operator: Operator, seconds: float) -> None:
    """Let the console handle the events so far, and draw the whole screen."""
    await operator.pilot._wait_for_screen()
    await asyncio.sleep(seconds)
    if operator.console.is_running and operator.console.screen_stack:
        assert operator.text is not None


async def fail(database: Database) -> None:
    """End all connections of the console, as a server that restarts does; lock a file, as a long write does."""
    async with database.writing() as tx:
        if database.dialect.name == "postgresql":
            others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            await tx.execute(sa.text(f"SELECT pg_terminate_backend(pid) {others}"))
        else:
            await tx.execute(sa.update(tx.tables.queue).values(name=tx.tables.queue.c.name))
            await asyncio.sleep(LOCKED)


async def operations(database: Database) -> int:
    """The operations in the audit; the reveal of a secret is none."""
    audit = database.tables.audit.c
    group = sa.func.coalesce(audit.change_group, sa.cast(audit.id, sa.Text))
    async with database.reading() as tx:
        return int(await tx.scalar(sa.select(sa.func.count(group.distinct())).where(audit.verb != "reveal")))


@pytest.fixture
def confirmations(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the dialogs that the operator confirms."""
    counted = Counter[str]()

    def counting(screen: type[Any], is_confirmed: Callable[[object], bool]) -> None:
        dismiss = screen.dismiss

        def dismissed(self: Any, result: object = None) -> Any:
            counted[screen.__name__] += is_confirmed(result)
            return dismiss(self, result)

        monkeypatch.setattr(screen, "dismiss", dismissed)

    counting(ConfirmScreen, lambda result: isinstance(result, Confirmation))
    counting(EditScreen, lambda result: result is not None)
    return counted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Work not begun at the end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("writable", [True, False])
async def test_random_steps_neither_crash_nor_write_without_a_confirmation(
    database: Database,
    watch: Watch,
    confirmations: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    writable: bool,
) -> None:
    await fill(database)
    before, chance, done, changes = await operations(database), random.Random(SEED), list[Step](), 0
    with chdir(tmp_path):
        while len(done) < STEPS:
            mode = chance.choice(list(MODES))
            monkeypatch.setattr(typed_ahead, "BURST", chance.choice((0.0, -inf)))
            try:
                async with watch(mode, (120, 40), writable=writable, task_id=1_000) as operator:
                    console = operator.console
                    for _ in range(min(EVERY, STEPS)):
                        done.append(step_of(chance))
                        await do(operator, database, done[-1])
                        if not console.is_running or console._exception is not None:
                            break
                    await settle(operator, 0.0)
                    console.exit()
                    while not console._closed:
                        await asyncio.sleep(0.01)
                    assert console._exception is None
            except BaseException as error:
                error.add_note(f"seed {SEED}, step {len(done)}, the last ones from {mode}: {done[-EVERY:]}")
                raise
            changes = await operations(database) - before
            assert changes <= (confirmations.total() if writable else 0), done[-EVERY:]
    print(f"{len(done)} steps, {confirmations.total()} confirmations, {changes} operations")
