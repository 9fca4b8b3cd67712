"""The options `chunk` and `chunk_wait`: what a function needs, and the arguments of its tasks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, Field

from runner import Chunk, Context, Dead, Retry, handler
from runner.errors import InvalidHandler, InvalidPayload
from runner.handlers.chunk import Succeeded

pytestmark = pytest.mark.usefixtures("own_handlers")


@dataclass
class Mail:
    to: str
    copies: list[str] = field(default_factory=list)


class Parcel(BaseModel):
    weight: int = Field(gt=0)
    items: list[Mail] = []


def both(chunk: Chunk[Mail]) -> None: ...
def untyped(chunk: Chunk) -> None: ...  # type: ignore[type-arg] # a mistake
def plain(to: str) -> None: ...
def of_text(chunk: Chunk[str]) -> None: ...
def with_context(ctx: Context, chunk: Chunk[Mail]) -> None: ...
def returning(chunk: Chunk[Mail]) -> list[str]:
    return [mail.to for mail in chunk.payloads]


def without_option(chunk: Chunk[Mail]) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "why"),
    [
        (both, {"chunk": 0}, "chunk is 0: use a number of tasks from 1 to 10,000"),
        (both, {"chunk": "many"}, "chunk is 'many'"),
        (both, {"chunk": 9, "chunk_wait": "2m"}, "chunk_wait is '2m': use at most 10s"),
        (plain, {"chunk_wait": "1s"}, "chunk_wait needs chunk"),
        (plain, {"chunk": 9}, "chunk needs a function with a Chunk"),
        (untyped, {"chunk": 9}, "write Chunk[Mail]"),
        (of_text, {"chunk": 9}, "its Chunk has tasks of type str: use a data class or a pydantic model"),
        (with_context, {"chunk": 9}, "its parameter ctx is a Context: in a chunk, each task has its own, task.ctx"),
        (returning, {"chunk": 9}, "give each task its result with task.succeed(result)"),
        (without_option, {}, "its parameter chunk is a Chunk: set its maximum number of tasks"),
        (both, {"chunk": 9, "executor": "dask"}, "executor='dask' executes single tasks"),
    ],
)
def test_a_chunk_that_cannot_work_is_refused(function: Callable[..., Any], options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidHandler) as refused:
        handler("chunks.refused", **options)(function)
    assert why in str(refused.value)


def test_another_parameter_needs_a_resource() -> None:
    def send(chunk: Chunk[Mail], relay: str) -> None: ...

    registered = handler("chunks.relay", chunk=9)(send)
    with pytest.raises(InvalidHandler, match="its parameter relay receives nothing"):
        registered.require()


def test_the_fields_of_a_data_class_are_the_arguments_of_a_task() -> None:
    send = handler("chunks.mail", chunk=9)(both)
    assert send.new(Mail("ana", ["ben"])).payload == '{"to":"ana","copies":["ben"]}'
    assert send.signature.encode((), {"to": "ana"}) == '{"to":"ana"}'
    assert send.signature.check('{"to": "ana"}') == '{"to":"ana"}'
    with pytest.raises(InvalidPayload, match="pass one object of Mail"):
        send.signature.encode(("ana",), {})
    with pytest.raises(InvalidPayload, match="no such argument; it has: to, copies"):
        send.signature.encode((), {"to": "ana", "cc": "ben"})


def test_a_model_checks_its_fields() -> None:
    @handler("chunks.parcel", chunk=9)
    def ship(chunk: Chunk[Parcel]) -> None: ...

    assert ship.new(Parcel(weight=2, items=[Mail("ana")])).payload == '{"weight":2,"items":[{"to":"ana","copies":[]}]}'
    with pytest.raises(InvalidPayload, match="weight: Input should be greater than 0"):
        ship.signature.arguments('{"weight": 0}')


def test_options_of_a_call_are_functions_of_the_fields() -> None:
    @handler("chunks.keys", chunk=9, tenant=lambda to: to, key=lambda copies: str(len(copies)))
    def send(chunk: Chunk[Mail]) -> None: ...

    task = send.new(Mail("ana"))
    assert (task.tenant, task.key) == ("ana", "0")


def test_a_direct_call_takes_a_chunk_without_a_runner() -> None:
    @handler("chunks.direct", chunk=9)
    def send(chunk: Chunk[Mail, int]) -> None:
        chunk[0].succeed(1)
        chunk[1].retry("5m")
        chunk[2].dead("closed")

    chunk = Chunk[Mail, int].of(*map(Mail, "abcd"))
    send(chunk)
    assert [task.outcome for task in chunk] == [Succeeded(1), Retry("5m"), Dead("closed"), None]
    assert chunk[0].ctx.attempt == 1
