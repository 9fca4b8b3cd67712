"""Random keys, words, mouse events, sizes and faults of the database over all screens: no crash, no unintended write.

`RANDOM_STEPS=100000` makes the run longer, `RANDOM_CHANGES=1` makes it faster with fewer changes, and `RANDOM_SEED=7`
repeats one.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import chdir, suppress
from dataclasses import replace
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
from textual.pilot import WaitForScreenTimeout
from textual.widgets import Input

from runner.db.database import Database
from runner.errors import InvalidInput
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.results import Actor
from tasktui.actions.action import Confirmation
from tasktui.app import Console
from tasktui.dialogs.ask import ConfirmScreen
from tasktui.dialogs.form import EditScreen, FormScreen
from tasktui.screens import MODES
from tasktui.shell.live import LiveScreen
from tasktui.terminal import typed_ahead
from tests.shop import fill
from tests.tasktui.conftest import Operator, Watch
from tests.tasktui.named_rows import Named, rows_named, rows_of

STEPS = int(os.environ.get("RANDOM_STEPS", "400"))
SEED = int(os.environ.get("RANDOM_SEED", "1"))
CHANGES_PER_100 = int(os.environ.get("RANDOM_CHANGES", "12"))
"""Steps of about a hundred that open a dialog of a change and confirm it; they take most of the time."""

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

CHANGES = {
    "tasks state:dead": "RRRREEWNUTDZ",
    "tasks state:retrying": "RRTTDDEEPH",
    "tasks !state:succeeded": "TTDDEEURIPHMKCVNA",
    "tasks state:blocked": "UUUTTEI",
    "tasks state:running": "TTVVEPK",
    "task 1000": "RTDUEWINVPHMKCAZ",
    "failures": "RRRTTDDEPHK",
    "overview": "PPPMMMKCHA",
    "runners": "LLLSSS",
    "schedules": "PPNNXEAZ",
    "audit": "ZZZZBBBB",
}
"""The keys of changes, by the command that opens their screen."""

SELECTIONS = ("", "", "space", "space down space", "v down down down v", "*", "home v pagedown v")
"""Keys that select rows. Screens without marks ignore some of them, or give them another meaning."""

MOVES = ("", "", "down", "down down down", "pagedown", "end", "tab", "tab down")
"""Keys that move the cursor."""

ANSWERS = {
    "reason": ("random", "", 'it\'s "odd"'),
    "limit": ("all", "all", "1", "3", "canary"),
    "answer-concurrency": ("1", "7", "none"),
    "answer-rate": ("10/s", "none", "none"),
    "priority": ("2", "5", "9"),
    "run_at": ("", "", "+15m", "now"),
    "max_attempts": ("", "", "9"),
    "schedule": ("random",),
    "handler": ("mail.receipt",),
    "rule": ("every 5m", "*/7 * * * *"),
    "misfire": ("skip", "once"),
}
"""The texts of inputs, by their id; others keep theirs."""

PAUSES = (0.0, 0.0, 0.02, 0.1)
"""Seconds between two bursts: a query has ended before the next key, or has not."""

Step = tuple[str, Any]


def step_of(chance: random.Random) -> Step:
    """The next step; after a pause, the console has handled the steps before it."""
    kinds = {"key": 60, "pause": 14, "change": CHANGES_PER_100, "word": 4}
    kinds |= {"click": 4, "drag": 1, "scroll": 2, "resize": 2, "fault": 1}
    (kind,) = chance.choices(list(kinds), list(kinds.values()))
    match kind:
        case "change":
            opening = chance.choice(list(CHANGES))
            keys = (*chance.choice(MOVES).split(), *chance.choice(SELECTIONS).split(), chance.choice(CHANGES[opening]))
            return kind, (opening, keys, chance.random())
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


async def do(operator: Operator, database: Database, step: Step, checked: Counter[str]) -> None:
    """Do a step."""
    console, (kind, value) = operator.console, step
    match kind:
        case "key":
            press(console, value)
        case "change":
            opening, keys, seed = value
            await change(operator, database, opening, keys, seed, checked)
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


async def change(
    operator: Operator, database: Database, opening: str, keys: Sequence[str], seed: float, checked: Counter[str]
) -> None:
    """Open a screen, select rows, confirm a change, and check that the named rows have changed and no others."""
    console, chance = operator.console, random.Random(seed)
    await idle(operator)
    for command in ("at now", opening):
        press(console, *["escape"] * 5, ":", *command, "enter")
        await settle(operator, LOCKED)
    await until(lambda: is_read(operator, opening.partition(" ")[0]))
    press(console, *keys[:-1])
    await settle(operator, LOCKED)
    console.notices = []
    press(console, keys[-1])
    while await until(lambda: asks(operator) or console.notices) and asks(operator):
        await answer(operator, database, chance, checked)
        if asks(operator):  # It refuses the answers, or shows a conflict.
            press(console, "escape")
        await settle(operator, 0.0)


async def answer(operator: Operator, database: Database, chance: random.Random, checked: Counter[str]) -> None:
    """Fill in a dialog and confirm it; sometimes another operator changes one of the tasks before."""
    screen, console = operator.screen, operator.console
    for field in screen.query(Input):
        if field.id in ANSWERS and not field.disabled:
            field.value = chance.choice(ANSWERS[field.id])
    if isinstance(screen, ConfirmScreen):
        field = screen.query_one("#word", Input)
        field.value = screen._required.word
    await operator.pilot._wait_for_screen()
    if operator.screen is not screen:  # A key typed ahead has closed it.
        return
    if isinstance(screen, FormScreen):
        screen.action_submit()
        await until(lambda: operator.screen is not screen)
        return
    try:
        confirmation, words = confirmed(screen)
    except InvalidInput:
        return
    rows = await rows_of(database)
    named = await rows_named(database, words, confirmation.limit, rows)
    if chance.random() < 0.2 and await meddle(database, named, chance):
        checked["meddled"] += 1
        named = replace(named, partial=True, before=await rows_of(database))
    console.notices = []
    screen.action_save() if isinstance(screen, EditScreen) else screen.action_submit()
    assert await until(lambda: not works(console, "compare", "save"), 30.0)
    await operator.pilot._wait_for_screen()
    await until(lambda: console.notices or console.databases.front.work)
    await until(lambda: console.databases.front.work is None, LOCKED if confirmation.canary else 30.0)
    is_open = operator.screen is screen  # It asks for an answer that is required, and changes nothing.
    named = replace(named, partial=named.partial or confirmation.canary or is_open)
    await idle(operator)
    number = named.check(await rows_of(database))
    if number:
        checked[" ".join(str(word) for word in words[:2] if isinstance(word, str) and word != "random")] += 1
        checked["rows"] += number


def is_read(operator: Operator, mode: str) -> bool:
    """True if a screen is in front and shows data."""
    console = operator.console
    if not console.screen_stack or console.current_mode != mode or not isinstance(console.screen, LiveScreen):
        return False
    return console.screen.feed.read_at is not None and not console.screen.feed.looking


def asks(operator: Operator) -> bool:
    """True if a dialog of a change is in front."""
    console = operator.console
    if not console.screen_stack or not isinstance(console.screen, ConfirmScreen | EditScreen | FormScreen):
        return False
    last = "#word" if isinstance(console.screen, ConfirmScreen) else "#preview"
    return bool(console.screen.query(last))  # The dialog is complete.


def confirmed(screen: ConfirmScreen | EditScreen) -> tuple[Confirmation, Sequence[object]]:
    """The answers of a dialog, and the words of the equivalent command."""
    if isinstance(screen, EditScreen):
        return Confirmation(), ["edit", screen._detail.task.id]
    confirmation = screen._confirmation(screen._values())
    return confirmation, screen._question.words(confirmation)


async def meddle(database: Database, named: Named, chance: random.Random) -> bool:
    """Edit a named task as another operator; False if none of them is live."""
    ids = sorted(id for kind, id in named.keys if kind == "task")
    if not ids:
        return False
    values = Changes(timeout=chance.randrange(1, 1_000_000))
    result = await database.write(edit, chance.choice(ids), None, values, Actor("another", "host"))
    return bool(result.changed)


async def idle(operator: Operator) -> None:
    """Stop the bulk change of the console, and wait until no change is in progress."""
    console = operator.console
    if console.databases.front.work is not None:
        console.databases.front.work.stop()
    assert await until(lambda: not works(console, "act", "save"), 30.0)


def works(console: Console, *groups: str) -> bool:
    """True if a worker of some groups has not finished."""
    return any(work.group in groups and not work.is_finished for work in console.workers)


async def until(condition: Callable[[], object], seconds: float = 3.0) -> bool:
    """Wait for a condition; False if it does not hold after some seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.02)
    return bool(condition())


