"""`runner metrics` prints the numbers of the whole queue, or serves them, with a bounded number of labels."""

import os
import re
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.cli.exit_codes import Exit
from runner.db.database import Database
from runner.db.transaction import Transaction, clock
from runner.model.outcome import Dead
from runner.model.task import NewTask
from runner.policy.breaker import Breaker
from runner.queries import gauges
from runner.store.registration import Identity, register
from tests.cli.conftest import WAIT_SECONDS, Call, Store, running
from tests.engine.test_exporter import Samples, samples_of
from tests.engine.test_probe_server import get
from tests.ports import free_port
from tests.postgres import Server, create_database
from tests.store.minutes import Minute, write_statistics


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
    address = f"127.0.0.1:{free_port()}"
    with running("metrics", "--listen", address) as program:
        program.wait_for_log("metrics of the database")
        status, text = get(f"http://{address}", "/metrics")
        assert (status, samples_of(text)["tasktui_tasks", ("default", "ready")]) == (200, 1)
        assert get(f"http://{address}", "/readyz") == (200, "ok\n")
        program.process.send_signal(signal.SIGTERM)
        assert program.wait().code == Exit.OK


@pytest.mark.parametrize("words", [("metrics",), ("work", "-H", "idle_tasks")], ids=["metrics", "work"])
def test_a_port_in_use_is_named_in_one_line(
    migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (tmp_path / "idle_tasks.py").write_text(
        "import runner\n\n\n@runner.handler('idle')\nasync def idle() -> None: ...\n"
    )
    monkeypatch.setenv("TASKTUI_URL", migrated_url)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with running(*words, "--listen", address) as program:
            result = program.wait()
    assert result.code == Exit.CONFIGURATION
    assert (result.err.count("\n"), f": {address}: {os.strerror(98)} (errno 98)" in result.err) == (1, True), result.err


def test_an_open_breaker_is_visible(cli: Call, store: Store) -> None:
    async def have_breaker(tx: Transaction) -> None:
        breakers = {"sms": Breaker("10/min").columns}
        await register(tx, Identity("here", 1, "test", ["sms"], 10, breakers=breakers), 60.0)

    store.write(have_breaker)
    assert not [name for name, _ in samples_of(cli("metrics").out) if name == "tasktui_breaker_open"]
    assert cli("limit", "handler", "sms", "--breaker", "open").code == Exit.OK
    assert samples_of(cli("metrics").out)["tasktui_breaker_open", ("sms",)] == 1


def test_the_times_of_the_last_hour_are_printed_with_the_size_of_the_database(cli: Call, store: Store) -> None:
    async def work(tx: Transaction) -> None:
        for ago, seconds in ((5, 0.4), (10, 70.0), (90, 0.4), (0, 0.4)):
            minute = Minute(await clock(tx) - timedelta(minutes=ago), "mail", "send")
            minute.durations.add([seconds])
            minute.waits.add([2.0])
            await write_statistics(tx, 1, [minute], {})

    store.write(work)
    samples = samples_of(cli("metrics").out)
    runs = {le: samples["tasktui_all_run_seconds_bucket", ("mail", "send", le)] for le in ("0.25", "0.5", "60", "+Inf")}
    assert runs == {"0.25": 0, "0.5": 1, "60": 1, "+Inf": 2}
    assert samples["tasktui_all_run_seconds_sum", ("mail", "send")] == pytest.approx(70.4)
    assert samples["tasktui_all_wait_seconds_count", ("mail", "send")] == 2
    assert samples["tasktui_all_left_out", ()] == 0
    assert samples["tasktui_database_bytes", ()] > 10_000
    sizes = {labels[0] for name, labels in samples if name == "tasktui_table_bytes"}
    assert ("task_history" in sizes) == store.url.startswith("postgresql")


def until_metrics(url: str, up: int) -> Samples:
    """Scrape until the database is up, or not."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (samples := samples_of(get(url, "/metrics")[1]))["tasktui_database_up", ()] != up:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return samples


@pytest.mark.slow
def test_an_exporter_waits_for_its_database_and_recovers(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = create_database(own_server)
    store = Store(url)
    store.use(lambda database: database.migrate())
    monkeypatch.setenv("TASKTUI_URL", url)
    own_server.stop("immediate")
    with running("metrics", "--listen", "127.0.0.1:0") as program:
        program.wait_for_log("no metrics of the database: ")
        listening = re.search(r"listening on (http://127.0.0.1:\d+)", program.errors)
        assert listening is not None
        place = listening[1]
        assert until_metrics(place, 0).keys() == {("tasktui_database_up", ())}
        assert get(place, "/livez") == (200, "ok\n")
        status, text = get(place, "/readyz")
        assert (status, "cannot be reached: " in text, text.count("\n")) == (503, True, 1)
        own_server.start()
        assert ("tasktui_runners", ("alive",)) in until_metrics(place, 1)
        assert get(place, "/readyz") == (200, "ok\n")
        own_server.stop("immediate")
        until_metrics(place, 0)
        own_server.start()
        until_metrics(place, 1)
        assert program.errors.count("no metrics of the database: ") >= 2
        program.process.send_signal(signal.SIGTERM)
        assert program.wait().code == Exit.OK


@pytest.mark.slow
@pytest.mark.one_database
def test_an_exporter_waits_for_the_file_that_a_runner_creates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'later.db'}"
    monkeypatch.setenv("TASKTUI_URL", url)
    with running("metrics", "--listen", "127.0.0.1:0") as program:
        program.wait_for_log("later.db does not exist")
        assert not (tmp_path / "later.db").exists()
        Store(url).use(lambda database: database.migrate())
        program.wait_for_log("metrics of the database sqlite:")
