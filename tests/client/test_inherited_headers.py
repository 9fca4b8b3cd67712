"""A submit inside a handler inherits the trace headers of its attempt, unless it has its own."""

import json
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from runner import Context, NewTask, SubmitResult, around_submit, batch, handler
from runner.handlers.hooks import LIFE_CYCLE
from runner.handlers.registry import REGISTRY
from runner.model.headers import MOST_HEADERS
from runner.testing import TaskStore

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"
TRACE = {"traceparent": PARENT, "tracestate": "a=1", "baggage": "user=7", "sentry-trace": "s"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    with TaskStore.in_folder(tmp_path) as store:
        yield store
    LIFE_CYCLE.clear()
    for name in ("test.parent", "test.child"):
        REGISTRY._handlers.pop(name, None)


@handler("test.child")
def child(n: int) -> None: ...


def headers_of(store: TaskStore) -> dict[int, dict[str, str]]:
    """The headers of the tasks of `child`, by their argument."""
    REGISTRY._handlers.setdefault("test.child", child)
    return {task.payload["n"]: dict(task.headers) for task in store.tasks(child)}


def test_each_way_to_submit_inherits(store: TaskStore) -> None:
    @handler("test.parent")
    def parent(ctx: Context) -> None:
        child.submit(0)
        child.submit_many([{"n": 1}, {"n": 2}])
        child.options(headers={"request-id": "a1"}).submit(3)
        child.options(headers={"traceparent": OTHER}).submit(4)
        batch([child.new(5), child.options(headers={"user": "ana"}).new(6)])

    parent.options(headers={**TRACE, "user": "bob"}).submit()
    store.drain(parent)
    assert headers_of(store) == {
        0: TRACE,
        1: TRACE,
        2: TRACE,
        3: {"request-id": "a1", **TRACE},
        4: {"traceparent": OTHER},
        5: TRACE,
        6: {"user": "ana", **TRACE},
    }


async def test_a_coroutine_inherits_and_a_function_around_submits_wins(store: TaskStore) -> None:
    @handler("test.parent")
    async def parent(ctx: Context) -> None:
        await child.submit_async(0)
        LIFE_CYCLE.clear()
        await child.submit_many_async([{"n": 1}])

    @around_submit
    def inject(tasks: list[NewTask]) -> Generator[Sequence[NewTask], SubmitResult, None]:
        yield [task._replace(headers=json.dumps({"traceparent": OTHER})) for task in tasks]

    await parent.options(headers=TRACE).submit_async()
    LIFE_CYCLE.clear()
    await store.drain_async(parent)
    assert headers_of(store)[1] == {"traceparent": OTHER}


def test_headers_without_a_trace_are_not_inherited_and_a_full_task_keeps_its_own(store: TaskStore) -> None:
    full = {f"h{number}": "" for number in range(MOST_HEADERS)}

    @handler("test.parent")
    def parent(ctx: Context, n: int) -> None:
        child.submit(n)
        if n:
            child.options(headers=full).submit(2)

    parent.options(headers={"user": "bob"}).submit(0)
    parent.options(headers=TRACE).submit(1)
    store.drain(parent)
    assert headers_of(store) == {0: {}, 1: TRACE, 2: full}


def test_a_submit_outside_of_a_handler_has_no_headers(store: TaskStore) -> None:
    child.submit(0)
    assert headers_of(store) == {0: {}}
