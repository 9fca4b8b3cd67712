"""Chunk handlers in the tests of an application, and inline calls of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from runner import Chunk, TaskHandle, handler
from runner.errors import RunnerError
from runner.testing import TaskStore

pytestmark = pytest.mark.usefixtures("own_handlers")


@pytest.fixture
def store(migrated_url: str) -> Iterator[TaskStore]:
    with TaskStore(migrated_url, retry="1m,5m") as store:
        yield store


@dataclass
class Mail:
    to: str


def test_a_drain_executes_chunks_of_each_tenant(store: TaskStore) -> None:
    chunks = list[list[str]]()

    @handler("test.mail", chunk=3, tenant=lambda to: to[0])
    async def mail(chunk: Chunk[Mail, str]) -> None:
        chunks.append([task.payload.to for task in chunk])
        for task in chunk:
            if task.payload.to == "b1":
                task.retry("1m", "busy")
            else:
                task.succeed(task.payload.to.upper())

    tasks = mail.submit_many(mail.new(Mail(to)) for to in ("a1", "a2", "b1", "a3"))
    verbs = [ran.verb for ran in store.drain()]
    assert verbs == ["succeed", "succeed", "retry", "succeed"]
    assert chunks == [["a1", "a2"], ["b1"], ["a3"]]
    assert [tasks[index].result() for index in (0, 1, 3)] == ["A1", "A2", "A3"]


def test_an_inline_call_is_a_chunk_of_one(store: TaskStore) -> None:
    @handler("test.mail", chunk=3)
    def mail(chunk: Chunk[Mail, str]) -> None:
        (task,) = chunk
        if task.payload.to == "ana":
            task.succeed("sent")
        else:
            task.fail(ConnectionError("relay is down"))

    assert mail.call_or_submit(Mail("ana")) == "sent"
    submitted = mail.call_or_submit(Mail("ben"))
    assert isinstance(submitted, TaskHandle)
    assert [task.payload for task in store.tasks()] == [{"to": "ben"}]


def test_a_result_of_a_chunk_is_read_with_its_type(store: TaskStore) -> None:
    @handler("test.mail", chunk=3)
    def mail(chunk: Chunk[Mail, Mail]) -> None:
        chunk[0].succeed(Mail("ben"))
        chunk[1].dead("no such address")

    first, second = mail.submit_many(mail.new(Mail(to)) for to in "ab")
    store.drain()
    assert first.result() == Mail("ben")
    with pytest.raises(RunnerError, match="no such address"):
        second.result()
