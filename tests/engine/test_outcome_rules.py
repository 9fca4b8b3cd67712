"""Unexpected results: exceptions, timeouts, and None where a result is declared, by rules of handlers and settings."""

import asyncio
import importlib
import sys
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from runner import Context, Dead, Snooze, handler
from runner.engine.runner import Engine
from runner.errors import InvalidHandler, InvalidSettings
from runner.handlers.registry import REGISTRY, Handler, Options
from runner.queries.task.detail import task_detail
from runner.queries.why.why import why
from runner.settings import Settings
from runner.testing import TaskStore
from runner.urls import parse_url
from tests.engine.harness import Harness

RULES = """
from runner import Context, Dead, Retry

def judge(ctx: Context, result: Exception | None) -> Dead | Retry:
    if ctx.attempt > 1 or result is None:
        return Dead(f"{ctx.handler} gave {type(result).__name__}")
    return Retry("1ms", why="once more")

def broken(ctx, result):
    raise KeyError("rules")

def wrong(a, b, c): ...

async def slow(error): ...
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with functions for the settings."""
    (tmp_path / "own_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "own_rules", raising=False)
    return "own_rules"


@pytest.fixture(params=["async", "thread"])
def form(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


def doing(form: str, act: Callable[[], Any], result: Any = Any) -> Callable[[], Any]:
    """A handler of either kind that declares a result."""

    async def on_loop() -> Any:
        return act()

    def in_thread() -> Any:
        return act()

    function = on_loop if form == "async" else in_thread
    function.__annotations__["return"] = result
    return function


def failing() -> None:
    raise ValueError("wrong")


async def test_none_where_a_result_is_declared_is_dead_by_the_setting_and_why_names_the_rule(
    harness: Harness, form: str
) -> None:
    harness.handler("counts")(doing(form, lambda: None, int))
    harness.handler("maybe")(doing(form, lambda: None, int | None))
    harness.handler("plain")(doing(form, lambda: None))
    ids = [await harness.submit(name) for name in ("counts", "maybe", "plain")]
    await harness.work(on_none="dead")
    rows = [await harness.row(id) for id in ids]
    assert [row.state for row in rows] == ["dead", "succeeded", "succeeded"]
    assert rows[0].error == "NoResult: None where a result of type int is declared"
    (attempt,) = (await harness.database.read(task_detail, ids[0])).attempts
    assert (attempt.verb, attempt.rule) == ("die", "dead, by the setting on_none")
    (cause,) = (await harness.database.read(why, ids[0], UTC)).causes
    assert "None where a result of type int is declared. The rule: dead, by the setting on_none." in cause.text


async def test_a_rule_of_the_handler_wins_over_the_setting(harness: Harness, form: str) -> None:
    harness.handler("fails", on_error="retry", max_attempts=2)(doing(form, failing))
    harness.handler("other")(doing(form, failing))
    ids = [await harness.submit(name) for name in ("fails", "other")]
    await harness.work(on_error="dead")
    rows = [await harness.row(id) for id in ids]
    assert [row.attempt for row in rows] == [2, 1]
    attempts = [(await harness.database.read(task_detail, id)).attempts for id in ids]
    assert [item.rule for item in attempts[0]] == ["retry, by on_error of the handler"] * 2
    assert [item.rule for item in attempts[1]] == ["dead, by the setting on_error"]


async def test_the_default_names_no_rule(harness: Harness) -> None:
    harness.handler("fails", max_attempts=1)(doing("async", failing))
    id = await harness.run("fails")
    assert (await harness.database.read(task_detail, id)).attempts[0].rule is None
    (cause,) = (await harness.database.read(why, id, UTC)).causes
    assert "rule" not in cause.text


async def test_a_function_of_the_settings_receives_the_context(harness: Harness, form: str, rules: str) -> None:
    harness.handler("fails")(doing(form, failing))
    harness.handler("counts")(doing(form, lambda: None, int))
    ids = [await harness.submit(name) for name in ("fails", "counts")]
    await harness.work(on_error=f"{rules}:judge", on_none=f"{rules}:judge")
    rows = [await harness.row(id) for id in ids]
    assert [(row.state, row.attempt) for row in rows] == [("dead", 2), ("dead", 1)]
    assert rows[0].error == "ValueError: fails gave ValueError (wrong)"
    assert rows[1].error == "NoResult: counts gave NoneType (None where a result of type int is declared)"
    attempts = (await harness.database.read(task_detail, ids[0])).attempts
    assert [item.rule for item in attempts] == ["retry, by the setting on_error", "dead, by the setting on_error"]


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("on_error", "state"), [(TimeoutError, "dead"), (lambda error: Dead(str(error)), "dead")])
async def test_a_timeout_reaches_the_rule(harness: Harness, form: str, on_error: Any, state: str) -> None:
    async def on_loop() -> None:
        await asyncio.Event().wait()

    def in_thread(ctx: Context) -> None:
        ctx.stop.wait(30)

    harness.handler("waits", timeout=0.05, on_error=on_error)(on_loop if form == "async" else in_thread)
    id = await harness.run("waits")
    row = await harness.row(id)
    assert (row.state, row.attempt) == (state, 1)
    assert row.error.startswith("Timeout: the task took longer than 50ms")
    assert (await harness.database.read(task_detail, id)).attempts[0].rule == "dead, by on_error of the handler"


@pytest.mark.representatives(2)
@pytest.mark.parametrize(("setting", "verb"), [("retry", "retry"), ("dead", "die"), ("own_rules:broken", "retry")])
async def test_an_error_in_a_function_is_reported_and_the_setting_decides(
    harness: Harness, form: str, rules: str, setting: str, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.handler("fails", max_attempts=2, on_error=lambda error: 1 / 0)(doing(form, failing))
    id = await harness.submit("fails")
    await harness.work(on_error=setting)
    row = await harness.row(id)
    first = (await harness.database.read(task_detail, id)).attempts[0]
    assert first.verb == verb
    assert first.message == "wrong; on_error raised ZeroDivisionError: division by zero"
    assert first.rule == f"{'dead' if verb == 'die' else 'retry'}, because on_error failed"
    assert row.state == "dead"
    assert "on_error of fails failed: on_error raised ZeroDivisionError" in caplog.text


async def test_a_function_that_fails_for_none_makes_no_success(harness: Harness) -> None:
    harness.handler("counts", max_attempts=1, on_none=lambda ctx: "dead")(doing("thread", lambda: None, int))
    id = await harness.run("counts")
    row = await harness.row(id)
    assert row.error.endswith("is declared; on_none returned str, which is not an outcome")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_error": "ignore"}, "'ignore': use 'retry', 'dead', exception classes or a function of the exception"),
        ({"on_none": "ignore"}, "'ignore': use 'succeed', 'retry', 'dead' or a function of None"),
        ({"on_none": ValueError}, "use 'succeed', 'retry', 'dead' or a function of None"),
        ({"on_error": lambda: None}, "use a function of the exception, or of the Context and the exception"),
        ({"on_error": lambda a, b: None}, "use a function of the exception, or of the Context and the exception"),
        ({"on_none": lambda a, b: None}, "use a function of None, or of the Context and None"),
    ],
)
def test_a_rule_that_is_not_valid_is_refused_where_the_handler_is_defined(options: Any, reason: str) -> None:
    with pytest.raises(InvalidHandler) as raised:
        handler("test.refused", **options)(lambda: None)
    assert reason in str(raised.value)


