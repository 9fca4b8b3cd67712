"""For the tests of applications: an empty store, work done on demand, time that passes when it is told to."""

from runner.testing.drain import Ran
from runner.testing.store import StoredTask, TaskStore

__all__ = ["Ran", "StoredTask", "TaskStore"]
