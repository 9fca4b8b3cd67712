"""incident: a period of trouble as one report: timeline, failures, queues, lost runners, changes by operators."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any, NamedTuple, TypeAlias

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.transaction import Transaction, clock
from runner.db.types import db_now
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.outcome import RUNNER_LOST
from runner.model.task import FINAL, State
from runner.queries.audit import REVEAL, ChangeGroup, change_groups
from runner.queries.audit_words import brief_changes
from runner.queries.comparison import read_side
from runner.queries.counting import Count, capped, total_of
from runner.queries.failures import WINDOW, Failures, failures
from runner.queries.health import reads_audit
from runner.queries.reports import OTHERS, Flow, MinuteFlow, per_minute
from runner.queries.rows import as_int, as_text, moment, readable, text
from runner.queries.summary import GroupBy, Summary, SummaryLine, summary
from runner.text import formatting
from runner.text.blocks import BlockTable, Code, Items, MarkdownBlock, Paragraph, Sample, Section, Words, markdown
from runner.text.document import JsonProperty, Treatment
from runner.text.page import page
from runner.text.redact import mask
from runner.text.runner_name import runner_name
from runner.text.sanitize import count_noun, one_line
from runner.text.times import format_age, format_moment

MOST_CHANGES = 1_000
MOST_GROUPS = 20
MOST_LOST = 10_000
MOST_CANCELLED = 100_000
MOST_FRAMES = 14
MOST_IDS = 5
LONGEST_VALUES = 120
"""Bounds of a report: operations, failure groups, runners or attempts that ended, cancelled tasks, lines of a
traceback, ids, characters of values."""

NO_RESULTS = SummaryLine("", Count(), Flow(), None, None, None, None)
"""The results of a queue in which no task was submitted or ended."""

Ends: TypeAlias = list[tuple[datetime, int]]
"""Ends of attempts, each with the id of its task."""


class Happening(NamedTuple):
    """One line of the timeline.

    Args:
        at: the time; the end of its minute if only the minute is known.
        text: a sentence, not sanitized.
        minute: True if only the minute is known.
    """

    at: datetime
    text: str
    minute: Annotated[bool, Treatment.HIDDEN] = False

    @JsonProperty
    def exact(self) -> bool:
        """False if only the minute is known, and the time is the end of it."""
        return not self.minute


@dataclass(frozen=True, slots=True)
class Incident:
    """The data of a report.

    Args:
        before: the results by queue of the period of the same length before.
        backlog: the ready and retrying tasks at the end, by queue.
        minutes: the counts by minute.
        cancelled: the tasks cancelled in the period that still are, also without a start.
        failures: the failure groups, largest first.
        firsts: the first failure of each group, by fingerprint; it may be before the period.
        changes: the operations, each with its latest change, oldest first; None if this login may not read the audit.
        happenings: starts, stops and losses of runners, openings and closes of breakers, and rescues.
    """

    at: datetime
    queues: Summary
    handlers: Summary
    before: Summary
    backlog: Mapping[str, Count]
    minutes: Sequence[MinuteFlow]
    cancelled: Count
    failures: Sequence[Failures]
    firsts: Mapping[str, datetime | None]
    changes: Sequence[ChangeGroup] | None
    happenings: Sequence[Happening]

    @property
    def ended(self) -> Count:
        """The tasks that ended: the counts of the minutes lack tasks cancelled before their start."""
        flow = self.queues.total.flow
        more = max(self.cancelled.number, flow.cancelled) - flow.cancelled
        return Count(flow.finished + more, self.cancelled.more)

    @property
    def counts_backlog(self) -> bool:
        """True if no operator has returned finished tasks to the queue, or reverted that: no minute counts these."""
        return not any(_returns(change) for change in self.changes or ())


async def incident(tx: Transaction, since: datetime, until: datetime | None = None) -> Incident:
    """Read the data of a report.

    Args:
        tx: an open transaction; about 40 statements are executed; see `queues_as_of` for those of a past end.
        since: the start, aware; its whole minute is included.
        until: the end, aware and exclusive; None for now.
    """
    at = await clock(tx)
    end = until or at
    queues = await summary(tx, since, end, GroupBy.QUEUE)
    times = Filter((Term("since", Operator.GE, queues.since), Term("until", Operator.LT, end)))
    changes: list[ChangeGroup] | None = None
    if await reads_audit(tx):
        table = tx.tables.audit.c
        within = [table.at >= queues.since, table.verb != REVEAL, *([table.at < until] if until else [])]
        changes = list(reversed(await change_groups(tx, MOST_CHANGES, within=within)))
    minutes = await per_minute(tx, queues.since, end)
    side = await read_side(tx, "", until)
    groups = await failures(tx, times, limit=MOST_GROUPS)
    return Incident(
        at,
        queues,
        await summary(tx, since, end, GroupBy.HANDLER),
        await summary(tx, queues.since - (end - queues.since), queues.since, GroupBy.QUEUE),
        {name: total_of((queue.ready, queue.retrying)) for name, queue in side.queues.items()},
        minutes,
        await _cancelled(tx, queues.since, end),
        groups,
        await _firsts(tx, [group.fingerprint for group in groups]),
        changes,
        await happenings(tx, queues.since, end, minutes),
    )


async def _cancelled(tx: Transaction, since: datetime, until: datetime) -> Count:
    task = tx.tables.history.c
    within = (is_state(task.state, State.CANCELLED), task.finished_at >= since, task.finished_at < until)
    rows = sa.select(task.id).where(*within).limit(MOST_CANCELLED + 1).subquery()
    return capped(int(await tx.scalar(sa.select(sa.func.count()).select_from(rows))), MOST_CANCELLED)


async def _firsts(tx: Transaction, fingerprints: Sequence[str]) -> dict[str, datetime | None]:
    """The end of the first attempt of each failure group: a lookup in the index of fingerprints for each."""
    if not fingerprints:
        return {}
    attempt = tx.tables.attempt.c
    ends = [sa.select(sa.func.min(attempt.ended_at)).where(attempt.fingerprint == each) for each in fingerprints]
    (row,) = await tx.rows(sa.select(*(end.scalar_subquery().label(f"end_{n}") for n, end in enumerate(ends))))
    return {each: moment(at) for each, at in zip(fingerprints, row, strict=True)}


def _returns(change: ChangeGroup) -> bool:
    states = [json.loads(values or "{}").get("state") for values in (change.entry.before, change.entry.after)]
    before, after = (state in FINAL for state in states)
    return change.entry.verb != "terminate" and None not in states and before != after


async def happenings(
    tx: Transaction, since: datetime, until: datetime, minutes: Sequence[MinuteFlow]
) -> list[Happening]:
    """Read the starts, stops and losses of runners, the openings of breakers and the rescues of a period, in order.

    Args:
        tx: an open transaction; six statements are executed.
        minutes: the counts of the period by minute.
    """
    losses, rescues = await _losses(tx, since, until)
    others = [each for read in (_deploys, _breakers) for each in await read(tx, since, until)]
    return sorted([*others, *losses, *_rescues(minutes, rescues)], key=lambda item: item.at)


class _RunnerLife(NamedTuple):
    id: int
    version: str
    host: str
    pid: int
    started_at: datetime | None
    ended_at: datetime | None = None
    is_lost: bool = False


async def _deploys(tx: Transaction, since: datetime, until: datetime) -> list[Happening]:
    """The starts and the stops of the runners of each version, among those alive in the period."""
    lives = await _lives(tx, since)
    starts: dict[str, list[tuple[datetime, str]]] = {}
    stops: dict[str, list[tuple[datetime, str]]] = {}
    happenings = []
    for life in lives:
        lost = [each.id for each in lives if each.is_lost and each[1:4] == life[1:4] and each.id < life.id]
        if lost and life.started_at is not None and since <= life.started_at < until:
            name = f"R{runner_name(life.id, life.host, life.pid)[1:]}"
            happenings.append(Happening(life.started_at, f"{name} registered: the same process as runner {max(lost)}"))
        elif not lost and life.started_at is not None and life.started_at < until:
            starts.setdefault(life.version, []).append((life.started_at, life.host))
        if life.ended_at is not None and life.ended_at < until and not life.is_lost:
            stops.setdefault(life.version, []).append((life.ended_at, life.host))
    for verb, ends in (("started", starts), ("stopped", stops)):
        for version, runners in ends.items():
            if inside := sorted(end for end in runners if end[0] >= since):
                earlier = any(min(others)[0] < inside[0][0] for others in starts.values())
                is_new = ends is starts and len(inside) == len(runners) and earlier
                of_version = f"{count_noun(len(inside), 'runner')} of {'new ' * is_new}version {version}"
                hosts, length = ", ".join(sorted({host for _, host in inside})), inside[-1][0] - inside[0][0]
                within = f" within {format_age(length)}" if length >= timedelta(seconds=1) else ""
                happenings.append(Happening(inside[0][0], f"{of_version} {verb}{within} on {hosts}"))
    return happenings


async def _lives(tx: Transaction, since: datetime) -> list[_RunnerLife]:
    """The live runners, and the runners that ended since a time."""
    live, ended = tx.tables.runner.c, tx.tables.ended_runner.c
    registered = [*readable(tx, (live.id, live.version, live.host, live.pid, live.started_at)), sa.null(), sa.false()]
    columns = (ended.runner_id, ended.version, ended.host, ended.pid, ended.started_at, ended.ended_at, ended.lost)
    removed = sa.select(*readable(tx, columns)).where(ended.ended_at >= since).order_by(ended.ended_at).limit(MOST_LOST)
    return [
        _RunnerLife(as_int(id), as_text(version), as_text(host), as_int(pid), moment(start), moment(end), bool(lost))
        for part in (sa.select(*registered), removed)
        for id, version, host, pid, start, end, lost in await tx.rows(part)
    ]


async def _breakers(tx: Transaction, since: datetime, until: datetime) -> list[Happening]:
    """The last opening and the last close of each breaker; the changes by operators are in the audit."""
    table = tx.tables.handler.c
    columns = [table.name, table.breaker_opened_at, table.breaker_closed_at, table.breaker_by, table.breaker_why]
    changed = table.breaker_opened_at.is_not(None) | table.breaker_closed_at.is_not(None)
    rows = await tx.execute(sa.select(*readable(tx, columns)).where(changed))
    happenings = []
    for row in rows.mappings():
        why = f": {row['breaker_why']}" if text(row["breaker_why"]) else ""
        for name, verb in (("breaker_opened_at", "opened"), ("breaker_closed_at", "closed")):
            at = moment(row[name])
            if at is not None and since <= at < until and not (verb == "opened" and row["breaker_by"]):
                happenings.append(Happening(at, f"Breaker of {as_text(row['name'])} {verb}{why * (verb == 'opened')}"))
    return happenings


async def _losses(tx: Transaction, since: datetime, until: datetime) -> tuple[list[Happening], list[datetime]]:
    """The lost runners with the attempts that ended with them, and the times of the rescues of their tasks."""
    happenings, times, attempts = list[Happening](), list[datetime](), await _lost_attempts(tx, since, until)
    for id, pid, host, heartbeat_at, end_at, number, is_removed in await _lost_runners(tx, since, until):
        at, end, load = moment(heartbeat_at), moment(end_at), as_int(number)
        if at is None or end is None or end < since or at >= until:
            continue
        tasks = f"it {'held' if is_removed else 'holds'} {count_noun(load, 'task')}" if load else "no tasks"
        if ends := attempts.pop((id, as_text(host)), []):
            tasks = f"{tasks}, {_attempts(ends)}"
        elif load and not is_removed:
            tasks = f"{tasks}, which no live runner has rescued"
        times += [min(ends)[0]] if ends else [end] if load and is_removed and end < until else []
        name = f"R{runner_name(id, as_text(host), as_int(pid))[1:]}"
        happenings.append(Happening(at, f"{name} lost: its last heartbeat; {tasks}"))
    for (runner_id, host), ends in attempts.items():
        times.append(min(ends)[0])
        name = f"R{runner_name(formatting.text(runner_id), host)[1:]}"
        happenings.append(Happening(times[-1], f"{name} lost, {_attempts(ends)}"))
    return happenings, times


async def _lost_attempts(tx: Transaction, since: datetime, until: datetime) -> dict[tuple[int | None, str], Ends]:
    """The attempts that ended with their runner, by its id and host."""
    table = tx.tables.attempt.c
    lost = sa.select(table.runner_id, table.host, table.ended_at, table.task_id).where(
        table.ended_at >= since, table.ended_at < until, table.error_type == RUNNER_LOST
    )
    groups: dict[tuple[int | None, str], Ends] = {}
    for runner_id, host, ended_at, task_id in await tx.rows(lost.order_by(table.ended_at.desc()).limit(MOST_LOST)):
        if (at := moment(ended_at)) is not None:
            groups.setdefault((runner_id, as_text(host)), []).append((at, task_id))
    return groups


def _attempts(ends: Ends) -> str:
    ids = sorted({id for _, id in ends})
    more = ", ..." if len(ids) > MOST_IDS else ""
    tasks = f"{'task' if len(ids) == 1 else 'tasks'} {', '.join(map(str, ids[:MOST_IDS]))}{more}"
    return f"{count_noun(len(ends), 'attempt')} ended with it: {tasks}"


async def _lost_runners(tx: Transaction, since: datetime, until: datetime) -> Sequence[Any]:
    """Id, process, host, last heartbeat, end and running tasks of lost runners; 1 if a rescue has removed it."""
    runner, ended, task = tx.tables.runner.c, tx.tables.ended_runner.c, tx.tables.task.c
    running = sa.select(sa.func.count()).where(task.runner_id == runner.id, is_state(task.state, State.RUNNING))
    registered = readable(tx, [runner.id, runner.pid, runner.host, runner.heartbeat_at, runner.lease_until])
    silent = sa.select(*registered, running.scalar_subquery()).where(runner.lease_until < db_now())
    columns = readable(tx, [ended.runner_id, ended.pid, ended.host, ended.heartbeat_at, ended.ended_at, ended.tasks])
    removed = sa.select(*columns).where(ended.ended_at >= since, ended.heartbeat_at < until, ended.lost)
    parts = (silent.where(runner.heartbeat_at < until), removed.order_by(ended.ended_at.desc()).limit(MOST_LOST))
    return [(*row, is_lost) for is_lost, part in enumerate(parts) for row in await tx.rows(part)]


def _rescues(minutes: Sequence[MinuteFlow], rescues: Sequence[datetime]) -> Iterator[Happening]:
    """The rescues of tasks from lost runners, also of tasks without an attempt; one line for minutes in a row."""
    spans: list[list[MinuteFlow]] = []
    for minute in sorted((each for each in minutes if each.flow.rescued), key=lambda each: each.minute):
        if not spans or minute.minute - spans[-1][-1].minute > timedelta(minutes=1):
            spans.append([])
        spans[-1].append(minute)
    for span in spans:
        text = f"{count_noun(sum(minute.flow.rescued for minute in span), 'task')} rescued from lost runners"
        times = [at for at in rescues if timedelta() <= at - span[0].minute < timedelta(minutes=len(span))]
        end = span[0].minute + timedelta(minutes=1, microseconds=-1)
        yield Happening(times[0] if len(times) == 1 else end, text, minute=len(times) != 1)


def as_markdown(incident: Incident, name: str, zone: tzinfo) -> str:
    """Write a report as Markdown."""
    return markdown(_title(incident, name, zone), _blocks(incident, zone))


def as_page(incident: Incident, name: str, zone: tzinfo) -> str:
    """Write a report as an HTML page."""
    return page(_title(incident, name, zone), _blocks(incident, zone))


def _title(incident: Incident, name: str, zone: tzinfo) -> str:
    since, until = (at.astimezone(zone) for at in (incident.queues.since, incident.queues.until))
    end = f"{until:%H:%M %Z}" if since.date() == until.date() else f"{until:%Y-%m-%d %H:%M %Z}"
    return f"Incident on {name}, {since:%Y-%m-%d %H:%M} to {end}"


def _blocks(incident: Incident, zone: tzinfo) -> list[MarkdownBlock]:
    until = incident.queues.until.astimezone(zone)
    items = [(_clock(item.at, until, seconds=not item.minute), item.text) for item in timeline(incident)]
    return [
        _summary(incident, until),
        Section("Timeline"),
        Items([f"{at} {text}" for at, text in items]) if items else Paragraph("Nothing."),
        Section("Failures"),
        *_failures(incident, until),
        Section("Queues"),
        _queues(incident),
        Section("Changes by operators"),
        _changes(incident, until),
        Paragraph(f"Times in {until:%Z}. Read at {format_moment(incident.at, zone)}.", note=True),
    ]


def _summary(incident: Incident, end: datetime) -> Items:
    total, before = incident.queues.total, incident.before.total
    flow = total.flow
    peak = max(incident.minutes, key=lambda minute: minute.flow.failed, default=None)
    more = total.submitted.number - incident.ended.number
    backlog = f"grew by {more:,}" if more > 0 else f"shrank by {-more:,}" if more else "stayed the same"
    backlog = f"the backlog {backlog}" if incident.counts_backlog else "some twice, as operators returned tasks"
    cancelled = f", {incident.cancelled} of these cancelled" if any(incident.cancelled) else ""
    ended = f"{incident.ended}{cancelled}" + ("" if incident.ended.more else f": {backlog}")
    usual = f"before: {before.flow.succeeded:,}, {before.flow.died:,} and {before.flow.retried:,}"
    lines = [
        f"tasks succeeded: {flow.succeeded:,}, died: {flow.died:,}, attempts retried: {flow.retried:,}; {usual}.",
        f"tasks submitted: {total.submitted}, ended: {ended}.",
    ]
    if total.p95 is not None and total.wait95 is not None:
        run, wait = _compared(total.p95, before.p95), _compared(total.wait95, before.wait95)
        lines.append(f"95 % of attempts took at most {run} and waited at most {wait}.")
    if flow.rescued:
        lines.append(f"tasks rescued from lost runners: {flow.rescued:,}; these attempts are no failures of a queue.")
    if peak and peak.flow.failed:
        lines.append(
            f"Most attempts failed in the minute of {_clock(peak.minute, end, seconds=False)}: {peak.flow.failed:,}."
        )
    return Items(lines)


def _compared(now: float, before: float | None) -> str:
    return f"{formatting.duration(now)} (before: {formatting.duration(before)})"


def timeline(incident: Incident) -> list[Happening]:
    """The happenings, the first failure of each new cause and the changes by operators, in order."""
    items = [*incident.happenings]
    for group in incident.failures:
        first = incident.firsts.get(group.fingerprint)
        if first is not None and first >= incident.queues.since and group.error_type != RUNNER_LOST:
            items.append(Happening(first, f"First {failure_title(group)} in {group.handler}"))
    items += [Happening(each.entry.at, _change(each)) for each in incident.changes or () if each.entry.at is not None]
    return sorted(items, key=lambda item: item.at)


def _change(change: ChangeGroup) -> str:
    entry = change.entry
    target = f"task {entry.task_id}" if entry.task_id is not None else entry.target or ""
    target = change.number.of("task") if change.number.number > 1 else target
    why = f": {entry.reason}" if entry.reason else ""
    changes = "changes" if change.number.number > 1 else "a change"
    operation = f"undo of {changes} to" if entry.undo_of else f"{formatting.verb(entry.verb)} of"
    return f"{operation} {target} by {entry.operator}{why}"


def _failures(incident: Incident, end: datetime) -> list[MarkdownBlock]:
    """The failure groups, and the largest one in full."""
    if not incident.failures:
        return [Paragraph("No attempt failed.")]
    head = ("attempts", "tasks", State.DEAD, "first", "last", "handler", "error", "fingerprint")
    rows: list[list[Words]] = []
    for group in incident.failures:
        first = incident.firsts.get(group.fingerprint)
        is_old = first is not None and first < incident.queues.since
        times = ("earlier" if is_old else _clock(first, end), _clock(group.last, end))
        names = (group.handler, failure_title(group), group.fingerprint)
        rows.append([*failure_counts(group), *times, *([Code(name)] for name in names)])
    note = [Paragraph(UNREAD)] if any(group.count.more for group in incident.failures) else []
    return [BlockTable(head, rows, right=range(3)), *note, *_example(incident.failures[0])]


UNREAD = (
    f"Only the last {WINDOW:,} failed attempts were read: a + marks a lower bound, and older groups may be missing."
)


def failure_counts(group: Failures) -> tuple[str, str, str]:
    """The attempts of a failure group, its tasks and its dead tasks."""
    return str(group.count), str(group.counted(group.tasks)), str(group.counted(group.dead))


def failure_title(group: Failures) -> str:
    """The error of a failure group in one line."""
    return f"{group.error_type.rpartition('.')[2]}: {one_line(mask(group.message), LONGEST_VALUES)}"


def _example(group: Failures) -> list[MarkdownBlock]:
    lines = (group.traceback or group.message).splitlines()
    if len(lines) > MOST_FRAMES:
        lines = [lines[0], "  ...", *lines[1:][-MOST_FRAMES:]]
    return [Paragraph(f"The last one of the largest group, task {group.task_id}:"), Sample("\n".join(lines))]


def _queues(incident: Incident) -> MarkdownBlock:
    lines = [(line.name, line) for line in incident.queues.lines]
    others, listed = incident.queues.others, {name for name, _ in lines}
    waiting = {name: count for name, count in incident.backlog.items() if name not in listed and any(count)}
    if others is None:
        lines += [(name, NO_RESULTS) for name in waiting]
    else:
        lines.append((others.name, others))
    if not lines:
        return Paragraph("No tasks were submitted or finished, and none waits.")
    backlog = {**incident.backlog, OTHERS: total_of(waiting.values())}
    before = {line.name: line for line in incident.before.rows}
    head = ("queue", "in", State.SUCCEEDED, "failed", State.DEAD, "backlog", "run p95", "before", "wait p95", "before")
    rows: list[list[Words]] = []
    for queue, line in lines:
        usual, flow = before.get(queue), line.flow
        counts = [str(line.submitted), *(f"{number:,}" for number in (flow.succeeded, flow.failed, flow.died))]
        pairs = ((line.p95, usual.p95 if usual else None), (line.wait95, usual.wait95 if usual else None))
        times = [formatting.duration(value) for pair in pairs for value in pair]
        name = [Code(queue)] if queue else "(other queues)"
        rows.append([name, *counts, str(backlog.get(queue, Count())), *times])
    return BlockTable(head, rows, right=range(1, len(head)))


def _changes(incident: Incident, end: datetime) -> MarkdownBlock:
    if incident.changes is None:
        return Paragraph("This login may not read the audit.")
    return Items([_change_line(each, end) for each in incident.changes]) if incident.changes else Paragraph("None.")


def _change_line(each: ChangeGroup, end: datetime) -> list[str]:
    entry, zone = each.entry, end.tzinfo or UTC
    values = ", ".join(brief_changes(entry, zone, LONGEST_VALUES))
    group = [" (", Code(f"runner audit --group {entry.change_group}"), ")"] if entry.change_group else []
    changed = f"{'; ' if entry.reason else ': '}{values}" if values else ""
    return [f"{_clock(entry.at, end)} ", _change(each), *group, changed]


def _clock(at: datetime | None, end: datetime, *, seconds: bool = True) -> str:
    """A time in the zone of the end of the period, with its date on other days."""
    return formatting.clock(at, end, end.tzinfo or UTC, seconds=seconds)
