"""Own retry plans: classes and functions of an application that decide the delay before the next attempt.

A task stores only the name of its plan. A runner executes a plan that its code has registered, or that an installed
package lists as an entry point. It never imports a path that it reads from the database.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from runner.errors import InvalidRetryPlan, InvalidSettings
from runner.model.duration import parse_duration
from runner.own_code import OwnCodeFault, call_own
from runner.policy.own_class import OwnClass
from runner.text.sanitize import value_text

ENTRY_POINTS = "runner.retry_plans"
"""The group of entry points in which installed packages list their plans, by name."""

NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,99}")
PATH = re.compile(r"(?:[^\W\d]\w*\.)*[^\W\d]\w*:[^\W\d]\w*")
RESERVED = ("never", "sidekiq", "exp")

PATH_FORM = "use the path of a class as package.module:Class, or a name that @retry_plan or an entry point registers"
OWN = OwnClass("retry", ("delay",), "no class: it needs the method delay", PATH_FORM)

LONGEST = 3_650 * 86_400.0
"""The longest delay in seconds, that of every plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A failed attempt, as an own retry plan receives it.

    Args:
        attempt: its number, from 1.
        max_attempts: maximum number of attempts; None for no limit.
        error_type: qualified class name of the exception, or a word such as "Timeout".
        error_message: text of the exception.
        task_id: the task; 0 in a preview.
        handler: its handler.
        queue: its queue.
        random: 0 <= random < 1, for a part that spreads the attempts; a plan draws no random numbers itself.
    """

    attempt: int
    max_attempts: int | None = None
    error_type: str = ""
    error_message: str = ""
    task_id: int = 0
    handler: str = ""
    queue: str = ""
    random: float = 0.5


Delayed: TypeAlias = timedelta | float | str | None
"""A delay as a timedelta, seconds or text such as "5m"; None for no further attempt: the task is dead."""

Decide: TypeAlias = Callable[[FailedRun], Delayed]
T = TypeVar("T", bound=Callable[..., Any])

PLANS: dict[str, tuple[str, Decide]] = {}
"""The registered plans: the place of the code, and the function that decides, by name."""


class PlanFault(Exception):
    """An own plan is not registered in this process, or did not decide."""


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """A plan of an application, by its name.

    Args:
        name: as tasks store it.
    """

    name: str

    def decide(self, run: FailedRun) -> timedelta | None:
        """Return the delay after a failed attempt; None if the task is dead.

        Raises:
            PlanFault: the plan is unknown here, raised an exception, or returned no delay.
        """
        decide = find(self.name)
        if decide is None:
            raise PlanFault("is not loaded here")
        try:
            value = call_own(decide, run)
        except OwnCodeFault as fault:  # an exit in a plan must not end the loop that writes outcomes
            raise PlanFault(str(fault)) from None
        return None if value is None else _delay(value)

    def delay(self, attempt: int, random: float) -> timedelta | None:
        """Preview the delay after an attempt without an error; None also if the plan does not decide."""
        try:
            return self.decide(FailedRun(attempt=attempt, random=random))
        except PlanFault:
            return None

    def __str__(self) -> str:
        return self.name


def title_of(plan: str) -> str:
    """A retry plan for people: with the dotted name of its code, if this process has that under another name."""
    place = PLANS[plan][0] if plan in PLANS else plan
    return plan if place == plan else f"{plan} ({place})"


def _delay(value: Any) -> timedelta:
    try:
        seconds = call_own(_seconds, value)
    except OwnCodeFault:  # the methods of an own value may raise anything
        raise PlanFault(f"returned {value_text(value):.80}, not a delay or None") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise PlanFault(f"returned {value_text(value):.80}, a negative delay")
    return timedelta(seconds=min(seconds, LONGEST))


def _seconds(value: Any) -> float:
    delay = value if isinstance(value, timedelta) else parse_duration(value)
    return float(delay.total_seconds())


def retry_plan(name: str) -> Callable[[T], T]:
    """Register a class or a function as a retry plan: `@retry_plan("patient")`, then `retry="patient"`.

    Args:
        name: lower-case letters, digits and _ . -; tasks store it.

    Returns:
        A decorator for a class that is made without arguments and has `delay(run)`, or for a function of the run. It
        takes a FailedRun, and returns the delay as a timedelta, seconds or text, or None for a dead task. It must be
        quick and pure: the runner calls it while it writes outcomes, and again if the database was unavailable.

    Raises:
        InvalidRetryPlan: the name is not valid or has another plan, or the class has no method `delay`.

    Examples:
        >>> @retry_plan("patient")
        ... def patient(run: FailedRun) -> str | None:
        ...     return None if run.error_type.endswith("Forbidden") else "1h"
    """
    if not isinstance(name, str) or not NAME.fullmatch(name) or name in RESERVED:
        raise InvalidRetryPlan(plan=name, why="a name has lower-case letters, digits and _ . -, and is no other plan")

    def register(own: T) -> T:
        _register(name, own)
        return own

    return register


def _register(name: str, own: Any) -> None:
    place = f"{own.__module__}.{own.__qualname__}"
    known = PLANS.get(name)
    if known is not None and known[0] != place:
        raise InvalidRetryPlan(plan=name, why=f"it is {known[0]}, and {place} cannot have the same name")
    policy = own() if isinstance(own, type) else own
    decide = policy.delay if isinstance(own, type) and callable(getattr(policy, "delay", None)) else policy
    if not callable(decide) or (isinstance(own, type) and decide is policy):
        raise InvalidRetryPlan(plan=name, why=f"{place} has no method delay(run), and is not a function")
    PLANS[name] = place, decide


def load_plan(text: str) -> None:
    """Import the class that code or a setting names by its path, so that this process executes the plan.

    Args:
        text: a retry plan; another one than a path changes nothing. Never one from the database.

    Raises:
        InvalidRetryPlan: the class cannot be loaded.
    """
    name = text.strip() if isinstance(text, str) else ""
    if PATH.fullmatch(name) and name not in PLANS:
        try:
            policy = OWN.load(name)
        except InvalidSettings as error:
            raise InvalidRetryPlan(plan=name, why=str(error.fields["why"])) from None
        PLANS[name] = name, policy.delay


def find(name: str) -> Decide | None:
    """Return the function of a plan; None if this process has none of this name."""
    if name not in PLANS and (entry := _installed().get(name)) is not None:
        try:
            call_own(lambda: _register(name, entry.load()))
        except OwnCodeFault:  # an installed package may be broken, or exit; its plan is unknown then
            return None
    return PLANS[name][1] if name in PLANS else None


@lru_cache(maxsize=1)
def _installed() -> dict[str, Any]:
    from importlib.metadata import entry_points  # most programs have no unknown plan

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS) if NAME.fullmatch(entry.name)}


def read_own(text: str) -> OwnPlan | None:
    """Parse the name of an own plan; None for another text.

    A path is accepted without its code, as the name of an unknown handler is: the program that submits or edits a task
    need not have the code of its runners. A plain name must be registered here, because it may be a typing error.
    """
    if PATH.fullmatch(text) or (NAME.fullmatch(text) and text not in RESERVED and find(text) is not None):
        return OwnPlan(text)
    return None
