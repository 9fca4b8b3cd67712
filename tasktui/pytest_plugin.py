"""The plugin for pytest: the fixture `task_store`, in each project that has tasktui installed.

It imports nothing until a test asks for the fixture, and no module of the application can hide it.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tasktui.namesake import ADVICE, namesake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.testing import TaskStore


@pytest.fixture
def task_store(tmp_path: Path) -> "Iterator[TaskStore]":
    """An empty store in a temporary SQLite file, which receives the tasks that the test submits."""
    if (file := namesake()) is not None:
        pytest.fail(f"{file} {ADVICE}.", pytrace=False)
    from runner.testing.store import TaskStore

    with TaskStore.in_folder(tmp_path) as store:
        yield store
