"""Retry plans of an application: how they are named and what they decide."""

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from runner import FailedRun, handler, retry_plan
from runner.errors import InvalidRetryPlan
from runner.model.outcome import Failure, Retry
from runner.policy import own_retry_plan
from runner.policy.attempt_verdict import AttemptState, judge
from runner.policy.own_retry_plan import PLANS, OwnPlan
from runner.policy.retry import load_retry, parse_plan

PATH = f"{__name__}:ByError"
STATE = AttemptState(2, 9, "patient", "20m", 0, False, 0, 7, "shop.sync", "shops")
FAILURE = Failure("shop.Forbidden", "no")


class ByError:
    """Dead after a Forbidden, else an hour per attempt."""

    def delay(self, run: FailedRun) -> float | None:
        return None if run.error_type.endswith("Forbidden") else 3600.0 * run.attempt


@pytest.fixture(autouse=True)
def plans() -> Iterator[None]:
    before = dict(PLANS)
    yield
    PLANS.clear()
    PLANS.update(before)


def registered(value: Any) -> list[FailedRun]:
    """Register a function that returns a value or raises it, and return the runs that it gets."""
    runs: list[FailedRun] = []

    @retry_plan("patient")
    def patient(run: FailedRun) -> Any:
        runs.append(run)
        if isinstance(value, BaseException):
            raise value
        return value

    return runs


def test_a_plan_gets_the_facts_of_the_attempt_and_decides() -> None:
    runs = registered("5m")
    verdict = judge(Retry(failure=FAILURE), STATE, 0.25)
    assert (verdict.verb, verdict.delay) == ("retry", timedelta(minutes=5))
    assert verdict.failure is not None
    place = f"{__name__}.registered.<locals>.patient"
    assert verdict.failure.rule == f"retried, by retry plan patient ({place})"
    assert runs == [
        FailedRun(
            attempt=2,
            max_attempts=9,
            error_type="shop.Forbidden",
            error_message="no",
            task_id=7,
            handler="shop.sync",
            queue="shops",
            random=0.25,
        )
    ]


def test_none_means_dead() -> None:
    registered(None)
    verdict = judge(Retry(failure=FAILURE), STATE, 0.5)
    rule = f"dead, by retry plan patient ({__name__}.registered.<locals>.patient)"
    assert (verdict.verb, verdict.failure and verdict.failure.rule) == ("die", rule)


class Unreadable(Exception):
    """An exception and a value whose texts exit."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Evil:
    def __repr__(self) -> str:
        raise asyncio.CancelledError


class EvilDelay(timedelta):
    def total_seconds(self) -> float:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (SystemExit(7), "raised SystemExit: 7"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
        (asyncio.CancelledError(), "raised CancelledError"),
        (GeneratorExit(), "raised GeneratorExit"),
        (BaseException("odd"), "raised BaseException: odd"),
        (Unreadable(), "raised Unreadable: (message not readable)"),
        (Evil(), "returned an unreadable value of type Evil, not a delay or None"),
        (EvilDelay(1), "not a delay or None"),
        (10**5000, "returned an unreadable value of type int, not a delay or None"),
        (ZeroDivisionError("x"), "raised ZeroDivisionError: x"),
        ("soon", "returned 'soon', not a delay or None"),
        (object, "not a delay or None"),
        (float("nan"), "not a delay or None"),
        (timedelta(-1), "a negative delay"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_plan_that_does_not_decide_is_replaced_and_the_log_says_why(
    value: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    registered(value)
    with caplog.at_level(logging.WARNING, "runner.task"):
        verdict = judge(Retry(failure=FAILURE), STATE, 0.5)
    assert verdict.delay == timedelta(minutes=20), "the plan of the handler"
    (line,) = caplog.messages
    assert line.startswith("task 7 (shop.sync): retried by 20m, because retry plan patient ")
    assert why in line
    assert verdict.failure is not None
    assert why in verdict.failure.rule


def test_a_runner_without_the_plan_uses_that_of_the_handler_and_then_the_standard() -> None:
    verdict = judge(Retry(failure=FAILURE), STATE, 0.5)
    assert (verdict.delay, verdict.failure and verdict.failure.rule) == (
        timedelta(minutes=20),
        "retried, by 20m, because retry plan patient is not loaded here",
    )
    state = AttemptState(2, 9, None, "shop.retries:Patient", 0, False)
    assert judge(Retry(failure=FAILURE), state, 0.5).delay == timedelta(minutes=5), "the second stage of 1m,5m,20m"


def test_a_path_from_the_database_is_never_imported() -> None:
    plan = parse_plan("antigravity:Class")
    assert plan == OwnPlan("antigravity:Class")
    assert plan.delay(1, 0.5) is None
    assert "antigravity" not in __import__("sys").modules


def test_code_and_settings_load_the_class_of_a_path() -> None:
    plan = load_retry(PATH)
    assert str(plan) == PATH
    assert plan.delay(3, 0.5) == timedelta(hours=3)
    verdict = judge(Retry(failure=FAILURE), AttemptState(1, 9, PATH, "20m", 0, False), 0.5)
    assert verdict.verb == "die"


@pytest.mark.usefixtures("own_handlers")
def test_an_option_of_a_handler_loads_its_plan() -> None:
    own = handler("shop.sync", retry=PATH)(lambda: None)
    assert own.defaults.retry == PATH
    assert own.options(retry=PATH).task.retry == PATH
    assert PATH in PLANS
    with pytest.raises(InvalidRetryPlan, match=r"'shop.nowhere:Plan' is not a retry plan: .*ModuleNotFoundError"):
        own.options(retry="shop.nowhere:Plan")


def test_an_entry_point_registers_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("by-error", PATH, own_retry_plan.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry] if group == entry.group else [])
    own_retry_plan._installed.cache_clear()
    try:
        assert parse_plan("by-error").delay(1, 0.5) == timedelta(hours=1)
    finally:
        own_retry_plan._installed.cache_clear()


@pytest.mark.parametrize("name", ["never", "sidekiq", "30s", "Patient", "a b", "", 5])
def test_a_name_that_is_another_plan_is_refused(name: Any) -> None:
    with pytest.raises(InvalidRetryPlan, match="a name has lower-case letters"):
        retry_plan(name)


def test_a_name_has_one_plan() -> None:
    registered("1m")
    with pytest.raises(InvalidRetryPlan, match="cannot have the same name"):
        retry_plan("patient")(ByError)


def test_a_class_needs_the_method() -> None:
    with pytest.raises(InvalidRetryPlan, match=r"has no method delay\(run\)"):
        retry_plan("patient")(object)


def test_a_typing_error_is_refused_with_the_ways_to_name_a_plan() -> None:
    with pytest.raises(
        InvalidRetryPlan, match="'sidekik' is not a retry plan: unknown plan; an own plan must be loaded"
    ):
        parse_plan("sidekik")
    with pytest.raises(InvalidRetryPlan, match="spreads its delays itself"):
        parse_plan(f"{PATH}~10%")
