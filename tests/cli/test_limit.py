"""Limits of queues and handlers, and breakers of handlers."""

import pytest

from runner.cli.exit_codes import Exit
from runner.db.transaction import Transaction
from runner.model.task import NewTask
from runner.policy.breaker import Breaker
from runner.store.registration import Identity, register
from tests.cli.conftest import Call, Store
from tests.conftest import on_sqlite
from tests.shells import shell_of


async def enter(tx: Transaction) -> None:
    """Register a runner whose handler `sms` has a breaker."""
    breakers = {"sms": Breaker("10/min").columns}
    await register(tx, Identity("here", 1, "test", ["sms"], 10, breakers=breakers), 60.0)


@on_sqlite
def test_a_limit_is_set_listed_and_removed(cli: Call, store: Store) -> None:
    store.submit(NewTask("mail.send", queue="mail"))
    assert cli("limit").out == "No queue and no handler has a limit or breaker.\n"
    tried = cli("limit", "queue", "mail", "--concurrency", 5, "--dry-run")
    assert tried.out == "queue mail: would have at most 5 running (before: no limit)\n"
    done = cli("limit", "queue", "mail", "--concurrency", 5, "--rate", "100/min", "--reason", "five connections")
    assert (done.code, done.out) == (Exit.OK, "queue mail: at most 5 running, 100/min started (before: no limit)\n")
    (listed,) = cli("limit", "--json").document["limits"]
    assert (listed["name"], listed["limits"]["running"], listed["full"]) == ("mail", 5, [])
    table = cli("limit", "queue", "mail").out
    assert "queue mail" in table
    assert "five con" in table
    assert "Queue mail is limited: at most 5 running, 100/min started; 0 running" in " ".join(cli("stats").out.split())
    removed = cli("limit", "queue", "mail", "--concurrency", "none", "--json").document
    assert (removed["before"]["running"], removed["after"]["running"]) == (5, None)
    assert cli("limit", "handler", "mail.send").out == "handler mail.send has no limit or breaker.\n"


@on_sqlite
@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["queues", "mail"], "did you mean 'queue'"),
        (["queue"], "name a queue or a handler: runner limit queue mail --concurrency 5"),
        (["queue", "mail", "--default", "--rate", "1/s"], "--default excludes --rate"),
        (["queue", "mial", "--rate", "1/s"], "--new"),
        (["queue", "mail", "--rate", "often"], "often"),
    ],
)
def test_a_wrong_limit_is_refused(cli: Call, store: Store, arguments: list[str], advice: str) -> None:
    store.submit(NewTask("mail.send", queue="mail"))
    refused = cli("limit", *arguments)
    assert refused.code == Exit.BAD_INPUT
    assert advice in " ".join(refused.err.split())


@pytest.mark.slow
@on_sqlite
def test_a_breaker_is_opened_listed_and_closed(cli: Call, store: Store) -> None:
    assert "No queue and no handler has a limit or breaker" in cli("limit").out
    store.write(enter)
    assert cli("limit", "handler", "sms", "--breaker", "open", "--dry-run").out == "breaker of sms would be opened\n"
    opened = cli("limit", "handler", "sms", "--breaker", "open", "--for", "10m", "--reason", "the provider is down")
    assert opened.code == Exit.OK
    assert opened.out == "breaker of sms opened: the next probe starts in 10m\n"
    assert cli("limit", "handler", "sms", "--breaker", "open").code == Exit.CONFLICT
    table = cli("limit").out
    assert "open for" in table
    assert "10 failures in" in table
    (row,) = cli("limit", "handler", "sms", "--json").document["breakers"]
    assert (row["handler"], row["open"], row["state"]["why"]) == ("sms", True, "the provider is down")
    closed = cli("limit", "handler", "sms", "--breaker", "close")
    assert (closed.code, closed.out) == (Exit.OK, "breaker of sms closed: its tasks start again\n")
    assert "--for applies to" in cli("limit", "handler", "sms", "--breaker", "close", "--for", "1m").err
    assert "name a handler: runner limit handler" in cli("limit", "--breaker", "open").err


@on_sqlite
def test_pasted_sql_of_a_limit_and_a_breaker_has_their_effect(cli: Call, store: Store) -> None:
    store.submit(NewTask("sms", queue="mail"))
    store.write(enter)
    execute = shell_of(store.url)
    execute(cli("limit", "queue", "mail", "--concurrency", 3, "--sql").out)
    execute(cli("limit", "handler", "sms", "--breaker", "open", "--sql").out)
    (limit,) = [each for each in cli("limit", "--json").document["limits"] if each["kind"] == "queue"]
    assert limit["limits"]["running"] == 3
    assert cli("limit", "handler", "sms", "--json").document["breakers"][0]["open"]
