"""Alerts: problems in order of severity, each in one sentence with figures."""

from collections.abc import Iterator
from datetime import datetime, tzinfo
from itertools import islice
from typing import NamedTuple

from runner.queries.counting import Count
from runner.queries.pauses import Pause
from runner.queries.queues import QueueCounts
from runner.queries.runners import RunnerRow
from runner.text import formatting
from runner.text.sanitize import count_noun
from tasktui.data.overview import MINUTE, Overview, Slowdown, per_minute
from tasktui.render.render import line

MAX_KINDS = 3
"""Error types listed in an alert."""

MAX_TEXT = 60
"""Maximum characters of a text from the database."""


class Alert(NamedTuple):
    """One alert.

    Args:
        sign: severity.
        text: sanitized sentence.
        style: Rich style, in addition to the sign.
    """

    sign: str
    text: str
    style: str = ""


def alerts(overview: Overview, zone: tzinfo) -> Iterator[Alert]:
    """List the current problems.

    Args:
        overview: the figures.
        zone: time zone of the displayed times.
    """
    for queue in overview.queues:
        if queue.falls_behind:
            yield Alert("✖", _behind(queue, overview.diagnoses.slow.get(queue.queue)), "bold red")
    for name, (failed, attempts) in overview.failing.items():
        yield Alert("✖", _failing(name, failed, attempts, overview.diagnoses.errors.get(name)), "bold red")
    yield from _lost(overview)
    yield from _dead(overview, zone)
    for runner in overview.runners:
        yield from _silent(runner)
    for unknown in overview.unknown:
        queues = line(", ".join(unknown.queues), MAX_TEXT)
        wait = (
            f"due for {formatting.age(unknown.due)}" if unknown.due >= 0 else f"due in {formatting.age(-unknown.due)}"
        )
        yield Alert(
            "!", f"no live runner takes handler {line(unknown.handler, MAX_TEXT)} (queue {queues}, {wait})", "bold"
        )
    for queue in overview.queues:
        if queue.paused:
            yield _paused(line(queue.queue, MAX_TEXT), queue.paused, overview.at, zone)
    for handler, pause in overview.handlers.items():
        yield _paused(f"handler {line(handler, MAX_TEXT)}", pause, overview.at, zone)


def workforce(overview: Overview) -> str:
    """The number of live runners, their tasks and their slots."""
    alive = [runner for runner in overview.runners if runner.alive]
    slots, tasks = (sum(getattr(runner, name) for runner in alive) for name in ("capacity", "running_tasks"))
    return f"{count_noun(len(alive), 'runner')} alive, {count_noun(tasks, 'task')} held, {slots:,} slots"


def _behind(queue: QueueCounts, slow: Slowdown | None) -> str:
    text = f"{line(queue.queue, MAX_TEXT)} is falling behind: {queue.arrived} in, {queue.minute.ended:,} out per minute"
    if slow is None or slow.p95 is None:
        return text
    before = f", was {formatting.duration(slow.before)}" if slow.before is not None else ""
    return f"{text}; slowest handler {line(slow.handler, MAX_TEXT)} (p95 {formatting.duration(slow.p95)}{before})"


def _failing(queue: str, failed: int, attempts: int, error: str | None) -> str:
    mostly = f", mostly {line(error, MAX_TEXT)}" if error else ""
    counts = f"{failed:,} of {count_noun(attempts, 'attempt')} failed in ten minutes"
    return f"{line(queue, MAX_TEXT)} is failing: {counts}{mostly} (press 4)"


def _dead(overview: Overview, zone: tzinfo) -> Iterator[Alert]:
    deaths = per_minute(overview.hour, overview.at, lambda flow: flow.died)
    total = round(sum(deaths))
    if not total:
        return
    first = next(index for index, number in enumerate(deaths) if number)
    since = (overview.at - (len(deaths) - 1 - first) * MINUTE).astimezone(zone)
    kinds = overview.diagnoses.deaths
    largest = ", ".join(f"{line(kind, MAX_TEXT)} {number:,}" for kind, number in islice(kinds.items(), MAX_KINDS))
    more = f", {len(kinds) - MAX_KINDS:,} more" if len(kinds) > MAX_KINDS else ""
    errors = f": {largest}{more}" if largest else ""
    dead = Count(sum(queue.dead.number for queue in overview.queues), any(queue.dead.more for queue in overview.queues))
    still = "" if dead == Count(total) else f", {dead} still dead"
    yield Alert("✖", f"{total:,} dead since {since:%H:%M}{still}{errors} (press 4)", "red")


def _silent(runner: RunnerRow) -> Iterator[Alert]:
    name = f"runner {runner.id} ({line(runner.host, MAX_TEXT)}:{runner.pid})"
    tasks = count_noun(runner.running_tasks, "task")
    if not runner.alive:
        age = formatting.age(runner.heartbeat_age)
        yield Alert("!", f"{name} is lost: no heartbeat for {age}, holds {tasks}", "bold")
    elif runner.heartbeat_age > runner.lease:
        age, rescue = formatting.age(runner.heartbeat_age), formatting.age(runner.lease)
        yield Alert("!", f"{name} has sent no heartbeat for {age}; rescue of {tasks} in {rescue}", "bold")


def _lost(overview: Overview) -> Iterator[Alert]:
    lost = {line(queue.queue, MAX_TEXT): queue.lost for queue in overview.queues if queue.lost.number}
    if not lost:
        return
    count = Count(sum(each.number for each in lost.values()), any(each.more for each in lost.values()))
    are, their, them = ("is", "its", "it") if count == Count(1) else ("are", "their", "them")
    alive = any(runner.alive for runner in overview.runners)
    rescue = f"a live runner will rescue {them}" if alive else f"no live runner can rescue {them}"
    text = f"{count.of('task')} of {', '.join(lost)} {are} lost: {their} runner's lease expired; {rescue}"
    yield Alert("✖", text, "bold red")


def _paused(place: str, pause: Pause, at: datetime, zone: tzinfo) -> Alert:
    until = f"until {pause.until.astimezone(zone):%H:%M}" if pause.until else "until resumed"
    if pause.until and pause.until.astimezone(zone).date() != at.astimezone(zone).date():
        until = f"until {pause.until.astimezone(zone):%Y-%m-%d %H:%M}"
    who, since = line(pause.by, MAX_TEXT), formatting.since(pause.since, at)
    why = f": {line(pause.why, MAX_TEXT)}" if pause.why else ""
    return Alert("⏸", f"{place} paused by {who} {since} ago {until}{why}")
