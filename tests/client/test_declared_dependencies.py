"""Dependencies that handlers declare once, between the tasks with the same key."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from runner import Context, DependsOn, batch, handler, schedule
from runner.client.client import connect, disconnect
from runner.db.database import Database
from runner.errors import InvalidHandler, InvalidTask
from runner.handlers.discovery import discover
from runner.handlers.parameters import read_signature, stored_signatures
from runner.handlers.registry import REGISTRY
from runner.handlers.schedules import SCHEDULES
from runner.model.task import NewTask
from runner.policy.schedule_ticks import task_of, task_template
from runner.settings import Settings
from runner.store.submit import submit
from runner.urls import parse_url
from tests.engine.harness import Harness


@pytest.fixture
def pipeline() -> Iterator[list[str]]:
    """Three handlers, each after the one before: extract, transform, load; the order in which their tasks ran."""
    ran: list[str] = []

    @handler("etl.extract", key=lambda day: day, max_attempts=1)
    async def extract(day: str) -> str:
        ran.append(f"extract {day}")
        if day == "bad":
            raise ValueError(day)
        return day

    @handler("etl.transform", after=extract, key=lambda day: day)
    async def transform(ctx: Context, day: str) -> list[Any]:
        ran.append(f"transform {day}")
        return await ctx.batch.results_async() if ctx.batch else []

    @handler("etl.load", after=["etl.transform", DependsOn(extract, "cancel")])
    async def load(day: str) -> None:
        ran.append(f"load {day}")

    yield ran
    for name in ("etl.extract", "etl.transform", "etl.load"):
        del REGISTRY._handlers[name]


@pytest.fixture
def etl(harness: Harness, pipeline: list[str]) -> Iterator[Harness]:
    harness.handlers |= {name: REGISTRY[name] for name in ("etl.extract", "etl.transform", "etl.load")}
    connect(Settings(url=parse_url(harness.url)))
    yield harness
    disconnect()


@pytest.fixture
def harness(database: Database, migrated_url: str) -> Harness:
    return Harness(database, migrated_url)


def named(name: str) -> Any:
    return REGISTRY[name]


async def test_tasks_with_the_same_key_run_in_the_declared_order(etl: Harness, pipeline: list[str]) -> None:
    load = await named("etl.load").options(key="mon").submit_async(day="mon")
    await named("etl.transform").submit_async(day="mon")
    assert await etl.state(load) == "blocked"
    await named("etl.transform").submit_many_async([{"day": "tue"}])
    await named("etl.extract").submit_async(day="mon")
    await etl.work()
    assert pipeline == ["extract mon", "transform mon", "load mon"], "tue has no extract yet"
    assert (await etl.row(load)).state == "succeeded"


async def test_each_declaration_has_its_own_rule(etl: Harness, pipeline: list[str]) -> None:
    await named("etl.extract").submit_async(day="bad")
    load = await named("etl.load").options(key="bad").submit_async(day="bad")
    await etl.work()
    assert await etl.state(load) == "cancelled", "etl.extract is dead, and its rule is cancel"
    assert pipeline == ["extract bad"]


async def test_a_submit_adds_to_the_declaration(etl: Harness) -> None:
    other = await named("etl.extract").submit_async(day="other")
    call = named("etl.load").options(key="k", after=[other, DependsOn(("etl.extract", "k"), "run")]).new(day="k")
    assert set(call.after) == {
        DependsOn(int(other)),
        DependsOn(("etl.extract", "k"), "run"),
        DependsOn(("etl.transform", "k")),
    }, "the submit wins over the declaration"


async def test_members_and_callbacks_of_a_batch_have_their_parents(etl: Harness, pipeline: list[str]) -> None:
    load = named("etl.load").options(key="mon").new(day="mon")
    calls = [named("etl.transform").new(day="mon"), named("etl.extract").new(day="mon")]
    await asyncio.to_thread(batch, calls, callback=load)
    await etl.work()
    assert pipeline == ["extract mon", "transform mon", "load mon"]


async def test_a_call_that_failed_is_submitted_with_its_parents(etl: Harness) -> None:
    @handler("etl.fails", after="etl.extract", key="mon")
    async def fails() -> None:
        raise ValueError

    try:
        task_id = await fails.call_or_submit_async()
        assert task_id is not None
        assert await etl.state(task_id) == "blocked"
    finally:
        del REGISTRY._handlers["etl.fails"]


def test_a_task_without_a_key_is_refused(pipeline: list[str]) -> None:
    with pytest.raises(
        InvalidTask, match=r"etl.load runs after etl.transform and etl.extract with the same key: set the option"
    ):
        named("etl.load").new(day="mon")


async def test_a_scheduled_task_depends_on_the_task_of_the_same_tick(etl: Harness) -> None:
    schedule("0 2 * * *", id="etl", arguments={"day": "x"})(named("etl.load"))
    try:
        spec = SCHEDULES._schedules["etl"].spec
        assert json.loads(spec.options)["after"] == {"etl.extract": "cancel", "etl.transform": "wait"}
        from datetime import UTC, datetime

        task = task_of(task_template("etl", spec, {}), "etl", datetime(2026, 11, 26, 2, tzinfo=UTC), 0)
        assert task.after == (
            DependsOn(("etl.transform", "2026-11-26T02:00:00Z")),
            DependsOn(("etl.extract", "2026-11-26T02:00:00Z"), "cancel"),
        )
        task_id = await etl.database.write(submit, task)
        assert await etl.state(task_id) == "blocked"
    finally:
        del SCHEDULES._schedules["etl"]


def test_a_program_without_the_code_reads_the_declaration(pipeline: list[str]) -> None:
    from runner.handlers.dependencies import read_declared, with_key

    signature = read_signature(stored_signatures({"etl.load": named("etl.load")})["etl.load"])
    assert signature is not None
    task = with_key(NewTask("etl.load", "{}", key="k"), read_declared(signature.options))
    assert task.after == (DependsOn(("etl.transform", "k")), DependsOn(("etl.extract", "k"), "cancel"))


def test_an_unknown_handler_is_refused_at_the_start(pipeline: list[str]) -> None:
    @handler("etl.typo", after="etl.extrakt")
    async def typo() -> None: ...

    try:
        with pytest.raises(InvalidHandler, match=r"etl.typo.*after 'etl.extrakt'.*did you mean 'etl.extract'\?"):
            discover(installed=False)
    finally:
        del REGISTRY._handlers["etl.typo"]


def test_a_cycle_is_refused_and_named(pipeline: list[str]) -> None:
    with pytest.raises(InvalidHandler, match="after itself"):
        handler("etl.self", after="etl.self")(lambda: None)
    handler("etl.first", after="etl.last")(lambda: None)
    try:
        with pytest.raises(
            InvalidHandler, match=r"'etl.last' .*: it runs after etl.first, which runs after etl.last: remove"
        ):
            handler("etl.last", after="etl.first")(lambda: None)
        assert "etl.last" not in REGISTRY
    finally:
        del REGISTRY._handlers["etl.first"]


@pytest.mark.parametrize("after", [17, [None], ("etl.extract", 5), DependsOn("etl.extract", "stop")])  # type: ignore[arg-type]
def test_other_values_are_refused(after: Any) -> None:
    with pytest.raises(InvalidTask, match="after"):
        handler("etl.odd", after=after)
