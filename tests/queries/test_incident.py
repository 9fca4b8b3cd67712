"""The report of an incident: complete, bounded by its period, with masked secrets and inert texts."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema.records import MINUTE_COUNTS
from runner.errors import InvalidInput
from runner.operations.audit_log import AuditEntry, record
from runner.operations.edit import edit_all
from runner.operations.edit_values import Changes
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor, Target, with_change_group
from runner.operations.terminate import terminate
from runner.operations.undo.undo import undo, undo_all
from runner.policy.breaker import Breaker
from runner.queries.counting import Count
from runner.queries.past.incident import as_markdown, incident, timeline
from runner.store.breaker import declare_breakers
from runner.store.ended_runners import end_runners
from runner.store.registration import leave
from runner.store.rescue import Rescuer, rescue
from runner.text.new_file import write_new
from tests.conftest import on_sqlite
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead

ANA = Actor("ana", "desk-1", "relay is <b>back</b> | token=hunter-22-x")


async def report(database: Database, minutes: float = 60, until: datetime | None = None) -> str:
    since = datetime.now(UTC) - timedelta(minutes=minutes)
    return as_markdown(await database.read(incident, since, until), "shop", UTC)


async def test_a_report_has_causes_lost_runners_and_changes_in_order(database: Database) -> None:
    id = await add_past(database, 900)
    for fence, seconds in ((1, -600), (2, -300), (3, -100)):
        error = {"error_type": "shop.Timeout", "message": "password=hunter-22-x\nno answer | ``` <script>"}
        trace = {"traceback": "Traceback:\n```\napi_key=hunter-22-x\nshop.Timeout"}
        await add_attempt(database, id, fence, ended_at=ahead(seconds), fingerprint="f9", **error, **trace)
    await add_attempt(database, id, 4, ended_at=ahead(-400), error_type="runner lost", host="web-2", runner_id=7)
    await add_attempt(database, id, 5, ended_at=ahead(-7200), fingerprint="old", message="too old")
    await add_runner(database, version="4.12", host="web-3", started_at=ahead(-500))
    await add_runner(database, version="4.11", host="web-4", started_at=ahead(-86_400))
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), ANA)
    tasks = [Target(await add_live(database)) for _ in range(3)]
    await database.write(terminate, tasks, with_change_group(ANA))
    text = await report(database)
    timeline = text[text.index("## Timeline") : text.index("## Failures")]
    parts = ("First Timeout", "of new version 4.12", "Runner 7 (web-2) lost", "pause of")
    places = [timeline.index(part) for part in parts]
    assert places == sorted(places)
    assert "terminate of 3 tasks by ana" in timeline
    assert "1 runner of new version 4.12 started on web-3" in timeline
    assert "| 3 | 1 | 0 |" in text
    assert "`Timeout: password=***`" in text
    assert "The last one of the largest group, task 900" in text
    for absent in ("hunter", "too old", "4.11"):
        assert absent not in text
    assert "<" not in re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)  # Code is inert.
    assert text.count("```") == 2  # only those of the example


async def test_a_report_marks_the_bounds_of_failures_that_were_not_all_read(database: Database) -> None:
    await add_attempt(database, 1, ended_at=ahead(-600), verb="die")
    found = await database.read(incident, datetime.now(UTC) - timedelta(hours=1))
    (group,) = found.failures
    bounded = replace(found, failures=(replace(group, count=Count(1, True)),))
    exact, text = (as_markdown(each, "shop", UTC) for each in (found, bounded))
    assert re.search(r"\| 1\+ \| 1\+ \| 1\+ \| \d\d:\d\d:\d\d \| \d\d:\d\d:\d\d \|", text)
    note = "Only the last 20,000 failed attempts were read: a + marks a lower bound, and older groups may be missing."
    assert (note in exact, note in text) == (False, True)


@pytest.mark.both_databases
async def test_a_cause_that_had_failed_before_the_period_has_no_first_failure(database: Database) -> None:
    id, new = await add_past(database, 900), ahead(-500)
    for fence, (cause, at) in enumerate(
        (("old", ahead(-7200)), ("old", ahead(-600)), ("new", new), ("new", ahead(-9)))
    ):
        await add_attempt(database, id, fence, ended_at=at, fingerprint=cause, error_type=f"shop.{cause.title()}")
    data = await database.read(incident, datetime.now(UTC) - timedelta(hours=1), None)
    text = as_markdown(data, "shop", UTC)
    assert "First New: no in h" in text
    assert "First Old" not in text
    assert re.search(r"\| 1 \| 1 \| 0 \| earlier \| \S.* \| `h` \| `Old: no` \|", text)
    # A group with more attempts than are read begins with the earliest one, not with the first that was read.
    cut = [replace(group, first=group.last, count=Count(1, more=True)) for group in data.failures]
    assert [item.text for item in timeline(replace(data, failures=cut))] == ["First New: no in h"]
    assert timeline(replace(data, failures=cut)) == timeline(data)


@pytest.mark.both_databases
async def test_the_summary_has_the_tasks_that_operators_cancelled(database: Database) -> None:
    assert "cancelled" not in await report(database)
    by = with_change_group(ANA)
    tasks = [Target(await add_live(database)) for _ in range(3)]
    await database.write(terminate, tasks, by)
    text = await report(database)
    assert "- tasks submitted: 3, ended: 3, 3 of these cancelled: the backlog stayed the same." in text
    await undo_all(database, partial(undo, by=with_change_group(ANA)), str(by.change_group))
    await database.write(terminate, tasks[:1], ANA)
    assert "- tasks submitted: 3, ended: 1, 1 of these cancelled: some twice, as" in await report(database)


async def test_a_report_has_the_deploy_of_a_version_whose_runners_have_ended_too(database: Database) -> None:
    old = [await add_runner(database, version="1", host=f"web-{n}", started_at=ahead(-90_000)) for n in (1, 2)]
    start = datetime.now(UTC) - timedelta(seconds=60)
    starts = {f"web-{n}": start + timedelta(seconds=n) for n in (1, 2)}
    new = [await add_runner(database, version="2", host=host, started_at=at) for host, at in starts.items()]
    for runner_id in (*old, new[0]):
        await database.write(leave, runner_id)
    before = datetime.now(UTC) - timedelta(seconds=600)
    timeline = await report(database)
    lines = (
        "2 runners of new version 2 started within 1s on web-1, web-2",
        "2 runners of version 1 stopped on web-1, ",
    )
    places = [timeline.index(line) for line in (*lines, "1 runner of version 2 stopped on web-1")]
    assert places == sorted(places)
    assert "lost" not in timeline
    assert "runner of version" not in await report(database, 60, before)


async def test_a_runner_that_registers_again_is_no_start(database: Database) -> None:
    first = await add_runner(database, version="1", host="web-1", pid=41, started_at=ahead(-600))
    await database.write(end_runners, [first], lost=True)
    again = await add_runner(database, version="1", host="web-1", pid=41, started_at=ahead(-60))
    await add_runner(database, version="1", host="web-1", pid=42, started_at=ahead(-50))
    timeline = await report(database)
    assert f"Runner {again} (web-1:41) registered: the same process as runner {first}" in timeline
    assert "2 runners of version 1 started within 9m10s on web-1" in timeline


async def test_a_report_names_a_killed_runner_before_and_after_the_rescue_of_its_tasks(database: Database) -> None:
    killed = await add_runner(database, host="web-3", heartbeat_at=ahead(-90), lease_until=ahead(-60))
    await add_runner(database, host="web-4", heartbeat_at=ahead(0), lease_until=ahead(60))
    rescuer = await add_runner(database, host="web-5", started_at=ahead(-600), lease_until=ahead(60))
    running: dict[str, Any] = {"state": "running", "runner_id": killed, "attempt": 1, "host": "web-3"}
    started = await add_live(database, started_at=ahead(-80), **running)
    for _ in range(2):  # Claimed, but not known to have started: their rescue ends no attempt.
        await add_live(database, started_at=None, **running)
    before = await report(database)
    assert f"Runner {killed} (web-3:" in before
    assert "(web-3:7) lost: its last heartbeat; it holds 3 tasks, which no live runner has rescued" in before
    assert "(web-4:7) lost" not in before
    await database.write(rescue, Rescuer(rescuer, 0.0), 1.0)
    after = await report(database)
    assert "3 tasks rescued from lost runners" in after
    assert "- tasks rescued from lost runners: 3; these attempts are no failures of a queue." in after
    name = f"Runner {killed} (web-3:7) lost: its last heartbeat"
    assert f"{name}; it held 3 tasks, 1 attempt ended with it: task {started}" in after
    async with database.reading() as tx:
        heartbeat = await tx.scalar(sa.select(tx.tables.ended_runner.c.heartbeat_at))
        rescue_time = await tx.scalar(sa.select(tx.tables.attempt.c.ended_at))
    lines = [line for line in after.splitlines() if "(web-3:7) lost" in line or "3 tasks rescued from" in line]
    died, rescued = lines  # the day is in front of the time if the report has two
    assert f" {heartbeat:%H:%M:%S} Runner" in died
    assert f" {rescue_time:%H:%M:%S} 3 tasks" in rescued


async def test_a_report_names_a_killed_runner_without_tasks_before_and_after_the_rescue(database: Database) -> None:
    died = datetime.now(UTC) - timedelta(seconds=90)
    killed = await add_runner(database, host="web-3", heartbeat_at=died, lease_until=ahead(-60))
    rescuer = await add_runner(database, host="web-5", started_at=ahead(-600), lease_until=ahead(60))
    line = f" {died:%H:%M:%S} Runner {killed} (web-3:7) lost: its last heartbeat; no tasks"
    assert line in await report(database)
    assert await database.write(rescue, Rescuer(rescuer, 0.0), 1.0) == {}
    after = await report(database)
    assert line in after
    assert "rescued" not in after
    assert "(web-5:7) lost" not in after
    assert "web-3" not in await report(database, 60, datetime.now(UTC) - timedelta(minutes=2))


@on_sqlite
async def test_an_unreadable_row_of_a_lost_runner_stops_no_report(database: Database) -> None:
    values = {"version": "1", "lost": True, "started_at": ahead(-900), "heartbeat_at": ahead(-60)}
    async with database.writing() as tx:
        for id, tasks in enumerate(("x'00'", "'many'", "0.5", "2"), 1):
            row = {"runner_id": id, "host": f"web-{id}", "pid": id, "tasks": sa.literal_column(tasks)}
            await tx.execute(tx.tables.ended_runner.insert().values(**row, **values))
    text = await report(database)
    endings = [re.search(rf"web-{id}:{id}\) lost: its last heartbeat; (.*)", text) for id in (1, 2, 3, 4)]
    assert [each and each[1] for each in endings] == ["no tasks", "no tasks", "no tasks", "it held 2 tasks"]


async def test_a_rescue_of_tasks_does_not_take_the_time_of_a_runner_without_tasks(database: Database) -> None:
    minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
    counts = dict.fromkeys(MINUTE_COUNTS, 0) | {"rescued": 2}
    await database.write(write_statistics, 7, [Minute(minute, "mail", "h", counts)], {})
    values = {"host": "web-9", "pid": 5, "version": "1", "lost": True, "tasks": 0}
    heartbeat, end = minute - timedelta(seconds=20), minute + timedelta(seconds=7)
    times = {"started_at": minute - timedelta(hours=1), "heartbeat_at": heartbeat, "ended_at": end}
    async with database.writing() as tx:
        await tx.execute(tx.tables.ended_runner.insert().values(runner_id=9, **values, **times))
    assert re.search(rf"- .*{minute:%H:%M} 2 tasks rescued from lost runners", await report(database))


@pytest.mark.both_databases
async def test_lost_runners_after_a_period_neither_hide_its_own_nor_appear(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.queries.past.incident.MOST_LOST", 2)
    minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
    counts = dict.fromkeys(MINUTE_COUNTS, 0) | {"rescued": 1}
    await database.write(write_statistics, 7, [Minute(minute, "mail", "h", counts)], {})
    values = {"pid": 5, "version": "1", "lost": True, "tasks": 1, "started_at": minute - timedelta(hours=1)}
    async with database.writing() as tx:
        for id, seconds in enumerate((20, 60, 120, 180), 1):
            times = {
                "heartbeat_at": minute + timedelta(seconds=seconds),
                "ended_at": minute + timedelta(seconds=45 * id),
            }
            await tx.execute(tx.tables.ended_runner.insert().values(runner_id=id, host=f"web-{id}", **values, **times))
    timeline = await report(database, 60, minute + timedelta(seconds=30))
    assert re.findall(r"Runner \d+ \((web-\d):5\)", timeline) == ["web-1"]
    assert f"- {minute:%H:%M} 1 task rescued from lost runners" in timeline  # the moment is after the period


async def test_a_rescue_without_an_attempt_has_the_minute_only_and_follows_its_cause(database: Database) -> None:
    minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
    counted = [
        Minute(minute + timedelta(minutes=late), "mail", "h", dict.fromkeys(MINUTE_COUNTS, 0) | {"rescued": number})
        for late, number in ((0, 2), (1, 1))
    ]
    await database.write(write_statistics, 7, counted, {})
    async with database.writing() as tx:
        opened = minute + timedelta(seconds=20)
        await tx.execute(tx.tables.handler.insert().values(name="mail", breaker_opened_at=opened))
    timeline = await report(database)
    rescue = re.search(rf"- .*{minute:%H:%M} 3 tasks rescued from lost runners", timeline)
    assert rescue is not None
    assert timeline.index("Breaker of mail opened") < rescue.start()


async def test_a_report_ends_with_its_period(database: Database) -> None:
    await declare_and_open(database)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), ANA)
    assert "pause of queue mail" in await report(database)
    assert "Breaker of sms opened" in await report(database)
    early = await report(database, 120, datetime.now(UTC) - timedelta(minutes=60))
    assert "No attempt failed." in early
    assert "pause" not in early
    assert "Breaker" not in early


async def declare_and_open(database: Database) -> None:
    async with database.writing() as tx:
        handler = tx.tables.handler
        await tx.execute(handler.insert().values(name="sms"))
    await database.write(declare_breakers, ["sms"], {"sms": Breaker("1/s").columns})
    async with database.writing() as tx:
        opened = {"breaker_probes": 1, "breaker_wait": 9.0, "breaker_round": 1, "breaker_probe_at": ahead(9)}
        await tx.execute(handler.update().values(breaker_opened_at=ahead(-60), **opened))


def queue_row(text: str, queue: str) -> list[str]:
    """The cells of a queue in the table of a report, up to its backlog."""
    row = next(line for line in text.splitlines() if line.startswith(f"| `{queue}` |"))
    return row.strip("|").replace(" ", "").split("|")[1:6]


@pytest.mark.both_databases
async def test_a_queue_whose_tasks_only_wait_has_its_backlog_at_the_end_of_the_period(database: Database) -> None:
    assert "No tasks were submitted or finished, and none waits." in await report(database)
    end = datetime.now(UTC) - timedelta(minutes=20)
    for minutes in (300, 200, 150):
        at = ahead(-60 * minutes)
        await add_live(database, queue="payments", run_at=at, submitted_at=at)
    await add_live(database, queue="payments", run_at=ahead(3600), submitted_at=ahead(-18_000))
    ended = {"claimed_at": ahead(-600), "finished_at": ahead(-599), "attempt": 1}
    early = {"run_at": ahead(-12_000), "submitted_at": ahead(-12_000), "queue": "payments", "fence": 1}
    for id in (900, 901):
        await add_past(database, id, **early, **ended)
    now, past = await report(database), await report(database, 100, end)
    assert queue_row(now, "payments") == ["0", "0", "0", "0", "3"]
    assert queue_row(past, "payments") == ["0", "0", "0", "0", "5"]


@pytest.mark.both_databases
async def test_a_backlog_that_is_not_read_completely_is_a_lower_bound(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = datetime.now(UTC) - timedelta(minutes=20)
    for _ in range(3):
        await add_live(database, queue="payments", run_at=ahead(-9_000), submitted_at=ahead(-9_000))
    retried = await add_live(database, queue="mail", run_at=ahead(60), submitted_at=ahead(-9_000), attempt=1, fence=1)
    await add_attempt(database, retried, queue="mail", started_at=ahead(-60), ended_at=ahead(-50), delay=110.0)
    text = await report(database, 100, end)
    assert queue_row(text, "payments")[-1] == "3"
    assert queue_row(text, "mail")[-1] == "?"  # It may have been due at the end, or later.
    monkeypatch.setattr("runner.queries.past.as_of.CANDIDATES", 3)
    assert queue_row(await report(database, 100, end), "payments")[-1] == "2+"


async def test_the_changes_of_a_report_are_words(database: Database) -> None:
    queue = PauseTarget(PauseKind.QUEUE, "payments")
    canary = Actor("ana", "desk-1", "canary")
    await database.write(set_limits, queue, LimitEdit({"concurrency": "12"}, new=True), canary)
    await database.write(set_limits, queue, LimitEdit({"concurrency": "24", "rate": "5/s"}), Actor("li", "desk-2"))
    await database.write(pause, queue, canary)
    await database.write(edit_all, [Target(await add_live(database))], Changes(priority=9), Actor("li", "desk-2"))
    text = await report(database)
    changes = text[text.index("## Changes by operators") :]
    for words in (
        "limit of queue payments by ana: canary; at most 12 running",
        "limit of queue payments by li: at most 24 running, 5/s started (before: at most 12 running)",
        "pause of queue payments by ana: canary",
        "by li: priority: 1 -> 9",
    ):
        assert f"{words}\n" in changes
    for absent in ("max", "null", "limited", "paused_at"):
        assert absent not in changes


async def test_a_change_of_many_tasks_hides_no_earlier_change(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.queries.past.incident.MOST_CHANGES", 4)
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "mail"), ANA)
    tasks = [Target(await add_live(database)) for _ in range(6)]
    by = with_change_group(ANA)
    await database.write(edit_all, tasks, Changes(priority=9), by)
    await undo_all(database, partial(undo, by=with_change_group(ANA)), str(by.change_group))
    text = await report(database)
    timeline = text[text.index("## Timeline") : text.index("## Failures")]
    parts = ("pause of queue mail", "edit of 6 tasks", "undo of changes to 6 tasks")
    assert [timeline.index(part) for part in parts] == sorted(timeline.index(part) for part in parts)
    assert text.count("of 6 tasks") + text.count("to 6 tasks") == 4  # the timeline and the list of changes


def test_a_report_never_replaces_a_file(tmp_path: Path) -> None:
    path = write_new(str(tmp_path / "a.md"), "first")
    with pytest.raises(InvalidInput, match="exists already"):
        write_new(str(path), "second")
    assert path.read_text() == "first"
    third = [write_new(str(path), text, numbered=True) for text in ("second", "third")][-1]
    assert (third.name, third.read_text()) == ("a-3.md", "third")


async def test_a_report_of_two_days_dates_the_times_of_the_first(database: Database) -> None:
    until = datetime.now(UTC)
    since = until - timedelta(days=2)
    async with database.writing() as tx:
        await record(tx, Actor("ana", "web-1"), [AuditEntry("edit", {}, {"priority": 9}, 1)])
        await tx.execute(sa.update(tx.tables.audit).values(at=until - timedelta(days=1)))
    text = as_markdown(await database.read(incident, since, until), "shop", UTC)
    yesterday = until - timedelta(days=1)
    assert f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC" in text
    assert f"- {yesterday.day} {yesterday:%b} {yesterday:%H:%M:%S} edit of task 1 by ana" in text
