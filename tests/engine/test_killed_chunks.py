"""Chunks of a runner that is killed: all of their tasks run again."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runner import Chunk
from runner.handlers.chunk import ChunkOption
from tests.engine import chunk_handlers
from tests.engine.harness import Harness, until
from tests.engine.test_process_chunks import submit
from tests.programs import ROOT, Program

pytestmark = pytest.mark.both_databases


@asynccontextmanager
async def killed_runner(migrated_url: str, folder: Path) -> AsyncIterator[None]:
    """Start a runner, and kill it at the end of the block."""
    arguments = ("work", "-H", chunk_handlers.__name__)
    environment = os.environ | {
        "TASKTUI_URL": migrated_url,
        "TASKTUI_LEASE_TIMEOUT": "3s",
        "TASKTUI_HEARTBEAT_INTERVAL": "500ms",
        "PROCESS_FOLDER": str(folder),
    }
    program = Program("runner", *arguments, log=folder / "log", directory=ROOT, environment=environment)
    try:
        yield
    finally:
        program.kill()


def replace_handler(harness: Harness, name: str, numbers: list[int]) -> None:
    """Let the tasks of a handler succeed, and record their numbers."""

    @harness.handler(name, chunk=ChunkOption(10, 0.05))
    async def work(chunk: Chunk[chunk_handlers.Mail]) -> None:
        numbers.extend(task.payload.number for task in chunk)


@pytest.mark.slow
async def test_a_kill_loses_the_outcomes_of_a_chunk_and_no_task(
    harness: Harness, migrated_url: str, tmp_path: Path
) -> None:
    tasks, numbers = await submit(harness, "chunks.hang", 0, 1, 2), list[int]()
    async with killed_runner(migrated_url, tmp_path):
        await until((tmp_path / "begun").exists)
        await until(lambda: all_started(harness, tasks))
    replace_handler(harness, "chunks.hang", numbers)
    await harness.work()
    assert sorted(numbers) == [0, 1, 2]
    assert [(await harness.row(task)).attempt for task in tasks] == [2, 2, 2]


@pytest.mark.one_database
async def test_a_kill_costs_the_tasks_of_a_chunk_that_forms_no_attempt(
    harness: Harness, migrated_url: str, tmp_path: Path
) -> None:
    tasks, numbers = await submit(harness, "chunks.form", 0, 1, 2), list[int]()
    async with killed_runner(migrated_url, tmp_path):
        await until(lambda: all_running(harness, tasks))
    replace_handler(harness, "chunks.form", numbers)
    await harness.work()
    assert sorted(numbers) == [0, 1, 2]
    assert [(await harness.row(task)).attempt for task in tasks] == [1, 1, 1]


async def all_running(harness: Harness, tasks: list[int]) -> bool:
    return {await harness.state(task) for task in tasks} == {"running"}


async def all_started(harness: Harness, tasks: list[int]) -> bool:
    return all([(await harness.row(task)).started_at is not None for task in tasks])
