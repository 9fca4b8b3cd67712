"""Ticks with several real runners: kills, freezes and steps of the clocks neither repeat a tick nor lose one."""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from tests.chaos.clock import FILE, SteppedClock
from tests.chaos.conftest import Report
from tests.chaos.deployment import Deployment
from tests.conftest import postgresql_first

RUNNERS = 5
SECOND, MINUTE, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(days=1)

OVERLAPS = ("allow", "skip", "queue", "replace")
MISFIRES = ("all 1000", "once", "skip")
DURATIONS = {"allow": 0.0, "skip": 0.4, "queue": 0.02, "replace": 0.4}
"""Seconds of a run by its overlap policy."""

FAULT_COUNT = 25
"""At least as many faults, with some progress between two, so that a busy machine sees no more of them."""

STEP_TIMEOUT = 600.0
"""Seconds for a step of a test: none of them takes a tenth of it on an idle machine."""

FAULTS = ("kill", "kill", "freeze", "forward", "back", "runners")
OPTIONS = json.dumps({"max_attempts": 100})


class Tick(NamedTuple):
    """A recorded tick; the task is None if it has none."""

    schedule: str
    tick: datetime
    runner_id: int
    outcome: str
    task_id: int | None


class Run(NamedTuple):
    """A task of a schedule; `finished_at` is None while it is unfinished."""

    id: int
    schedule: str
    key: str
    queue: str
    finished_at: datetime | None


