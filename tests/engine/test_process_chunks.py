"""Chunk handlers in worker processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.handlers.registry import REGISTRY
from tests.engine import chunk_handlers
from tests.engine.harness import Harness, until
from tests.engine.test_terminating import terminate

pytestmark = pytest.mark.both_databases

NAMES = [name for name in REGISTRY if REGISTRY[name].function.__module__ == chunk_handlers.__name__]
HANDLERS = {name: REGISTRY._handlers.pop(name) for name in NAMES}
"""The handlers of the module; other tests of this process do not see them."""


@pytest.fixture(autouse=True)
def _processes(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESS_FOLDER", str(tmp_path))
    harness.handlers |= HANDLERS


async def submit(harness: Harness, handler: str, *numbers: int, **options: Any) -> list[int]:
    return [await harness.submit(handler, {"number": number}, **options) for number in numbers]


async def ends(harness: Harness, tasks: list[int]) -> list[tuple[str, str]]:
    """The state and the error type of each task."""
    attempts = [await harness.attempts(task) for task in tasks]
    types = [rows[0].error_type if rows else "" for rows in attempts]
    return list(zip([await harness.state(task) for task in tasks], types, strict=True))


@pytest.mark.slow
async def test_each_task_of_a_process_has_an_outcome_of_its_own(harness: Harness) -> None:
    tasks = await submit(harness, "process.chunk", 0, 1, 2)
    await harness.work(processes=1)
    assert [state for state, _ in await ends(harness, tasks)] == ["succeeded", "succeeded", "dead"]
    assert int(json.loads((await harness.row(tasks[1])).result)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("number", "error"), [(10, "ConnectionError"), (11, "ProcessCrashed"), (12, "Timeout")])
async def test_a_failure_of_a_process_concerns_the_tasks_without_an_outcome(
    harness: Harness, number: int, error: str
) -> None:
    tasks = await submit(harness, "process.chunk", number, 1, 2, 3, timeout=1.0)
    await harness.work(processes=1)
    found = await ends(harness, tasks)
    assert found[0] == found[3] == ("dead", error)
    assert [state for state, _ in found[1:3]] == ["succeeded", "dead"]


@pytest.mark.slow
async def test_notes_of_a_process_are_those_of_each_task(harness: Harness) -> None:
    tasks = await submit(harness, "process.chunk_notes", 1, 2)
    await harness.work(processes=1)
    assert [json.loads((await harness.row(task)).result) for task in tasks] == [11, 12]
    log = harness.database.tables.log
    assert await harness.count(log, log.c.task_id == tasks[1], log.c.line == "number 2") == 2


@pytest.mark.slow
async def test_a_terminate_request_reaches_one_task_of_a_process(harness: Harness, tmp_path: Path) -> None:
    tasks = await submit(harness, "process.chunk_stop", 1, 2)
    async with harness.running(processes=1):
        await until((tmp_path / "begun").exists)
        await terminate(harness, tasks[1])
        await harness.wait_for(*tasks)
    assert [state for state, _ in await ends(harness, tasks)] == ["succeeded", "cancelled"]
