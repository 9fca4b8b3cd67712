"""Sentry receives each failure once, with the scope of its own attempt, and spans and check-ins."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.logging import unignore_logger
from sentry_sdk.transport import Transport

from runner import Context, Dead, around_execute, handler, schedules
from runner.contrib import sentry
from runner.contrib.sentry import Failures, RunnerIntegration, monitor_config
from runner.engine.events import Events, TasksRescued
from runner.engine.hosting.hooks import Hooks
from runner.errors import InvalidInput
from runner.policy.schedule import write_rule
from runner.store.rescue import Rescued
from tests.conftest import on_sqlite, sqlite_first
from tests.contrib import sentry_handlers
from tests.engine.harness import WAIT_SECONDS, Harness

TASKS = 8


class Kept(Transport):
    """Keeps the items of all envelopes."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.items += [(item.type, item.payload.json) for item in envelope.items]

    def of(self, kind: str) -> list[Any]:
        return [payload for each, payload in self.items if each == kind]


@pytest.fixture
def start() -> Iterator[Callable[..., Kept]]:
    def start(failures: Failures | None = "last") -> Kept:
        kept = Kept()
        integrations = [] if failures is None else [RunnerIntegration(failures)]
        sentry_sdk.init(
            "http://key@127.0.0.1:9/1",
            integrations=integrations,
            transport=kept,
            traces_sample_rate=1.0,
            shutdown_timeout=0,
        )
        if failures is not None:
            RunnerIntegration.setup_once()  # another test has removed the functions
        return kept

    yield start
    unignore_logger("runner.outcome")
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def tags(event: Any) -> Any:
    return event["tags"]