@pytest.fixture
def clock(new_database: None, migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv(FILE, str(tmp_path / "clock"))
    with SteppedClock(migrated_url, tmp_path / "clock") as clock:
        yield clock


@pytest.fixture
def deployment(clock: SteppedClock, migrated_url: str, tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(migrated_url, tmp_path) as deployment:
        yield deployment


def add(deployment: Deployment, schedules: Sequence[dict[str, Any]]) -> None:
    """Insert schedules with plain SQL."""

    async def insert(database: Database) -> None:
        defaults = {"handler": "chaos.tick", "options": OPTIONS, "payload": "{}", "timezone": "UTC"}
        async with database.writing() as tx:
            await tx.execute(sa.insert(tx.tables.schedule), [defaults | each for each in schedules])

    deployment.do(insert)


def pause(deployment: Deployment, moment: datetime) -> None:
    """Pause all schedules, so that no more ticks come."""

    async def update(database: Database) -> None:
        async with database.writing() as tx:
            await tx.execute(sa.update(tx.tables.schedule).values(paused_at=moment, next_at=None))

    deployment.do(update)


def ticks_of(deployment: Deployment) -> list[Tick]:
    async def read(database: Database) -> list[Tick]:
        row = database.tables.tick.c
        columns = (row.schedule, row.tick, row.runner_id, row.outcome, row.task_id)
        async with database.reading() as tx:
            rows = await tx.rows(sa.select(*columns).order_by(row.schedule, row.tick, row.runner_id))
        return [Tick(*each) for each in rows]

    return deployment.do(read)


def runs_of(deployment: Deployment) -> list[Run]:
    """All tasks of schedules, in either table."""

    async def read(database: Database) -> list[Run]:
        runs: list[Run] = []
        async with database.reading() as tx:
            for table in (tx.tables.task, tx.tables.history):
                end = table.c.finished_at if table is tx.tables.history else sa.null()
                row = table.c
                statement = sa.select(row.id, row.submitted_by, row.key, row.queue, end.label("finished_at"))
                rows = await tx.rows(statement.where(row.submitted_by.like("schedule %")))
                runs += [Run(each[0], each[1].removeprefix("schedule "), *each[2:]) for each in rows]
        return runs

    return deployment.do(read)


def name(overlap: str, misfire: str, number: int) -> str:
    return f"{overlap}.{misfire.replace(' ', '-')}.{number}"


def every_second(count: int, first: datetime) -> list[dict[str, Any]]:
    """Schedules that tick each second, of all policies, and one with a delay and a broadcast."""
    schedules: list[dict[str, Any]] = [
        {
            "id": name(overlap, misfire, number),
            "rule": "every 1s",
            "overlap": overlap,
            "misfire": misfire,
            "payload": json.dumps({"seconds": DURATIONS[overlap]}),
        }
        for number, overlap, misfire in ((n, *each) for n in range(count) for each in product(OVERLAPS, MISFIRES))
    ]
    urgent = json.dumps({"max_attempts": 100, "priority": 9})
    schedules.append(
        {"id": "delay", "rule": "after_end 1s", "misfire": "all 1000", "overlap": "skip", "options": urgent}
    )
    schedules.append(
        {"id": "broadcast", "rule": "every 1s", "misfire": "all 1000", "overlap": "allow", "broadcast": True}
    )
    defaults = {"next_at": first, "broadcast": False, "options": OPTIONS}
    return [defaults | each for each in schedules]


def check(ticks: Sequence[Tick], runs: Sequence[Run]) -> list[str]:
    """Compare the ticks with the clock and with their tasks, and return the breaches."""
    return [*_repeated(ticks, runs), *_lost(ticks), *_wrong_policy(ticks)]


def _repeated(ticks: Sequence[Tick], runs: Sequence[Run]) -> Iterator[str]:
    identities: set[tuple[str, ...]] = set()
    for run in runs:
        # The runs of a broadcast differ by their queues.
        identity = (run.schedule, run.key, run.queue)
        if identity in identities:
            yield f"{identity} has two tasks"
        identities.add(identity)
    submitted = [tick.task_id for tick in ticks if tick.task_id is not None]
    if sorted(submitted) != sorted(run.id for run in runs):
        yield f"{len(submitted)} ticks have a task, and {len(runs)} tasks have a tick"


def _lost(ticks: Sequence[Tick]) -> Iterator[str]:
    """A gap is only before the last of the ticks that the misfire policy drops together."""
    for earlier, later in pairwise(ticks):
        if earlier.schedule != later.schedule or later.schedule == "delay" or earlier.tick == later.tick:
            continue
        if later.tick - earlier.tick != SECOND and later.outcome != "missed" and later.schedule != "broadcast":
            yield f"{later.schedule} lost the ticks from {earlier.tick} to {later.tick}"


def _wrong_policy(ticks: Sequence[Tick]) -> Iterator[str]:
    for tick in ticks:
        overlap, _, misfire = tick.schedule.partition(".")
        if tick.outcome == "missed" and misfire.startswith("all"):
            yield f"{tick} is missed in spite of its misfire policy"
        if tick.outcome == "skipped" and overlap in ("allow", "queue"):
            yield f"{tick} is skipped in spite of its overlap policy"


def check_delays(ticks: Sequence[Tick], runs: Sequence[Run]) -> None:
    """Each tick of a rule with a delay is one second after the end of the run before."""
    ends = {run.id: run.finished_at for run in runs if run.finished_at is not None}
    own = [tick for tick in ticks if tick.schedule == "delay" and tick.task_id is not None]
    assert len(own) > 1
    for earlier, later in pairwise(own):
        assert later.tick - ends[earlier.task_id or 0] == SECOND, (earlier, later)


class Faults:
    """Random faults of a deployment and its clocks."""

    def __init__(self, deployment: Deployment, clock: SteppedClock, seed: int, longest_step: float) -> None:
        self._deployment, self._clock, self._draw = deployment, clock, random.Random(seed)
        self._longest = longest_step
        self.count = dict.fromkeys(FAULTS, 0)
        self._frozen: list[Any] = []

    def happen(self) -> None:
        """Let one fault happen, and end an earlier freeze."""
        fleet, draw = self._deployment.fleet, self._draw
        while self._frozen:
            fleet.thaw(self._frozen.pop())
        fault = draw.choice(FAULTS)
        self.count[fault] += 1
        match fault:
            case "kill":
                fleet.kill(draw.choice(fleet.runners))
                fleet.start_runner()
            case "freeze":
                self._frozen.append(draw.choice(fleet.runners))
                self._deployment.freeze(self._frozen[-1])
            case "forward":
                self._clock.step(draw.uniform(2.0, self._longest))
            case "back":
                self._clock.step(-draw.uniform(0.5, 4.0))
            case "runners":
                self._clock.step_runners(draw.uniform(-30.0, 30.0) if self._clock.differs else 1.0)

    def end(self) -> None:
        while self._frozen:
            self._deployment.fleet.thaw(self._frozen.pop())


def submitted(deployment: Deployment) -> int:
    """The number of ticks with a task."""
    return sum(tick.task_id is not None for tick in ticks_of(deployment))


def runs_of_delay(deployment: Deployment) -> int:
    """The number of runs of the schedule with a delay, whose ticks wait for the run before."""
    return sum(tick.schedule == "delay" for tick in ticks_of(deployment))


def storm(
    deployment: Deployment, clock: SteppedClock, *, runners: int, each: int, least: int, step: float, seed: int = 1
) -> tuple[list[Tick], dict[str, int]]:
    """Let runners tick schedules under faults until there are enough submitted ticks, and check them."""
    fleet = deployment.fleet
    add(deployment, every_second(each, clock.now.replace(microsecond=0)))
    for _ in range(runners):
        fleet.start_runner()
    faults = Faults(deployment, clock, seed, step)
    while (before := submitted(deployment)) < least:
        fleet.until(lambda: submitted(deployment) > before + least // FAULT_COUNT, fleet.revive, STEP_TIMEOUT)
        faults.happen()
    faults.end()
    fleet.until(lambda: runs_of_delay(deployment) > 2, fleet.revive, STEP_TIMEOUT)
    pause(deployment, clock.now)
    for program in [*fleet.runners]:  # a busy machine would take minutes for the rest of the tasks
        fleet.kill(program)
    ticks, runs = ticks_of(deployment), runs_of(deployment)
    assert check(ticks, runs) == []
    check_delays(ticks, runs)
    return ticks, faults.count


@pytest.mark.slow
@postgresql_first
def test_no_tick_is_repeated_or_lost_under_faults(deployment: Deployment, clock: SteppedClock) -> None:
    storm(deployment, clock, runners=3, each=1, least=150, step=10.0)


@pytest.mark.chaos
def test_ten_thousand_ticks_under_faults(deployment: Deployment, clock: SteppedClock, report: Report) -> None:
    ticks, faults = storm(deployment, clock, runners=RUNNERS, each=10, least=10_000, step=20.0)
    outcomes = [tick.outcome for tick in ticks]
    report("ticks", {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})
    report("faults", faults)


ZONES = ("Europe/Berlin", "Europe/London", "Atlantic/Azores", "Asia/Beirut", "Asia/Kolkata")
LINES = ("*/20 * * * *", "0 * * * *", "30 2 * * *", "30 0 * * *", "15 1 * * *")
CHANGES = (datetime(2026, 10, 24, 19, tzinfo=UTC), datetime(2027, 3, 27, 19, tzinfo=UTC))
"""Twelve hours before and after which the clocks of all these zones change, except Kolkata's."""


def expected(line: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """The ticks of a line after a time, minute by minute and without the code under test."""
    minute, hour = line.split()[:2]
    utc = [start + MINUTE * n for n in range(1, int((end - start) / MINUTE) + 1)]
    if hour == "*":
        every = int(minute.removeprefix("*/")) if minute.startswith("*/") else 60
        return [moment for moment in utc if moment.astimezone(zone).minute % every == 0]
    before = [start - MINUTE * n for n in range(int(DAY / MINUTE), -1, -1)]
    clocks = {moment: moment.astimezone(zone).replace(tzinfo=None) for moment in (*before, *utc)}
    days = sorted({local.date() for local in clocks.values()})
    named = [datetime.combine(day, datetime.min.time()).replace(hour=int(hour), minute=int(minute)) for day in days]
    firsts = [next((moment for moment, local in clocks.items() if local >= time), None) for time in named]
    return [moment for moment in firsts if moment is not None and moment > start]


@pytest.mark.chaos
@pytest.mark.parametrize("start", CHANGES, ids=["autumn", "spring"])
def test_ticks_follow_the_clocks_of_their_zones_through_a_change(
    deployment: Deployment, clock: SteppedClock, start: datetime
) -> None:
    clock.step((start - clock.now).total_seconds() + 30)
    plans = {f"{zone} {line}": expected(line, ZoneInfo(zone), start, start + DAY) for zone in ZONES for line in LINES}
    plans = {id: [tick for tick in ticks if tick <= start + DAY / 2] for id, ticks in plans.items()}
    firsts = {id: ticks[0] for id, ticks in plans.items() if ticks}
    rule = {"misfire": "all 1000", "overlap": "allow"}
    add(
        deployment,
        [
            rule | {"id": id, "rule": id.partition(" ")[2], "timezone": id.partition(" ")[0], "next_at": first}
            for id, first in firsts.items()
        ],
    )
    fleet, draw = deployment.fleet, random.Random(2)
    for _ in range(RUNNERS):
        fleet.start_runner()

    def happened() -> dict[str, list[datetime]]:
        ticks = [tick for tick in ticks_of(deployment) if tick.tick <= start + DAY / 2]
        return {id: [tick.tick for tick in ticks if tick.schedule == id] for id in firsts}

    def planned(now: datetime) -> dict[str, list[datetime]]:
        return {id: [tick for tick in plans[id] if tick <= now] for id in firsts}

    latest = clock.now
    while latest < start + DAY / 2:
        clock.step(draw.uniform(60, 3_000) if draw.random() < 0.8 else -draw.uniform(60, 3_000))
        latest = max(latest, clock.now)
        fleet.kill(draw.choice(fleet.runners))
        fleet.start_runner()
        fleet.until(lambda: happened() == planned(max(latest, clock.now)), fleet.revive, STEP_TIMEOUT)  # noqa: B023
    pause(deployment, clock.now)
    assert list(_repeated(ticks_of(deployment), runs_of(deployment))) == []


def test_the_check_finds_a_repeated_a_lost_and_a_wrongly_dropped_tick() -> None:
    first = datetime(2026, 11, 22, 12, tzinfo=UTC)
    ticks = [Tick("allow.all-1000.0", first + SECOND * n, 0, "submitted", n) for n in range(1, 4)]
    runs = [Run(tick.task_id or 0, tick.schedule, str(tick.tick), "default", None) for tick in ticks]
    assert check(ticks, runs) == []
    assert len(check(ticks, [*runs, runs[0]._replace(id=9)])) == 2
    assert len(check([ticks[0], ticks[2]], [runs[0], runs[2]])) == 1
    missed = ticks[1]._replace(outcome="missed", task_id=None)
    assert len(check([ticks[0], missed, ticks[2]], [runs[0], runs[2]])) == 1
    once = [tick._replace(schedule="allow.once.0") for tick in (ticks[0], missed, ticks[2])]
    assert check(once, [runs[0], runs[2]]) == []
