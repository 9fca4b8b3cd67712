"""The overview: arrivals and ends, the time until a queue is empty, and the diagnoses."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.schedule import ScheduleSpec
from runner.model.task import DependsOn, NewTask, State
from runner.operations.results import Actor, Target
from runner.operations.schedule import add_schedule
from runner.operations.unblock import unblock
from runner.policy.breaker import OpenBreaker
from runner.policy.limits import SharedLimits
from runner.policy.rate import Rate
from runner.queries.alerts.facts import AlertFacts, SlowFacts
from runner.queries.breakers import BreakerRow
from runner.queries.counting import Count, WaitingCounts
from runner.queries.counts import QueueCounts
from runner.queries.overview import (
    HOUR,
    MINUTE,
    SHALLOW,
    SHALLOWEST,
    Diagnoses,
    Overview,
    Slowdown,
    deepened,
    depth,
    diagnoses,
    is_stale,
    joined,
    per_minute,
    read_overview,
)
from runner.queries.registries import Pause
from runner.queries.reports import OTHERS, Flow, MinuteFlow
from runner.queries.runners import HandlerWithoutRunner, RunnerRow
from runner.settings import Settings
from runner.store.heartbeat import LoopBlock
from runner.store.schedules.tick import tick
from runner.store.submit import submit
from tasktui.data.alerts import Attention, attention
from tasktui.data.background import Background
from tasktui.data.queue_order import sorted_queues
from tasktui.data.runners import Workforce
from tasktui.dialogs.help import start_here
from tasktui.panels import overview as overview_panels
from tasktui.panels import side as side_panels
from tasktui.panels.overview import View
from tasktui.render import theme
from tasktui.render.rows import Row, plain, width_of
from tasktui.screens.overview import OverviewScreen, empty_in, queue_line
from tasktui.screens.runners import columns_for, liveness, runner_line
from tasktui.session.cache import LONGEST_VALIDITY, TtlCache
from tests.store.minutes import Minute, within_a_minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.store.table import change
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch

AT = datetime(2026, 11, 20, 13, 30, 20, tzinfo=UTC)
NONE = Count()


def queue(name: str = "mail", **values: object) -> QueueCounts:
    usual = QueueCounts(name, NONE, NONE, NONE, NONE, NONE, NONE, NONE, None, NONE, Flow(), Flow(), None)
    return usual._replace(**values)  # type: ignore[arg-type] # the test knows the fields


BEHIND = queue(ready=Count(18_240), oldest=252.0, arrived=Count(210), minute=Flow(succeeded=170, died=10))


def runner(**values: object) -> RunnerRow:
    usual = RunnerRow(7, "web-3", 4117, "1", None, 1.0, 14.0, ("h",), (), (), 8, 0, (), 0, 3, 3, None)
    return usual._replace(**values)  # type: ignore[arg-type] # the test knows the fields


def overview_of(*queues: QueueCounts, **values: object) -> Overview:
    usual = Overview(AT, queues, {}, (), (), {}, (), AT)
    return usual._replace(**values)  # type: ignore[arg-type] # the test knows the fields


def names_in_order(overview: Overview) -> list[str]:
    return [each.queue for each in sorted_queues(overview)]


def sentences(overview: Overview) -> list[str]:
    return [line.sentence for line in attention(AlertFacts(overview))]


def alerts_of(overview: Overview, results: Mapping[int, Mapping[str, Flow]] | None = None) -> list[Attention]:
    return attention(AlertFacts(overview, SlowFacts(results=results or {})))


def test_a_quiet_system_has_no_alerts() -> None:
    assert sentences(overview_of(queue(ready=Count(3)), runners=(runner(),))) == []


def test_a_queue_that_falls_behind_is_told_with_what_has_become_slow() -> None:
    slow = {"mail": Slowdown("smtp.send", 8.4, 0.9)}
    assert sentences(overview_of(BEHIND, runners=(runner(),), diagnoses=Diagnoses(slow))) == [
        "mail falls behind: 210 in, 180 out per min; slowest handler smtp.send (p95 8.4s, was 900ms)"
    ]
    assert sentences(overview_of(BEHIND, runners=(runner(),))) == ["mail falls behind: 210 in, 180 out per min"]


def test_a_queue_that_falls_behind_is_named_with_its_limits() -> None:
    limited = BEHIND._replace(limits=SharedLimits(running=1, rate=Rate(10, 3600)))
    assert sentences(overview_of(limited, runners=(runner(),))) == [
        "mail falls behind: 210 in, 180 out per min; limit: at most 1 running, 10/h started"
    ]


def test_a_queue_that_fails_and_falls_behind_is_one_line_before_its_symptoms() -> None:
    flows = [
        MinuteFlow(AT.replace(second=0) - ago * MINUTE, Flow(submitted=210, retried=90, succeeded=10))
        for ago in range(9)
    ]
    overview = overview_of(BEHIND, pulses={"mail": flows}, runners=(runner(heartbeat_age=9.0, lease=6.0),))
    assert sentences(overview) == [
        "mail is failing: 810 of 900 attempts in 10 min, since 13:22; falls behind: 210 in, 180 out per min",
        "web-3:4117 is silent for 9s: rescue of 3 tasks in 6s",
    ]
    view = View(overview, None, (), UTC, ("1 h", 60), False)
    assert view.behind[-8:] == [200.0] * 8
    assert "█ behind 30 / min" in plain(overview_panels.throughput(view, 60, 4))
    assert "retrying" in {spec for row in overview_panels.throughput(view, 60, 4)[1:] for _, spec in row}
    assert "◌ web-3:4117" in plain(side_panels.runners(view, 60, 3))


@pytest.mark.parametrize(("age", "coloured"), [(1.0, True), (9.0, False)])
def test_the_slots_of_a_silent_runner_have_no_colour(age: float, coloured: bool) -> None:
    overview = overview_of(runners=(runner(heartbeat_age=age, lease=6.0),), slots={7: {"h": 3}})
    _, row = side_panels.runners(View(overview, None, (), UTC, ("1 h", 60), False), 60, 3)
    assert any(spec.startswith("handler") for _, spec in row) is coloured


def test_a_runner_with_a_poll_mode_of_its_own_shows_its_heartbeat() -> None:
    assert liveness(runner(polling="fixed-rate 2s")).text.endswith("s ago")
    assert liveness(runner(polling="fixed-rate 2s", command="threads=4 drain")).text == "threads=4 draining"


def test_the_age_of_a_silent_runner_is_never_cut() -> None:
    late = runner(capacity=24, heartbeat_age=73.0, lease=59.0)
    workforce, seen = Workforce(AT, (late, runner(id=8, capacity=24)), (), {}, {}, {}), []
    for width in (80, 120):
        columns = columns_for(workforce, width, grouped=True)
        seen.append(runner_line(late, workforce, {}, columns, width).cells[-1].text)
    assert seen == ["silent 1m13s", "silent 1m13s, lease 59s"]


def test_lost_tasks_are_counted_and_said_to_come_back_or_not() -> None:
    queues = (queue("a", lost=Count(2)), queue("b", lost=Count(1)), queue("c"))
    assert sentences(overview_of(*queues)) == [
        "No runner is alive: 0 tasks wait, 3 lost tasks cannot be rescued; start one: runner work; none is registered"
    ]
    assert sentences(overview_of(queue(lost=Count(1)), runners=(runner(),))) == [
        "1 task of mail is lost: the lease of the runner expired; a live runner will rescue it"
    ]
    lost = runner(pid=9, lease=-40.0, running_tasks=1)
    (only,) = sentences(overview_of(queue(lost=Count(1)), runners=(runner(), lost)))
    assert only.startswith("web-3:9 is lost: no heartbeat for ")


def test_dead_runners_are_the_cause_before_every_symptom() -> None:
    dead = (runner(heartbeat_age=180.0, lease=-150.0), runner(heartbeat_age=240.0, lease=-200.0, pid=9))
    unknown = (HandlerWithoutRunner("smtp.send", ("mail",), 61.0, None),)
    first, *rest = sentences(overview_of(BEHIND, runners=dead, unknown=unknown))
    assert first == "No runner is alive: 18,240 tasks wait; start one: runner work; web-3:4117 was the last, 3m ago"
    assert rest == []


def test_a_blocked_runner_is_named_with_its_handler_and_the_remedy() -> None:
    block = LoopBlock(11.0, [(41, "reports.render")], "reports.py:7")
    (text,) = sentences(overview_of(runners=(runner(block=block), runner(id=8))))
    assert text == (
        "web-3:4117 is blocked for 12s: reports.render (task 41) blocks the event loop; make it a plain function, "
        'or use executor="process"'
    )
    (text,) = sentences(overview_of(runners=(runner(block=block._replace(locked=True)),)))
    assert text.endswith(
        'probably C code of reports.render (task 41) holds the interpreter lock; use executor="process"'
    )
    assert not any("blocks" in text for text in sentences(overview_of(runners=(runner(block=block, lease=-1.0),))))


def test_one_handler_that_holds_all_slots_is_named_before_the_queues_behind_it() -> None:
    slots = {7: {"billing.charge": 7, "smtp.send": 1}}
    first, second = sentences(overview_of(BEHIND, runners=(runner(running_tasks=8),), slots=slots))
    assert first == "billing.charge holds 7 of 8 async slots: 18,240 ready tasks wait in mail"
    assert second.startswith("mail falls behind")


@pytest.mark.parametrize(
    ("slots", "threads", "pool"),
    [
        ({"h": 2}, 2, "h holds 2 of 2 thread slots"),  # the six free async slots do not help
        ({"a": 6}, 2, "a holds 6 of 6 async slots"),
        ({"h": 3}, 2, "h holds 2 of 2 thread slots"),  # one of them is claimed ahead, and waits for a slot
        ({"h": 1, "a": 5}, 2, None),
        ({"a": 3, "b": 3}, 2, None),  # full, but of several handlers
    ],
)
def test_threads_and_async_slots_are_full_apart(slots: dict[str, int], threads: int, pool: str | None) -> None:
    one = runner(threads=threads, threaded=("h",))
    texts = sentences(overview_of(queue(ready=Count(5)), runners=(one,), slots={7: slots}))
    assert [text.partition(":")[0] for text in texts] == ([pool] if pool else [])


def test_a_runner_that_fails_nearly_everything_is_named() -> None:
    failing = {"h": Flow(retried=58, succeeded=2)}
    overview = overview_of(queue(), runners=(runner(), runner(id=8, pid=1)))
    (alert,) = alerts_of(overview, {7: failing, 8: {"h": Flow(succeeded=90, retried=10)}})
    assert alert.sentence == ("web-3:4117 fails nearly everything: 58 of 60 attempts in 10 min; on other runners 10 %")
    everywhere = {7: failing, 8: {"h": Flow(retried=90, succeeded=10)}}
    assert (alerts_of(overview, everywhere)) == []


def test_a_runner_with_the_failing_handlers_alone_is_not_at_fault() -> None:
    overview = overview_of(queue(), runners=(runner(), runner(id=8, pid=1)))
    mixed = {"h": Flow(retried=40), "mail.send": Flow(succeeded=400)}
    for own in ({"h": Flow(retried=60)}, {"h": Flow(retried=60), "mail.send": Flow(succeeded=1)}):
        assert (alerts_of(overview, {7: own, 8: mixed})) == []
    assert (alerts_of(overview, {7: {"h": Flow(retried=60)}, 8: {"mail.send": Flow(succeeded=400)}})) == []
    (alert,) = alerts_of(overview, {7: {"mail.send": Flow(retried=60)}, 8: mixed})
    assert alert.title == "web-3:4117 fails nearly everything"


@pytest.mark.parametrize("mended", [{"arrived": Count(170)}, {"oldest": 4.0}, {"ready": Count(20)}])
def test_a_queue_that_keeps_up_is_not_behind(mended: dict[str, object]) -> None:
    assert not BEHIND._replace(**mended).falls_behind  # type: ignore[arg-type] # the test knows the fields


def test_dead_tasks_are_counted_by_handler() -> None:
    dead = {"pay": Count(4), "mail": Count(1), "\x1b[31m": Count(1), "other": Count(1)}
    (alert,) = attention(AlertFacts(overview_of(queue()), SlowFacts(dead=dead)))
    assert alert.sentence == "7 tasks died in the last hour: pay 4, mail 1, \u241b[31m 1, 1 more (threshold 0)"


@pytest.mark.parametrize(
    ("flows", "counted"),
    [
        ({3: Flow(retried=420)}, "420 of 420 attempts"),
        ({7: Flow(succeeded=9), 3: Flow(retried=10), 1: Flow(died=1)}, "11 of 20 attempts"),
        ({3: Flow(retried=11, succeeded=12)}, None),  # most go well
        ({3: Flow(retried=10)}, None),  # too few for a rate
        ({11: Flow(retried=420)}, None),  # that is over
        ({3: Flow(retried=420), 1: Flow(succeeded=2, retried=1)}, None),  # that is mended
    ],
)
def test_an_outage_is_told_before_anything_is_dead(flows: dict[int, Flow], counted: str | None) -> None:
    pulses = {"mail": [MinuteFlow(AT - timedelta(minutes=ago), flow) for ago, flow in flows.items()]}
    texts = sentences(overview_of(pulses=pulses, diagnoses=Diagnoses(errors={"mail": "OSError"})))
    alerts_found = [line.partition(", ") for line in texts if "is failing" in line]
    assert [text for text, _, _ in alerts_found] == ([f"mail is failing: {counted} in 10 min"] if counted else [])
    assert all(re.fullmatch(r"since 13:\d\d: OSError", rest) for _, _, rest in alerts_found)


def test_an_outage_names_the_deploy_just_before_it() -> None:
    begin = AT - 9 * MINUTE
    flows = [MinuteFlow(begin - MINUTE, Flow(succeeded=50)), MinuteFlow(begin, Flow(retried=80))]
    versions = {"4.11": AT - timedelta(days=3), "4.12": begin - timedelta(minutes=4), "4.13": AT}
    runners = tuple(runner(version=name, started_at=at) for name, at in versions.items())
    (text,) = sentences(overview_of(pulses={"mail": flows}, runners=runners))
    assert text == f"mail is failing: 80 of 80 attempts in 10 min, since {begin:%H:%M}, 4m after deploy 4.12"


def test_probes_and_a_canary_that_succeed_do_not_end_an_outage() -> None:
    begin = AT - 25 * MINUTE
    healthy = [MinuteFlow(begin - ago * MINUTE, Flow(succeeded=50, retried=1)) for ago in range(1, 30)]
    outage = [MinuteFlow(begin + ago * MINUTE, Flow(retried=80)) for ago in range(22)]
    probes = [MinuteFlow(AT - 2 * MINUTE, Flow(succeeded=1)), MinuteFlow(AT - MINUTE, Flow(retried=1))]
    versions = {"4.11": AT - timedelta(days=3), "4.12": begin - timedelta(minutes=2), "4.13": AT - 3 * MINUTE}
    runners = tuple(runner(version=name, started_at=at) for name, at in versions.items())
    (text,) = sentences(overview_of(pulses={"mail": healthy + outage + probes}, runners=runners))
    assert text.endswith(f"since {begin:%H:%M}, 2m after deploy 4.12")  # not after 4.13


async def test_what_a_queue_fails_with_is_what_it_failed_with_most(database: Database) -> None:
    for fence, error in enumerate(("OSError", "OSError", "KeyError"), start=1):
        await add_attempt(database, 7, fence, queue="mail", error_type=error, fingerprint=error)
    await add_attempt(database, 8, 9, queue="other", error_type="KeyError", fingerprint="KeyError")
    assert (await database.read(diagnoses, (), ("mail",))).errors == {"mail": "OSError"}


def test_many_full_queues_share_what_is_counted() -> None:
    full = queue(ready=Count(1_000, more=True))
    assert depth(None) == depth(overview_of(queue(), full)) == SHALLOW
    assert [depth(overview_of(*[full] * number)) for number in (5, 10, 1_000)] == [1_000, 500, SHALLOWEST]


def test_the_last_hour_is_read_as_a_whole_every_minute_and_where_the_clock_was_set_back() -> None:
    moments = [AT, AT + timedelta(seconds=59), AT + MINUTE, AT - timedelta(seconds=1)]
    assert [is_stale(overview_of(), at) for at in moments] == [False, False, True, True]


def test_fresh_minutes_take_the_place_of_those_that_were_kept() -> None:
    def flows(*agos: int, died: int) -> list[MinuteFlow]:
        return [MinuteFlow(AT - timedelta(minutes=ago), Flow(died=died)) for ago in agos]

    kept = {"mail": flows(61, 5, 2, died=1), "old": flows(61, died=1)}
    fresh = {"mail": flows(2, 0, died=2), "new": flows(0, died=2)}
    both = joined(kept, fresh, AT - HOUR, AT - timedelta(minutes=3))
    assert both == {
        "mail": [*flows(5, died=1), *flows(2, 0, died=2)],
        "old": [],
        "new": flows(0, died=2),
    }


async def test_looking_again_tells_what_has_happened_since(database: Database) -> None:
    async def look_twice(present: datetime) -> tuple[Overview, Overview]:
        async def ends(ago: int, number: int) -> None:
            minute = Minute(present - timedelta(minutes=ago), "mail", "h")
            minute.counts["succeeded"] = number
            await database.write(write_statistics, 1, [minute], {})

        await ends(30, 1)
        await ends(1, 2)
        first = await database.read(read_overview)
        await ends(30, 5)
        await ends(1, 3)
        return first, await database.read(read_overview, first)

    first, again = await within_a_minute(database, look_twice)
    assert [flow.flow.succeeded for flow in first.hour] == [1, 2]
    assert [flow.flow.succeeded for flow in again.hour] == [1, 5]
    assert again.whole == first.whole


def test_a_silent_runner_is_told_before_it_is_lost() -> None:
    runners = (
        runner(heartbeat_age=5.0, lease=10.0),
        runner(heartbeat_age=9.0, lease=6.0),
        runner(heartbeat_age=41.0, lease=-26.0),
        runner(heartbeat_age=9.0, lease=6.0, running_tasks=0),
    )
    assert sentences(overview_of(runners=runners)) == [
        "web-3:4117 is silent for 9s: rescue of 3 tasks in 6s",
        "web-3:4117 is lost: no heartbeat for 41s, holds 3 tasks",
        "web-3:4117 is silent for 9s: holds no task",
    ]


def test_the_texts_of_deploys_and_breakers_come_before_those_of_pauses() -> None:
    deploys = {"4.11": AT - timedelta(days=3), "4.12": AT - 20 * MINUTE}
    pauses = {"reports": Pause(AT - 15 * MINUTE, None, "ana", None)}
    state = OpenBreaker(1, 18.0, 60.0, opened_at=AT - 14 * MINUTE)
    events = overview_panels.marks(deploys, pauses, [BreakerRow("pay", None, state, AT)])
    assert [mark.text for mark in events] == ["deploy 4.12", "breaker opens", "reports paused"]


def test_many_silent_runners_are_one_line() -> None:
    silent = [runner(id=number, pid=number, heartbeat_age=9.0, lease=6.0) for number in range(1, 5)]
    lost = runner(id=5, pid=5, heartbeat_age=41.0, lease=-1.0)
    (text,) = sentences(overview_of(runners=(runner(), *silent, lost)))
    assert text == "5 runners are silent: 1 lost, 15 tasks held: web-3:1, web-3:2, web-3:3, 2 more"


def test_an_open_breaker_names_its_reason_before_the_next_probe() -> None:
    state = OpenBreaker(1, 18.0, 60.0, since="22m", why="12 failures in 1m")
    overview = overview_of(runners=(runner(),), breakers=(BreakerRow("pay", None, state, AT),))
    text = "the breaker of pay is open: opened 22m ago: 12 failures in 1m; next probe in 18s"
    assert sentences(overview) == [text]
    view = View(overview, None, tuple(alerts_of(overview)), UTC, ("1 h", 60), True)
    _, row = overview_panels.attention(view, 80, 3)
    assert "opened 22m ago: 12 failures in 1m; next p…" in plain([row])


def test_figures_of_more_queues_than_are_listed_are_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Flow(succeeded=1)
    queues = [queue(name, ready=Count(3), dead=Count(2), oldest=1.0, minute=one) for name in ("a", "b")]
    pulses = {name: [MinuteFlow(AT.replace(second=0) - timedelta(minutes=1), one)] for name in ("a", "b", OTHERS)}
    view = View(overview_of(*queues, pulses=pulses), None, (), UTC, ("1 h", 60), False)
    assert plain(overview_panels.figures(view, 160)[1:]).split()[0] == "6"
    monkeypatch.setattr("runner.queries.overview.MOST_QUEUES", 2)
    ready, _, done, _, dead, oldest = plain(overview_panels.figures(view, 160)[1:]).split("│")
    assert (ready.split(), dead.split()[0], oldest.split()[0]) == (["6+"], "4+", "1s+")
    assert sentences(view.data)[0].startswith("No runner is alive: 6+ tasks wait; ")
    assert done.split()[0] == "3", "the statistics cover all queues"


def test_what_nobody_takes_and_what_is_paused_is_told() -> None:
    pause = Pause(AT - timedelta(minutes=22), AT + timedelta(minutes=60), "ana", "restore of db-2")
    overview = overview_of(
        queue("reports", paused=pause),
        unknown=(HandlerWithoutRunner("ghost.run", ("mail",), 61.0, None),),
        handlers={"a.b": pause._replace(until=None, why=None)},
        runners=(runner(),),
    )
    assert sentences(overview) == [
        "no live runner takes ghost.run: due for 1m01s, queue mail",
        "reports is paused: until 14:30, by ana 22m ago: restore of db-2",
        "handler a.b is paused: until resumed, by ana 22m ago",
    ]
    assert empty_in(overview.queues[0]).text == "paused"
    assert (
        empty_in(overview.queues[0], overview.pause_end(overview.queues[0], UTC)).text
        == f"‖ {AT + timedelta(hours=1):%H:%M}"
    )
    assert overview.pause_end(queue(paused=pause._replace(until=AT + timedelta(days=3))), UTC) == "23 Nov"


def test_a_handler_without_a_runner_is_named_before_the_queue_that_waits_for_it() -> None:
    waiting = BEHIND._replace(minute=Flow())
    ghost = HandlerWithoutRunner("ghost.run", ("mail",), 61.0, None)
    failing = {"sms": [MinuteFlow(AT - MINUTE, Flow(retried=20))]}
    overview = overview_of(waiting, queue("sms"), unknown=(ghost,), runners=(runner(),), pulses=failing)
    first, second = alerts_of(overview)
    assert first.sentence == "no live runner takes ghost.run: due for 1m01s, queue mail: 18,240 ready, none ends"
    assert (first.role, second.title) == ("dead", "sms is failing")
    fresh = overview._replace(unknown=(ghost._replace(due=59.0),))
    assert [alert.role for alert in alerts_of(fresh)] == ["dead", "retrying"]
    others_end = overview._replace(queues=(BEHIND,))
    assert any("mail falls behind" in text for text in sentences(others_end))


def test_a_queue_without_a_runner_for_its_handler_is_listed_first() -> None:
    queues = [queue("a", minute=Flow(succeeded=1)), queue("z", ready=Count(3))]
    ghost = HandlerWithoutRunner("ghost.run", ("z",), 61.0, None)
    assert names_in_order(overview_of(*queues, unknown=[ghost])) == ["z", "a"]
    assert names_in_order(overview_of(*queues, unknown=[ghost._replace(due=59.0)])) == ["a", "z"]


def test_a_failing_queue_is_listed_before_queues_that_fall_behind() -> None:
    queues = [BEHIND._replace(queue="a"), BEHIND._replace(queue="b"), queue("z")]
    assert names_in_order(overview_of(*queues)) == ["a", "b", "z"]
    failing = {"z": [MinuteFlow(AT, Flow(retried=12, succeeded=1))]}
    assert names_in_order(overview_of(*queues, pulses=failing)) == ["z", "a", "b"]


LONG_ALERT = Attention(
    "dead",
    "payments-of-the-european-shops is failing",
    "810 of 900 attempts in 10 min, since 13:22: ConnectionResetError, 4m after deploy 4.12; falls behind: 210 in",
    "4",
    "failures",
    "payments-of-the-european-shops",
)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (60, "▌ ✗ payments-of-the… is failing  810 of 900 attempts…"),
        (80, "▌ ✗ payments-of-the-european-s… is failing  810 of 900 attempts in 10 min…"),
        (110, "▌ ✗ payments-of-the-european-shops is failing  810 of 900 attempts in 10 min, since 13:22…"),
    ],
)
def test_a_narrow_alert_keeps_its_figures_and_its_key_and_loses_its_last_clauses(width: int, shown: str) -> None:
    view = View(overview_of(), None, (LONG_ALERT,), UTC, ("1 h", 60), True)
    row = overview_panels.attention(view, width, 3)[1]
    assert re.fullmatch(rf"{re.escape(shown)} +4(  failures)?", plain([row]))
    assert width_of(row) == width


def test_when_a_queue_is_empty_is_short() -> None:
    assert empty_in(BEHIND).text == "never"
    assert empty_in(queue()).text == ""
    still = BEHIND._replace(arrived=Count(1), minute=Flow(succeeded=900), ready=Count(3))
    assert (empty_in(still).text, empty_in(still, stopped=True).text) == ("0.2s", "no runner")
    assert empty_in(still, unclaimed=True).text == "0.2s"  # other handlers of the queue have runners
    stuck = queue(ready=Count(5), oldest=12.0)
    assert (empty_in(stuck).text, empty_in(stuck, unclaimed=True).text) == ("steady", "no runner")
    assert empty_in(queue(ready=Count(5), arrived=Count(9), minute=Flow(succeeded=9), oldest=12.0)).text == "steady"
    going = BEHIND._replace(minute=Flow(succeeded=400), ready=Count(10_000, True))
    assert empty_in(going).text == ">52m37s"
    assert BEHIND.empty_in == inf


def test_a_late_queue_in_which_nothing_ends_is_never_empty_at_this_rate() -> None:
    stuck = queue(ready=Count(287), oldest=182.0)
    assert (empty_in(stuck).text, empty_in(stuck._replace(oldest=12.0)).text) == ("never", "steady")


def test_arrivals_that_are_a_lower_bound_give_one_of_the_time_until_a_queue_is_empty() -> None:
    going = BEHIND._replace(minute=Flow(succeeded=400), arrived=Count(210, True))
    assert empty_in(going).text == ">1h36m"
    soon = going._replace(ready=Count(2))
    assert empty_in(soon).text == "0.3s"
    assert empty_in(queue(ready=Count(5), arrived=Count(9, True), minute=Flow(succeeded=9), oldest=70.0)).text == ""


def test_a_line_has_both_rates_and_the_last_hour() -> None:
    row = queue_line(BEHIND._replace(arrived=Count(1234, True), running=Count(4)), [0, 1, 2], slots=16)
    cells = [cell.text for cell in row.cells]
    assert "1.23k+" in cells
    assert "180" in cells
    assert "4/16" in cells
    assert cells[-1] == "▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁"
    assert queue_line(BEHIND, [0, 10, 20]).cells[-1].text == "▁▁▁▁▁▄▄▄▄▄▇▇▇▇▇"


def test_the_wait_of_a_queue_grows_while_nothing_starts() -> None:
    minute = AT.replace(second=0)
    measured = {"mail": {minute - 3 * MINUTE: 500.0, minute - 50 * MINUTE: 2.0, minute - 90 * MINUTE: 9.0}}
    since = (AT - minute).total_seconds()
    overview = overview_of(BEHIND)._replace(waits=measured)
    waits = overview.waits_of(BEHIND._replace(oldest=300.0 + since))
    assert len(waits) == 60
    assert waits[-6:] == [0.0, 60.0, 120.0, 500.0, 240.0, 300.0]
    assert (waits[10], sum(waits[:10])) == (2.0, 0)
    assert overview.waits_of(queue("other")) == [0.0] * 60


def test_full_slots_are_amber_only_if_a_task_waits_for_more_than_a_minute() -> None:
    for oldest, role in ((None, "running"), (59.0, "running"), (61.0, "retrying")):
        cells = queue_line(queue(running=Count(8), oldest=oldest), slots=8).cells
        assert {spec for _, spec in cells[7].parts or ()} == {role}


def test_a_short_wait_is_low_and_a_long_one_has_the_colour_of_trouble() -> None:
    assert queue_line(queue(), [1.0] * 60).cells[-1].text == "▁" * 15
    assert queue_line(queue(), [9.0] * 60).cells[-1].text == "▆" * 15
    specs = [spec for _, spec in queue_line(BEHIND, [60.0] * 60).cells[-1].parts or ()]
    assert specs == ["trouble@31"]


def test_minutes_of_several_queues_add_up() -> None:
    minute = AT.replace(second=0)
    flows = [MinuteFlow(minute, Flow(succeeded=2)), MinuteFlow(minute, Flow(succeeded=3))]
    assert per_minute(flows, AT, lambda flow: flow.succeeded, 3) == [0, 0, 5]


async def test_an_answer_is_kept_for_its_time_and_its_question() -> None:
    now, asked = [100.0], []
    recall = TtlCache[int](10.0, lambda: now[0])

    async def ask() -> int:
        asked.append(now[0])
        return len(asked)

    assert [await recall.get("a", ask), await recall.get("a", ask), await recall.get("b", ask)] == [1, 1, 2]
    now[0] = 109.9
    assert await recall.get("b", ask) == 2
    now[0] = 110.0
    assert await recall.get("b", ask) == 3


async def test_an_answer_is_kept_longer_the_longer_it_took() -> None:
    now = [100.0]

    async def ask() -> float:
        now[0] += 2.0
        return now[0]

    for share, seconds in ((10, 20.0), (100, LONGEST_VALIDITY)):
        recall = TtlCache[float](10.0, lambda: now[0], share)
        first = await recall.get(None, ask)
        now[0] = first + seconds - 0.1
        assert await recall.get(None, ask) == first
        now[0] = first + seconds
        assert await recall.get(None, ask) > first


@ON_ONE_DATABASE
async def test_a_quiet_overview_names_the_next_schedule_and_the_last_change(database: Database, watch: Watch) -> None:
    await add_runner(database)
    async with watch("overview") as operator:
        await operator.sees("Nothing.")
        assert "Next schedule" not in operator.text
    await database.write(add_schedule, "carts.remind", ScheduleSpec("h", "every 30d"), Actor("ana", "desk"))
    await database.write(tick)
    async with watch("overview", NARROW) as operator:
        await operator.sees("Nothing.", "Next schedule: carts.remind in ", ". Last change: ana, ")
    await database.write(add_schedule, "mail.digest", ScheduleSpec("h", "every 60d"), Actor("ana", "desk"))
    await database.write(tick)
    late = database.tables.schedule.c.id == "carts.remind"  # Its tick has come, and no runner has submitted it yet.
    await change(database, sa.update(database.tables.schedule).where(late).values(next_at=ahead(-1)))
    async with watch("overview", NARROW) as operator:
        await operator.sees("Next schedule: mail.digest in ")


@ON_ONE_DATABASE
async def test_a_cheap_count_of_many_tasks_is_a_few_seconds_old_at_most(database: Database, watch: Watch) -> None:
    tasks = [{"handler": "h", "queue": "mail", "submitted_at": ahead(-600)}] * (SHALLOW + 500)
    await change(database, sa.insert(database.tables.task).values(tasks))
    async with watch("overview") as operator:
        now = [100.0]
        operator.screen._backlog_cache._clock = lambda: now[0]  # reading the tasks takes no time
        operator.screen._backlog_cache._entry = None
        await operator.sees(" 1,500 ")
        await add_live(database, "h", queue="mail")
        now[0] += 3.0
        await operator.sees(" 1,501 ")


@pytest.fixture
async def busy(database: Database) -> None:
    """A queue into which three tasks came for each that ended, in this minute as in the last: it may turn by then."""
    present = (await database.read(clock)).replace(second=0, microsecond=0)
    for ago in (0, 1):
        minute = Minute(present - timedelta(minutes=ago), "mail", "h")
        minute.counts |= {"succeeded": 1, "died": 1}
        await database.write(write_statistics, 1, [minute], {})
        for _ in range(6):
            await add_live(database, queue="mail", submitted_at=minute.minute, run_at=ahead(-100))


@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_a_queue_that_falls_behind_is_seen(busy: None, watch: Watch, size: tuple[int, int]) -> None:
    async with watch("overview", size) as operator:
        await operator.sees("DRAINED", "No runner is alive")
        assert "LAST HOUR" in operator.text
        assert ("OUT/MIN" in operator.text) is (size == WIDE)


@ON_ONE_DATABASE
async def test_all_plots_are_shown_beside_a_single_queue(
    busy: None, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    views: list[View] = []
    lower = OverviewScreen._lower

    def seen_lower(screen: OverviewScreen, view: View, width: int, room: int, queues: int) -> list[Row]:
        views.append(view)
        return lower(screen, view, width, room, queues)

    monkeypatch.setattr(OverviewScreen, "_lower", seen_lower)
    async with watch("overview", WIDE) as operator:
        await operator.until(lambda: views)
        for room in range(12, 34):
            rows = lower(operator.screen, views[-1], WIDE[0], room, 1)
            text = "\n".join("".join(part[0] for part in row) for row in rows)
            assert ("THROUGHPUT" in text, "RUN TIME" in text, len(rows) <= room - 2) == (True, True, True), room


@ON_ONE_DATABASE
async def test_a_screen_that_becomes_wide_reads_the_failures_at_once(busy: None, watch: Watch) -> None:
    async with watch("overview", NARROW) as operator:
        await operator.until(lambda: operator.screen._slow is not None and not operator.screen.feed.looking)
        operator.screen.feed.next = inf
        await operator.pilot.resize_terminal(200, 60)
        await operator.sees("no attempt failed in the last hour")


@ON_ONE_DATABASE
async def test_the_plots_go_back_a_day_on_request(busy: None, watch: Watch) -> None:
    async with watch() as operator:
        await operator.until(lambda: operator.screen._slow is not None)
        await operator.press("s")
        await operator.until(lambda: operator.screen._snapshot.flows)
        await operator.press("s")
        await operator.until(lambda: not operator.screen._snapshot.flows)


def test_what_was_counted_further_stands_where_counting_stopped_early() -> None:
    few, cut, far = Count(3), Count(1_000, True), Count(7_000)
    shallow = [queue("mail")._replace(ready=cut, retrying=few), queue("slow")._replace(ready=cut)]
    mail, slow = deepened(shallow, {"mail": WaitingCounts(far, Count(), Count(9_999))})
    assert (mail.ready, mail.retrying) == (far, few)
    assert slow.ready == cut


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_most_queues_are_shown_before_the_lower_plots(database: Database, watch: Watch) -> None:
    for pid in range(6):
        await add_runner(database, 1e6, handlers='["h"]', capacity=4, pid=pid)
    for number in range(20):
        await add_live(database, queue=f"queue-{number:02}")
    for size, slots in ((NARROW, "0/24"), ((100, 30), "of 24"), (WIDE, "of 24 slots")):
        async with watch("overview", size) as operator:
            await operator.sees("queue-00", "20 queues", slots)
            assert sum(line.strip("▌ ").startswith("queue-") for line in operator.text.splitlines()) >= 8


@ON_ONE_DATABASE
@pytest.mark.parametrize("size", [NARROW, *(pytest.param(size, marks=pytest.mark.slow) for size in (WIDE, (200, 60)))])
async def test_an_empty_database_gets_the_first_steps(database: Database, watch: Watch, size: tuple[int, int]) -> None:
    async with watch("overview", size, profile="orders") as operator:
        await operator.sees(
            "Nothing yet.", "START HERE", "runner demo --keep-running --profile orders", ":submit HANDLER"
        )
        assert "QUEUES" not in operator.text
        assert "THROUGHPUT" not in operator.text
        await add_live(database, queue="mail")
        await operator.sees("QUEUES", "mail")
        assert "START HERE" not in operator.text
        await operator.press("enter")
        await operator.sees("queue:mail")
        await operator.press("enter")
        await operator.sees("3 Task", "version 0")
        await operator.press("escape")
        await operator.sees("queue:mail")
        await operator.press("slash", "escape")  # The first one leaves the filter.
        await operator.until(lambda: operator.screen.focused is operator.screen.table)
        assert operator.screen.title == "Tasks"
        await operator.back("Overview")
        await operator.press("2")
        await operator.sees("queue:mail")
        await operator.press("escape")
        assert operator.screen.title == "Tasks"


def test_production_is_not_invited_to_run_sample_tasks() -> None:
    settings = Settings(profile="shop", production=True)
    text = plain(start_here(settings, 80))
    assert "runner demo" not in text
    assert "1  Run the handlers of your module" in text
    assert "runner demo" in plain(start_here(settings.model_copy(update={"production": False}), 80))


@ON_ONE_DATABASE
@pytest.mark.parametrize("size", [NARROW, *(pytest.param(size, marks=pytest.mark.slow) for size in (WIDE, (200, 60)))])
async def test_a_quiet_overview_has_no_colour_of_trouble(
    database: Database, watch: Watch, size: tuple[int, int]
) -> None:
    await add_runner(database, 1e6, handlers='["h"]', capacity=24)
    present = await database.read(clock)
    for ago in range(1, 30):
        minute = Minute(present - timedelta(minutes=ago), "mail", "h")
        minute.counts |= {"submitted": 20, "succeeded": 20}
        await database.write(write_statistics, 1, [minute], {})
    await add_live(database, queue="mail")
    async with watch("overview", size) as operator:
        await operator.sees("Nothing. 1 runner alive", "mail", "20")
        await operator.until(lambda: operator.screen._slow is not None)
        trouble = {theme.style(role).color for role in ("dead", "retrying", "lost", "paused")}
        strips = operator.console.screen._compositor.render_strips()
        used = {
            part
            for strip in strips
            for each in strip
            if each.text.strip() and each.style
            for part in (each.style.color, each.style.bgcolor)
        }
        assert not used & trouble


def test_without_traffic_the_queue_with_the_most_waiting_tasks_comes_first() -> None:
    idle = [
        queue("a"),
        queue("b", ready=Count(3), oldest=60.0),
        queue("c", ready=Count(3), oldest=900.0),
        queue("d", ready=Count(7), oldest=1.0),
        queue("e", lost=Count(1)),
    ]
    assert names_in_order(overview_of(*idle)) == ["e", "d", "c", "b", "a"]
    assert names_in_order(overview_of(*idle, queue("f", minute=Flow(succeeded=1)))) == ["e", "a", "b", "c", "d", "f"]


def test_the_dead_tasks_of_the_last_hour_are_unknown_until_they_are_read() -> None:
    overview = overview_of(queue(dead=Count(9)))
    slow = Background(AT, facts=SlowFacts(dead={"pay": Count(2), "mail": Count(1)}))
    for found, shown in ((None, ""), (Background(AT), "none in 1 h"), (slow, "+3 in 1 h")):
        text = plain(overview_panels.figures(View(overview, found, (), UTC, ("", 60), False), 120))
        assert re.search(rf"│ 9 {{2,}}{re.escape(shown)} *│", text), text
    slow = Background(AT, facts=SlowFacts(dead={"pay": Count(2_400)}))
    many = View(overview_of(queue(dead=Count(2_454))), slow, (), UTC, ("", 60), False)
    assert re.search(r"│ 2,454  \+2\.4k / h +│", plain(overview_panels.figures(many, 120)))


def test_a_bound_is_no_figure_while_the_count_is_read() -> None:
    full = queue(ready=Count(1_000, True), scheduled=Count(0, True), retrying=Count(3), minute=Flow(succeeded=900))
    for counted, shown in (
        (False, ["reading", "reading", "3", ""]),
        (True, ["1,000+", "", "3", ">1m06s"]),
    ):
        cells = [cell.text for cell in queue_line(full, slots=4, counted=counted).cells]
        assert [*cells[1:4], cells[12]] == shown
        view = View(overview_of(full), None, (), UTC, ("1 h", 60), False, counted=counted)
        text = plain(overview_panels.figures(view, 120)[1:])
        assert text.strip().startswith(shown[0])


def test_a_figure_far_above_the_usual_one_names_that_one() -> None:
    flows = [MinuteFlow(AT.replace(second=0) - ago * MINUTE, Flow(succeeded=2)) for ago in range(2, 60)]
    flows.append(MinuteFlow(AT.replace(second=0) - MINUTE, Flow(succeeded=900)))
    overview = overview_of(queue(minute=Flow(succeeded=900)), pulses={"mail": flows})
    assert "900  usual 17" in plain(overview_panels.figures(View(overview, None, (), UTC, ("1 h", 60), False), 120))


@pytest.mark.parametrize(("before", "shown"), [(0, "14"), (3, "0")])
def test_the_first_minute_counts_at_once_and_an_idle_one_is_zero(before: int, shown: str) -> None:
    counts = {0: 14, 9: before}
    flows = [MinuteFlow(AT.replace(second=0) - ago * MINUTE, Flow(succeeded=done)) for ago, done in counts.items()]
    view = View(overview_of(queue(), pulses={"mail": flows}), None, (), UTC, ("1 h", 60), False)
    assert plain(overview_panels.figures(view, 120)).splitlines()[1].split("│")[2].split()[0] == shown
    assert view.minutes("succeeded")[-1] == int(shown)
    assert ("14 / min" in plain(overview_panels.throughput(view, 70, 4))) == (shown == "14")


def test_an_installation_is_empty_only_once_its_schedules_are_read() -> None:
    view = View(overview_of(), None, (), UTC, ("1 h", 60), False)
    assert (view.is_empty, replace(view, slow=Background(AT)).is_empty) == (False, True)


def test_the_run_times_are_empty_only_once_they_are_read() -> None:
    nothing = "no attempt ended in the last hour"
    view = View(overview_of(), None, (), UTC, ("1 h", 60), False)
    unread, read = (plain(overview_panels.run_time(each, 80, 8)) for each in (view, replace(view, slow=Background(AT))))
    assert (nothing in unread, nothing in read) == (False, True)


def test_the_run_times_follow_the_first_minute_and_are_not_called_empty_before() -> None:
    began = overview_of(pulses={"mail": [MinuteFlow(AT, Flow(succeeded=3))]})
    rows = plain(overview_panels.run_time(View(began, Background(AT), (), UTC, ("1 h", 60), False), 80, 8))
    assert "shown after a full minute" in rows
    assert "no attempt ended" not in rows


@pytest.mark.parametrize(
    ("p95", "before", "slower"), [(0.0023, 0.0002, False), (0.3, 0.1, True), (0.19, 0.1, False), (0.3, None, False)]
)
def test_a_slowdown_of_milliseconds_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, p95: float, before: float | None, slower: bool
) -> None:
    monkeypatch.setattr(Background, "latest", (p95 / 2, p95, before))
    assert Background(AT).is_slower is slower


@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
async def test_tasks_blocked_by_a_dead_task_need_attention(
    database: Database, watch: Watch, size: tuple[int, int]
) -> None:
    parent = await add_past(database, 5, State.DEAD)
    blocked = await database.write(submit, NewTask("mail.send", after=(DependsOn(parent),)))
    async with watch("overview", size) as operator:
        await operator.sees("1 task blocked by failed tasks", f"{blocked} waits for {parent}; R retries, U unblocks")
    await database.write(unblock, [Target(blocked)], Actor("ana", "desk"))
    async with watch("overview", size) as operator:
        await operator.until(lambda: operator.screen._slow is not None)
        assert operator.screen._slow.facts.blocked is None


def test_figures_that_were_not_read_yet_are_named_so() -> None:
    view = View(overview_of(), None, (), UTC, ("1 h", 60), False)
    grown = replace(view, slow=Background(AT))  # A narrow screen, which has just become wide, has read no failures.
    unread = (
        side_panels.top_failures(view, 60),
        side_panels.top_failures(grown, 60),
        overview_panels.run_time(view, 60, 5),
    )
    for rows in unread:
        text = plain(rows)
        assert "reading" in text
        assert "in the last hour" not in text
    read = replace(view, slow=Background(AT, failures=()))
    assert "no attempt failed in the last hour" in plain(side_panels.top_failures(read, 60))


def test_the_number_of_problems_is_a_bound_while_figures_are_read() -> None:
    overview = overview_of(runners=(runner(lease=-40.0), runner(id=8)))
    view = View(overview, None, tuple(alerts_of(overview)), UTC, ("1 h", 60), False)
    assert "NEEDS ATTENTION 1+ reading " in plain(overview_panels.attention(view, 80, 3))
    read = replace(view, slow=Background(AT))
    assert "NEEDS ATTENTION 1 ─" in plain(overview_panels.attention(read, 80, 3))
