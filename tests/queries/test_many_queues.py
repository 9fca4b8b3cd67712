"""Many queues: figures for people list some of them and add up the others, with a bounded number of rows."""

from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.sql.visitors import iterate

from runner.db.database import Database
from runner.db.sql_text import Recording
from runner.db.transaction import Parameters, Transaction, clock
from runner.queries import capacity as capacity_queries
from runner.queries import counts as counts_queries
from runner.queries import reports
from runner.queries.capacity import OTHER_QUEUES, capacity
from runner.queries.counts import counts, named_counts
from runner.queries.overview import read_overview
from runner.queries.past.incident import as_markdown, incident
from runner.queries.reports import OTHERS, Flow, pulses
from runner.queries.summary import GroupBy, as_csv, as_document, summary
from tasktui.data.background import read_background
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_runner
from tests.store.table import change, put_many

QUEUES, LISTED = 60, 10
HOUR = timedelta(hours=1)


@pytest.fixture
async def crowded(database: Database) -> Database:
    """Each queue has ended one task more than the one before it, and has one task that waits."""
    at = await database.read(clock)
    minutes = []
    for number in range(QUEUES):
        minute = Minute(at - timedelta(minutes=1 + number % 5), f"queue-{number:02}", ("send", "make")[number % 2])
        minute.counts |= {"submitted": number + 2, "succeeded": number, "died": 1, "retried": number % 3}
        for _ in range(number + 1):
            minute.durations.add([1.0 if number < QUEUES - LISTED else 9.0])
        minutes.append(minute)
    await database.write(write_statistics, 1, minutes, {})
    for number in range(QUEUES):
        await put_many(database, 1, "send", queue=f"queue-{number:02}")
    await add_runner(database, handlers='["send", "make"]', capacity=10)
    return database


class CountingRows(Transaction):
    """A transaction that counts the rows that it sends to the client."""

    __slots__ = ("number",)

    def __init__(self, tx: Transaction) -> None:
        super().__init__(tx.connection, tx.tables, tx.dialect)
        self.number = 0

    async def rows(
        self, statement: sa.Executable, parameters: Parameters | None = None
    ) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        """Count the rows of one statement."""
        rows = await super().rows(statement, parameters)
        self.number = max(self.number, len(rows))
        return rows


async def test_a_summary_adds_up_the_queues_that_it_does_not_list(crowded: Database) -> None:
    since = await crowded.read(clock) - HOUR
    whole = await crowded.read(summary, since, None, GroupBy.QUEUE)
    cut = await crowded.read(summary, since, None, GroupBy.QUEUE, LISTED)
    assert (whole.others, len(whole.lines)) == (None, QUEUES)
    assert cut.lines == whole.lines[:LISTED]
    assert cut.total == whole.total
    assert cut.others is not None
    assert cut.others.flow + sum((line.flow for line in cut.lines), Flow()) == whole.total.flow
    submitted = [line.submitted.number for line in cut.rows]
    assert sum(submitted) == whole.total.submitted.number
    # The listed attempts took nine seconds, the others one.
    assert [cut.lines[0].p95, cut.others.p95, cut.total.p95] == pytest.approx([9.0, 1.0, 9.0])
    assert [line.name for line in as_document(cut).lines][:2] == ["queue-59", "queue-58"]
    assert as_csv(cut).splitlines()[-1].startswith(",")


async def test_an_incident_names_the_sum_of_the_other_queues(
    crowded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "__defaults__", (None, GroupBy.HANDLER, LISTED))
    since = await crowded.read(clock) - HOUR
    text = as_markdown(await crowded.read(incident, since, None), "shop", since.tzinfo or UTC)
    assert text.count("`queue-") == LISTED
    assert "| (other queues) |" in text


