"""A handler may raise an outcome instead of returning it, from any depth of its calls."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import runner
from runner import Context, Dead, Retry, Snooze, handler
from runner.handlers.registry import REGISTRY
from runner.model.outcome import Outcome
from runner.testing import TaskStore
from tests.engine.harness import Harness


@contextmanager
def section() -> Iterator[None]:
    """Sets the traceback of an exception that passes through it."""
    yield


def dead() -> None:
    with section():
        raise Dead("no such shop")


def retry() -> None:
    raise Retry("1h", "the shop is closed")


def snooze() -> None:
    raise runner.Snooze("1h", "the shop opens later")


def dead_from() -> None:
    try:
        raise LookupError("shop 17")
    except LookupError as error:
        raise Dead("no such shop") from error


@pytest.fixture
def store(migrated_url: str) -> Iterator[TaskStore]:
    with TaskStore(migrated_url) as store:
        yield store
    REGISTRY._handlers.pop("test.raise")


@pytest.mark.parametrize(
    ("body", "verb", "reason"),
    [
        (dead, "die", "no such shop"),
        (retry, "retry", "the shop is closed"),
        (snooze, "snooze", "the shop opens later"),
        (dead_from, "die", "LookupError: no such shop (shop 17)"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_a_raised_outcome_has_the_effect_of_a_returned_one(
    store: TaskStore, body: Callable[[], None], verb: str, reason: str, is_async: bool
) -> None:
    async def on_loop() -> None:
        body()

    decorator = handler("test.raise", on_error="retry" if verb == "die" else "dead")
    (decorator(on_loop) if is_async else decorator(body)).submit()
    (ran,) = store.drain("test.raise")
    assert (ran.verb, ran.reason) == (verb, reason)


@pytest.mark.parametrize("outcome", [Retry, Snooze])
def test_the_reason_of_an_outcome_has_no_secret_of_the_payload(
    store: TaskStore, outcome: Callable[[str, str], Exception]
) -> None:
    @handler("test.raise")
    def log_in(password: str) -> None:
        raise outcome("1h", f"refused: {password}")

    log_in.submit("plum-tree-2")
    (ran,) = store.drain("test.raise")
    assert ran.reason == "refused: ***"


async def test_a_raised_outcome_rolls_back_the_transaction_of_its_task(harness: Harness) -> None:
    @harness.handler("work")
    async def work(ctx: Context) -> None:
        async with ctx.transaction():
            raise Dead("no such shop")

    task = await harness.run("work")
    assert await harness.state(task) == "dead"


@pytest.mark.parametrize("outcome", [Retry(), Retry(delay="5m", why="x"), Dead("x"), Snooze(5.0, why="x")])
def test_an_outcome_is_a_value(outcome: Outcome) -> None:
    for twin in (copy.copy(outcome), pickle.loads(pickle.dumps(outcome))):
        assert (twin, hash(twin), type(twin)) == (outcome, hash(outcome), type(outcome))
    assert outcome != Dead("another reason")
