"""Code of an application outside of handlers that raises an exception of any class: the runner goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Breaker, injected, on_start, on_success, resource
from runner.errors import HandlersNotFound, InvalidPayload, InvalidSettings
from runner.handlers.call_options import CallOptions
from runner.handlers.discovery import discover
from runner.handlers.hooks import LIFE_CYCLE
from runner.handlers.outcome_rules import OutcomeRule
from runner.handlers.resources import RESOURCES
from runner.log_faults import FAULTS
from runner.model.outcome import ON_ERROR
from runner.model.task import BUCKETS, NewTask
from runner.policy.claim_order import parse_order
from runner.policy.polling import parse_poll_mode
from runner.policy.selection import ALL, load_slices
from tests.engine import own_code
from tests.engine.harness import Harness, until
from tests.engine.own_code import ERRORS, Fault, Judged, Output, Sieve
from tests.engine.test_scans import NO_WAKES

MODULE = own_code.__name__

QUICK = ("SystemExit", "CancelledError")
raising = pytest.mark.parametrize(
    "error", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ERRORS]
)


@pytest.fixture(autouse=True)
def fault() -> Iterator[type[Fault]]:
    Fault.calls = 0
    FAULTS.clear()
    resources = set(RESOURCES)
    yield Fault
    Fault.where = ""
    for name in set(RESOURCES) - resources:
        RESOURCES.remove(name)
    LIFE_CYCLE.clear()


async def executes(harness: Harness, **settings: Any) -> None:
    """Execute tasks that only a periodic scan finds, after the fault and once more after it."""
    done = 0

    @harness.handler("work")
    async def work() -> None:
        nonlocal done
        done += 1

    async with harness.running(poll_interval="30ms", **NO_WAKES, **settings) as runner:
        for number in range(1, 4):
            await asyncio.gather(harness.submit("work", priority=9), harness.submit("work"))
            await until(lambda: done >= 2 * number)  # noqa: B023 - used in this turn
        assert not runner.stopping
    assert Fault.calls, "the code was called"


@pytest.mark.representatives(2)
@raising
@pytest.mark.parametrize("mode", ["DelayMode", "RateMode"])
@pytest.mark.parametrize("where", ["wait", "period", "most_failures", "str"])
async def test_a_poll_mode(
    harness: Harness, caplog: pytest.LogCaptureFixture, mode: str, where: str, error: str
) -> None:
    if mode == "RateMode" and where != "wait":
        pytest.skip("the same code as that of the other mode")
    Fault.error, Fault.where = ERRORS[error], where
    await executes(harness, poll_mode=f"{MODULE}:{mode}")
    name = "__str__" if where == "str" else where
    text = f"poll_mode {MODULE}:{mode}: {name} raised {error}: own; the runner uses fixed-delay in its place this time"
    assert text in caplog.text


@pytest.mark.parametrize("value", [None, -1, float("nan"), float("inf"), "5s", 10**400])
async def test_a_poll_mode_with_a_wait_that_is_no_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setattr(own_code.DelayMode, "wait", lambda *_: value)
    assert parse_poll_mode(f"{MODULE}:DelayMode").wait(2.0, 1, 0.5) == 2.0
    assert "wait returned" in caplog.text
    assert "which is not valid; the runner uses fixed-delay" in caplog.text


@pytest.mark.representatives(2)
@raising
@pytest.mark.parametrize("where", ["within_lane", "of_lanes", "lane_key", "sort_key", "hash"])
async def test_a_claim_order(harness: Harness, caplog: pytest.LogCaptureFixture, where: str, error: str) -> None:
    Fault.error, Fault.where = ERRORS[error], where
    await executes(harness, claim_order=f"{MODULE}:Order")
    name = "__hash__" if where == "hash" else where
    text = f"claim_order {MODULE}:Order: {name} raised {error}: own; the runner uses strict in its place"
    assert text in caplog.text
    if where != "hash":
        assert Fault.calls == 1, "keys of two orders cannot be compared: the own one is not asked again"


async def test_sql_of_a_claim_order_that_the_database_refuses(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    tasks = [await harness.submit("work", queue=queue, priority=priority) for queue in "ab" for priority in (1, 5)]
    async with harness.running(claim_order=f"{MODULE}:RefusedOrder") as runner:
        await harness.wait_for(*tasks)
        assert not runner.stuck.rows("claim")
    text = f"claim_order {MODULE}:RefusedOrder: SQL is refused by the database: "
    named = [record.getMessage() for record in caplog.records if record.getMessage().startswith(text)]
    assert len(named) == 1
    assert "no_such_column" in named[0]
    assert named[0].endswith("the runner uses strict in its place until its restart")


@pytest.mark.representatives(1)
@raising
@pytest.mark.parametrize("where", ["lane_key", "sort_key"])
async def test_a_sort_key_of_a_claim_order(
    harness: Harness, caplog: pytest.LogCaptureFixture, where: str, error: str
) -> None:
    Fault.error, Fault.where = ERRORS[error], where
    await executes(harness, claim_order=f"{MODULE}:KeyedOrder")
    text = f"claim_order {MODULE}:KeyedOrder: {where} raised {error}: own; the runner uses strict in its place until"
    assert text in caplog.text
    assert Fault.calls == 1, "the own order is not asked again"


@pytest.mark.parametrize("where", ["rank", "lane_key", "sort_key"])
def test_keys_are_compared_beyond_the_failure_of_one(where: str) -> None:
    order, values = parse_order(f"{MODULE}:KeyedOrder"), [(1, 5, 1), (9, 4, 2), (5, 3, 3), (9, 2, 4)]
    key: Callable[[tuple[int, int, int]], Any] = {
        "rank": lambda task: order.rank(task[0]),
        "lane_key": lambda task: order.lane_key(task[0], task[1]),
        "sort_key": lambda task: order.sort_key(*task),
    }[where]
    assert [task[0] for task in sorted(values, key=key)] == [9, 9, 5, 1]
    before = [key(task) for task in values]
    Fault.where = where
    assert [task[0] for task in sorted(values, key=key)] == [9, 9, 5, 1]
    assert Fault.calls == 1
    assert all(own == key(task) for own, task in zip(before, values, strict=True)), "with keys from before the failure"
    assert max([before[0], key(values[1])]) is before[0]


@pytest.mark.parametrize("value", ["priority", ("priority",), None, [1]])
def test_an_order_of_lanes_that_is_no_sql(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setattr(own_code.Order, "of_lanes", lambda *_: value)
    order, column = parse_order(f"{MODULE}:Order"), sa.table("task", sa.column("priority")).c
    assert str(order.of_lanes(column)[0]) == "task.priority DESC"
    assert "of_lanes returned" in caplog.text


@pytest.mark.representatives(1)
@raising
async def test_slices(harness: Harness, caplog: pytest.LogCaptureFixture, error: str) -> None:
    Fault.error, Fault.where = ERRORS[error], "share"
    await executes(harness, slice=f"{MODULE}:Slices")
    assert (
        f"slice {MODULE}:Slices: share raised {error}: own; the runner uses live in its place this time" in caplog.text
    )


@pytest.mark.parametrize("value", [None, 7, [BUCKETS], [-1], ["1"], iter([1]), [True]])
def test_slices_that_are_no_buckets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    monkeypatch.setattr(own_code.Slices, "share", lambda *_: value)
    assert load_slices(f"{MODULE}:Slices").share("a#0", frozenset({"a#0"})) == ALL
    assert "share returned" in caplog.text


@raising
def test_a_class_that_cannot_be_made(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ERRORS[error]("own")

    for name, parse in (("DelayMode", parse_poll_mode), ("Order", parse_order), ("Slices", load_slices)):
        monkeypatch.setattr(getattr(own_code, name), "__init__", fail)
        with pytest.raises(InvalidSettings, match=f"the class cannot be loaded: {error}: own"):
            parse(f"{MODULE}:{name}")


@raising
def test_a_module_that_exits_when_it_is_imported(error: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"exits_{error.lower()}"
    (tmp_path / f"{name}.py").write_text(f"from tests.engine.own_code import ERRORS\nraise ERRORS[{error!r}]('own')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for parse in (parse_poll_mode, parse_order, load_slices, lambda text: OutcomeRule.of_setting(ON_ERROR, text)):
        with pytest.raises(InvalidSettings, match=f"cannot be loaded: {error}: own"):
            parse(f"{name}:Any")
    if error != "KeyboardInterrupt":  # of a person
        with pytest.raises(HandlersNotFound, match=f"{error}: own"):
            discover([name], installed=False)


def test_an_invalid_argument_of_a_handler_is_named_with_its_line(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("from runner import handler", "", '@handler("mail", retry="often")', "def mail(): ...")
    (tmp_path / "with_retry.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HandlersNotFound, match=r"module 'with_retry': 'often' is not .* \(.*/with_retry\.py:3\)"):
        discover(["with_retry"], installed=False)


@pytest.mark.slow
@raising
async def test_the_exception_classes_of_a_rule_and_a_breaker(
    harness: Harness, caplog: pytest.LogCaptureFixture, error: str
) -> None:
    Fault.error, Fault.where = ERRORS[error], "instance"

    @harness.handler("rule", on_error=Judged, retry="1ms", max_attempts=1)
    async def rule() -> None:
        raise ConnectionError("wrong")

    @harness.handler("breaker", breaker=Breaker("9/min", errors=(Judged,)), retry="1ms", max_attempts=1)
    async def breaker() -> None:
        raise ConnectionError("wrong")

    ids = [await harness.submit("rule"), await harness.submit("breaker")]
    await executes(harness)
    assert [await harness.state(id) for id in ids] == ["dead", "dead"]
    assert f"on_error raised {error}: own" in (await harness.row(ids[0])).error
    assert f"does not count task {ids[1]}: one of its exception classes raised {error}: own" in caplog.text


@raising
async def test_hooks(harness: Harness, caplog: pytest.LogCaptureFixture, error: str) -> None:
    Fault.error, Fault.where = ERRORS[error], "hook"

    @on_start
    async def starts() -> None:
        Fault.at("hook")

    @on_start
    def starts_in_a_thread() -> None:
        Fault.at("hook")

    @on_success
    async def succeeded() -> None:
        Fault.at("hook")

    @on_success
    def succeeded_in_a_thread() -> None:
        Fault.at("hook")

    await executes(harness)
    for name in ("starts", "starts_in_a_thread", "succeeded", "succeeded_in_a_thread"):
        assert f"{name} (" in caplog.text
    assert "did not end in time" not in caplog.text


@raising
@pytest.mark.parametrize("form", ["async", "plain"])
async def test_a_resource(harness: Harness, caplog: pytest.LogCaptureFixture, error: str, form: str) -> None:
    Fault.error, Fault.where = ERRORS[error], "resource"
    if form == "async":

        @resource
        async def failing() -> AsyncIterator[int]:
            Fault.at("resource")
            yield 1

    else:

        @resource
        def failing() -> Iterator[int]:
            Fault.at("resource")
            yield 1

    @harness.handler("needs")
    async def needs(failing=injected) -> None: ...  # type: ignore[no-untyped-def] # the name alone decides

    await executes(harness)
    assert "could not open resource failing" in caplog.text


@raising
@pytest.mark.parametrize("option", ["unique_key", "bucket", "tenant", "key", "order_key"])
def test_a_function_of_the_arguments(option: str, error: str) -> None:
    def fail() -> Any:
        raise ERRORS[error]("own")

    own: dict[str, Any] = {option: fail}
    options = CallOptions(**own)
    is_person = error == "KeyboardInterrupt"  # ctrl-c in the program that submits
    text = "own" if is_person else f"its {option} function raised {error}"
    with pytest.raises(KeyboardInterrupt if is_person else InvalidPayload, match=text):
        options.applied(NewTask("work", "{}"), dict)


@raising
@pytest.mark.parametrize("where", ["emit", "filter"])
async def test_a_log_handler(harness: Harness, capsys: pytest.CaptureFixture[str], error: str, where: str) -> None:
    Fault.error, Fault.where = ERRORS[error], where
    logger, output, sieve = logging.getLogger("runner.task"), Output(), Sieve()
    lines: list[str] = []

    class Other(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    other = Other()

    @harness.handler("fails", max_attempts=1)
    async def fails() -> None:
        raise ConnectionError("wrong")

    id = await harness.submit("fails")
    output.addFilter(sieve)
    logging.getLogger("runner").addHandler(output)
    logging.getLogger("runner").addHandler(other)
    try:
        await executes(harness)
    finally:
        logging.getLogger("runner").removeHandler(output)
        logging.getLogger("runner").removeHandler(other)
    assert await harness.state(id) == "dead"
    assert any(f"task {id} (fails)" in line for line in lines), "the other handler gets the record"
    assert f"log handler {MODULE}.Output raised {error}: own (1 so far); it did not get: " in capsys.readouterr().err
    assert logger.name == "runner.task"