async def settle(operator: Operator, seconds: float) -> None:
    """Let the console handle the events so far, and draw the whole screen."""
    try:
        await operator.pilot._wait_for_screen()
    except WaitForScreenTimeout:
        if not operator.console._exit:  # A word has a q, which quits where no input takes it.
            raise
    await asyncio.sleep(seconds)
    if operator.console.is_running and operator.console.screen_stack:
        assert operator.text is not None


async def fail(database: Database) -> None:
    """End all connections of the console, as a server that restarts does; lock a file, as a long write does."""
    async with database.writing() as tx:
        if database.dialect.name == "postgresql":
            others = "FROM pg_stat_activity WHERE application_name = 'tasktui' AND datname = current_database()"
            await tx.execute(sa.text(f"SELECT pg_terminate_backend(pid) {others}"))
        else:
            await tx.execute(sa.update(tx.tables.queue).values(name=tx.tables.queue.c.name))
            await asyncio.sleep(LOCKED)


async def operations(database: Database) -> int:
    """The operations in the audit: the reveal of a secret is none, and a copy is also in it as a submit."""
    audit = database.tables.audit.c
    group = sa.func.coalesce(audit.change_group, sa.cast(audit.id, sa.Text))
    async with database.reading() as tx:
        return int(
            await tx.scalar(sa.select(sa.func.count(group.distinct())).where(audit.verb.not_in(("reveal", "copy"))))
        )


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
    checked = Counter[str]()
    with chdir(tmp_path):
        while len(done) < STEPS:
            mode = chance.choice(list(MODES))
            monkeypatch.setattr(typed_ahead, "BURST", chance.choice((0.0, -inf)))
            try:
                async with watch(mode, (120, 40), writable=writable, task_id=1_000) as operator:
                    console = operator.console
                    for _ in range(min(EVERY, STEPS)):
                        done.append(step_of(chance))
                        await do(operator, database, done[-1], checked)
                        if not console.is_running or console._exception is not None:
                            break
                    await settle(operator, 0.0)
                    console.exit()
                    while not (console._closed or console._task is None or console._task.done()):
                        await asyncio.sleep(0.01)
                    assert console._exception is None
            except BaseException as error:
                error.add_note(f"seed {SEED}, step {len(done)}, the last ones from {mode}: {done[-EVERY:]}")
                raise
            changes = await operations(database) - before
            assert changes <= (confirmations.total() + checked["meddled"] if writable else 0), done[-EVERY:]
    print(f"{len(done)} steps, {confirmations.total()} confirmations, {changes} operations, {dict(checked)}")
