"""/metrics has what a runner counts, after known tasks, with a bounded number of labels."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runner.db.database import Database
from runner.db.migrations.apply import upgrade
from runner.engine.database_collector import DatabaseCollector
from runner.engine.hosting.probes import serve_probes
from runner.model.outcome import Retry
from runner.policy import work_keys
from tests.engine.harness import Harness, at_work, until
from tests.engine.test_probe_server import get

ANY_PORT = "127.0.0.1:0"
Samples = dict[tuple[str, tuple[str, ...]], float]


LABELS = ("queue", "handler", "outcome", "pool", "state", "table", "le")


def samples_of(text: str) -> Samples:
    """The numbers of an exposition, by name and the values of the labels in the order of LABELS."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {label for sample in samples for label in sample.labels} <= set(LABELS)
    return {
        (each.name, tuple(each.labels[label] for label in LABELS if label in each.labels)): each.value
        for each in samples
    }


async def scrape(url: str) -> Samples:
    status, text = await asyncio.to_thread(get, url, "/metrics")
    assert status == 200
    return samples_of(text)


def total(samples: Samples, name: str) -> float:
    return sum(value for (each, _), value in samples.items() if each == name)


async def test_the_metrics_count_known_tasks(harness: Harness) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @harness.handler("good")
    async def good() -> None: ...

    @harness.handler("bad", max_attempts=2)
    def bad() -> Retry:
        return Retry("1ms")

    @harness.handler("long")
    async def long() -> None:
        begun.set()
        await go_on.wait()

    for _ in range(3):
        await harness.submit("good", queue="mail")
    await harness.submit("bad")
    await harness.submit("long")
    runner = harness.runner(listen=ANY_PORT)
    with serve_probes(runner) as probes:
        async with at_work(runner):
            await until(lambda: runner.metrics.verbs == {"succeed": 3, "retry": 1, "die": 1} and begun.is_set())
            samples = await scrape(probes.url)
            go_on.set()
    ended = {labels: value for (name, labels), value in samples.items() if name == "tasktui_attempts_total"}
    expected = {("mail", "good", "succeed"): 3.0, ("default", "bad", "retry"): 1.0, ("default", "bad", "die"): 1.0}
    assert ended == expected
    slots = {name: samples[f"tasktui_{name}", ("async",)] for name in ("slots", "slots_used", "tasks_prefetched")}
    assert slots == {"slots": 4.0, "slots_used": 1.0, "tasks_prefetched": 0.0}
    assert samples["tasktui_slots", ("threads",)] == 2.0
    assert samples["tasktui_outcomes_buffered", ()] == samples["tasktui_stuck_rows", ()] == 0.0
    assert 0.0 < samples["tasktui_lease_renewal_age_seconds", ()] < 600.0
    for kind in ("run", "wait"):
        assert samples[f"tasktui_attempt_{kind}_seconds_count", ("mail", "good")] == 3.0
        assert samples[f"tasktui_attempt_{kind}_seconds_bucket", ("mail", "good", "+Inf")] == 3.0
        assert samples[f"tasktui_attempt_{kind}_seconds_count", ("default", "bad")] == 2.0


async def test_times_count_since_the_start_and_not_since_the_last_heartbeat(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    runner = harness.runner(listen=ANY_PORT)
    with serve_probes(runner) as probes:
        async with at_work(runner):
            for number in (1, 2, 3):
                await harness.submit("work")
                await until(lambda number=number: runner.metrics.verbs["succeed"] == number)  # type: ignore[misc]
                await until(lambda: not runner.metrics.times)  # a heartbeat has written them
                samples = await scrape(probes.url)
                assert samples["tasktui_attempt_run_seconds_count", ("default", "work")] == number


async def test_the_queues_beyond_the_bound_count_together(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_keys, "MOST_LISTED", 3)

    @harness.handler("work")
    async def work() -> None: ...

    tasks = [await harness.submit("work", queue=f"queue{number}") for number in range(10)]
    runner = harness.runner(listen=ANY_PORT)
    with serve_probes(runner) as probes:
        async with at_work(runner):
            await harness.wait_for(*tasks)
            await until(lambda: runner.metrics.verbs["succeed"] == 10)
            for _ in range(2):
                samples = await scrape(probes.url)
                name = "tasktui_attempt_run_seconds_count"
                counts = {labels: value for (each, labels), value in samples.items() if each == name}
                assert (len(counts), counts["other", "other"]) == (4, 7.0)
                assert samples["tasktui_attempts_total", ("other", "other", "succeed")] == 7.0
                assert total(samples, "tasktui_attempts_total") == 10.0
                assert samples["tasktui_work_keys_left_out", ()] == 7.0
                await until(lambda: not runner.metrics.times)


@pytest.mark.one_database
async def test_a_reading_creates_no_file_in_the_place_of_one_that_is_gone(tmp_path: Path) -> None:
    file, away = tmp_path / "tasks.db", tmp_path / "away"
    away.mkdir()
    collector, database = DatabaseCollector(), Database.open(f"sqlite:///{file}")
    try:
        await upgrade(database)
        await collector.refresh(database)
        assert collector.problem == ""
        await database.dispose()
        file.rename(away / file.name)
        await collector.refresh(database)
        assert f"{file} does not exist" in collector.problem
        assert not file.exists()
        (away / file.name).rename(file)
        await collector.refresh(database)
        assert collector.problem == ""
    finally:
        await database.dispose()
