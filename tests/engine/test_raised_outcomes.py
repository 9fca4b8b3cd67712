"""A handler that raises an outcome gets advice to return it."""

from collections.abc import Callable

import pytest

import runner
from runner import Dead, Retry
from runner.engine.handler_result import advice


def dead() -> None:
    raise Dead("no such shop")  # type: ignore[misc] # the case under test


def retry() -> None:
    raise Retry  # type: ignore[misc]


def by_module() -> None:
    raise runner.Snooze("1m")  # type: ignore[misc]


def something_else() -> None:
    raise 5  # type: ignore[misc]  # noqa: B016 - raises another name than Dead


def about_it() -> None:
    raise TypeError("Dead: exceptions must derive from BaseException")


def said(body: Callable[[], None]) -> str:
    try:
        body()
    except BaseException as error:
        return advice(error)
    return "nothing was raised"


@pytest.mark.parametrize(("body", "name"), [(dead, "Dead"), (retry, "Retry"), (by_module, "Snooze")])
def test_an_outcome_that_is_raised_is_to_be_returned(body: Callable[[], None], name: str) -> None:
    assert said(body) == f"; return the outcome instead of raising it: return {name}(...)"


@pytest.mark.parametrize("body", [something_else, about_it])
def test_nothing_is_said_of_other_mistakes(body: Callable[[], None]) -> None:
    assert said(body) == ""
