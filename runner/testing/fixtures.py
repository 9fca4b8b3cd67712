"""Fixtures for pytest. To use them, put `pytest_plugins = ["runner.testing.fixtures"]` into conftest.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.testing.store import TaskStore


@pytest.fixture
def task_store(tmp_path: Path) -> Iterator[TaskStore]:
    """An empty store in a temporary SQLite file, which receives the tasks that the test submits."""
    with TaskStore.in_folder(tmp_path) as store:
        yield store
