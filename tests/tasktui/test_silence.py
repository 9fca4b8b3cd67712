"""An operator silences the first alert with a key, any alert with a command, and ends a silence the same way."""

from datetime import UTC, timedelta

import pytest

from runner.db.database import Database
from runner.model.alert import AlertRule, Silence
from runner.queries.alerts.facts import AlertFacts
from runner.queries.overview import Overview
from runner.queries.registries import Pause
from tasktui.data.alerts import attention
from tests.store.rows import add_live, ahead
from tests.tasktui.conftest import ON_ONE_DATABASE, Watch
from tests.tasktui.test_actions import confirm
from tests.tasktui.test_overview import AT, BEHIND, runner


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_first_alert_is_silenced_by_key_and_its_silence_ends(database: Database, watch: Watch) -> None:
    await add_live(database, "ghost.run", run_at=ahead(-100))
    async with watch("overview") as operator:
        await operator.sees("No runner is alive")
        await operator.press("Q")
        await operator.sees("Silence no-runner?", "It sends no notices")
        operator.screen.query_one("#answer").value = "2h"
        await confirm(operator, reason="the host moves")
        await operator.sees_notice("no-runner is silenced until")
        await operator.sees("‖ No runner is alive", "silenced until")
        await operator.press("exclamation_mark")
        await operator.sees("▸ ‖ No runner is alive: silenced until")
        await operator.press("escape", "8")
        await operator.sees("no-runner", "operation 1")
        await operator.press("Z")
        await operator.sees("silence reason none, now the host moves")
        await operator.press("escape", "1")
        await operator.sees("‖ No runner is alive")
        await operator.press("Q")
        await operator.sees("End the silence of no-runner?", "the host moves")
        await confirm(operator)
        await operator.sees_notice("no-runner sends its notices again")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_a_rule_is_silenced_by_command(database: Database, watch: Watch) -> None:
    async with watch("overview") as operator:
        await operator.command("silence no-runer 2h")
        await operator.sees_notice("no rule has the name 'no-runer', did you mean 'no-runner'")
        await operator.command("silence no-runner 2h the host moves")
        await confirm(operator)
        await operator.sees_notice("no-runner is silenced until")
        await operator.command("silence no-runner 3h")
        await operator.sees_notice("end that first with :silence no-runner")


@pytest.mark.parametrize("name", ["queue-behind", "queue-behind:mail"])
def test_silenced_alerts_follow_the_others_and_come_before_pauses(name: str) -> None:
    silence = Silence(name, AT + timedelta(hours=1), "ana", "known")
    paused = {"a.b": Pause(AT, None, "ana", None)}
    lost = runner(id=8, heartbeat_age=90.0, lease=-60.0)
    overview = Overview(AT, (BEHIND,), {}, (runner(), lost), (), paused, (), AT)
    lines = attention(AlertFacts(overview, zone=UTC), [silence])
    assert [line.alert.partition(":")[0] for line in lines] == [AlertRule.RUNNER_LOST, AlertRule.QUEUE_BEHIND, ""]
    assert lines[1].role == "paused"
    assert lines[1].text.startswith("silenced until 14:30; 210 in")
