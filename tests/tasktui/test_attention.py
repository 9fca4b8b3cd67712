"""The list of all alerts: causes with their effects, on any screen."""

import re
from datetime import timedelta

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.transaction import clock
from runner.model.alert import Alert, AlertRule, Severity
from runner.model.schedule import ScheduleSpec
from runner.model.task import State
from runner.operations.pause import PauseKind, PauseTarget, pause
from runner.operations.results import Actor
from runner.operations.schedule import add_schedule, pause_schedule
from runner.policy.breaker import OpenBreaker
from runner.queries.alerts.causes import folded
from runner.queries.alerts.facts import AlertFacts, SlowFacts
from runner.queries.alerts.reading import current_alerts
from runner.queries.alerts.rules import alerts
from runner.queries.breakers import BreakerRow
from runner.queries.overview import Diagnoses
from runner.queries.registries import Pause
from runner.queries.reports import Flow, MinuteFlow
from tasktui.data.alerts import attention, read_alarm
from tasktui.dialogs.attention import AttentionChoice, AttentionScreen, problem_lines
from tasktui.widgets.table import Table
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead
from tests.store.table import change
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch
from tests.tasktui.test_overview import AT, overview_of, queue, runner

BY = Actor("ana", "desk")


def alert(rule: AlertRule, subject: str = "") -> Alert:
    return Alert(rule, subject, Severity.CRITICAL, f"{subject} {rule}", "", "")


def test_effects_are_below_their_cause() -> None:
    breaker = alert(AlertRule.BREAKER_OPEN, "charge")
    handler = alert(AlertRule.HANDLER_FAILING, "charge")
    queue, other = (alert(AlertRule.QUEUE_FAILING, name) for name in ("payments", "mail"))
    lost = alert(AlertRule.RUNNER_LOST, "web-3:7")
    flows = {("payments", "charge"): Flow(died=9), ("payments", "refund"): Flow(died=2), ("mail", "send"): Flow(died=9)}
    causes = folded([breaker, queue, other, handler, lost], AlertFacts(overview_of(), SlowFacts(flows=flows)))
    assert [(cause.alert, cause.effects) for cause in causes] == [(breaker, (queue, handler)), (other, ()), (lost, ())]


@ON_ONE_DATABASE
@pytest.mark.parametrize(
    ("size", "key", "shown"),
    [(NARROW, "enter", "5 Runners"), pytest.param(WIDE, "w", "Why are these tasks", marks=pytest.mark.slow)],
)
async def test_one_key_lists_all_alerts_on_any_screen(
    database: Database, watch: Watch, size: tuple[int, int], key: str, shown: str
) -> None:
    await add_live(database, queue="mail", run_at=ahead(-600))
    async with watch("reports", size) as operator:
        await operator.press("exclamation_mark")
        await operator.sees("▸ ✗ No runner is alive: 1 task waits", "enter goes there")
        await operator.press(key)
        await operator.sees(shown)
        assert operator.console.current_mode == ("runners" if key == "enter" else "reports")


def test_the_overview_and_the_list_word_an_alert_alike_and_fold_its_effects() -> None:
    """One breaker is one line, although its queue fails too."""
    opened = BreakerRow("charge", None, OpenBreaker(1, 16.0, 30.0, since="2m", why="502 Bad Gateway"), AT)
    minutes = [MinuteFlow(AT - timedelta(minutes=1), Flow(submitted=40, retried=40))]
    overview = overview_of(
        queue("payments"), breakers=(opened,), pulses={"payments": minutes}, runners=(runner(handlers=("charge",)),)
    )
    facts = AlertFacts(overview, SlowFacts(flows={("payments", "charge"): Flow(retried=40)}))
    assert len(list(alerts(facts))) == 2
    (line,) = attention(facts)
    assert line.sentence.startswith("the breaker of charge is open: opened 2m ago")
    assert line.summary == f"{line.text}; so payments is failing"
    assert len(attention(AlertFacts(overview))) == 2  # Without the results of handlers, the cause is unknown.


