"""`runner alerts`: the alerts that fire, their exit code, and their silences."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from runner.cli.exit_codes import Exit
from runner.db.database import Database
from runner.db.schema.records import MINUTE_COUNTS
from runner.model.outcome import Dead, Done, Failure, Retry
from runner.model.task import NewTask
from tests.cli.conftest import Call, Store
from tests.store.minutes import Minute, write_statistics
from tests.store.rows import add_runner, ahead
from tests.store.table import change

FULL = Failure("Full", "no room")


def die(store: Store, tasks: int = 1, handler: str = "a.b") -> None:
    store.submit(*(NewTask(handler) for _ in range(tasks)))
    store.claim(handler, outcome=Dead(failure=FULL))


def test_a_quiet_database_has_no_alerts(cli: Call, store: Store) -> None:
    store.submit(NewTask("a.b"))
    store.claim("a.b", outcome=Done())
    result = cli("alerts")
    assert (result.code, result.out) == (Exit.OK, "No alert fires.\n")


def test_an_alert_is_named_with_its_figures_and_its_next_step(cli: Call, store: Store) -> None:
    die(store, 2)
    result = cli("alerts")
    assert result.code == Exit.FIRING
    assert re.search(r"critical +- +tasks-dead$", result.out, re.MULTILINE)
    assert "2 tasks died in the last hour: a.b 2 (threshold 0)\n  The causes: runner failures since:1h." in result.out
    document = cli("alerts", "--json").document
    (alert,) = document["alerts"]
    assert alert["rule"] == "tasks-dead"
    assert (alert["title"], alert["text"]) == ("2 tasks died in the last hour", "a.b 2 (threshold 0)")
    assert (alert["since"], alert["silence"]) == (None, None)


@pytest.mark.slow
def test_a_failing_handler_beside_healthy_ones_has_an_alert_of_its_own(cli: Call, store: Store) -> None:
    store.submit(*(NewTask("a.b") for _ in range(12)), *(NewTask("c.d") for _ in range(30)))
    store.claim("c.d", outcome=Done())
    store.claim("a.b", outcome=Retry("1d", failure=FULL))
    assert [alert["rule"] for alert in cli("alerts", "--json").document["alerts"]] == ["handler-failing"]
    store.submit(*(NewTask("c.d") for _ in range(40)))
    store.claim("c.d", outcome=Retry("1d", failure=FULL))
    rules = {alert["rule"] for alert in cli("alerts", "--json").document["alerts"]}
    assert "queue-failing" in rules
    assert "handler-failing" not in rules, "the alert of the queue covers its handlers"


def fail_behind_a_breaker(store: Store) -> None:
    """Open the breaker of the handler most of whose attempts in queue mail fail."""

    async def fill(database: Database) -> None:
        await add_runner(database)
        row = {"name": "a.b", "breaker_opened_at": ahead(-120), "breaker_probes": 1, "breaker_wait": 9.0}
        row |= {"breaker_round": 1, "breaker_probe_at": ahead(60)}
        await change(database, database.tables.handler.insert().values(row))
        counts = dict.fromkeys(MINUTE_COUNTS, 0) | {"retried": 40}
        minute = datetime.now(UTC) - timedelta(minutes=2)
        await database.write(write_statistics, 7, [Minute(minute, "mail", "a.b", counts)], {})

    store.use(fill)


def test_an_effect_is_beneath_its_cause_as_in_the_console(cli: Call, store: Store) -> None:
    fail_behind_a_breaker(store)
    listed = cli("alerts", "--json").document["alerts"]
    assert [(alert["rule"], alert["subject"], alert["cause"]) for alert in listed] == [
        ("breaker-open", "a.b", None),
        ("queue-failing", "mail", "breaker-open:a.b"),
    ]
    text = cli("alerts").out
    cause, effect = text.splitlines()[1:3]
    assert cause.rstrip().endswith(" breaker-open:a.b")
    assert effect.rstrip().endswith(" └ queue-failing:mail")
    assert "\n  The causes: runner failures handler:a.b\n└ mail is failing: 40 of 40 attempts in 10 min" in text
    assert text.rstrip().endswith("\n    The causes: runner failures queue:mail")
    (alone,) = cli("alerts", "--rule", "queue-failing", "--json").document["alerts"]
    assert alone["cause"] is None


def test_an_alert_without_an_evaluation_has_the_time_from_its_figures(cli: Call, store: Store) -> None:
    fail_behind_a_breaker(store)
    document = cli("alerts", "--json").document
    at, opened = (datetime.fromisoformat(text) for text in (document["at"], document["alerts"][0]["since"]))
    assert timedelta(seconds=120) <= at - opened <= timedelta(seconds=180)
    assert document["alerts"][1]["since"] is not None
    assert document["evaluated_at"] is None


def test_the_list_is_limited_to_a_rule(cli: Call, store: Store) -> None:
    die(store)
    assert cli("alerts", "list", "--rule", "queue-late").code == Exit.OK
    assert cli("alerts", "list", "--rule", "queue-late", "--rule", "tasks-dead").code == Exit.FIRING


def test_the_list_is_limited_to_an_alert_by_its_name(cli: Call, store: Store) -> None:
    fail_behind_a_breaker(store)
    assert cli("alerts", "--rule", "breaker-open:other").code == Exit.OK
    (alert,) = cli("alerts", "--rule", "breaker-open:a.b", "--json").document["alerts"]
    assert alert["subject"] == "a.b"


@pytest.mark.slow
def test_a_silence_marks_its_alert_and_ends(cli: Call, store: Store) -> None:
    die(store)
    silenced = cli("alerts", "silence", "tasks-dead", "--until", "2h", "--reason", "known")
    assert silenced.out.startswith("alert tasks-dead silenced; notices again in 2h")
    result = cli("alerts")
    assert result.code == Exit.OK
    assert "SILENCED" in result.out
    (alert,) = cli("alerts", "--json").document["alerts"]
    assert alert["silence"]["why"] == "known"
    assert "silence" in cli("audit").out
    assert cli("alerts", "unsilence", "tasks-dead").out == "alert tasks-dead sends its notices again\n"
    assert cli("alerts", "unsilence", "tasks-dead").out == "alert tasks-dead was not silenced\n"
    assert cli("alerts").code == Exit.FIRING


def test_an_undo_ends_a_silence(cli: Call, store: Store) -> None:
    die(store)
    cli("alerts", "silence", "tasks-dead", "--until", "2h")
    assert cli("undo", 1).code == Exit.OK
    assert cli("alerts").code == Exit.FIRING


def test_a_dry_run_silences_nothing(cli: Call, store: Store) -> None:
    assert "would be silenced" in cli("alerts", "silence", "no-runner", "--until", "2h", "--dry-run").out
    assert cli("alerts", "--json").document["silences"] == []


def test_the_sql_of_a_silence_is_printed_and_silences_nothing(cli: Call, store: Store) -> None:
    printed = cli("alerts", "silence", "no-runner", "--until", "2h", "--sql").out
    assert printed.startswith("-- alert no-runner, if its silence has not changed\n")
    assert cli("alerts", "--json").document["silences"] == []


def test_a_silence_of_a_rule_that_finds_nothing_is_listed(cli: Call, store: Store) -> None:
    cli("alerts", "silence", "no-runner", "--until", "2h", "--reason", "night")
    assert re.search(r"no-runner is silenced until .+ by \S+: night", cli("alerts").out)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("silence", "no-runer", "--until", "2h"), "no rule has the name 'no-runer', did you mean 'no-runner'"),
        (("silence", "queue-late:mial", "--until", "2h"), "queue mial has never been used, did you mean 'mail'"),
        (("silence", "handler-failing:x", "--until", "2h"), "no runner ever had handler x"),
        (("silence", "schedule-late:x", "--until", "2h"), "schedule x does not exist"),
        (("silence", "tasks-dead:x", "--until", "2h"), "tasks-dead has no subjects"),
        (("silence", "tasks-dead"), "a silence has an end: --until 2h"),
        (("silence", "tasks-dead", "--until", "2h", "--rule", "queue-late"), "--rule belongs to alerts list"),
        (("silence",), "name the alert"),
        (("list", "--sql"), "--sql belongs to alerts silence and alerts unsilence"),
        (("tasks-dead",), "tasks-dead"),
        (("list", "tasks-dead"), "runner alerts silence tasks-dead"),
        (("list", "--rule", "x"), "no rule has the name 'x'"),
    ],
)
@pytest.mark.one_database
def test_words_that_name_nothing_are_refused(cli: Call, store: Store, words: tuple[str, ...], text: str) -> None:
    store.submit(NewTask("a.b", queue="mail"))
    result = cli("alerts", *words)
    assert result.code == Exit.BAD_INPUT
    assert text in result.err
    assert cli("alerts", "--json").document["silences"] == []
