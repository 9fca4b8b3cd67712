"""hindrances: what keeps a waiting task from running, the most decisive one first."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, tzinfo
from shlex import quote
from typing import Any

from runner.people.cells import age, reason, since
from runner.people.terminal import counted, one_line
from runner.store.observe.cause import Cause, Sight, named, runners_of, said, seen_at, seen_in_hand, when
from runner.store.observe.facts import Facts
from runner.store.observe.pauses import Pause, Registered

JUST_NOW = 2.0
"""Seconds for which a task may be due before anybody need wonder."""


def hindrances(known: Facts, zone: tzinfo) -> Iterator[Cause]:
    """Tell what keeps a waiting task from running.

    Args:
        known: about a task that waits.
        zone: in which times are told.
    """
    found = [*_used_up(known), *_later(known, zone), *_paused(known, zone), *_untaken(known)]
    yield from found
    if known.due and not found:
        rest = [*_apart(known), *_full(known), *_behind(known)]
        yield from rest or [_nothing(known)]


def _used_up(known: Facts) -> Iterator[Cause]:
    task = known.task
    if not known.attempts_left:
        most = task.max_attempts or 0
        text = f"It has used {counted(task.attempt, 'attempt')} of {most}, and is not tried again."
        yield Cause("attempts", text, f"runner edit {task.id} --max-attempts {task.attempt + 1}")


def _later(known: Facts, zone: tzinfo) -> Iterator[Cause]:
    task = known.task
    if known.due:
        return
    failed = f", since attempt {task.attempt} failed: {reason(task.error)}" if task.attempt and task.error else ""
    sight = Sight("task", str(task.id)) if failed else None
    yield Cause("due", f"It is due {when(task.run_at, known.at, zone)}{failed}.", f"runner retry {task.id}", sight)


def _paused(known: Facts, zone: tzinfo) -> Iterator[Cause]:
    for what, option, entry in (("Queue", "", known.queue), ("Handler", "--handler ", known.handler)):
        pause = entry.pause if entry else None
        if entry is None or pause is None or _over_before(pause, known):
            continue
        until = when(pause.until, known.at, zone) if pause.until else "when somebody says so"
        who = f"{one_line(pause.by or 'somebody')}, {since(pause.since, known.at)} ago"
        text = f"{what} {one_line(entry.name)} was paused by {who}: {said(pause.why)} It goes on {until}."
        sight = Sight("audit", f"{what.lower()} {one_line(entry.name)}")
        yield Cause("paused", text, f"runner resume {option}{quote(one_line(entry.name))}", sight)


def _over_before(pause: Pause, known: Facts) -> bool:
    """Tell whether a pause ends before the task is due."""
    run_at = known.task.run_at
    return pause.until is not None and run_at is not None and pause.until <= run_at


def _untaken(known: Facts) -> Iterator[Cause]:
    if known.takers:
        return
    task = known.task
    name, queue = one_line(task.handler), one_line(task.queue)
    know = [runner for runner in known.alive if task.handler in runner.handlers]
    draining = [runner for runner in know if runner.takes(task.queue, task.handler)]
    if draining:
        text = f"{runners_of(draining)} such tasks, but nothing more is claimed there: it was asked to drain."
        yield Cause("draining", text, "start another runner", seen_at(draining[0]))
    elif know:
        served = sorted({one_line(queue) for runner in know for queue in runner.queues})
        text = f"No live runner claims from queue {queue}; those that know handler {name} serve {named(served)} only."
        advice = f"start a runner with --queue {quote(queue)}, or without --queue"
        yield Cause("queue", text, advice, seen_at(know[0]))
    else:
        others = f"{counted(len(known.alive), 'runner')} alive" if known.alive else "no runner is alive at all"
        yield Cause(
            "unknown",
            f"No live runner takes handler {name} ({others}; {_seen(known.handler, known.at)}).",
            "start a runner with -H and the module that defines it",
            seen_at(None),
        )


def _apart(known: Facts) -> Iterator[Cause]:
    task = known.task
    if known.suspect:
        times = "once, before its last attempt" if task.rescues == 1 else f"{task.rescues} times"
        yield Cause(
            "apart",
            f"It was in hand when its runner was lost ({times}); such tasks are run apart, one at a time in a runner.",
            f"see what it does: runner show {task.id}",
            Sight("task", str(task.id)),
        )
        if known.ahead.number:
            yield Cause("behind", f"{_count(known)} ahead of it in that row.")


def _full(known: Facts) -> Iterator[Cause]:
    if not all(taker.full for taker in known.takers):
        return
    held: Counter[str] = Counter()
    for taker in known.takers:
        held.update(taker.held)
    size = sum(taker.size for taker in known.takers)
    kind = "threads" if known.takers[0].threads else "slots"
    takers = runners_of([taker.runner for taker in known.takers])
    text = f"{takers} such tasks, with no room left: {_taken(held)} in hand for {size:,} {kind}."
    advice = f"runner resize {known.takers[0].runner.id} --{kind} {2 * size}" if len(known.takers) == 1 else ""
    sight = seen_in_hand([taker.runner for taker in known.takers])
    yield Cause("full", text, advice or "start another runner, or resize these", sight)


def _behind(known: Facts) -> Iterator[Cause]:
    if known.suspect or not known.ahead.number:
        return
    rest = ", and nothing of that kind has ended in the last ten minutes"
    if known.pace:
        most = "more than" if known.ahead.more else "about"
        rest = f": {most} {age(known.ahead.number / known.pace)} at the rate of the last ten minutes"
    yield Cause("behind", f"{_count(known)} ahead of it{rest}.", f"runner edit {known.task.id} --priority 9")


def _count(known: Facts) -> str:
    return f"{known.ahead} tasks are" if known.ahead.number != 1 or known.ahead.more else "1 task is"


def _nothing(known: Facts) -> Cause:
    task, takers = known.task, runners_of([taker.runner for taker in known.takers])
    waited = (known.at - task.run_at).total_seconds() if task.run_at else 0.0
    if waited < JUST_NOW:
        return Cause("now", "It has become due just now, and nothing stands in its way.")
    first = seen_at(known.takers[0].runner)
    text = f"{takers} such tasks and has room; nothing stands in its way, though it has been due for {age(waited)}."
    return Cause("now", text, "if this lasts, look at the log of that runner", first)


def _seen(handler: Registered | None, at: datetime) -> str:
    if handler is None or handler.seen is None:
        return "none has ever known it"
    return f"last known {since(handler.seen, at)} ago"


def _taken(held: Counter[Any]) -> str:
    return named(f"{number:,} {one_line(name)}" for name, number in held.most_common())
