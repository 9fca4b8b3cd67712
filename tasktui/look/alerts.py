"""Alerts: what is in trouble, the worst first, each in a sentence with the figures that tell how bad it is."""

from collections.abc import Iterator
from datetime import datetime, tzinfo
from itertools import islice
from typing import NamedTuple

from runner.people import cells
from runner.people.terminal import counted
from runner.store.observe import Count, Pause, QueueCounts, RunnerRow
from tasktui.draw.render import line
from tasktui.look.glance import MINUTE, Glance, Slowdown, per_minute

MOST_KINDS = 3
"""Kinds of errors that are named."""

SHORT = 60
"""Characters of a text from the database."""


class Alert(NamedTuple):
    """One sentence.

    Args:
        sign: how bad it is.
        text: safe to show.
        style: a Rich style, beside the sign and never instead of it.
    """

    sign: str
    text: str
    style: str = ""


def alerts(glance: Glance, zone: tzinfo) -> Iterator[Alert]:
    """Tell what is in trouble.

    Args:
        glance: of one moment.
        zone: in which times are told.
    """
    for queue in glance.queues:
        if queue.falls_behind:
            yield Alert("✖", _behind(queue, glance.trouble.slow.get(queue.queue)), "bold red")
    for name, (failed, attempts) in glance.failing.items():
        yield Alert("✖", _failing(name, failed, attempts, glance.trouble.errors.get(name)), "bold red")
    yield from _lost(glance)
    yield from _dead(glance, zone)
    for runner in glance.runners:
        yield from _silent(runner)
    for unknown in glance.unknown:
        queues = line(", ".join(unknown.queues), SHORT)
        due = f"due for {cells.age(unknown.due)}" if unknown.due >= 0 else f"due in {cells.age(-unknown.due)}"
        yield Alert("!", f"no live runner takes handler {line(unknown.handler, SHORT)} (queue {queues}, {due})", "bold")
    for queue in glance.queues:
        if queue.paused:
            yield _paused(line(queue.queue, SHORT), queue.paused, glance.at, zone)
    for handler, pause in glance.handlers.items():
        yield _paused(f"handler {line(handler, SHORT)}", pause, glance.at, zone)


def workforce(glance: Glance) -> str:
    """How many work, and how much of their room is taken."""
    alive = [runner for runner in glance.runners if runner.alive]
    slots, holds = (sum(getattr(runner, name) for runner in alive) for name in ("capacity", "holds"))
    return f"{counted(len(alive), 'runner')} alive, {counted(holds, 'task')} in hand for {slots:,} slots"


def _behind(queue: QueueCounts, slow: Slowdown | None) -> str:
    text = f"{line(queue.queue, SHORT)} falls behind: {queue.arrived} in, {queue.minute.ended:,} out a minute"
    if slow is None or slow.p95 is None:
        return text
    was = f", was {cells.duration(slow.before)}" if slow.before is not None else ""
    return f"{text}; {line(slow.handler, SHORT)} takes most of the time (p95 {cells.duration(slow.p95)}{was})"


def _failing(queue: str, failed: int, attempts: int, error: str | None) -> str:
    most = f", most with {line(error, SHORT)}" if error else ""
    return f"{line(queue, SHORT)} fails: {failed:,} of {counted(attempts, 'attempt')} in ten minutes{most}; 4 to look"


def _dead(glance: Glance, zone: tzinfo) -> Iterator[Alert]:
    died = per_minute(glance.hour, glance.at, lambda flow: flow.died)
    total = round(sum(died))
    if not total:
        return
    first = next(place for place, number in enumerate(died) if number)
    since = (glance.at - (len(died) - 1 - first) * MINUTE).astimezone(zone)
    deaths = glance.trouble.deaths
    kinds = ", ".join(f"{line(kind, SHORT)} ({number:,})" for kind, number in islice(deaths.items(), MOST_KINDS))
    more = f" and {counted(len(deaths) - MOST_KINDS, 'more kind')}" if len(deaths) > MOST_KINDS else ""
    about = f": {kinds}{more}" if kinds else ""
    still = sum(queue.dead.number for queue in glance.queues)
    capped = "+" if any(queue.dead.more for queue in glance.queues) else ""
    is_now = f"{still:,}{capped} {'is' if still == 1 else 'are'} dead now"
    yield Alert("✖", f"{total:,} died since {since:%H:%M}, {is_now}{about}; 4 to look", "red")


def _silent(runner: RunnerRow) -> Iterator[Alert]:
    name = f"runner {runner.id} ({line(runner.host, SHORT)}:{runner.pid})"
    tasks = counted(runner.holds, "task")
    if not runner.alive:
        yield Alert("!", f"{name} is lost: silent for {cells.age(runner.silent)}, {tasks} in hand", "bold")
    elif runner.silent > runner.lease:
        soon = cells.age(runner.lease)
        yield Alert("!", f"{name} silent for {cells.age(runner.silent)}, {tasks} will be rescued in {soon}", "bold")


def _lost(glance: Glance) -> Iterator[Alert]:
    lost = {line(queue.queue, SHORT): queue.lost for queue in glance.queues if queue.lost.number}
    if not lost:
        return
    count = Count(sum(each.number for each in lost.values()), any(each.more for each in lost.values()))
    are, their, them = ("is", "its", "it") if count == Count(1) else ("are", "their", "them")
    alive = any(runner.alive for runner in glance.runners)
    then = f"a live runner takes {them} back" if alive else f"no runner is alive to take {them} back"
    alert = f"{count.of('task')} {are} lost, of {', '.join(lost)}: beyond {their} runner's lease; {then}"
    yield Alert("✖", alert, "bold red")


def _paused(place: str, pause: Pause, at: datetime, zone: tzinfo) -> Alert:
    until = f"until {pause.until.astimezone(zone):%H:%M}" if pause.until else "until somebody resumes it"
    if pause.until and pause.until.astimezone(zone).date() != at.astimezone(zone).date():
        until = f"until {pause.until.astimezone(zone):%Y-%m-%d %H:%M}"
    who, since = line(pause.by, SHORT), cells.since(pause.since, at)
    why = f": {line(pause.why, SHORT)}" if pause.why else ""
    return Alert("⏸", f"{place} paused by {who} {since} ago {until}{why}")
