"""Alerts: problems with causes before symptoms, each in one sentence with figures."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from runner.errors import RunnerError
from runner.queries.counting import Count
from runner.queries.counts import QueueCounts
from runner.queries.registries import Pause
from runner.queries.reports import Flow
from runner.queries.runners import HandlerWithoutRunner, RunnerRow
from runner.queries.stuck_rows import number_of_stuck, stuck_on
from runner.text import formatting
from runner.text.sanitize import count_noun
from runner.text.stuck_row import MISSED, more_stuck, stuck_fact
from tasktui.data.overview import MINUTE, NEGLECTED, Overview, Slowdown, per_minute, read_overview
from tasktui.render.render import brief, line
from tasktui.session.session import Alarm, Session

MAX_KINDS = 3
"""Error types, queues and runners listed in an alert."""

MAX_TEXT, MAX_ERROR = 60, 300
"""Maximum characters of a text from the database, and of an error of it, which has the advice at its end."""

HELD = 0.8
"""Share of the slots of a pool from which one handler holds the pool."""

MOSTLY = 0.9
"""Share of failed attempts from which a runner fails, if the other runners do not."""

DEPLOY_NEAR = timedelta(minutes=15)
"""The time from a deploy to failures that it may have caused."""

ENOUGH = 10
"""Attempts of a runner in ten minutes that suffice to judge it."""


class Alert(NamedTuple):
    """One alert.

    Args:
        role: state whose sign and colour it has: `dead` is broken, `retrying` is worth watching, `lost`, `paused`.
        title: sanitized subject and verb: `mail falls behind`.
        text: sanitized rest of the sentence; figures come first, because a narrow screen cuts its end.
        key: the key that leads to the cause; empty if there is none.
        label: the view that the key opens.
        name: the beginning of the title that a narrow screen may shorten; empty for none.
    """

    role: str
    title: str
    text: str = ""
    key: str = ""
    label: str = ""
    name: str = ""

    @property
    def sentence(self) -> str:
        """Title and text."""
        return f"{self.title}: {self.text}" if self.text else self.title


Results: TypeAlias = Mapping[int, Mapping[str, Flow]]
"""Results by runner and handler."""


def alerts(
    overview: Overview, zone: tzinfo, results: Results | None = None, stuck: Iterable[Alert] = ()
) -> Iterator[Alert]:
    """List the current problems, causes first.

    Args:
        results: results of the last ten minutes by runner and handler.
        stuck: the alert of the blocked tasks that wait for a dead or cancelled task, if there are any.
    """
    outage = list(_no_runner(overview))
    yield from outage
    pools = list(_held_pools(overview))
    yield from pools
    yield from _blocked_runners(overview)
    yield from _stuck_rows(overview)
    yield from _failing_runners(overview, results or {})
    yield from _breakers(overview)
    behind = {queue.queue: queue for queue in overview.queues if queue.falls_behind and not outage}
    unknown = [_unknown(handler, behind) for handler in overview.unknown if not outage]
    yield from (alert for alert in unknown if alert.role == "dead")
    for name, (failed, attempts) in overview.failing.items():
        text = f"{failed:,} of {count_noun(attempts, 'attempt')} in 10 min, {_failing(overview, name, zone)}"
        if (queue := behind.pop(name, None)) is not None:  # One line: the failures are the cause.
            text += f"; falls behind: {_rates(queue)}"
        shown = line(name, MAX_TEXT)
        yield Alert("dead", f"{shown} is failing", text, "4", "failures", shown)
    silent = [runner for runner in overview.runners if runner.silent or not runner.alive]
    yield from _silent_runners(silent if not outage else ())  # The outage has named the last one.
    for name, queue in behind.items():
        text = _behind(queue, overview.diagnoses.slow.get(name))
        shown = line(name, MAX_TEXT)
        yield Alert("retrying" if pools else "dead", f"{shown} falls behind", text, "↵", "tasks", shown)
    if not outage:
        yield from _lost(overview)
    yield from _dead(overview, zone)
    yield from stuck
    yield from (alert for alert in unknown if alert.role != "dead")
    for queue in overview.queues:
        if queue.paused:
            yield _paused(line(queue.queue, MAX_TEXT), queue.paused, overview.at, zone)
    yield from _hidden(overview)
    for handler, pause in overview.handlers.items():
        yield _paused(f"handler {line(handler, MAX_TEXT)}", pause, overview.at, zone)


async def read_alarm(session: Session) -> Alarm:
    """Count the problems of a database; the first one decides the role."""
    try:
        overview = await session.read(read_overview)
    except RunnerError as error:
        return Alarm.of(error)
    problems = [alert for alert in alerts(overview, session.zone) if alert.role != "paused"]
    return Alarm(f"! {len(problems)}", problems[0].role) if problems else Alarm("✓", "succeeded")


def unavailable_databases(sessions: Iterable[Session]) -> Iterator[Alert]:
    """The other databases of the console that cannot be read, each with its error."""
    for session in sessions:
        if session.alarm.error:
            title = f"{line(session.name, MAX_TEXT)} is unavailable, retrying"
            yield Alert("lost", title, line(session.alarm.error, MAX_ERROR), "d", "next")


def _hidden(overview: Overview) -> Iterator[Alert]:
    """There are more queues than a list has room for."""
    if overview.hides_queues:
        text = "listed are those with pauses, limits, lost tasks and failures, and those that wait longest"
        yield Alert("paused", f"{len(overview.queues):,} queues or more", text)


def _breakers(overview: Overview) -> Iterator[Alert]:
    """The breaker of a handler is open: its tasks wait for a probe to succeed."""
    for handler, state in ((row.handler, row.state) for row in overview.breakers):
        if state is None:
            continue
        probe = f"next probe in {formatting.age(state.next_in)}" if state.next_in > 0 else "probes now"
        by = f" by {line(state.by, MAX_TEXT)}" if state.by else ""
        why = f": {line(state.why, MAX_TEXT)}" if state.why else ""
        text = f"opened {state.since} ago{by}{why}; {probe}"
        yield Alert("dead", f"the breaker of {line(handler, MAX_TEXT)} is open", text, "4", "failures")


def _no_runner(overview: Overview) -> Iterator[Alert]:
    """All runners are dead: the cause of every queue that falls behind."""
    if overview.alive:
        return
    waiting = [queue.ready for queue in overview.queues]
    lost = sum(queue.lost.number for queue in overview.queues)
    ready = Count(sum(count.number for count in waiting), any(count.more for count in waiting))
    if not (ready.number or lost or overview.runners):
        return
    silent = min(overview.runners, key=lambda runner: runner.heartbeat_age, default=None)
    if silent is None:
        last = "none is registered"
    else:
        name = f"{line(silent.host, MAX_TEXT)}:{silent.pid}"
        last = f"{name} was the last, {formatting.age(silent.heartbeat_age)} ago"
    wait = f"{ready.of('task')} {'waits' if ready == Count(1) else 'wait'}"
    rescue = f", {count_noun(lost, 'lost task')} cannot be rescued" if lost else ""
    yield Alert("dead", "No runner is alive", f"{wait}{rescue}; start one: runner work; {last}", "5", "runners")


POOLS = {"threads": "thread", "processes": "process", "slots": "async"}
"""The name of each kind of slots."""


def pools(overview: Overview) -> Iterator[tuple[str, int, Counter[str]]]:
    """The slots of the live runners: name, number, and running tasks by handler, apart for each kind of slots.

    The kinds do not help each other out: the threads of a runner may be full while its async slots are free.
    """
    slots, busy = Counter[str](), {name: Counter[str]() for name in POOLS.values()}
    for runner in overview.alive:
        for kind, number in runner.sizes.items():
            slots[POOLS[kind]] += number
        for handler, number in overview.slots.get(runner.id, {}).items():
            busy[POOLS[runner.pool_of(handler)]][handler] += number
    for name, tasks in busy.items():
        yield name, slots[name], tasks


def _held_pools(overview: Overview) -> Iterator[Alert]:
    """One handler holds all slots of a pool while other tasks wait."""
    waiting = sum(queue.ready.number for queue in overview.queues if not queue.paused)
    if not waiting:
        return
    for name, slots, busy in pools(overview):
        if not slots or sum(busy.values()) < slots or not busy:
            continue
        handler, number = busy.most_common(1)[0]
        if number >= HELD * slots:
            queues = [
                line(queue.queue, MAX_TEXT) for queue in overview.queues if queue.ready.number and not queue.paused
            ]
            behind = (
                f"{waiting:,} ready {'task waits' if waiting == 1 else 'tasks wait'} in {', '.join(queues[:MAX_KINDS])}"
            )
            share = min(number, slots)  # A runner claims some tasks ahead, which wait for one of these slots.
            title = f"{line(handler, MAX_TEXT)} holds {share} of {slots} {name} slots"
            yield Alert("dead", title, behind, "5", "runners", line(handler, MAX_TEXT))


def _unknown(unknown: HandlerWithoutRunner, behind: dict[str, QueueCounts]) -> Alert:
    """A handler that no live runner takes, in one line with the queues that fall behind because of it."""
    name = line(unknown.handler, MAX_TEXT)
    name += line(f" on {' or '.join(unknown.hosts)}", MAX_TEXT) if unknown.hosts else ""
    wait = formatting.age(abs(unknown.due))
    text = f"{f'due for {wait}' if unknown.due >= 0 else f'due in {wait}'}, queue "
    text += line(", ".join(unknown.queues), MAX_TEXT)
    caused = [behind.pop(queue) for queue in unknown.queues if queue in behind and not behind[queue].minute.finished]
    if caused:
        ready = Count(sum(queue.ready.number for queue in caused), any(queue.ready.more for queue in caused))
        text += f": {ready} ready, none ends"
    role = "dead" if unknown.due >= NEGLECTED else "retrying"
    return Alert(role, f"no live runner takes {name}", text, "5", "runners")


def _blocked_runners(overview: Overview) -> Iterator[Alert]:
    """A handler blocks the event loop of a runner, or all of its threads: nothing starts or ends there."""
    for runner in overview.alive:
        if runner.blocked_for:
            name = f"{line(runner.host, MAX_TEXT)}:{runner.pid}"
            culprit = line(runner.culprit, MAX_TEXT)
            text = f'{culprit} blocks the event loop; make it a plain function, or use executor="process"'
            if runner.block is not None and runner.block.locked:
                fact = f"{line(runner.block.fact, MAX_TEXT)}: " if runner.block.fact else ""
                text = f'{fact}{line(runner.guess, MAX_ERROR)}; use executor="process"'
            yield Alert("dead", f"{name} is blocked for {formatting.age(runner.blocked_for)}", text, "5", "runners")


def _stuck_rows(overview: Overview) -> Iterator[Alert]:
    """Rows of tasks that another transaction locks, or that the database refuses to change."""
    rows = stuck_on(overview.runners)
    for row in rows[:MAX_KINDS]:
        name = f"task {row.task} ({line(row.handler, MAX_TEXT)})"
        text = line(f"{stuck_fact(row)}; {MISSED[row.verb]}", MAX_ERROR)
        yield Alert("dead", f"the row of {name} is {row.cause}", text, "5", "runners", name)
    if (more := number_of_stuck(overview.runners) - min(len(rows), MAX_KINDS)) > 0:
        yield Alert("dead", more_stuck(more), "", "5", "runners")


def _failing_runners(overview: Overview, results: Results) -> Iterator[Alert]:
    """A runner that fails nearly everything while others do not: a full disk, a network, a broken deploy."""
    alive = {runner.id: runner for runner in overview.alive}
    for id, flows in results.items():
        total = sum(flows.values(), Flow())
        attempts = total.failed + total.succeeded
        if id not in alive or attempts < ENOUGH or total.failed < MOSTLY * attempts:
            continue
        share = _share_on_others(id, results)
        if share is not None and share < 1 / 2:
            name = f"{line(alive[id].host, MAX_TEXT)}:{alive[id].pid}"
            text = f"{total.failed:,} of {attempts:,} attempts in 10 min; on other runners {round(100 * share)} %"
            yield Alert("dead", f"{name} fails nearly everything", text, "5", "runners", name)


def _share_on_others(id: int, results: Results) -> float | None:
    """The share of attempts that would fail if the handlers of a runner failed as on other runners.

    A runner with the failing handlers alone is not at fault. None if others have had too few of its attempts.
    """
    compared = expected = others = 0.0
    for handler, flow in results[id].items():
        peer = sum((flows[handler] for runner, flows in results.items() if runner != id and handler in flows), Flow())
        if peers := peer.failed + peer.succeeded:
            attempts = flow.failed + flow.succeeded
            others, compared = others + peers, compared + attempts
            expected += attempts * peer.failed / peers
    return expected / compared if others >= ENOUGH and compared >= ENOUGH else None


def _rates(queue: QueueCounts) -> str:
    return f"{queue.arrived} in, {queue.minute.finished:,} out per min"


def _behind(queue: QueueCounts, slow: Slowdown | None) -> str:
    text = _rates(queue)
    if slow is None or slow.p95 is None:
        return text
    now, before = formatting.duration(slow.p95), formatting.duration(slow.before) if slow.before is not None else ""
    was = f", was {before}" if before not in ("", now) else ""
    return f"{text}; slowest handler {line(slow.handler, MAX_TEXT)} (p95 {now}{was})"


def _failing(overview: Overview, queue: str, zone: tzinfo) -> str:
    """Since when most attempts of a queue fail, its most frequent error, and the deploy just before."""
    since, error = overview.failing_since(queue), overview.diagnoses.errors.get(queue)
    text = f"since {formatting.clock(since, overview.at, zone)}"
    text += f": {line(brief(error), MAX_TEXT)}" if error else ""
    for version, at in list(overview.deploys.items())[1:]:
        if -MINUTE < since - at < DEPLOY_NEAR:
            text += f", {formatting.age(max(0.0, (since - at).total_seconds()))} after deploy {line(version, 20)}"
    return text


def _dead(overview: Overview, zone: tzinfo) -> Iterator[Alert]:
    deaths = per_minute(overview.hour, overview.at, lambda flow: flow.died)
    total = round(sum(deaths))
    if not total:
        return
    first = next(index for index, number in enumerate(deaths) if number)
    since = formatting.clock(overview.at - (len(deaths) - 1 - first) * MINUTE, overview.at, zone)
    kinds = overview.diagnoses.deaths
    largest = [f"{line(brief(kind), MAX_TEXT)} {number:,}" for kind, number in islice(kinds.items(), MAX_KINDS)]
    more = [f"{len(kinds) - MAX_KINDS:,} more"] if len(kinds) > MAX_KINDS else []
    errors = [", ".join([*largest, *more])] if largest else []
    dead = Count(sum(queue.dead.number for queue in overview.queues), any(queue.dead.more for queue in overview.queues))
    still = [] if dead == Count(total) else [f"{dead} still dead"]
    yield Alert("dead", f"{total:,} dead since {since}", "; ".join([*still, *errors]), "4", "failures")


def _silent_runners(runners: Sequence[RunnerRow]) -> Iterator[Alert]:
    """Silent and lost runners; many, as after a failure of a network, in one line."""
    if len(runners) <= MAX_KINDS:
        yield from chain.from_iterable(map(_silent, runners))
        return
    lost, tasks = sum(not runner.alive for runner in runners), sum(runner.running_tasks for runner in runners)
    names = ", ".join(f"{line(runner.host, MAX_TEXT)}:{runner.pid}" for runner in runners[:MAX_KINDS])
    text = f"{lost:,} lost, {count_noun(tasks, 'task')} held: {names}, {len(runners) - MAX_KINDS:,} more"
    yield Alert("lost", f"{len(runners):,} runners are silent", text, "5", "runners")


def _silent(runner: RunnerRow) -> Iterator[Alert]:
    name = f"{line(runner.host, MAX_TEXT)}:{runner.pid}"
    tasks, age = count_noun(runner.running_tasks, "task"), formatting.age(runner.heartbeat_age)
    if not runner.alive:
        yield Alert("lost", f"{name} is lost", f"no heartbeat for {age}, holds {tasks}", "5", "runners", name)
    elif runner.silent:
        yield Alert(
            "lost",
            f"{name} is silent for {age}",
            f"rescue of {tasks} in {formatting.age(runner.lease)}" if runner.running_tasks else "holds no task",
            "5",
            "runners",
        )


def _lost(overview: Overview) -> Iterator[Alert]:
    lost = {line(queue.queue, MAX_TEXT): queue.lost for queue in overview.queues if queue.lost.number}
    listed = sum(runner.running_tasks for runner in overview.runners if not runner.alive)
    if sum(each.number for each in lost.values()) <= listed:  # The alerts of the lost runners name these tasks.
        return
    count = Count(sum(each.number for each in lost.values()), any(each.more for each in lost.values()))
    are, them = ("is", "it") if count == Count(1) else ("are", "them")
    text = f"the lease of the runner expired; a live runner will rescue {them}"
    yield Alert("lost", f"{count.of('task')} of {', '.join(lost)} {are} lost", text, "5", "runners")


def _paused(target: str, pause: Pause, at: datetime, zone: tzinfo) -> Alert:
    until = f"until {formatting.clock(pause.until, at, zone)}" if pause.until else "until resumed"
    who, since = line(pause.by, MAX_TEXT), formatting.since(pause.since, at)
    why = f": {line(pause.why, MAX_TEXT)}" if pause.why else ""
    return Alert("paused", f"{target} is paused", f"{until}, by {who} {since} ago{why}", "P", "resume", target)