async def test_the_capacity_adds_up_the_queues_that_it_does_not_list(
    crowded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await change(crowded, sa.delete(crowded.tables.task))
    whole = await crowded.read(capacity)
    monkeypatch.setattr(capacity_queries, "MOST_WORK_KEYS", LISTED)
    cut = await crowded.read(capacity)
    rows = {row.name: row for row in cut.rows}
    assert len(whole.rows) == QUEUES
    assert rows.keys() == {f"queue-{number}" for number in range(QUEUES - LISTED, QUEUES)} | {OTHER_QUEUES}
    # The runner is as loaded as with all queues one by one.
    arrivals = [each.minutes * sum(row.demand.arrivals for row in each.rows) for each in (whole, cut)]
    assert arrivals[0] == pytest.approx(arrivals[1]) == sum(range(QUEUES)) + 2 * QUEUES
    assert [rows["queue-59"].demand.seconds, rows[OTHER_QUEUES].slots] == pytest.approx([9.0, 10])


async def test_minutes_of_other_queues_are_their_sum(crowded: Database) -> None:
    since = await crowded.read(clock) - HOUR
    every = await crowded.read(pulses, since)
    names = sorted(every)[-LISTED:]
    async with crowded.reading() as tx:
        recording = Recording(tx)
        some = await pulses(recording, since, names)
    # PostgreSQL 18 compares each row with each name where a condition is more than a filter: 18 s for 200,000 queues.
    assert not any(isinstance(part, sa.Case) for each in recording.executed for part in iterate(each.statement))
    assert {name: some[name] for name in names} == {name: every[name] for name in names}
    rest = [flow for name, flows in every.items() if name not in names for flow in flows]
    for pulse in some[OTHERS]:
        assert pulse.flow == sum((flow.flow for flow in rest if flow.minute == pulse.minute), Flow())
    assert sum(pulse.flow.finished for pulse in some[OTHERS]) == sum(flow.flow.finished for flow in rest)


async def test_no_screen_reads_a_row_for_each_queue(crowded: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_queries, "MOST_WORK_KEYS", LISTED)
    monkeypatch.setattr(reports, "MOST_FLOWS", LISTED)
    await change(crowded, sa.delete(crowded.tables.task))
    at = await crowded.read(clock)
    async with crowded.reading() as tx:
        rows = CountingRows(tx)
        await summary(rows, at - HOUR, None, GroupBy.QUEUE, LISTED)
        await read_background(rows, wide=True)
        await capacity(rows)
        await counts(rows, most=LISTED)
    assert 0 < rows.number < QUEUES


async def test_the_overview_is_of_the_listed_queues(crowded: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.queries.overview.MOST_QUEUES", QUEUES)
    overview = await crowded.read(read_overview)
    assert overview.hides_queues
    assert sum(flow.flow.finished for flow in overview.hour) == sum(range(QUEUES)) + QUEUES


async def test_queues_are_counted_by_name_beyond_the_listed_ones(
    crowded: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts_queries, "MOST_QUEUES", 2)
    listed = {queue.queue for queue in await crowded.read(counts, most=3)}
    found = await crowded.read(named_counts, lambda name: name.endswith("7"))
    assert [queue.queue for queue in found] == ["queue-07", "queue-17"]
    assert listed.isdisjoint({"queue-07", "queue-17"})
    every = {queue.queue: queue for queue in await crowded.read(counts, most=QUEUES + 1)}
    assert [queue._replace(oldest=None) for queue in found] == [
        every[name]._replace(oldest=None) for name in ("queue-07", "queue-17")
    ]
    # Only the last hour knows these queues now, and its list has two of them.
    await change(crowded, sa.delete(crowded.tables.task))
    assert await crowded.read(named_counts, "queue-07".__eq__) == []
    (queue,) = await crowded.read(named_counts, "queue-07".__eq__, ["queue-07", "queue-70"])
    assert queue.hour == every["queue-07"].hour
    assert await crowded.read(named_counts, "queue-70".__eq__, ["queue-70"]) == []
