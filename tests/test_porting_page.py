"""The examples of docs/porting.md: ours work on both databases, those of the other systems are valid Python."""

import re
from pathlib import Path

import pytest

from tests.pages import DOCS, blocks, python, save

PAGE = DOCS / "porting.md"
SYSTEMS = ["celery", "rq", "huey", "dramatiq", "procrastinate", "apscheduler"]

PROGRAM = """
import asyncio, sys
from datetime import UTC, datetime, timedelta

import after_apscheduler, after_celery, after_dramatiq, after_huey, after_procrastinate, after_rq
from runner.handlers.schedules import SCHEDULES
from runner.testing import TaskStore

with TaskStore(sys.argv[1]) as store:
    def finished(handler, ahead=0):
        store.drain(ahead=ahead)
        return [(task.state, task.result, task.attempt) for task in store.tasks(handler)]

    total = after_celery.close([1, 2, 3])
    assert finished("celery.charge") == [("succeeded", cents, 1) for cents in (100, 200, 300)]
    assert total.result(timeout=0) == 600
    after_rq.welcome("ana")
    assert finished("rq.send") == [("succeeded", "sent to ana", 1)]
    after_huey.later(1, 2)
    assert finished("huey.add")[0][0] == "waiting"
    assert finished("huey.add", "1m") == [("succeeded", 3, 1)]
    after_dramatiq.welcome("nowhere")
    assert finished("dramatiq.send", "10m") == [("dead", None, 1)]
    first = asyncio.run(after_procrastinate.welcome("ana"))
    second = asyncio.run(after_procrastinate.welcome("ana"))
    assert (second, second.duplicate) == (first, True)
    assert finished("procrastinate.send", "10m") == [("succeeded", "sent to ana", 1)]
    moment = datetime.now(UTC) + timedelta(hours=9)
    reminder = after_apscheduler.remind_at(7, moment)
    assert after_apscheduler.remind_at(7, moment - timedelta(hours=8)) == reminder
    assert finished("apscheduler.remind", "1h") == [("succeeded", "reminded 7", 1)]
    assert list(SCHEDULES) == ["apscheduler.report"]
"""


def test_our_half_of_each_example_works(tmp_path: Path, migrated_url: str) -> None:
    save(PAGE, tmp_path)
    python(tmp_path, PROGRAM, migrated_url)


def test_each_system_has_both_halves_of_an_example(tmp_path: Path) -> None:
    assert save(PAGE, tmp_path) == [f"{half}_{system}.py" for system in SYSTEMS for half in ("before", "after")]
    for name in SYSTEMS:
        compile((tmp_path / f"before_{name}.py").read_text(), name, "exec")


@pytest.mark.parametrize("half", ["before", "after"])
def test_both_halves_define_the_same_function_for_callers(half: str) -> None:
    callers = {"celery": "close", "rq": "welcome", "huey": "later", "dramatiq": "welcome", "procrastinate": "welcome"}
    text = {block.first: block.text for block in blocks(PAGE, "python")}
    for system, caller in (callers | {"apscheduler": "remind_at"}).items():
        assert re.search(rf"^(?:async )?def {caller}\(", text[f"# {half}_{system}.py"], re.MULTILINE), system
