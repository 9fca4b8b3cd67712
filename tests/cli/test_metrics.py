"""`runner metrics` prints the numbers of the whole queue, or serves them, with a bounded number of labels."""

import os
import signal
import socket

import pytest
import sqlalchemy as sa

from runner.cli.exit_codes import Exit
from runner.db.database import Database
from runner.model.outcome import Dead
from runner.model.task import NewTask
from runner.queries import gauges
from tests.cli.conftest import Call, Store, running
from tests.engine.test_exporter import samples_of
from tests.engine.test_probe_server import get


def test_the_numbers_of_known_tasks_are_printed_once(cli: Call, store: Store) -> None:
    store.submit(NewTask("broken", queue="mail"), NewTask("broken", queue="mail"))
    store.claim("broken", outcome=Dead("no such address"))
    store.submit(NewTask("work", queue="mail"), NewTask("work"), NewTask("work", delay=3600.0))
    result = cli("metrics")
    assert (result.code, result.err) == (Exit.OK, "")
    samples = samples_of(result.out)
    tasks = {labels: value for (name, labels), value in samples.items() if name == "tasktui_tasks" and value}
    expected = {("mail", "dead"): 2, ("mail", "ready"): 1, ("default", "ready"): 1, ("default", "scheduled"): 1}
    assert tasks == expected
    assert samples["tasktui_dead_tasks", ("broken",)] == 2
    assert samples["tasktui_runners", ("alive",)] == 1
    assert samples["tasktui_runners", ("lost",)] == samples["tasktui_queues_left_out", ()] == 0
    assert samples["tasktui_database_up", ()] == 1
    assert 0 <= samples["tasktui_oldest_ready_seconds", ("mail",)] < 600
    assert ("tasktui_unclaimed_seconds", ("work",)) in samples


def test_schedules_and_breakers_are_counted_by_handler(cli: Call, store: Store) -> None:
    def schedule(id: str, minutes: int) -> sa.TextClause:
        at = f"strftime('%Y-%m-%d %H:%M:%f', 'now', '-{minutes} minutes')"
        if store.url.startswith("postgresql"):
            at = f"now() - interval '{minutes} minutes'"
        columns = "id, handler, rule, next_at"
        return sa.text(f"INSERT INTO task_schedule({columns}) VALUES ('{id}', 'report', 'every 1h', {at})")

    async def insert(database: Database) -> None:
        async with database.writing() as tx:
            await tx.execute(schedule("hourly", 10))
            await tx.execute(schedule("later", -10))

    store.use(insert)
    samples = samples_of(cli("metrics").out)
    assert 600 <= samples["tasktui_schedule_lateness_seconds", ("report",)] < 1200
    assert not [name for name, _ in samples if name == "tasktui_breaker_open"]


def test_the_largest_queues_and_handlers_are_listed_and_the_others_counted_together(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "MOST_NAMES", 3)
    names = [(f"queue{number}", f"handler{number}") for number in range(8) for _ in range(number + 1)]
    store.submit(*(NewTask(handler, queue=queue) for queue, handler in names))
    samples = samples_of(cli("metrics").out)
    ready = {labels[0]: value for (name, labels), value in samples.items() if labels[1:] == ("ready",)}
    assert ready == {"queue7": 8, "queue6": 7, "queue5": 6, "other": 15}
    assert samples["tasktui_queues_left_out", ()] == 5
    unclaimed = [labels for name, labels in samples if name == "tasktui_unclaimed_seconds"]
    assert (len(unclaimed), samples["tasktui_unclaimed_seconds_left_out", ()]) == (4, 5)


def test_the_metrics_are_served_until_a_signal_and_no_scrape_waits_for_the_database(
    store: Store, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_URL", migrated_url)
    store.submit(NewTask("work"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with running("metrics", "--listen", address) as program:
        program.wait_for_log("listening on")
        status, text = get(f"http://{address}", "/metrics")
        assert (status, samples_of(text)["tasktui_tasks", ("default", "ready")]) == (200, 1)
        assert get(f"http://{address}", "/readyz") == (200, "ok\n")
        program.process.send_signal(signal.SIGTERM)
        assert program.wait().code == Exit.OK


def test_a_port_in_use_is_named(cli: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = cli("metrics", "--listen", address)
    assert result.code == Exit.CONFIGURATION
    assert f"argument listen): {address}: {os.strerror(98)} (errno 98)" in result.err
