import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import InvalidFilter, TaskNotFound
from runner.filter.parse import Filter
from runner.filter.sort import NEWEST, Sort
from runner.model.outcome import Failure, Retry
from runner.model.task import NewTask, Shown, State
from runner.queries.audit import audit
from runner.queries.counting import Count
from runner.queries.counts import QueueCounts, counts
from runner.queries.failures import failures
from runner.queries.reports import Flow, per_minute
from runner.queries.runners import runners, unknown_handlers
from runner.queries.summary import totals
from runner.queries.task.detail import task_detail
from runner.queries.task.results import unfinished
from runner.queries.task_list.cursor import Cursor
from runner.queries.task_list.row import same_key_tasks, task_rows
from runner.queries.task_list.search import find, page
from runner.store import settle as settling
from runner.store.claim.plain import Claimant, HandlerDefaults, claim
from runner.store.claim.survey import survey
from runner.store.registration import Identity, register
from runner.store.submit import submit, submit_many
from tests.store.minutes import Minute, within_a_minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead, filtered

pytestmark = pytest.mark.both_databases

HOSTILE = "\x1b]0;owned\x07[red]bold[/red] \u202eevil\u200b [@click=app.quit]x[/] ' \" % _ \\ \U0001f4a3"
FAR = datetime(9998, 12, 31, tzinfo=UTC)


async def counted(database: Database, cap: int = 10_000) -> dict[str, QueueCounts]:
    return {queue.queue: queue for queue in await database.read(counts, cap)}


async def execute(database: Database, statement: str, **values: Any) -> None:
    async with database.writing() as tx:
        await tx.execute(sa.text(statement), values)


async def test_the_detail_has_the_newest_other_tasks_of_its_handler_and_key(database: Database) -> None:
    past = [await add_past(database, id, State.DEAD, key="order-1", error="E: no") for id in (9_001, 9_002)]
    for other in ({"key": "order-2"}, {"key": None}, {"key": "order-1", "handler": "mail"}):
        await add_past(database, 9_003 + len(past), **other)
        past.append(0)
    live = [await add_live(database, key="order-1") for _ in range(6)]
    first = await database.read(task_detail, live[0])
    assert [(task.id, task.shown) for task in first.same_key[:3]] == [
        (9_002, Shown.DEAD),
        (9_001, Shown.DEAD),
        (live[5], Shown.READY),
    ]
    assert len(first.same_key) == 5
    without = await add_live(database)
    assert (await database.read(task_detail, without)).same_key == ()
    (row,) = await database.read(task_rows, [without])
    assert await database.read(same_key_tasks, row) == []


