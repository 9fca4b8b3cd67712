"""The rules of runners: none alive, blocked, failing, lost, and the rows that they cannot change."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime

from runner.model.alert import QUEUE, Alert, AlertRule, Severity
from runner.queries.alerts.facts import MAX_ERROR, MAX_KINDS, AlertFacts, shown
from runner.queries.counting import Count
from runner.queries.ended_runners import common_tasks, ends_of_tasks
from runner.queries.overview import Overview
from runner.queries.reports import Flow
from runner.queries.runners import RunnerRow
from runner.queries.stuck_rows import number_of_stuck, stuck_on
from runner.text import formatting
from runner.text.runner_name import process_name
from runner.text.sanitize import count_noun
from runner.text.stuck_row import MISSED, more_stuck, stuck_fact, stuck_step

HELD = 0.8
"""Share of the slots of a pool from which one handler holds the pool."""

MOSTLY = 0.9
"""Share of failed attempts from which a runner fails, if the other runners do not."""

ENOUGH = 10
"""Attempts of a runner in ten minutes that suffice to judge it."""

START = "Start one: runner work -H package.module."
LIST = "The runners: runner runners"

POOLS = {"threads": "thread", "processes": "process", "slots": "async"}
"""The name of each kind of slots."""


def name_of(runner: RunnerRow) -> str:
    """The subject of the alerts of a runner, which outlasts a restart of the process in most containers."""
    return f"{runner.host}:{runner.pid}"


def _title(runner: RunnerRow) -> str:
    return shown(process_name(runner.host, runner.pid))


def no_runner(facts: AlertFacts) -> Iterator[Alert]:
    """All runners are dead: the cause of every queue that falls behind."""
    overview = facts.overview
    if overview.alive:
        return
    lost = sum(queue.lost.number for queue in overview.queues)
    ready = overview.ready(overview.queues)
    if not (ready.number or lost or overview.runners):
        return
    last, since = _last(facts)
    wait = f"{ready.of('task')} {'waits' if ready == Count(1) else 'wait'}"
    rescue = f", {count_noun(lost, 'lost task')} cannot be rescued" if lost else ""
    text = f"{wait}{rescue}; start one: runner work; {last}"
    yield Alert(AlertRule.NO_RUNNER, "", Severity.CRITICAL, "No runner is alive", text, START, since)


def _last(facts: AlertFacts) -> tuple[str, datetime | None]:
    """The last runner as a clause, and the time since when none is alive."""
    if silent := min(facts.overview.runners, key=lambda runner: runner.heartbeat_age, default=None):
        name, since = _title(silent), facts.ago(silent.heartbeat_age)
        return f"{name} was the last, {formatting.age(silent.heartbeat_age)} ago", since
    if ended := facts.slow.ended:
        age = formatting.since(ended.ended_at, facts.overview.at)
        end = f"{'was lost' if ended.lost else 'stopped'} {age} ago"
        return f"{shown(process_name(ended.host, ended.pid))} was the last, and {end}", ended.ended_at
    return "none is registered", None


def pools(overview: Overview) -> Iterator[tuple[str, int, Counter[str]]]:
    """The slots of the live runners: name, number, and running tasks by handler, apart for each kind of slots.

    The kinds do not help each other out: the threads of a runner may be full while its async slots are free.
    """
    slots, busy = Counter[str](), defaultdict(Counter[str], {name: Counter[str]() for name in POOLS.values()})
    for runner in overview.alive:
        for kind, number in runner.sizes.items():
            slots[POOLS.get(kind, kind)] += number
        for handler, number in overview.slots.get(runner.id, {}).items():
            kind = runner.pool_of(handler)
            busy[POOLS.get(kind, kind)][handler] += number
    for name, tasks in busy.items():
        yield name, slots[name], tasks


def held_slots(facts: AlertFacts) -> Iterator[Alert]:
    """One handler holds all slots of a pool while other tasks wait."""
    overview = facts.overview
    waiting = overview.ready(queue for queue in overview.queues if not queue.paused)
    if not waiting.number:
        return
    for name, slots, busy in pools(overview):
        if name == QUEUE or not slots or sum(busy.values()) < slots or not busy:
            continue
        handler, number = busy.most_common(1)[0]
        if number >= HELD * slots:
            queues = [shown(queue.queue) for queue in overview.queues if queue.ready.number and not queue.paused]
            verb = "task waits" if waiting == Count(1) else "tasks wait"
            behind = f"{waiting} ready {verb} in {', '.join(queues[:MAX_KINDS])}"
            share = min(number, slots)  # A runner claims some tasks ahead, which wait for one of these slots.
            title = f"{shown(handler)} holds {share} of {slots} {name} slots"
            advice = "Start more runners, or limit this handler: runner limit --help"
            yield Alert(AlertRule.SLOTS_HELD, handler, Severity.CRITICAL, title, behind, advice)


def blocked_runners(facts: AlertFacts) -> Iterator[Alert]:
    """A handler blocks the event loop of a runner, or all of its threads: nothing starts or ends there."""
    for runner in facts.overview.alive:
        if runner.blocked_for:
            culprit = shown(runner.culprit)
            text = f'{culprit} blocks the event loop; make it a plain function, or use executor="process"'
            if runner.block is not None and runner.block.locked:
                fact = f"{shown(runner.block.fact)}: " if runner.block.fact else ""
                text = f'{fact}{shown(runner.guess, MAX_ERROR)}; use executor="process"'
            title = f"{_title(runner)} is blocked for {formatting.age(runner.blocked_for)}"
            since = facts.ago(runner.blocked_for)
            yield Alert(AlertRule.RUNNER_BLOCKED, name_of(runner), Severity.CRITICAL, title, text, LIST, since)


def stuck_rows(facts: AlertFacts) -> Iterator[Alert]:
    """Rows of tasks that another transaction locks, or that the database refuses to change."""
    rows = stuck_on(facts.overview.runners)
    for row in rows[:MAX_KINDS]:
        title = f"the row of task {row.task} ({shown(row.handler)}) is {row.cause}"
        text = shown(f"{stuck_fact(row)}; {MISSED[row.verb]}", MAX_ERROR)
        advice = f"{stuck_step(row)} More: runner why {row.task}"
        yield Alert(AlertRule.ROW_STUCK, f"task {row.task}", Severity.CRITICAL, title, text, advice)
    if (more := number_of_stuck(facts.overview.runners) - min(len(rows), MAX_KINDS)) > 0:
        yield Alert(AlertRule.ROW_STUCK, "", Severity.CRITICAL, more_stuck(more), "", LIST)


def failing_runners(facts: AlertFacts) -> Iterator[Alert]:
    """A runner that fails nearly everything while others do not: a full disk, a network, a broken deploy."""
    alive = {runner.id: runner for runner in facts.overview.alive}
    for id, flows in facts.slow.results.items():
        total = sum(flows.values(), Flow())
        attempts = total.failed + total.succeeded
        if id not in alive or attempts < ENOUGH or total.failed < MOSTLY * attempts:
            continue
        share = _share_on_others(id, facts.slow.results)
        if share is not None and share < 1 / 2:
            title = f"{_title(alive[id])} fails nearly everything"
            text = f"{total.failed:,} of {attempts:,} attempts in 10 min; on other runners {round(100 * share)} %"
            yield Alert(AlertRule.RUNNER_FAILING, name_of(alive[id]), Severity.CRITICAL, title, text, LIST)


def _share_on_others(id: int, results: Mapping[int, Mapping[str, Flow]]) -> float | None:
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


def lost_runners(facts: AlertFacts) -> Iterator[Alert]:
    """Silent and lost runners; many, as after a failure of a network, in one line."""
    runners = [runner for runner in facts.overview.runners if runner.silent or not runner.alive]
    if len(runners) <= MAX_KINDS:
        yield from (_lost_runner(runner, facts.ago(runner.heartbeat_age)) for runner in runners)
        return
    lost, tasks = sum(not runner.alive for runner in runners), sum(runner.running_tasks for runner in runners)
    names = ", ".join(map(_title, runners[:MAX_KINDS]))
    text = f"{lost:,} lost, {count_noun(tasks, 'task')} held: {names}, {len(runners) - MAX_KINDS:,} more"
    severity = Severity.WARNING if lost else Severity.NOTE
    title, since = f"{len(runners):,} runners are silent", facts.ago(max(runner.heartbeat_age for runner in runners))
    yield Alert(AlertRule.RUNNER_LOST, "", severity, title, text, LIST, since)


def recently_lost(facts: AlertFacts) -> Iterator[Alert]:
    """Runners whose tasks were rescued, and which the list of runners no longer has; many in one line."""
    lost = facts.slow.lost
    tasks, number = common_tasks(lost)
    if len(tasks) > MAX_KINDS:
        tasks = []  # So many have only shared their runners with the cause.
    names = [f"task {each.task_id} ({shown(each.handler)})" for each in tasks]
    common = f"; {' and '.join(names)} ran on {number:,}" if tasks else ""
    poison = f"It may have ended them: runner show {tasks[0].task_id}" if len(tasks) == 1 else ""
    if len(lost) > MAX_KINDS:
        some = ", ".join(shown(process_name(runner.host, runner.pid)) for runner in lost[:MAX_KINDS])
        text = f"{ends_of_tasks(lost)}: {some}, {len(lost) - MAX_KINDS:,} more{common and f'{common} of them'}"
        advice = poison or "The report: runner incident --from 1h"
        title, since = f"{len(lost):,} runners were lost", min(runner.ended_at for runner in lost)
        yield Alert(AlertRule.RUNNER_LOST, "", Severity.WARNING, title, text, advice, since)
        return
    for runner in lost:
        title = f"{shown(process_name(runner.host, runner.pid))} was lost"
        text = f"{ends_of_tasks([runner])} {formatting.since(runner.ended_at, facts.overview.at)} ago"
        is_common = not {each.task_id for each in tasks}.isdisjoint(each.task_id for each in runner.attempts)
        text += f"{common} lost runners" if is_common else ""
        advice = (is_common and poison) or "Its last log lines have the reason."
        name, since = f"{runner.host}:{runner.pid}", runner.ended_at
        yield Alert(AlertRule.RUNNER_LOST, name, Severity.WARNING, title, text, advice, since)


def _lost_runner(runner: RunnerRow, since: datetime | None) -> Alert:
    tasks, age = count_noun(runner.running_tasks, "task"), formatting.age(runner.heartbeat_age)
    if runner.alive:
        title, severity = f"{_title(runner)} is silent for {age}", Severity.NOTE
        rescue = f"rescue of {tasks} in {formatting.age(runner.lease)}"
        text = rescue if runner.running_tasks else "holds no task"
    else:
        title, severity = f"{_title(runner)} is lost", Severity.WARNING
        text = f"no heartbeat for {age}, holds {tasks}"
    return Alert(AlertRule.RUNNER_LOST, name_of(runner), severity, title, text, LIST, since)
