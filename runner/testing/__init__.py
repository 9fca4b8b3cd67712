"""Support for the tests of applications: an empty store, on-demand execution, and control over time."""

from runner.testing.drain import Ran
from runner.testing.store import StoredTask, TaskStore

__all__ = ["Ran", "StoredTask", "TaskStore"]
