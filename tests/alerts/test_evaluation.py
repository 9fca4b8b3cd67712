"""A runner with a receiver submits a delivery for each notice, once; one without a receiver does nothing."""

import json
from typing import Any

import pytest
import sqlalchemy as sa

from runner.alerts.evaluation import Evaluation
from runner.db.types import db_later
from runner.engine.runner import Engine
from runner.model.alert import DELIVER, QUEUE
from runner.model.task import State
from runner.settings import Settings
from runner.urls import parse_url
from tests.alerts.servers import Answers, web_server
from tests.engine.harness import QUICK, Harness, until
from tests.store.rows import add_past, add_runner, ahead

pytestmark = pytest.mark.both_databases

RECEIVERS = ("ops=http://127.0.0.1:9/none", "team=http://127.0.0.1:9/none")
ALERTS: dict[str, Any] = {"alert_receivers": RECEIVERS, "alert_interval": "200ms"}


def evaluation(harness: Harness, **settings: Any) -> Evaluation:
    values: dict[str, Any] = {
        "url": parse_url(harness.url),
        "alert_interval": "1ms",
        "alert_receivers": RECEIVERS,
    } | settings
    return Evaluation(harness.database, Settings(**values))


async def deliveries(harness: Harness) -> list[dict[str, Any]]:
    """The payloads of the deliveries, in the order of their submit."""
    task = harness.database.tables.task.c
    rows = await harness.rows(sa.select(task.payload).where(task.handler == DELIVER).order_by(task.id))
    return [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in rows]


async def has_deliveries(harness: Harness) -> bool:
    return bool(await deliveries(harness))


async def end_period(harness: Harness, seconds: float = 10) -> None:
    """Let the last evaluation, and the alerts that it saw, lie further back."""
    alert = harness.database.tables.alert
    await harness.change(sa.update(alert).values(seen_at=db_later(alert.c.seen_at, -seconds)))


async def die(harness: Harness, handler: str = "pay") -> None:
    await add_runner(harness.database)
    await add_past(harness.database, 41, State.DEAD, handler=handler, finished_at=ahead(-60))


async def test_a_notice_goes_to_each_receiver_once(harness: Harness) -> None:
    await die(harness)
    evaluate = evaluation(harness)
    await evaluate.run()
    await end_period(harness)
    await evaluate.run()
    first, second = await deliveries(harness)
    assert (first["receiver"], second["receiver"]) == ("ops", "team")
    assert first["notice"] == second["notice"]
    notice = first["notice"]
    assert (notice["state"], notice["rule"], notice["subject"]) == ("firing", "tasks-dead", "")
    assert (notice["title"], notice["text"]) == ("1 task died in the last hour", "pay 1 (threshold 0)")
    assert notice["since"].endswith("Z")
    assert notice["resolved_at"] is None
    assert notice["database"] == parse_url(harness.url).database.rpartition("/")[2]


async def test_a_notice_follows_when_the_problem_is_over(harness: Harness) -> None:
    await die(harness)
    evaluate = evaluation(harness, alert_receivers=RECEIVERS[:1])
    await evaluate.run()
    await harness.change(sa.delete(harness.database.tables.history))
    await end_period(harness)
    await evaluate.run()
    _, resolved = await deliveries(harness)
    assert (resolved["notice"]["state"], resolved["notice"]["rule"]) == ("resolved", "tasks-dead")
    assert resolved["notice"]["resolved_at"] >= resolved["notice"]["since"]


async def test_deliveries_that_die_cause_no_notice(harness: Harness) -> None:
    await die(harness, DELIVER)
    await evaluation(harness).run()
    assert await deliveries(harness) == []


async def test_an_evaluation_calls_the_ping_once_in_each_period(harness: Harness) -> None:
    answers = Answers()
    with web_server(answers) as address:
        evaluate = evaluation(harness, alert_receivers=(), alert_ping=f"{address}/alive")
        await evaluate.run()
        await end_period(harness, -60)  # another runner has evaluated
        await evaluate.run()
    assert [path for _, path, _, _ in answers.requests] == ["/alive"]


@pytest.mark.one_database
async def test_a_problem_reaches_a_receiver_when_it_begins_and_when_it_is_over(harness: Harness) -> None:
    await add_past(harness.database, 41, State.DEAD, handler="pay", finished_at=ahead(-60))
    answers = Answers()
    with web_server(answers) as address:
        settings = {"alert_receivers": (f"hook={address}/alerts",), "alert_interval": "200ms", "queues": ["mail"]}
        async with harness.running(**settings):
            await until(lambda: len(answers.requests) == 1)
            await harness.change(sa.delete(harness.database.tables.history).where(sa.column("handler") == "pay"))
            await until(lambda: len(answers.requests) == 2)
    states = [json.loads(body)["state"] for _, _, _, body in answers.requests]
    assert states == ["firing", "resolved"]


async def test_a_runner_evaluates_by_itself(harness: Harness) -> None:
    await add_past(harness.database, 41, State.DEAD, handler="pay", finished_at=ahead(-60))
    async with harness.running(**ALERTS):
        await until(lambda: has_deliveries(harness))
    tables = harness.database.tables
    ids = await harness.rows(sa.select(tables.task.c.queue).where(tables.task.c.handler == DELIVER))
    assert {row[0] for row in ids} == {QUEUE}


async def test_of_two_runners_one_sends_each_notice(harness: Harness) -> None:
    await add_past(harness.database, 41, State.DEAD, handler="pay", finished_at=ahead(-60))
    async with harness.running(**ALERTS), harness.running(**ALERTS):
        await until(lambda: has_deliveries(harness))
        alert = harness.database.tables.alert
        seen = (await harness.rows(sa.select(alert.c.seen_at).where(alert.c.name == "evaluation")))[0][0]

        async def evaluated_again() -> bool:
            later = alert.c.seen_at > seen
            return bool(await harness.rows(sa.select(alert.c.name).where(alert.c.name == "evaluation", later)))

        await until(evaluated_again)
    assert sorted(each["receiver"] for each in await deliveries(harness)) == ["ops", "team"]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("settings", "ticks"), [({}, False), ({"alert_receivers": RECEIVERS}, True), ({"alert_ping": "http://a/"}, True)]
)
def test_a_runner_without_a_receiver_evaluates_nothing(harness: Harness, settings: dict[str, Any], ticks: bool) -> None:
    runner = Engine(Settings(**{"url": parse_url(harness.url)} | QUICK | settings), {})
    assert ("alerts" in [tick.name for tick in runner._ticks(until_idle=False)]) is ticks
