"""@schedule and runner.schedules, as an application uses them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.client.handler import handler
from runner.client.schedules import schedule
from runner.errors import (
    DuplicateSchedule,
    InvalidDuration,
    InvalidPayload,
    InvalidSchedule,
    UnknownSchedule,
    WouldBlock,
)
from runner.handlers.registry import REGISTRY
from runner.handlers.schedules import SCHEDULES
from runner.testing import TaskStore


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCHEDULES, "_schedules", {})
    monkeypatch.setattr(REGISTRY, "_handlers", {})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TaskStore]:
    with TaskStore.in_folder(tmp_path) as opened:
        yield opened


def work(size: int = 1) -> None: ...


def test_a_handler_has_several_schedules_with_arguments_and_task_options() -> None:
    daily = handler("work", queue="reports")(work)
    assert schedule("0 9 * * mon-fri", tz="Europe/Berlin")(daily) is daily
    schedule(every="5m", id="often", arguments={"size": 2}, priority=3, timeout="2m", overlap="queue")(daily)
    first, second = SCHEDULES["work"], SCHEDULES["often"]
    assert (first.spec.rule, first.spec.timezone) == ("0 9 * * mon-fri", "Europe/Berlin")
    assert first.spec.options == '{"queue": "reports"}'
    assert (second.spec.rule, second.spec.payload) == ("every 5m", '{"size":2}')
    assert second.spec.options == '{"priority": 3, "queue": "reports", "timeout": 120.0}'
    assert first.module == __name__


def test_two_schedules_with_one_id_are_refused() -> None:
    daily = handler("work")(work)
    schedule("@daily")(daily)
    schedule("@daily")(daily)  # the same one, from a module that was loaded again
    with pytest.raises(DuplicateSchedule, match=r"'@daily' of .*work and 'every 5m' of .*work"):
        schedule(every="5m")(daily)


def test_wrong_schedules_are_refused_where_they_are_written() -> None:
    daily = handler("work")(work)
    with pytest.raises(InvalidSchedule, match="bad minute"):
        schedule("61 * * * *")(daily)
    with pytest.raises(InvalidSchedule, match="no such time zone"):
        schedule("@daily", tz="Mars/Olympus")(daily)
    with pytest.raises(InvalidPayload, match=r"valid integer.*; set arguments of @schedule; see .*work"):
        schedule("@daily", arguments={"size": "x"})(daily)
    with pytest.raises(InvalidSchedule, match=r"a schedule sets .*priority"):
        schedule("@daily", delay="5m")(daily)  # type: ignore[call-arg]
    with pytest.raises(InvalidSchedule, match=r"`headers` of a schedule: .* header `schedule` too, .* 31"):
        schedule("@daily", headers={f"h{number}": "" for number in range(32)})(daily)
    with pytest.raises(InvalidSchedule, match="give one of"):
        schedule("@daily", every="5m")(daily)
    with pytest.raises(InvalidDuration):
        schedule(every="soon")(daily)
    with pytest.raises(InvalidSchedule, match="put @schedule above @handler"):
        schedule("@daily")(work)  # type: ignore[type-var]
    assert dict(SCHEDULES) == {}


def test_a_declaration_that_is_refused_names_its_function() -> None:
    daily = handler("daily.refused")(work)
    refused: list[dict[str, Any]] = [{"tz": "Mars/Base"}, {"id": ""}]
    for values in refused:
        with pytest.raises(InvalidSchedule, match=rf"; see {re.escape(daily.location)}\.$"):
            schedule("0 9 * * *", **values)(daily)


def test_schedules_are_managed_at_run_time(store: TaskStore) -> None:
    daily = handler("work", queue="reports")(work)
    runner.schedules.add("nightly", daily, cron="0 3 * * *", arguments={"size": 7}, reason="asked by ana")
    runner.schedules.edit("nightly", every="1h", priority=5)
    runner.schedules.pause("nightly", reason="deploy")
    (row,) = runner.schedules.all()
    assert (row.spec.rule, row.spec.payload) == ("every 1h", '{"size":7}')
    assert row.spec.options == '{"priority": 5, "queue": "reports"}'
    assert row.pause is not None
    assert row.pause.why == "deploy"
    runner.schedules.resume("nightly")
    runner.schedules.run("nightly")
    assert runner.schedules.all()[0].requested_at is not None
    assert runner.schedules.free("nightly") is None
    runner.schedules.delete("nightly")
    assert runner.schedules.all() == []
    with pytest.raises(UnknownSchedule):
        runner.schedules.edit("nightly", every="1h")
    with pytest.raises(InvalidPayload, match="valid integer"):
        runner.schedules.add("other", daily, every="1h", arguments={"size": "x"})


async def test_schedules_are_managed_on_an_event_loop(store: TaskStore) -> None:
    await runner.schedules.add_async("nightly", "elsewhere", every="1h")
    await runner.schedules.run_async("nightly")
    assert await runner.schedules.free_async("nightly") is None
    assert [row.id for row in await runner.schedules.all_async()] == ["nightly"]
    await runner.schedules.edit_async("nightly", every="2h")
    await runner.schedules.pause_async("nightly", reason="deploy")
    (row,) = await runner.schedules.all_async()
    assert (row.spec.rule, row.pause.why if row.pause else None) == ("every 2h", "deploy")
    await runner.schedules.resume_async("nightly")
    assert (await runner.schedules.all_async())[0].pause is None
    await runner.schedules.delete_async("nightly")
    assert await runner.schedules.all_async() == []
    await runner.schedules.add_async("nightly", "elsewhere", every="1h")
    with pytest.raises(WouldBlock, match=r"await schedules\.all_async"):
        runner.schedules.all()
