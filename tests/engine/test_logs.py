"""The log of a runner: one line per event, in JSON where no terminal is attached, without payloads."""

import asyncio
import io
import json
import logging
import traceback
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from runner import Context, Dead, logs
from runner.engine.event_log import EventLog
from runner.engine.events import Events, TasksRescued
from runner.queries.failures import failures as read_failures
from runner.store.rescue import Rescued
from tests.engine.harness import Harness
from tests.engine.process_handlers import secret_lines
from tests.engine.test_processes import HANDLERS as PROCESS_HANDLERS

SECRET = "swordfish"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger; `unconfigured` removes what pytest adds to it for each phase of a test."""
    root, ours, pool = (logging.getLogger(name) for name in ("", "runner", "sqlalchemy.pool"))
    before, levels = root.handlers[:], {each: each.level for each in (root, ours, pool)}
    root.handlers[:] = []
    yield root
    root.handlers[:] = before
    for each, level in levels.items():
        each.setLevel(level)


def unconfigured(root: logging.Logger) -> io.StringIO:
    root.handlers[:] = []
    return io.StringIO()


@pytest.fixture
def stream(root: logging.Logger) -> io.StringIO:
    stream = unconfigured(root)
    logs.set_up("auto", stream=stream)
    return stream


async def test_every_event_is_one_line_of_json_without_payloads(harness: Harness, stream: io.StringIO) -> None:
    @harness.handler("broken", max_attempts=2)
    async def broken(password: str) -> None:
        raise ValueError(f"two\nlines\x1b[31m, {password}")

    @harness.handler("strict")
    async def strict(n: int) -> None: ...

    @harness.handler("fine")
    async def fine(password: str) -> str:
        return password

    await harness.submit("broken", {"password": SECRET})
    await harness.submit("strict", {"n": SECRET})
    await harness.submit("fine", {"password": SECRET})
    await harness.work()
    lines = stream.getvalue().splitlines()
    records = [json.loads(line) for line in lines]
    assert all({"at", "level", "logger", "message"} <= set(record) for record in records)
    messages = " ".join(record["message"] for record in records)
    assert "(broken) attempt 1/2 failed, retrying: ValueError: two lines" in messages
    assert "(broken) attempt 2/2 failed, task dead: ValueError: two lines" in messages
    assert "InvalidPayload" in messages
    assert "password" not in messages
    assert SECRET not in stream.getvalue()
    failures = await harness.database.read(read_failures)
    assert [SECRET in f"{failure.message} {failure.traceback}" for failure in failures] == [False] * len(failures)
    assert "***" in " ".join(failure.message for failure in failures)
    assert "\x1b" not in stream.getvalue()


async def test_an_end_without_a_reason_has_no_colon(harness: Harness, stream: io.StringIO) -> None:
    @harness.handler("gives_up")
    async def gives_up() -> None:
        raise Dead

    await harness.submit("gives_up")
    await harness.work()
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages[1].endswith("(gives_up) attempt 1/5 failed, task dead")


@pytest.mark.parametrize("form", ["json", "human"])
def test_likely_secrets_are_masked(root: logging.Logger, form: Literal["json", "human"]) -> None:
    stream = unconfigured(root)
    logs.set_up(form, stream=stream)
    try:
        raise ConnectionError(f"postgresql://ana:{SECRET}@db/app")
    except ConnectionError:
        logging.getLogger("runner").exception(
            "token=%s", SECRET, extra={"api_key": SECRET, "by_number": {1: SECRET[:1]}}
        )
    assert "ConnectionError" in stream.getvalue()
    assert SECRET not in stream.getvalue()


async def test_the_first_line_names_the_runner_and_the_last_its_results(harness: Harness, stream: io.StringIO) -> None:
    @harness.handler("fine")
    async def fine() -> None: ...

    await harness.submit("fine")
    await harness.work()
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages[0].startswith("runner ")
    assert "with 1 handler" in messages[0]
    assert messages[-1] == "stopped: 1 succeeded"


def configured(root: logging.Logger, level: int) -> io.StringIO:
    """Configure logging as an application does, before `runner work` sets it up."""
    stream = unconfigured(root)
    lines = logging.StreamHandler(stream)
    lines.setFormatter(logging.Formatter("%(name)s|%(message)s"))
    root.addHandler(lines)
    root.setLevel(level)
    return stream


def test_a_connection_that_the_server_has_closed_logs_no_traceback(root: logging.Logger) -> None:
    stream = unconfigured(root)
    logs.set_up("json", stream=stream)
    try:
        raise ConnectionError("terminating connection due to administrator command")
    except ConnectionError:
        logging.getLogger("sqlalchemy.pool.impl.AsyncAdaptedQueuePool").exception("Exception during reset or similar")
    assert stream.getvalue() == ""


def test_the_logging_that_an_application_has_configured_stays(root: logging.Logger) -> None:
    stream = configured(root, logging.WARNING)
    before = root.handlers[:]
    logs.set_up("json")
    assert (root.handlers, root.level) == (before, logging.WARNING)
    logging.getLogger("runner").info("started")
    logging.getLogger("shop").warning("sold out")
    assert stream.getvalue() == "shop|sold out\n"
    logs.set_up("json", "info")
    logging.getLogger("runner").info("started")
    logging.getLogger("shop").info("open")
    assert stream.getvalue() == "shop|sold out\nrunner|started\n"


@pytest.mark.parametrize(("level", "lines"), [(None, ["open", "late"]), ("warning", ["late"]), ("debug", None)])
def test_log_level_applies_to_all_loggers_otherwise(
    root: logging.Logger, level: str | None, lines: list[str] | None
) -> None:
    stream = unconfigured(root)
    logs.set_up("json", level, stream)
    logger = logging.getLogger("shop")
    logger.debug("detail")
    logger.info("open")
    logger.warning("late")
    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == (lines or ["detail", "open", "late"])


@pytest.mark.parametrize("own", [True, False])
async def test_every_line_inside_a_handler_names_its_task(harness: Harness, root: logging.Logger, own: bool) -> None:
    stream = configured(root, logging.INFO) if own else unconfigured(root)
    logs.set_up("json", stream=stream)
    root.handlers[0].setFormatter(logs.JsonLines())
    shop = logging.getLogger("shop")

    @harness.handler("on_loop")
    async def on_loop() -> None:
        shop.info("on the loop")
        await asyncio.to_thread(shop.info, "beside the loop")

    @harness.handler("in_thread")
    def in_thread(ctx: Context) -> None:
        shop.info("in a thread")
        ctx.logger.info("by the context")

    first = await harness.submit("on_loop")
    second = await harness.run("in_thread")
    shop.info("outside")
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    fields = {record["message"]: [record.get(name) for name in ("task", "handler", "attempt")] for record in records}
    assert fields["on the loop"] == fields["beside the loop"] == [first, "on_loop", 1]
    assert fields["in a thread"] == fields["by the context"] == [second, "in_thread", 1]
    assert fields["outside"] == [None, None, None]


def test_a_line_for_people_ends_with_its_task(root: logging.Logger) -> None:
    stream = unconfigured(root)
    logs.set_up("human", stream=stream)
    extra = {"task": 17, "handler": "shop.charge", "attempt": 2}
    logging.getLogger("shop").info("charged", extra=extra)
    logging.getLogger("runner").warning("task 17 (shop.charge) timed out", extra=extra)
    lines = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == ["charged [task 17 shop.charge, attempt 2]", "warning: task 17 (shop.charge) timed out"]


async def test_lines_of_an_attempt_have_the_id_of_its_trace(harness: Harness, root: logging.Logger) -> None:
    stream, human = unconfigured(root), io.StringIO()
    logs.set_up("json", stream=stream)
    lines = logging.StreamHandler(human)
    lines.setFormatter(logs.HumanLines())
    lines.addFilter(logs.TaskFilter())
    root.addHandler(lines)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"

    @harness.handler("work", max_attempts=1)
    def work(ctx: Context, n: int) -> None:
        ctx.logger.info("step %d", n)
        raise ValueError(n)

    await harness.submit("work", {"n": 1}, headers=json.dumps({"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}))
    await harness.submit("work", {"n": 2}, headers='{"traceparent": "unreadable"}')
    await harness.work()
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    traces = {record["message"]: record.get("trace_id") for record in records if "task" in record}
    dead = "attempt 1/1 failed, task dead: ValueError"
    assert traces == {
        "step 1": trace,
        "step 2": None,
        f"task 1 (work) {dead}: 1": trace,
        f"task 2 (work) {dead}: 2": None,
    }
    texts = [line.partition(" ")[2] for line in human.getvalue().splitlines()]
    assert f"step 1 [task 1 work, attempt 1, trace {trace}]" in texts
    assert f"error: task 1 (work) {dead}: 1 [trace {trace}]" in texts


class ShopClosed(Exception):
    pass


@pytest.fixture
def tracked() -> Iterator[list[Any]]:
    """The type, text and functions of each exception that an error tracker receives with a log record."""
    errors: list[Any] = []

    class Tracker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                kind, error, frames = record.exc_info
                errors.append((kind, str(error), [frame.name for frame in traceback.extract_tb(frames)]))

    logging.root.addHandler(tracker := Tracker())
    yield errors
    logging.root.removeHandler(tracker)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_death_is_an_error_with_its_exception_and_a_retry_a_warning(
    harness: Harness, caplog: pytest.LogCaptureFixture, tracked: list[Any], in_thread: bool
) -> None:
    def sell(item: str) -> None:
        raise ShopClosed(f"no {item} today")

    async def sell_async(item: str) -> None:
        sell(item)

    harness.handler("sell", max_attempts=2)(sell if in_thread else sell_async)
    task = await harness.run("sell", {"item": "hats"}, key="order-1")
    retry, death = [record for record in caplog.records if getattr(record, "task", None) == task]
    assert (retry.levelname, death.levelname) == ("WARNING", "ERROR")
    assert (retry.exc_info, death.exc_info) == (None, None)
    assert tracked == [(ShopClosed, "no hats today", ["sell"] if in_thread else ["sell_async", "sell"])]
    names = ("handler", "queue", "key", "attempt", "max_attempts", "error_type")
    fields = [getattr(death, name) for name in names]
    assert fields == ["sell", "default", "order-1", 2, 2, f"{__name__}.ShopClosed"]


async def test_the_exception_of_a_death_has_no_secret_of_the_payload(harness: Harness, tracked: list[Any]) -> None:
    @harness.handler("sell", max_attempts=1)
    async def sell(password: str) -> None:
        raise ShopClosed(f"no entry with {password}")

    await harness.submit("sell", {"password": SECRET})
    await harness.work()
    ((error_type, text, _),) = tracked
    assert text == "no entry with ***"
    assert (error_type.__module__, error_type.__qualname__) == (__name__, "ShopClosed")


@pytest.mark.representatives(2)
@pytest.mark.parametrize("form", ["json", "human"])
@pytest.mark.parametrize("where", ["on_loop", "in_thread", "process.secrets"])
async def test_no_line_of_a_handler_has_a_secret_of_the_payload(
    harness: Harness, root: logging.Logger, form: Literal["json", "human"], where: str
) -> None:
    stream = unconfigured(root)
    logs.set_up(form, stream=stream)

    async def on_loop(ctx: Context, password: str) -> None:
        secret_lines(ctx, password)

    harness.handler("on_loop")(on_loop)
    harness.handler("in_thread")(secret_lines)
    harness.handlers |= {name: made for name, made in PROCESS_HANDLERS.items() if name == where}
    task = await harness.run(where, {"password": 'hali"but'})
    assert await harness.state(task) == "succeeded"
    shown = stream.getvalue()
    assert [name for name in ("by the context", "by a logger", "by an error", "extra") if name not in shown] == (
        ["extra"] if form == "human" else []
    )
    assert "hali" not in shown
    assert "***" in shown


async def test_the_logging_of_an_application_gets_lines_of_the_context_without_secrets(
    harness: Harness, root: logging.Logger
) -> None:
    stream = configured(root, logging.INFO)

    @harness.handler("sell")
    async def sell(ctx: Context, password: str) -> None:
        ctx.logger.info("by the context: %s", password)
        ctx.logger.info("plain %s", "text")

    await harness.submit("sell", {"password": SECRET})
    await harness.work()
    assert "runner.task|by the context: ***\nrunner.task|plain text\n" in stream.getvalue()


async def test_a_death_without_an_exception_is_an_error_too(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    @harness.handler("sell")
    async def sell() -> Dead:
        return Dead("the shop has closed down")

    await harness.submit("sell")
    await harness.work()
    (death,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (death.exc_info, "the shop has closed down" in death.getMessage()) == (None, True)


def test_a_task_that_dies_with_its_runner_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    EventLog(events := Events())
    for verb in ("rescue", "die"):
        events.publish(TasksRescued({17: Rescued(verb, "default", "sell", 5, None)}))
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert [getattr(record, "task", None) for record in caplog.records] == [17, 17]