class TestCounts:
    async def test_an_empty_database_has_no_queues(self, database: Database) -> None:
        assert await database.read(counts) == []

    async def test_every_state_is_counted_in_its_queue(self, database: Database) -> None:
        alive, lost = await add_runner(database), await add_runner(database, lease=-1)
        for handler, priority in (("a", 1), ("a", 9), ("b", 1)):
            await add_live(database, handler, queue="mail", priority=priority, run_at=ahead(-5))
        await add_live(database, "a", queue="mail", run_at=ahead(50))
        await add_live(database, "b", queue="mail", run_at=ahead(50), attempt=1)
        await add_live(database, queue="mail", state=State.BLOCKED.value)
        await add_live(database, queue="mail", state=State.RUNNING.value, runner_id=alive)
        await add_live(database, queue="mail", state=State.RUNNING.value, runner_id=lost)
        await add_past(database, 101, State.DEAD, queue="mail")
        await add_past(database, 102, State.DEAD, queue="old")
        await add_past(database, 103, State.SUCCEEDED, queue="done")
        counts = await counted(database)
        mail = counts["mail"]
        assert set(counts) == {"mail", "old"}
        assert (mail.ready, mail.scheduled, mail.retrying, mail.blocked) == (Count(3), Count(1), Count(1), Count(1))
        assert (mail.running, mail.lost, mail.dead) == (Count(1), Count(1), Count(1))
        assert counts["old"].dead == Count(1)

    async def test_the_oldest_ready_task_gives_the_age(self, database: Database) -> None:
        await add_live(database, "a", run_at=ahead(-100))
        await add_live(database, "b", run_at=ahead(-300))
        await add_live(database, queue="later", run_at=ahead(300))
        counts = await counted(database)
        assert counts["default"].oldest == pytest.approx(300, abs=30)
        assert counts["later"].oldest is None

    async def test_no_count_goes_beyond_the_cap(self, database: Database) -> None:
        await database.write(submit_many, [NewTask("a", delay=delay) for delay in (0, 0, 0, 60, 60, 60)] * 2)
        for id in range(100, 105):
            await add_past(database, id, State.DEAD)
        (counts,) = (await counted(database, cap=3)).values()
        assert (counts.ready, counts.dead) == (Count(3, True), Count(3, True))
        assert (counts.scheduled, counts.retrying) == (Count(3, True), Count(0))
        assert str(counts.ready) == "3+"

    @pytest.mark.parametrize("retrying", [0, 2])
    async def test_more_scheduled_tasks_than_the_cap_hide_no_retrying_one(
        self, database: Database, retrying: int
    ) -> None:
        for number in range(8):
            await add_live(database, run_at=ahead(60 + number), attempt=int(number < retrying))
        (counts,) = (await counted(database, cap=3)).values()
        assert (counts.scheduled, counts.retrying) == (Count(3, True), Count(retrying))

    async def test_a_count_equal_to_the_cap_is_complete(self, database: Database) -> None:
        await database.write(submit_many, [NewTask("a"), NewTask("b"), NewTask("a", delay=60), NewTask("b", delay=60)])
        (counts,) = (await counted(database, cap=2)).values()
        assert (counts.ready, counts.scheduled) == (Count(2), Count(2))

    async def test_a_short_list_has_the_queues_that_need_attention(self, database: Database) -> None:
        past = datetime(2020, 1, 1, tzinfo=UTC)
        lost = await add_runner(database, lease=-1)
        await database.write(submit_many, [NewTask("a", queue=f"quiet {number}") for number in range(20)])
        await add_live(database, "a", queue="zz lost", state=State.RUNNING.value, runner_id=lost)
        for handler, wait in (("a", -900), ("b", -9), ("b", 60)):
            await add_live(database, handler, queue="aa old", run_at=ahead(wait))
        minute = (await database.read(page, Filter())).at.replace(second=0, microsecond=0)
        for ago in (0, 1):  # it may turn
            failing, busy = (
                Minute(minute - timedelta(minutes=ago), f"zz {queue}", "h") for queue in ("failing", "busy")
            )
            failing.counts |= {"retried": 5}
            busy.counts |= {"succeeded": 500}
            await database.write(write_statistics, 1, [failing, busy], {})
        async with database.writing() as tx:
            names = [{"name": f"aa registered {number}", "paused_at": None} for number in range(9)]
            await tx.execute(sa.insert(tx.tables.queue), [*names, {"name": "zz paused", "paused_at": past}])
        await add_live(database, "a", queue="zz paused", run_at=ahead(60), attempt=1)
        for id, queue in enumerate(("a dead", "b dead", "c dead", "zz failing", "zz failing"), 100):
            await add_past(database, id, State.DEAD, queue=queue)
        every = {queue.queue: queue for queue in await database.read(counts)}
        listed = {queue.queue: queue for queue in await database.read(counts, most=4)}
        assert list(listed) == ["aa old", "zz failing", "zz lost", "zz paused"]
        steady = {name: queue._replace(oldest=None) for name, queue in every.items()}
        assert {name: queue._replace(oldest=None) for name, queue in listed.items()}.items() <= steady.items()
        assert (listed["aa old"].ready, listed["aa old"].scheduled) == (Count(2), Count(1))
        assert listed["aa old"].oldest == pytest.approx(900, abs=30)
        assert (listed["zz failing"].dead, listed["zz failing"].minute.failed) == (Count(2), 5)
        assert (listed["zz paused"].retrying, listed["zz lost"].lost) == (Count(1), Count(1))

    async def test_a_pause_is_shown_while_in_force(self, database: Database) -> None:
        past, future = datetime(2020, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
        async with database.writing() as tx:
            queue = tx.tables.queue
            for name, until in (("over", past), ("on", future), ("ever", None)):
                values = {"name": name, "paused_at": past, "paused_until": until, "paused_by": "ana"}
                await tx.execute(sa.insert(queue).values(**values, paused_why="deploy"))
        counts = await counted(database)
        assert counts["over"].paused is None
        assert counts["on"].paused is not None
        assert (counts["on"].paused.by, counts["on"].paused.why, counts["on"].paused.until) == ("ana", "deploy", future)
        assert counts["ever"].paused is not None

    async def test_the_last_full_minute_and_the_last_hour_are_summed_up(self, database: Database) -> None:
        async def act(minute: datetime) -> QueueCounts:
            for runner_id, ago, number in ((1, 1, 5), (2, 1, 6), (1, 0, 100), (1, 30, 1_000), (1, 90, 9_999)):
                row = Minute(minute - timedelta(minutes=ago), "mail", "h")
                row.counts["succeeded"] = number
                await database.write(write_statistics, runner_id, [row], {})
            return (await counted(database))["mail"]

        counts = await within_a_minute(database, act)
        assert counts.minute == Flow(succeeded=11)
        assert counts.hour == Flow(succeeded=1_111)


class TestPages:
    async def test_pages_follow_each_other_without_gaps_while_tasks_end_and_arrive(self, database: Database) -> None:
        ids = await database.write(submit_many, [NewTask("h") for _ in range(10)])
        for id in range(-10, 0):
            await add_past(database, id)
        first = await database.read(page, Filter(), limit=8)
        await database.write(submit, NewTask("h"))
        second = await database.read(page, Filter(), first.next, limit=8)
        third = await database.read(page, Filter(), second.next, limit=8)
        ids_read = [task.id for listing in (first, second, third) for task in listing.tasks]
        assert ids_read == [*reversed(ids), *range(-1, -11, -1)]
        assert third.next is None

    async def test_a_page_that_just_fits_is_the_last_one(self, database: Database) -> None:
        await database.write(submit_many, [NewTask("h"), NewTask("h")])
        assert (await database.read(page, Filter(), limit=2)).next is None
        assert (await database.read(page, Filter(), limit=1)).next == Cursor(2)

    async def test_a_filter_without_an_index_stops_at_the_scan_limit(self, database: Database) -> None:
        await database.write(submit_many, [NewTask("rare" if number == 3 else "h") for number in range(20)])
        for id in range(1_000, 1_020):
            await add_past(database, id, handler="rare" if id == 1_001 else "h")
        listing, pages, after = [], 0, None
        while pages == 0 or after is not None:
            one = await database.read(page, filtered("handler:rare"), after, scan_limit=6)
            listing += [task.id for task in one.tasks]
            assert one.capped is (one.next is not None)
            after, pages = one.next, pages + 1
        assert listing == [1_001, 4]
        assert pages > 3

    @pytest.mark.parametrize("order", [NEWEST, NEWEST.reverse])
    async def test_every_task_is_found_once_at_any_scan_limit(self, database: Database, order: Sort) -> None:
        for number in range(1, 13):
            handler = "rare" if number % 3 == 0 else "h"
            await (
                add_live(database, handler, id=number) if number % 2 else add_past(database, number, handler=handler)
            )
        for scan_limit, limit, text in [
            (1, 9, "-handler:x"),
            (2, 1, "handler:rare"),
            (3, 9, "-key:x"),
            (5, 2, "age<1h"),
        ]:
            listing: list[int] = []
            some = await database.read(find, filtered(text), limit, None, order, scan_limit)
            while True:
                listing += some.ids
                if some.next is None:
                    break
                some = await database.read(find, filtered(text), limit, some.next, order, scan_limit)
            expected = [3, 6, 9, 12] if text == "handler:rare" else list(range(1, 13))
            assert listing == (expected[::-1] if order is NEWEST else expected)

    async def test_states_are_shown_as_the_database_s_clock_has_them(self, database: Database) -> None:
        lost = await add_runner(database, lease=-1)
        await add_live(database, run_at=ahead(-1))
        await add_live(database, run_at=ahead(100))
        await add_live(database, run_at=ahead(100), attempt=1)
        await add_live(database, state=State.RUNNING.value, runner_id=lost)
        await add_live(database, state=State.RUNNING.value, runner_id=await add_runner(database))
        await add_past(database, 6, State.CANCELLED)
        listing = await database.read(page, Filter(), sort=NEWEST.reverse)
        shown = [Shown.READY, Shown.SCHEDULED, Shown.RETRYING, Shown.LOST, Shown.RUNNING, Shown.CANCELLED]
        assert [task.shown for task in listing.tasks] == shown
        assert [task.state for task in listing.tasks][2:5] == [State.WAITING, State.RUNNING, State.RUNNING]

    async def test_hostile_text_is_stored_unchanged(self, database: Database) -> None:
        await add_live(database, "h", queue=HOSTILE, key=HOSTILE, error=HOSTILE, host=HOSTILE)
        (task,) = (await database.read(page, Filter())).tasks
        assert (task.queue, task.key, task.error, task.host) == (HOSTILE,) * 4
        assert HOSTILE in await counted(database)

    async def test_long_texts_are_cut_in_a_list_and_whole_in_a_story(self, database: Database) -> None:
        id = await add_live(database, error="x" * 20_000)
        (task,) = await database.read(task_rows, [id])
        assert task.error == "x" * 500
        assert (await database.read(task_detail, id)).error == "x" * 20_000

    async def test_times_outside_of_pythons_range_are_left_out(self, database: Database) -> None:
        moments = ("infinity", "20000-01-01", "0044-03-15 BC") if database.dialect.is_server else ("soon", "", "٣")
        for odd in moments:
            id = await add_live(database)
            await execute(
                database, "update task set submitted_at = :odd, claimed_at = :odd where id = :id", odd=odd, id=id
            )
        listing = await database.read(page, Filter())
        assert [(task.submitted_at, task.claimed_at) for task in listing.tasks] == [(None, None)] * 3
        for task in listing.tasks:
            assert (await database.read(task_detail, task.id)).task.submitted_at is None


class TestOddRowsInSqlite:
    @pytest.fixture
    async def odd(self, database: Database) -> Database:
        if database.dialect.is_server:
            pytest.skip("PostgreSQL keeps types and encodings")
        await execute(
            database,
            "insert into task "
            "(handler, key, error, timeout, host, runner_id, submitted_at) values "
            "('h', cast(x'ff41' as text), x'00ff', 1.5, x'fe', 'nine', x'01')",
        )
        await execute(
            database,
            "insert into task_runner (host, pid, version, lease_until, handlers) values (x'ff', 'p', 1, 'now', '{')",
        )
        return database

    async def test_a_list_shows_every_readable_value(self, odd: Database) -> None:
        (task,) = (await odd.read(page, Filter())).tasks
        assert (task.key, task.error, task.attempt, task.submitted_at) == ("\ufffdA", "\0\ufffd", 0, None)

    async def test_nothing_else_breaks(self, odd: Database) -> None:
        assert (await odd.read(task_detail, 1)).task.key == "\ufffdA"
        assert (await odd.read(runners))[0].handlers == ()
        assert len(await odd.read(counts)) == 1
        assert len(await odd.read(unknown_handlers)) == 1
        assert (await odd.read(find, filtered("attempts>1 key:a* tag:x due<5m -error~x"), 5)).ids == []

    async def test_one_such_row_does_not_stop_the_claims(self, odd: Database) -> None:
        runner_id = await odd.write(register, Identity("web-1", 1, "1", ["h"], 4), 30.0)
        await odd.write(submit, NewTask("h"))
        lanes = {head.lane: _start() for head in await odd.read(survey)}
        tasks = await odd.write(claim, Claimant(runner_id, "web-1"), lanes, {"h": HandlerDefaults(3, None)}, 10)
        assert 2 in [task.id for task in tasks]


def _start() -> Any:
    from runner.policy.positions import LanePosition

    return LanePosition(datetime(1970, 1, 1, tzinfo=UTC).strftime("%Y"), 0)


class TestStory:
    async def test_a_missing_task_is_reported(self, database: Database) -> None:
        with pytest.raises(TaskNotFound, match="77"):
            await database.read(task_detail, 77)

    async def test_a_live_task_is_shown_with_its_attempts_and_runner(self, database: Database) -> None:
        runner_id = await add_runner(database)
        running: dict[str, Any] = {
            "state": State.RUNNING.value,
            "runner_id": runner_id,
            "attempt": 3,
            "max_attempts": 5,
        }
        id = await add_live(database, payload='{"a": [1, "ü"]}', retry="1m,5m,20m", tags='["x", 5]', **running)
        for fence, delay in ((1, 60.0), (2, 300.0)):
            times = {"started_at": ahead(-100 * fence - 50), "ended_at": ahead(-100 * fence)}
            await add_attempt(database, id, fence, delay=delay, traceback="Traceback ...", **times)
        detail = await database.read(task_detail, id)
        assert (detail.payload, detail.tags, detail.task.shown) == ('{"a": [1, "ü"]}', ("x",), Shown.RUNNING)
        assert [(tried.fence, tried.delay) for tried in detail.attempts] == [
            (1, timedelta(minutes=1)),
            (2, timedelta(minutes=5)),
        ]
        assert detail.attempts[0].duration == pytest.approx(timedelta(seconds=50), abs=timedelta(seconds=1))
        assert detail.runner is not None
        assert (detail.runner.id, detail.runner.running_tasks) == (runner_id, 1)

    async def test_a_finished_task_is_read_from_the_history(self, database: Database) -> None:
        await add_past(database, 5, State.DEAD, error="gone", result='{"ok": 1}', duration=1.5, retry="nonsense")
        detail = await database.read(task_detail, 5)
        assert (detail.task.shown, detail.error, detail.result, detail.task.duration) == (
            Shown.DEAD,
            "gone",
            '{"ok": 1}',
            1.5,
        )
        assert detail.next_runs == ()

    async def test_the_next_runs_go_to_the_end_of_the_plan(self, database: Database) -> None:
        at = datetime(2050, 1, 1, tzinfo=UTC)
        id = await add_live(database, run_at=at, attempt=1, max_attempts=4, retry="1m,5m")
        assert (await database.read(task_detail, id)).next_runs == (
            at,
            at + timedelta(minutes=5),
            at + timedelta(minutes=10),
        )

    async def test_the_next_runs_are_unknown_where_the_handler_decides(self, database: Database) -> None:
        free = await add_live(database)
        plan = await add_live(database, max_attempts=3, run_at=ahead(60))
        assert (await database.read(task_detail, free)).next_runs == ()
        assert len((await database.read(task_detail, plan)).next_runs) == 1
        assert len((await database.read(task_detail, plan, {"retry": "5m"})).next_runs) == 3

    async def test_an_unreadable_plan_breaks_nothing(self, database: Database) -> None:
        id = await add_live(database, max_attempts=3, retry="whenever", run_at=FAR)
        assert (await database.read(task_detail, id)).next_runs == (FAR,)


class TestFailures:
    async def test_failures_are_grouped_by_fingerprint(self, database: Database) -> None:
        for task_id in (1, 2, 3):
            await add_attempt(database, task_id, fingerprint="a", message=f"no {task_id}", ended_at=ahead(-task_id))
        await add_attempt(database, 1, 2, fingerprint="a", verb="die", ended_at=ahead(-700))
        await add_attempt(database, 9, fingerprint="b", handler="other", error_type="KeyError")
        groups = await database.read(failures)
        assert [(group.fingerprint, group.count, group.tasks, group.dead) for group in groups] == [
            ("a", Count(4), 3, 1),
            ("b", Count(1), 1, 0),
        ]
        assert [(group.recent, group.rate) for group in groups] == [(3, 1.5), (1, 0.5)]
        first = groups[0]
        assert (first.message, first.task_id, first.handler) == ("no 1", 1, "h")
        assert first.first is not None
        assert first.last is not None
        assert timedelta(seconds=690) < first.last - first.first < timedelta(seconds=705)

    async def test_failures_of_real_settles_with_other_numbers_are_one_group(self, database: Database) -> None:
        runner_id = await database.write(register, Identity("web-1", 1, "1", ["h"], 4), 30.0)
        await database.write(submit_many, [NewTask("h"), NewTask("h")])
        lanes = {head.lane: _lane_position(database) for head in await database.read(survey)}
        tasks = await database.write(claim, Claimant(runner_id, "web-1"), lanes, {"h": HandlerDefaults(3, None)}, 10)
        outcomes = [Retry(failure=Failure("OSError", f"port {4000 + task.id} refused")) for task in tasks]
        batch = [
            settling.Settlement(task.id, task.fence, outcome) for task, outcome in zip(tasks, outcomes, strict=True)
        ]
        await database.write(settling.settle, runner_id, batch)
        (group,) = await database.read(failures)
        assert (group.count, group.tasks, group.error_type) == (Count(2), 2, "OSError")
        listing = await database.read(page, filtered(f"failure:{group.fingerprint}"))
        assert [task.id for task in listing.tasks] == [task.id for task in reversed(tasks)]

    async def test_a_group_and_the_time_of_its_failures_belong_to_one_attempt(self, database: Database) -> None:
        for id in (1, 2, 3):
            await add_live(database, "h", id=id)
        await add_attempt(database, 1, fingerprint="f1", ended_at=ahead(-7_200))
        await add_attempt(database, 1, 2, fingerprint="f2", ended_at=ahead(-10))
        await add_attempt(database, 2, fingerprint="f1", ended_at=ahead(-10))
        for text, ids in (
            ("failure:f1", [2, 1]),
            ("failure:f1 failed:1h", [2]),
            ("failed:1h failure:f1,f2", [2, 1]),
            ("failed:1h", [2, 1]),
            ("failed:1s", []),
            ("-failed:1h", [3]),
            ("failure:f1 -failed:1h", []),
            ("failed:1h -failure:f1", []),
        ):
            listing = await database.read(page, filtered(text))
            assert [task.id for task in listing.tasks] == ids, text
        with pytest.raises(InvalidFilter, match="unknown field failed"):
            await database.read(failures, filtered("failed:1h"))

    async def test_only_the_latest_attempts_are_read(self, database: Database) -> None:
        for task_id in range(10):
            await add_attempt(database, task_id, fingerprint="old", ended_at=ahead(-100 - task_id))
        for task_id in range(3):
            await add_attempt(database, task_id, 2, fingerprint="new", ended_at=ahead(-task_id - 1))
        groups = await database.read(failures, window=5)
        assert [(group.fingerprint, group.count) for group in groups] == [
            ("new", Count(3, True)),
            ("old", Count(2, True)),
        ]

    async def test_failures_can_be_filtered_and_limited_in_time(self, database: Database) -> None:
        await add_attempt(database, 1, fingerprint="a", queue="mail", message="100% lost", ended_at=ahead(-7200))
        await add_attempt(database, 2, fingerprint="b", handler="x", ended_at=ahead(-10))
        listing = [
            [group.fingerprint for group in await database.read(failures, filtered(text))]
            for text in ("queue:mail", "error~0%", "since:1h", "until:1h", "-queue:mail", "handler:x,y", "nothing")
        ]
        assert listing == [["a"], ["a"], ["b"], ["a"], ["b"], ["b"], []]
        recent = await database.read(failures, since=datetime.now(UTC) - timedelta(hours=1))
        assert [group.fingerprint for group in recent] == ["b"]


class TestRunners:
    async def test_more_than_a_hundred_runners_are_listed(self, database: Database) -> None:
        for pid in range(101):
            await add_runner(database, pid=pid)
        assert len(await database.read(runners)) == 101

    async def test_runners_are_listed_with_their_tasks(self, database: Database) -> None:
        alive = await add_runner(database, lease=30, handlers='["a", "b", 3]', capacity=8, running=1, command="drain")
        lost_id = await add_runner(database, lease=-9, host="a-first")
        await add_live(database, state=State.RUNNING.value, runner_id=alive)
        lost, living = await database.read(runners)
        assert (lost.id, lost.alive, lost.running_tasks) == (lost_id, False, 0)
        assert (living.id, living.alive, living.running_tasks, living.handlers) == (alive, True, 1, ("a", "b"))
        assert (living.capacity, living.running, living.command) == (8, 1, "drain")

    async def test_a_handler_that_no_live_runner_knows_is_reported(self, database: Database) -> None:
        await add_runner(database, handlers='["known", "both"]')
        await add_runner(database, lease=-1, handlers='["forgotten"]')
        for handler, queue, wait in (
            ("known", "q", -5),
            ("forgotten", "q", -50),
            ("forgotten", "r", -100),
            ("new", "q", 500),
        ):
            await add_live(database, handler, queue=queue, run_at=ahead(wait))
        old, new = await database.read(unknown_handlers)
        assert (old.handler, old.queues, new.handler, new.queues) == ("forgotten", ("q", "r"), "new", ("q",))
        assert old.due == pytest.approx(100, abs=30)
        assert new.due == pytest.approx(-500, abs=30)


class TestUnfinished:
    async def test_only_live_tasks_of_this_handler_and_key_count(self, database: Database) -> None:
        first = await add_live(database, key="order-1")
        await add_live(database, key="order-2")
        await add_live(database, "other", key="order-1")
        second = await add_live(database, key="order-1", state=State.RUNNING.value)
        await add_past(database, 100, key="order-1")
        assert await database.read(unfinished, "h", "order-1") == [first, second]
        assert await database.read(unfinished, "h", "order-3") == []


class TestReports:
    NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

    @pytest.fixture
    async def noted(self, database: Database) -> Database:
        for runner_id in (1, 2):
            rows = []
            for ahead_by, queue, handler in ((0, "mail", "send"), (1, "mail", "send"), (1, "mail", "bounce")):
                row = Minute(self.NOON + timedelta(minutes=ahead_by), queue, handler)
                row.counts |= {"succeeded": 3, "first_try": 2, "second_try": 1, "died": 1}
                row.durations.add([0.4 * runner_id])
                rows.append(row)
            await database.write(write_statistics, runner_id, rows, {})
        return database

    async def test_totals_sum_up_runners_and_minutes(self, noted: Database) -> None:
        send, bounce = await noted.read(totals, self.NOON, self.NOON + timedelta(hours=1))
        assert (send.handler, send.flow) == ("send", Flow(0, 12, 8, 4, 0, 4))
        assert (bounce.handler, bounce.flow) == ("bounce", Flow(0, 6, 4, 2, 0, 2))
        assert send.flow.success_rate == 0.75
        assert (send.durations.number, send.p50) == (4, 0.4)
        assert send.p95 == 0.8

    async def test_totals_are_of_the_time_and_the_names_asked_for(self, noted: Database) -> None:
        later = self.NOON + timedelta(minutes=1)
        assert [total.handler for total in await noted.read(totals, self.NOON, later)] == ["send"]
        assert await noted.read(totals, self.NOON, self.NOON) == []
        (only,) = await noted.read(totals, later, later + timedelta(minutes=1), handler="bounce", queue="mail")
        assert only.flow.succeeded == 6

    async def test_minutes_come_in_order(self, noted: Database) -> None:
        flows = await noted.read(per_minute, self.NOON, self.NOON + timedelta(hours=1))
        assert [(flow.minute.minute, flow.flow.succeeded) for flow in flows] == [(0, 6), (1, 12)]

    async def test_nothing_done_has_no_success_rate(self) -> None:
        assert Flow().success_rate is None


def _lane_position(database: Database) -> Any:
    from runner.policy.positions import LanePosition

    return LanePosition(database.dialect.position(datetime(1970, 1, 1, tzinfo=UTC)), 0)


async def test_the_audit_is_listed_from_its_end(database: Database) -> None:
    async with database.writing() as tx:
        table = tx.tables.audit
        for task_id in (1, 2, 1):
            values = {
                "operator": "ana",
                "host": "x",
                "verb": "edit",
                "task_id": task_id,
                "before": json.dumps({"n": 1}),
            }
            await tx.execute(sa.insert(table).values(**values))
    assert [entry.id for entry in await database.read(audit)] == [3, 2, 1]
    assert [entry.id for entry in await database.read(audit, after=3, limit=1)] == [2]
    assert [entry.id for entry in await database.read(audit, task_id=1)] == [3, 1]
