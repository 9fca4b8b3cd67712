"""Many alerts of one rule are one notice; few are one each."""

from runner.alerts.evaluation import MOST_OF_RULE, grouped
from runner.model.alert import Alert, AlertRule, Severity

DEAD = Alert(AlertRule.TASKS_DEAD, "", Severity.CRITICAL, "3 tasks died", "", "runner failures")


def failing(number: int) -> list[Alert]:
    rule = AlertRule.HANDLER_FAILING
    return [Alert(rule, f"h{n}", Severity.CRITICAL, f"h{n} is failing", "9 of 9", "") for n in range(number)]


def test_few_alerts_of_a_rule_stay_apart() -> None:
    alerts = [*failing(MOST_OF_RULE), DEAD]
    assert list(grouped(alerts)) == alerts


def test_many_alerts_of_a_rule_are_one_in_the_place_of_the_first() -> None:
    group, dead = grouped([*failing(20), DEAD])
    assert dead == DEAD
    assert (group.name, group.severity) == ("handler-failing", Severity.CRITICAL)
    assert group.sentence == (
        "20 alerts of the rule handler-failing: h0 is failing; h1 is failing; h2 is failing; 17 more"
    )
    assert group.advice == "All of them: runner alerts --rule handler-failing"