@ON_ONE_DATABASE
async def test_dead_tasks_have_one_number_and_one_wording(database: Database, watch: Watch) -> None:
    """Three died by the statistics of their minute; one of them was retried since."""
    for id, handler in ((1, "charge"), (2, "refund")):
        await add_past(database, id, State.DEAD, handler=handler, finished_at=ahead(-300))
    present = (await database.read(clock)).replace(second=0, microsecond=0)
    minute = Minute(present - timedelta(minutes=5), "default", "charge")
    minute.counts |= {"died": 3}
    await database.write(write_statistics, 1, [minute], {})
    (alert,) = await database.read(current_alerts)
    assert alert.sentence == "2 tasks died in the last hour: charge 1, refund 1 (threshold 0)"
    async with watch("overview") as operator:
        title, text = alert.title, alert.text
        await operator.sees(f"✗ {title}  {text}", "2  +2 in 1 h")
        await operator.press("exclamation_mark")
        await operator.sees(f"▸ ✗ {alert.sentence}")
        assert (await read_alarm(operator.console.session)).text == "! 1"


@ON_ONE_DATABASE
async def test_the_overview_the_list_and_the_badge_have_the_same_problems(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["h"]', lease=600)
    await add_live(database, "h", queue="mail", run_at=ahead(-900))
    row = {"host": "web-2", "pid": 41, "version": "1", "lost": True, "tasks": 3, "started_at": ahead(-900)}
    lost = database.tables.ended_runner.insert()
    await change(database, lost.values(runner_id=9, ended_at=ahead(-60), heartbeat_at=ahead(-90), **row))
    await database.write(add_schedule, "nightly", ScheduleSpec("h", "every 1h"), BY)
    await change(database, database.tables.schedule.update().values(next_at=ahead(-400)))
    await database.write(pause, PauseTarget(PauseKind.QUEUE, "legacy"), BY)
    await database.write(pause, PauseTarget(PauseKind.HANDLER, "a.b"), BY)
    titles = [
        "web-2:41 was lost",
        "queue mail is late",
        "schedule nightly is late",
        "legacy is paused",
        "handler a.b is paused",
    ]
    async with watch("overview", (120, 60)) as operator:
        await operator.sees("NEEDS ATTENTION 5 ")
        assert re.findall(r"▌ [◌!‖✗] (.*?)  ", operator.text) == titles
        await operator.press("exclamation_mark")
        await operator.sees("enter goes there")
        assert re.findall(r"[▸│] +[◌!‖✗] (.*?): ", operator.text) == titles
        assert (await read_alarm(operator.console.session)).text == "! 5"


@ON_ONE_DATABASE
async def test_paused_schedules_share_a_line_that_leads_to_them(database: Database, watch: Watch) -> None:
    await add_runner(database, lease=600)
    for name in ("books", "nightly"):
        await database.write(add_schedule, name, ScheduleSpec("h", "every 1h"), BY)
    await database.write(pause_schedule, "books", BY)
    async with watch("overview", NARROW) as operator:
        await operator.sees("NEEDS ATTENTION 1 ", "‖ schedule books is paused  until resumed, by ana")
        await database.write(pause_schedule, "nightly", BY)
        await operator.press("exclamation_mark")
        await operator.sees("▸ ‖ 2 schedules are paused: books, nightly; the first by ana")
        assert (await read_alarm(operator.console.session)).text == "‖ 1"
        await operator.press("enter")
        await operator.until(lambda: operator.screen.title == "Schedules")


@ON_ONE_DATABASE
async def test_the_list_resumes_the_paused_queue_or_handler_that_is_selected(database: Database, watch: Watch) -> None:
    await add_runner(database, lease=600)
    await add_live(database, "h", queue="busy", run_at=ahead(600))
    for kind, name in ((PauseKind.QUEUE, "legacy"), (PauseKind.HANDLER, "a.b")):
        await database.write(pause, PauseTarget(kind, name), BY)
    async with watch("overview") as operator:
        await operator.sees("legacy is paused", "handler a.b is paused", "!  all")
        assert "P  resume" not in operator.text
        await operator.press("exclamation_mark")
        await operator.sees("▸ ‖ legacy is paused", "P resume")
        await operator.press("P")
        await operator.sees("Resume", "queue legacy")
        await operator.press("escape", "exclamation_mark")
        await operator.sees("▸ ‖ legacy is paused")
        await operator.press("down")
        await operator.sees("▸ ‖ handler a.b is paused", "H resume")
        await operator.press("H")
        await operator.sees("Resume", "handler a.b")
        await operator.press("escape", "exclamation_mark", "enter")
        await operator.sees("2 Tasks", "queue:legacy")


@ON_ONE_DATABASE
async def test_action_keys_act_on_the_subject_of_an_alert(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["other"]', lease=600)
    await add_live(database, "smtp.send", queue="mail", run_at=ahead(-600))
    async with watch("reports", (80, 24)) as operator:
        await operator.press("exclamation_mark")
        await operator.sees("no live runner takes smtp.send", "enter goes there", "H pause", "Q silence")
        keys = re.search("w explains, (.*)", operator.text)
        assert keys
        assert re.findall(r"\b[A-Z]\b", keys[1]) == ["K", "H", "C", "Q"]
        await operator.press("H")
        await operator.sees("Pause", "handler smtp.send")
        await operator.press("escape", "exclamation_mark")
        await operator.sees("no live runner takes smtp.send")
        await operator.press("Q")
        await operator.sees("Silence", "handler-unclaimed")


@ON_ONE_DATABASE
async def test_an_action_of_a_dialog_may_follow_the_next_dialog(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail", run_at=ahead(-600))
    async with watch("reports") as operator:
        await operator.press("exclamation_mark")
        await operator.sees("▸ ✗ No runner is alive")
        dialog = operator.screen
        assert isinstance(dialog, AttentionScreen)
        dialog.dismiss(AttentionChoice(dialog._selected, action="alerts silence"))
        operator.console.action_attention()  # by a key in the same burst
        await operator.sees("Silence")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_enter_goes_to_the_largest_failure_group_of_the_queue(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["a", "b"]', lease=600)
    present = (await database.read(clock)).replace(second=0, microsecond=0)
    minute = Minute(present - timedelta(minutes=1), "mail", "b")
    minute.counts |= {"retried": 40}
    await database.write(write_statistics, 1, [minute], {})
    for place, handler, number in (("other", "a", 4), ("mail", "b", 3)):
        for _ in range(number):
            id = await add_live(database, handler, queue=place, attempt=1, fence=1, run_at=ahead(300))
            values = {"handler": handler, "queue": place, "ended_at": ahead(-30), "fingerprint": f"of {handler}"}
            await add_attempt(database, id, **values)
    async with watch("overview") as operator:
        await operator.press("exclamation_mark")
        await operator.sees("▸ ✗ mail is failing: 40 of 40 attempts")
        await operator.press("enter")
        await operator.until(lambda: operator.screen.title == "Failures")
        await operator.until(lambda: operator.screen.query_one("#groups", Table).cursor == "of b")


@ON_ONE_DATABASE
async def test_enter_goes_to_the_failures_of_the_handler(database: Database, watch: Watch) -> None:
    await add_runner(database, handlers='["a", "b"]', lease=600)
    for handler, number in (("a", 3), ("b", 1)):
        for _ in range(number):
            id = await add_live(database, handler, attempt=1, fence=1, run_at=ahead(300))
            await add_attempt(database, id, handler=handler, ended_at=ahead(-30), fingerprint=handler)
    values = {"breaker_probes": 1, "breaker_wait": 60.0, "breaker_round": 1, "breaker_probe_at": ahead(60)}
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.handler).values(name="b", breaker_opened_at=ahead(-200), **values))
    async with watch("overview") as operator:
        await operator.press("exclamation_mark")
        await operator.sees("▸ ✗ the breaker of b is open")
        await operator.press("enter")
        await operator.until(lambda: operator.screen.title == "Failures")
        await operator.until(lambda: operator.screen.query_one("#groups", Table).cursor == "b")


def test_the_list_of_problems_cuts_no_reason_and_no_effect() -> None:
    why = "the payment gateway answers 502 to every request since the deploy of version 4.12.0; the provider knows"
    opened = BreakerRow("charge", None, OpenBreaker(1, 16.0, 30.0, since="2m", why=why), AT)
    minutes = [MinuteFlow(AT - timedelta(minutes=1), Flow(submitted=40, retried=40))]
    paused = {"a.b": Pause(AT, None, "ana", why)}
    overview = overview_of(
        queue("payments"),
        breakers=(opened,),
        pulses={"payments": minutes},
        runners=(runner(handlers=("charge",)),),
        handlers=paused,
        diagnoses=Diagnoses(errors={"payments": f"GatewayTimeout: {why}"}),
    )
    problems = attention(AlertFacts(overview, SlowFacts(flows={("payments", "charge"): Flow(retried=40)})))
    text = " ".join(part.plain for part in problem_lines(problems, 60, 0))
    assert " ".join(text.split()).count(why) == 3