@pytest.mark.slow
@sqlite_first
@pytest.mark.parametrize("kind", ["async", "plain", "process"])
async def test_the_event_of_a_dead_task_has_the_scope_of_its_attempt_and_the_stack_of_its_handler(
    harness: Harness, start: Callable[..., Kept], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, together, all_async = start(), threading.Barrier(TASKS), asyncio.Barrier(TASKS)

    @around_execute
    def other(ctx: Context) -> Iterator[None]:
        with contextlib.nullcontext():
            yield

    monkeypatch.setenv("SENTRY_WORKER", "1")

    def fail(number: int) -> None:
        raise ValueError(f"bad {number}")

    if kind == "async":

        @harness.handler("work", max_attempts=1)
        async def coroutine(number: int) -> None:
            sentry_sdk.set_tag("number", number)
            sentry_sdk.add_breadcrumb(message=f"crumb {number}")
            await all_async.wait()
            fail(number)

    elif kind == "plain":

        @harness.handler("work", max_attempts=1)
        def plain(number: int) -> None:
            sentry_sdk.set_tag("number", number)
            sentry_sdk.add_breadcrumb(message=f"crumb {number}")
            together.wait(WAIT_SECONDS)
            fail(number)

    else:
        harness.handlers["work"] = sentry_handlers.in_process
    name = "sentry.process" if kind == "process" else "work"
    harness.handlers[name] = harness.handlers["work"]
    ids = {await harness.submit(name, {"number": number}): number for number in range(TASKS)}
    await harness.work(concurrency=TASKS, threads=TASKS, processes=2)
    events = {tags(event)["task"]: event for event in kept.of("event")}
    assert len(kept.of("event")) == TASKS
    assert events.keys() == {str(id) for id in ids} or events.keys() == set(ids)
    for id, number in ids.items():
        event = events.get(str(id)) or events[id]
        assert str(tags(event)["number"]) == str(number)
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == [f"crumb {number}"]
        assert event["transaction"] == name
        (error,) = [each for each in event["exception"]["values"] if each["type"] == "ValueError"]
        assert error["value"].strip() == f"bad {number}"
        frames = [frame["function"] for frame in error["stacktrace"]["frames"]]
        assert frames == {"async": ["coroutine", "fail"], "plain": ["plain", "fail"]}.get(kind, ["in_process"])
        assert not any("vars" in frame for frame in error["stacktrace"]["frames"])


@on_sqlite
@pytest.mark.parametrize(("failures", "levels"), [("last", ["error"]), ("each", ["warning", "warning", "error"])])
async def test_an_option_selects_the_reported_failures(
    harness: Harness, start: Callable[..., Kept], failures: Failures, levels: list[str]
) -> None:
    kept = start(failures)

    @harness.handler("work", max_attempts=3)
    async def work(password: str) -> None:
        raise ValueError(f"wrong: {password}")

    @harness.handler("given.up")
    async def give_up() -> Dead:
        return Dead("no such shop")

    await harness.submit("work", {"password": "hunter2-secret"}, tenant="acme")
    await harness.submit("given.up")
    await harness.work()
    events = [event for event in kept.of("event") if event["transaction"] == "work"]
    assert [event["level"] for event in events] == levels
    assert {event["exception"]["values"][-1]["value"] for event in events} == {"wrong: ***"}
    assert tags(events[-1])["tenant"] == "acme"
    (dead,) = [event for event in kept.of("event") if event["transaction"] == "given.up"]
    assert (dead["message"], dead["level"]) == ("given.up: no such shop", "error")
    assert "hunter2" not in json.dumps(kept.items, default=str)


@on_sqlite
async def test_without_the_integration_the_log_line_of_a_death_is_reported(
    harness: Harness, start: Callable[..., Kept]
) -> None:
    kept = start(None)

    @harness.handler("work", max_attempts=1)
    async def work() -> None:
        raise ValueError("bad")

    await harness.submit("work")
    await harness.work()
    (event,) = kept.of("event")
    assert (event["logger"], event["exception"]["values"][-1]["value"]) == ("runner.outcome", "bad")


@on_sqlite
@pytest.mark.usefixtures("connected", "own_handlers")
async def test_spans_of_submits_and_attempts_are_one_trace(harness: Harness, start: Callable[..., Kept]) -> None:
    kept = start()

    @handler("sentry.work", queue="mail", max_attempts=2)
    async def work(fails: bool) -> None:
        assert not fails

    harness.handlers["sentry.work"] = work
    with sentry_sdk.start_transaction(name="request"):
        task = await work.submit_async(False)
    await harness.work()
    request, attempt = kept.of("transaction")
    (publish,) = [span for span in request["spans"] if span["op"] == "queue.publish"]
    assert publish["description"] == "sentry.work"
    assert publish["data"]["messaging.message.id"] == str(task)
    assert publish["data"]["messaging.destination.name"] == "mail"
    span = attempt["contexts"]["trace"]
    assert (attempt["transaction"], attempt["transaction_info"]) == ("sentry.work", {"source": "task"})
    assert (span["op"], span["status"], span["parent_span_id"]) == ("queue.process", "ok", publish["span_id"])
    assert span["trace_id"] == request["contexts"]["trace"]["trace_id"]
    data = span["data"]
    assert data["messaging.message.id"] == str(task)
    assert (data["messaging.destination.name"], data["messaging.message.retry.count"]) == ("mail", 0)
    assert data["messaging.message.receive.latency"] >= 0


@on_sqlite
@pytest.mark.parametrize("ends", ["ok", "error"])
async def test_a_run_of_a_schedule_checks_in(
    harness: Harness, start: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    kept = start()
    config = monitor_config("0 9 * * mon-fri", "Europe/Berlin")

    async def read(_: object, schedule: str) -> Any:
        return config if schedule == "Shop.nightly" else None

    monkeypatch.setattr(sentry._Rules, "read", read)

    @harness.handler("work", max_attempts=2)
    async def work() -> None:
        assert ends == "ok"

    await harness.submit("work", headers='{"schedule": "Shop.nightly"}')
    await harness.submit("work", headers='{"schedule": "after"}')
    await harness.work()
    check_ins = kept.of("check_in")
    assert [(each["monitor_slug"], each["status"]) for each in check_ins] == [
        ("shop-nightly", "in_progress"),
        ("shop-nightly", ends),
    ]
    assert len({each["check_in_id"] for each in check_ins}) == 1
    assert {json.dumps(each["monitor_config"]) for each in check_ins} == {json.dumps(config)}


@on_sqlite
@pytest.mark.usefixtures("connected", "own_handlers")
async def test_the_monitor_of_a_schedule_has_its_rule(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    @handler("sentry.nightly")
    async def nightly() -> None: ...

    await schedules.add_async("nightly", nightly, cron="0 3 * * *", tz="Europe/Berlin", jitter="90s")
    rules = sentry._Rules()
    assert await rules.read("nightly") == {
        "schedule": {"type": "crontab", "value": "0 3 * * *"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 3,
    }
    assert await rules.read("unknown") is None


@pytest.mark.parametrize(
    ("every", "value", "unit"), [(300, 5, "minute"), (7_200, 2, "hour"), (5_400, 90, "minute"), (172_800, 2, "day")]
)
def test_the_interval_of_a_monitor(every: int, value: int, unit: str) -> None:
    config = monitor_config(write_rule(None, timedelta(seconds=every), None), "UTC")
    assert config == {"schedule": {"type": "interval", "value": value, "unit": unit}, "timezone": "UTC"}


@pytest.mark.parametrize("rule", ["every 30s", "every 90s", "after_end 5m"])
def test_a_rule_that_sentry_cannot_represent_has_no_monitor(rule: str) -> None:
    assert monitor_config(rule, "UTC") is None


async def test_a_rescued_task_is_reported_with_its_own_tags(start: Callable[..., Kept]) -> None:
    kept, events = start("each"), Events()
    sentry_sdk.set_tag("number", "of the runner")
    hooks = Hooks({}, events)
    values = {"max_attempts": 1, "tenant": "acme", "headers": '{"schedule": "nightly"}', "runner_id": 7}
    events.publish(TasksRescued({17: Rescued("die", "mail", "work", 1, None, **values)}))  # type: ignore[arg-type]
    await hooks.drain(WAIT_SECONDS)
    (event,) = kept.of("event")
    assert event["message"] == "work: is dead: its runner was lost on its last attempt"
    assert (event["transaction"], tags(event)["task"], tags(event)["tenant"]) == ("work", 17, "acme")
    assert "number" not in tags(event)
    assert [each["status"] for each in kept.of("check_in")] == ["error"]


@pytest.mark.slow
@on_sqlite
async def test_an_exception_with_a_secret_crosses_from_a_process_without_it(
    harness: Harness, start: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = start()
    monkeypatch.setenv("SENTRY_WORKER", "1")
    harness.handlers["sentry.process"] = sentry_handlers.in_process
    await harness.submit("sentry.process", {"number": 1, "password": "hunter2-secret"})
    await harness.work(processes=1)
    (event,) = kept.of("event")
    assert "***" in json.dumps(event)
    assert "hunter2" not in json.dumps(kept.items, default=str)


@on_sqlite
async def test_an_sdk_that_fails_costs_no_task(
    harness: Harness, start: Callable[..., Kept], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start()

    def broken(*_: object, **__: object) -> None:
        raise ConnectionError("sdk is broken")

    monkeypatch.setattr(sentry_sdk, "continue_trace", broken)

    @harness.handler("work")
    async def work() -> None: ...

    task = await harness.run("work")
    assert await harness.state(task) == "succeeded"
    assert "sdk is broken" in caplog.text


def test_another_selection_of_failures_is_refused() -> None:
    with pytest.raises(InvalidInput, match='must be "last" or "each", not \'all\''):
        RunnerIntegration("all")  # type: ignore[arg-type] # the mistake under test
