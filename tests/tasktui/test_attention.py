"""The list of all alerts: causes with their effects, on any screen."""

import pytest

from runner.db.database import Database
from runner.model.alert import Alert, AlertRule, Severity
from runner.queries.alerts.facts import AlertFacts
from runner.queries.reports import Flow
from tasktui.data.alerts import folded
from tests.store.rows import add_live, ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch
from tests.tasktui.test_overview import overview_of


def alert(rule: AlertRule, subject: str = "") -> Alert:
    return Alert(rule, subject, Severity.CRITICAL, f"{subject} {rule}", "", "")


def test_effects_are_below_their_cause() -> None:
    breaker = alert(AlertRule.BREAKER_OPEN, "charge")
    handler = alert(AlertRule.HANDLER_FAILING, "charge")
    queue, other = (alert(AlertRule.QUEUE_FAILING, name) for name in ("payments", "mail"))
    lost = alert(AlertRule.RUNNER_LOST, "web-3:7")
    flows = {("payments", "charge"): Flow(died=9), ("payments", "refund"): Flow(died=2), ("mail", "send"): Flow(died=9)}
    causes = folded([breaker, queue, other, handler, lost], AlertFacts(overview_of(), flows=flows))
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
