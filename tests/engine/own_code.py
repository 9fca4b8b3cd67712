"""Code of an application that exits, for tests of a runner that calls it."""

import asyncio
import logging
from typing import Any

import sqlalchemy as sa

from runner.model.task import BUCKETS
from runner.policy.claim_order import StrictOrder
from runner.policy.polling import FixedDelay, FixedRate


class OwnExit(BaseException):
    """An exception that nothing catches by its class."""


ERRORS: dict[str, type[BaseException]] = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "OwnExit": OwnExit,
    "ValueError": ValueError,
}


class Fault:
    """The error that the code of this module raises, and where; set by a test."""

    error: type[BaseException] = ValueError
    where = ""
    calls = 0

    @classmethod
    def at(cls, name: str) -> None:
        """Raise the error if this is the place."""
        if name == cls.where:
            cls.calls += 1
            raise cls.error("own")


class DelayMode(FixedDelay):
    """A mode with a wait after each scan."""

    def period(self, interval: float) -> float:
        Fault.at("period")
        return interval

    def wait(self, period: float, runners: int, random: float) -> float:
        Fault.at("wait")
        return period

    def most_failures(self, scan: int) -> int | None:
        Fault.at("most_failures")
        return None

    def __str__(self) -> str:
        Fault.at("str")
        return "mine"


class RateMode(FixedRate):
    """A mode at a fixed rate."""

    def wait(self, period: float, runners: int, random: float) -> float:
        Fault.at("wait")
        return period


class RefusedOrder(StrictOrder):
    """An order whose SQL the database refuses."""

    def of_lanes(self, task: Any, forward: bool = True) -> Any:
        return [sa.literal_column("no_such_column")]


class Order(StrictOrder):
    """An order whose methods fail."""

    def within_lane(self, task: Any, forward: bool = True) -> Any:
        Fault.at("within_lane")
        return super().within_lane(task, forward)

    def of_lanes(self, task: Any, forward: bool = True) -> Any:
        Fault.at("of_lanes")
        return super().of_lanes(task, forward)

    def lane_key(self, priority: int, wait: float) -> Any:
        Fault.at("lane_key")
        return super().lane_key(priority, wait)

    def sort_key(self, priority: int, run_at: Any, id: int) -> Any:
        Fault.at("sort_key")
        return super().sort_key(priority, run_at, id)

    def __hash__(self) -> int:
        Fault.at("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other  # no test uses the prepared statements of another one


class Key:
    """A sort key that fails when it is compared."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __lt__(self, other: "Key") -> bool:
        Fault.at(self.name)
        return bool(self.value < other.value)


class KeyedOrder(StrictOrder):
    """An order whose keys fail."""

    def rank(self, priority: int) -> Any:
        return Key("rank", super().rank(priority))

    def lane_key(self, priority: int, wait: float) -> Any:
        return Key("lane_key", (-priority, wait))

    def sort_key(self, priority: int, run_at: Any, id: int) -> Any:
        return Key("sort_key", super().sort_key(priority, run_at, id))


class Slices:
    """A share that fails."""

    def share(self, member: str, members: frozenset[str]) -> Any:
        Fault.at("share")
        return range(BUCKETS)


class Judge(type):
    """Decides whether an exception is an instance of a class."""

    def __instancecheck__(cls, instance: object) -> bool:
        Fault.at("instance")
        return False


class Judged(Exception, metaclass=Judge):
    """An exception class that fails when something is compared with it."""


class Output(logging.Handler):
    """A log handler that fails."""

    def emit(self, record: logging.LogRecord) -> None:
        Fault.at("emit")


class Sieve(logging.Filter):
    """A log filter that fails."""

    def filter(self, record: logging.LogRecord) -> bool:
        Fault.at("filter")
        return True
