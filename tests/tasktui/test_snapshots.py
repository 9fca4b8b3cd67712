"""The screens as text, at the sizes that terminals have: `SNAPSHOTS=write pytest ...` rewrites them."""

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.task import State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from tasktui.screens import MODES
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, SMALLEST, WIDE, Watch

FOLDER = Path(__file__).with_name("snapshots")
HOUR, DAY = 3_600.0, 86_400.0
BY = Actor("ana", "web-1", "relay is back")

MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"

CHANGING = {
    r" *[●◌!] ((connected|connecting|slow [\d,]+ ms|clock .*) +)?\d\d:\d\d:\d\d( UTC)?": "…",
    r" data [\dms]+ old ": "",
    r"by ana [^,]+, until resumed.*": "by ana AGE, until resumed ...",
    r"bucket +\d+": "bucket N",
    r"└[─ ]+.*": "└",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?": "DATE",
    r"\d{4}-\d\d-\d\d[T ][\d:]*…": "DATE…",
    rf" +(\d?\d {MONTH} )?\d\d:\d\d to (\d?\d {MONTH} )?\d\d:\d\d UTC": "SPAN",
    rf"(\d?\d {MONTH} )?\d\d:\d\d(:\d\d)?": "TIME",
    rf"\d?\d {MONTH}": "DAY",
    r" *(in )?\b\d+(\.\d+)?(ms|s|m|h)(\d+(ms|s|m))?( ago)?": "AGE",
}
"""Text that differs between runs, with the spaces before it, which compensate for its length."""


@pytest.fixture
async def task_id(database: Database) -> int:
    """A little of everything, as long ago as its age stays the same for the length of a test."""
    await add_live(database, "report.make", queue="slow", run_at=ahead(-2 * DAY), submitted_at=ahead(-3 * DAY))
    id = await add_live(
        database, "smtp.send", queue="mail", key="order-17", run_at=ahead(9 * DAY + 1800), priority=3, bucket=7
    )
    running: dict[str, Any] = {"state": State.RUNNING.value, "runner_id": 1, "attempt": 1, "fence": 1}
    await add_live(database, "smtp.send", queue="mail", claimed_at=ahead(-DAY), max_attempts=4, **running)
    past = {"handler": "smtp.send", "queue": "mail", "bucket": 300}
    past |= {"finished_at": ahead(-DAY), "submitted_at": ahead(-2 * DAY)}
    await add_past(database, 11, State.DEAD, error="ConnectionError: no route", **past)
    await add_past(database, 12, State.SUCCEEDED, duration=0.5, **past)
    tried: dict[str, Any] = {"error_type": "ConnectionError", "message": "no route", "traceback": "Traceback: no route"}
    times = {"started_at": ahead(-DAY), "ended_at": ahead(-DAY)}
    await add_attempt(database, 11, handler="smtp.send", queue="mail", **tried, **times)
    half_hour = {"started_at": ahead(-0.53 * HOUR), "ended_at": ahead(-0.525 * HOUR)}
    await add_attempt(database, 11, 2, handler="smtp.send", queue="mail", host="web-7", **tried, **half_hour)
    await add_runner(database, 1e6, '["smtp.send", "report.make"]', host="web-7", capacity=8, cpu=0.37, memory=2**28)
    await database.write(edit, id, None, Changes(priority=5, max_attempts=4, retry="1m,5m"), BY)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "slow"), BY)
    async with database.writing() as tx:
        await tx.execute(sa.update(tx.tables.task).where(tx.tables.task.c.id == id).values(submitted_at=ahead(-DAY)))
        await tx.execute(sa.update(tx.tables.audit).values(at=ahead(-5 * HOUR)))
        await tx.execute(sa.update(tx.tables.queue).values(paused_at=ahead(-5 * HOUR)))  # before the span of a plot
    return id


def masked(text: str) -> str:
    """Return a screen without the text that differs between runs."""
    for pattern, name in CHANGING.items():
        text = re.sub(pattern, partial(_named, name), text)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def _named(name: str, match: re.Match[str]) -> str:
    """Return the replacement; in a column, padded to the width of the match."""
    return name.rjust(len(match[0])) if match[0].startswith("  ") else match[0][: match[0].startswith(" ")] + name


@ON_ONE_DATABASE
@pytest.mark.parametrize(
    ("mode", "size"),
    [*((mode, size) for mode in MODES for size in (NARROW, WIDE)), ("tasks", SMALLEST)],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}x{value[1]}",
)
async def test_a_screen_looks_as_it_did(mode: str, size: tuple[int, int], task_id: int, watch: Watch) -> None:
    file = FOLDER / f"{mode}-{size[0]}x{size[1]}.txt"
    async with watch(mode, size, task_id=task_id, profile="orders") as operator:
        await operator.until(lambda: operator.screen.feed.read_at and masked(operator.text).count("\n") > 6)
        if os.environ.get("SNAPSHOTS") == "write":
            await operator.pilot.pause(3.0)
            file.parent.mkdir(exist_ok=True)
            file.write_text(masked(operator.text), encoding="utf-8")
        await operator.until(lambda: masked(operator.text) == file.read_text(encoding="utf-8"))
