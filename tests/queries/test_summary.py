"""Reports: the results of a period."""

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest

from runner.db.database import Database
from runner.queries.counting import Count
from runner.queries.reports import per_minute
from runner.queries.summary import GroupBy, as_csv, as_document, summary, waits_by_queue
from tests.store.minutes import Arrival, Minute, write_statistics
from tests.store.rows import add_live

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOON + timedelta(minutes=30)
MINUTE = NOON.timestamp() / 60


@pytest.fixture
async def worked(database: Database) -> Database:
    """Two handlers in two queues; one of them fails sometimes."""
    for queue, handler, ahead, counts in (
        ("mail", "send", 0, {"succeeded": 8, "first_try": 6, "second_try": 1, "died": 2, "retried": 5}),
        ("mail", "send", 20, {"succeeded": 10, "first_try": 10}),
        ("mail", "=cmd", 1, {"succeeded": 1, "first_try": 1, "cancelled": 3}),
        ("bulk", "send", 2, {"died": 1, "rescued": 1}),
        ("bulk", "send", 99, {"succeeded": 1_000}),
    ):
        minute = Minute(NOON + timedelta(minutes=ahead), queue, handler)
        minute.counts |= counts
        for _ in range(counts.get("succeeded", 0)):
            minute.durations.add([0.4])
        arrivals: dict[Arrival, int] = {(MINUTE + ahead, queue, handler): counts.get("succeeded", 0)}
        await database.write(write_statistics, 1, [minute], arrivals)
    for moment in (NOON, NOON, NOON - timedelta(seconds=1), LATER):
        await add_live(database, "send", queue="bulk", submitted_at=moment)
    await add_live(database, "send", queue="bulk", submitted_at=NOON, fence=1)
    return database


async def test_lines_add_up_over_queues_and_over_handlers(worked: Database) -> None:
    by_handler = await worked.read(summary, NOON, LATER)
    assert [line.name for line in by_handler.lines] == ["send", "=cmd"]
    send = by_handler.lines[0]
    assert (send.flow.succeeded, send.flow.died, send.flow.retried, send.flow.rescued) == (18, 3, 5, 1)
    by_queue = await worked.read(summary, NOON, LATER, GroupBy.QUEUE)
    assert [(line.name, line.flow.finished) for line in by_queue.lines] == [("mail", 24), ("bulk", 1)]
    assert by_queue.total == by_handler.total


async def test_the_waits_of_a_queue_are_the_means_of_its_minutes(database: Database) -> None:
    for queue, handler, ahead, waits in (
        ("mail", "send", 0, [1.0, 3.0]),
        ("mail", "draft", 0, [8.0]),
        ("mail", "send", 2, [60.0]),
        ("mail", "send", -5, [900.0]),
        ("bulk", "send", 0, [7.0]),
    ):
        minute = Minute(NOON + timedelta(minutes=ahead), queue, handler)
        minute.waits.add(waits)
        await database.write(write_statistics, 1, [minute], {})
    waits_of = await database.read(waits_by_queue, NOON, ["mail", "none"])
    assert waits_of == {"mail": {NOON: pytest.approx(4.0), NOON + timedelta(minutes=2): pytest.approx(60.0)}}


async def test_shares_count_succeeded_and_dead_tasks(worked: Database) -> None:
    (send, _) = (await worked.read(summary, NOON, LATER)).lines
    assert (send.flow.success_rate, send.first_try_rate, send.second_try_rate) == (18 / 21, 16 / 21, 1 / 21)
    assert send.p50 == pytest.approx(0.4)
    (mail, bulk) = (await worked.read(summary, NOON, LATER, GroupBy.QUEUE)).lines
    assert (bulk.flow.success_rate, bulk.first_try_rate, bulk.p50) == (0, 0, None)
    assert mail.flow.success_rate == 19 / 21


async def test_unclaimed_tasks_count_as_submitted(worked: Database) -> None:
    report = await worked.read(summary, NOON, LATER, GroupBy.QUEUE)
    assert {line.name: line.submitted for line in report.lines} == {"mail": Count(19), "bulk": Count(2)}
    assert report.total.submitted == Count(21)


async def test_a_period_without_activity_has_no_lines(worked: Database) -> None:
    report = await worked.read(summary, NOON - timedelta(days=9), NOON - timedelta(days=8))
    assert (report.lines, report.total.flow.success_rate) == ((), None)


async def test_minutes_are_summed_up_in_steps(worked: Database) -> None:
    steps = await worked.read(per_minute, NOON, LATER, step=15)
    assert [(flow.minute, flow.flow.succeeded) for flow in steps] == [(NOON, 9), (NOON + timedelta(minutes=15), 10)]
    assert [flow.flow.died for flow in await worked.read(per_minute, NOON, LATER, "bulk", step=15)] == [1]


async def test_a_spreadsheet_gets_no_formulas(worked: Database) -> None:
    report = await worked.read(summary, NOON, LATER)
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert [row["name"] for row in rows] == ["send", "'=cmd"]
    assert rows[0]["success"] == "0.857143"
    assert (rows[1]["second"], rows[1]["submitted"]) == ("0.0", "1")


async def test_a_document_has_the_total_and_every_line(worked: Database) -> None:
    document = as_document(await worked.read(summary, NOON, LATER))
    assert document.since == NOON
    assert (document.total.name, document.total.died, len(document.lines)) == ("all", 3, 2)