async def test_an_async_rule_is_refused() -> None:
    async def judge(error: Exception) -> None: ...

    with pytest.raises(InvalidHandler, match=r"the async function .*judge: use a function .*, without async"):
        Handler("test.refused", failing, Options(on_error=judge))  # type: ignore[arg-type] # the error is under test


def test_a_rule_for_none_needs_a_declared_result() -> None:
    refused = Handler("test.refused", doing("thread", lambda: None), Options(on_none="dead"))
    with pytest.raises(InvalidHandler, match="on_none needs a declared result"):
        refused.require()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ignore", "'ignore' is not retry, dead, or a function as package.module:function"),
        ("no_such_module:judge", "the function cannot be loaded: ModuleNotFoundError"),
        ("own_rules:missing", "the function cannot be loaded: AttributeError"),
        ("own_rules:wrong", "use a function of the exception, or of the Context and the exception"),
        ("own_rules:slow", "without async"),
    ],
)
def test_a_setting_that_is_not_valid_is_refused_at_start(rules: str, text: str, reason: str, database_url: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        Engine(Settings(url=parse_url(database_url), on_error=text), {})
    assert reason in str(raised.value)


def test_tests_of_applications_follow_the_rules(tmp_path: Path) -> None:
    def count() -> int:
        return None  # type: ignore[return-value] # the mistake under test

    counts = handler("test.counts", on_none=lambda ctx: Snooze("1h") if ctx.key else Dead("no key"))(count)
    try:
        with TaskStore.in_folder(tmp_path, on_error="dead") as store:
            counts.options(key="k").submit()
            counts.submit()
            assert [(ran.verb, ran.reason) for ran in store.drain()] == [
                ("snooze", ""),
                ("die", "NoResult: no key (None where a result of type int is declared)"),
            ]
            with pytest.raises(Dead, match="no key"):
                counts.call_or_submit()
    finally:
        REGISTRY._handlers.pop("test.counts")
