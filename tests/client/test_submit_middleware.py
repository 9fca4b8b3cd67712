"""Functions around submits: they may change and refuse tasks, and see the ids."""

import contextvars
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner import NewTask, SubmitResult, TaskHandle, TaskHandler, around_submit, batch, handler
from runner.handlers.hooks import LIFE_CYCLE, InvalidCallback
from runner.handlers.registry import REGISTRY
from runner.testing import TaskStore

TRACE: contextvars.ContextVar[str] = contextvars.ContextVar("TRACE", default="none")


@pytest.fixture
def work() -> Iterator[TaskHandler[Any, Any, Any]]:
    @handler("test.around")
    def work(n: int) -> None: ...

    yield work
    REGISTRY._handlers.pop("test.around")
    LIFE_CYCLE.clear()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    with TaskStore.in_folder(tmp_path) as store:
        yield store


async def test_every_way_to_submit_passes_through(work: TaskHandler[Any, Any, Any], store: TaskStore) -> None:
    ids: list[int] = []

    @around_submit
    def trace(tasks: list[NewTask]) -> Generator[Sequence[NewTask], SubmitResult, None]:
        result = yield [task._replace(key=f"{TRACE.get()}-{task.payload}") for task in tasks]
        ids.extend(result.ids)

    TRACE.set("t1")
    handles: list[TaskHandle[Any]] = [await work.submit_async(n=1)]
    handles += await work.options(queue="mail").submit_many_async([{"n": 2}, {"n": 3}])
    engine = sa.create_engine(f"sqlite:///{store.settings.url.database}")
    with engine.begin() as connection:
        handles.append(work.options(tx=connection).submit(n=4))
        handles += batch([work.new(n=5)], tx=connection).members
    engine.dispose()
    assert handles == ids
    assert [task.key for task in store.tasks(work)] == [f't1-{{"n":{n}}}' for n in range(1, 6)]


def test_an_exception_refuses_the_submit(work: TaskHandler[Any, Any, Any], store: TaskStore) -> None:
    errors: list[str] = []

    @around_submit
    def outer(tasks: list[NewTask]) -> Generator[None, SubmitResult, None]:
        try:
            yield
        except PermissionError as error:
            errors.append(str(error))
            raise

    @around_submit
    def refuse(tasks: list[NewTask]) -> Generator[None, SubmitResult, None]:
        if tasks:
            raise PermissionError("no quota")
        yield

    with pytest.raises(PermissionError, match="no quota"):
        work.submit(n=1)
    assert errors == ["no quota"]
    assert store.tasks() == []


def test_an_exception_after_the_submit_is_logged(
    work: TaskHandler[Any, Any, Any], store: TaskStore, caplog: pytest.LogCaptureFixture
) -> None:
    @around_submit
    def broken(tasks: list[NewTask]) -> Generator[None, SubmitResult, None]:
        yield
        raise ConnectionError("metrics are away")

    work.submit(n=1)
    assert [task.handler for task in store.tasks()] == ["test.around"]
    assert "metrics are away" in caplog.text


def test_wrong_forms_are_refused(work: TaskHandler[Any, Any, Any], store: TaskStore) -> None:
    with pytest.raises(InvalidCallback, match=r"no_yield cannot be registered with @around_submit: it must yield once"):
        around_submit(no_yield)  # type: ignore[type-var] # untyped applications

    @around_submit
    def fewer(tasks: list[NewTask]) -> Generator[Sequence[NewTask], SubmitResult, None]:
        yield tasks[:1]

    with pytest.raises(InvalidCallback, match="a list of 2 NewTask"):
        work.submit_many([{"n": 1}, {"n": 2}])
    assert store.tasks() == []


def no_yield(tasks: list[NewTask]) -> None: ...
