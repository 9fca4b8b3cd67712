"""The log of a runner: one line per event, in JSON where no terminal is attached, without payloads."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from runner import logs
from runner.queries.failures import failures as read_failures
from tests.engine.workshop import Workshop

SECRET = "swordfish"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up("auto", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


async def test_every_event_is_one_line_of_json_without_payloads(workshop: Workshop, stream: io.StringIO) -> None:
    @workshop.handler("broken", max_attempts=2)
    async def broken(password: str) -> None:
        raise ValueError(f"two\nlines\x1b[31m, {password}")

    @workshop.handler("strict")
    async def strict(n: int) -> None: ...

    @workshop.handler("fine")
    async def fine(password: str) -> str:
        return password

    await workshop.submit("broken", {"password": SECRET})
    await workshop.submit("strict", {"n": SECRET})
    await workshop.submit("fine", {"password": SECRET})
    await workshop.work()
    lines = stream.getvalue().splitlines()
    records = [json.loads(line) for line in lines]
    assert all({"at", "level", "logger", "message"} <= set(record) for record in records)
    messages = " ".join(record["message"] for record in records)
    assert "(broken) attempt 1/2: retry: ValueError: two lines" in messages
    assert "(broken) attempt 2/2: bury: ValueError: two lines" in messages
    assert "InvalidPayload" in messages
    assert "password" not in messages
    assert SECRET not in stream.getvalue()
    failures = await workshop.database.read(read_failures)
    assert [SECRET in f"{failure.message} {failure.traceback}" for failure in failures] == [False] * len(failures)
    assert "***" in " ".join(failure.message for failure in failures)
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "human"])
def test_likely_secrets_are_masked(form: Literal["json", "human"]) -> None:
    stream = io.StringIO()
    before = logging.getLogger().handlers[:]
    logs.set_up(form, stream)
    try:
        raise ConnectionError(f"postgresql://ana:{SECRET}@db/app")
    except ConnectionError:
        logging.getLogger("runner").exception(
            "token=%s", SECRET, extra={"api_key": SECRET, "by_number": {1: SECRET[:1]}}
        )
    finally:
        logging.getLogger().handlers[:] = before
    assert "ConnectionError" in stream.getvalue()
    assert SECRET not in stream.getvalue()


async def test_the_first_line_names_the_runner_and_the_last_its_results(
    workshop: Workshop, stream: io.StringIO
) -> None:
    @workshop.handler("fine")
    async def fine() -> None: ...

    await workshop.submit("fine")
    await workshop.work()
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages[0].startswith("runner ")
    assert "with 1 handler" in messages[0]
    assert messages[-1] == "stopped: succeed 1"
