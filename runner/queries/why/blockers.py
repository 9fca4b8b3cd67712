"""Why a waiting task does not run, most important reason first."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from fnmatch import fnmatchcase
from shlex import quote

from runner.errors import InvalidDuration, InvalidSettings
from runner.filter.fields import suggestion
from runner.model.alert import QUEUE
from runner.model.duration import parse_duration
from runner.model.step import StepKind
from runner.model.text_limits import FAILED_HOST
from runner.policy.claim_facts import CommonCause, Explanation
from runner.policy.claim_policy import CLAIM_POLICY
from runner.policy.limits import BREAKER
from runner.policy.polling import Tiers, parse_poll_mode
from runner.queries.counting import Count
from runner.queries.registries import RegistryEntry
from runner.queries.runners import OWN_SLOTS, RESIZABLE, RunnerRow
from runner.queries.task.steps import StepRow
from runner.queries.why.facts import Facts
from runner.queries.why.remedies import (
    MOST_NAMED,
    Cause,
    RelatedView,
    at_runner,
    better_priority,
    blocked_runner,
    claimants,
    is_in_reach,
    listed,
    remedies,
    resize,
    tasks_of,
)
from runner.text.formatting import age, sentence_of, since, when
from runner.text.hosts import admits, host_names
from runner.text.sanitize import count_noun, one_line

GRACE = 2.0
"""Seconds after which a due task that nothing hinders is reported as late."""


START = "runner work -H package.module"


def blockers(facts: Facts, zone: tzinfo) -> Iterator[Cause]:
    """Find the reasons why a waiting task does not run."""
    causes = [*map(_cause, CLAIM_POLICY.explain(facts, zone)), *_unclaimed(facts, zone)]
    if not facts.due and (pending := [_pending(facts, step) for step in facts.pending]):
        causes = [*pending, *(cause for cause in causes if cause.kind != CLAIM_POLICY.due.name)]
    yield from causes
    if causes and any(step.kind == "priority" for remedy in remedies(facts) for step in remedy.changes):
        yield _tasks_ahead(facts, "would still be")
    probes = [*_probes(facts)] if facts.due else []
    if facts.due and not causes:
        isolated = map(_cause, CLAIM_POLICY.isolation.explain(facts, zone))
        rest = [*_stalled(facts), *isolated, *_behind_suspects(facts), *_full(facts)]
        rest = rest or [*_between_scans(facts)]
        rest += _behind(facts)
        yield from rest or ([] if facts.stuck or probes else [_nothing(facts)])
    yield from probes


def _probes(facts: Facts) -> Iterator[Cause]:
    """An open breaker that lets a probe start now, and no other task."""
    for usage in facts.limits:
        if usage.breaker is not None and usage.breaker.room:
            probes = f"{count_noun(usage.breaker.room, 'probe')} may start; the other tasks wait until one succeeds"
            text = f"The breaker of {usage.words} opened {usage.breaker.since} ago: {sentence_of(usage.breaker.why)}"
            yield Cause(BREAKER.name, f"{text} {probes}.", common=CommonCause(f"{usage.words}: {BREAKER.state}"))


def _pending(facts: Facts, step: StepRow) -> Cause:
    """The step that a task waits for, in place of its due time."""
    id, name = facts.task.id, quote(one_line(step.signal or step.name))
    state = step.state(facts.at)
    if step.signal is None:
        text = f"Its step {one_line(step.name)} {state}: {one_line(step.error or '')}"
        return Cause("step", text, f"runner retry {id}", common=CommonCause("a step failed and is tried again later"))
    waits = step.kind == StepKind.WAIT
    text = f"It {state}{'' if waits else ', or a signal ends the sleep'} (step {one_line(step.name)})."
    common = f"the task waits for signal {one_line(step.signal)}" if waits else "the task sleeps"
    return Cause("step", text, f"runner signal {id} {name}", common=CommonCause(common))


def _cause(explanation: Explanation) -> Cause:
    kind, text, advice, view, common = explanation
    return Cause(kind, text, advice, RelatedView(*view) if view else None, common)


def _unclaimed(facts: Facts, zone: tzinfo) -> Iterator[Cause]:
    if facts.candidates:
        return
    task = facts.task
    name, queue = one_line(task.handler), one_line(task.queue)
    runners = [runner for runner in facts.alive if task.handler in runner.handlers]
    anywhere = [runner for runner in runners if runner.takes(task.queue, task.handler)]
    serving = [runner for runner in anywhere if admits(task.hosts, runner.host)]
    others = [runner for runner in serving if not runner.takes_bucket(task.queue, facts.bucket)]
    draining = [runner for runner in serving if runner not in others]
    if anywhere and not serving:
        yield _elsewhere(facts, anywhere, zone)
    elif others and not draining:
        text = f"No live runner takes bucket {facts.bucket}; those with handler {name} take {_buckets(others)}."
        slices = any(runner.slice for runner in others)
        advice = "wait for one lease, in which a live slice moves, or start" if slices else "start"
        common = CommonCause(f"no live runner with handler {name} takes the bucket")
        advice = f"{advice} a runner with --buckets {facts.bucket}"
        yield Cause("bucket", text, advice, at_runner(others[0]), common)
    elif draining:
        text = f"{claimants(draining)} such tasks, but no new ones while draining."
        common = CommonCause(f"every runner with handler {name} is draining", START)
        yield Cause("draining", text, "start another runner", at_runner(draining[0]), common)
    elif runners:
        queues = sorted({one_line(queue) for runner in runners for queue in runner.queues})
        text = f"No live runner claims from queue {queue}; the runners with handler {name} serve only {listed(queues)}."
        advice = f"start a runner with --queue {quote(queue)}, or without --queue"
        common = CommonCause(f"no live runner with handler {name} claims from queue {queue}", START)
        yield Cause("queue", text, advice, at_runner(runners[0]), common)
    else:
        live = count_noun(len(facts.alive), "live runner") if facts.alive else "no live runner"
        advice = "start a runner with -H and the module that defines the handler"
        if hint := _similar_handler(facts):
            advice = f"if it is misspelled, submit it again and run: runner terminate {task.id}; otherwise {advice}"
        codec = one_line(facts.codec or "")
        needs = f" Its codec is {codec}: a runner without the key does not take it." if codec else ""
        yield Cause(
            "unknown",
            f"No live runner has handler {name}{hint} ({live}; {_registration(facts.handler, facts.at)}).{needs}",
            advice,
            at_runner(None),
            CommonCause(f"no live runner has handler {name}{hint}", START),
        )


def _similar_handler(facts: Facts) -> str:
    """A handler that was probably meant, as the end of a clause; empty if runners had the handler of the task."""
    if facts.handler is not None and facts.handler.last_seen is not None:
        return ""
    names = sorted({name for runner in facts.runners for name in runner.handlers})
    return one_line(suggestion(facts.task.handler, tuple(names)))


def _elsewhere(facts: Facts, runners: Sequence[RunnerRow], zone: tzinfo) -> Cause:
    """The cause of a task whose hosts have no runner for it, while others have."""
    task = facts.task
    names = [one_line(name) for name in host_names(task.hosts)]
    hosts = f"host {names[0]}" if len(names) == 1 else f"one of the hosts {listed(names)}"
    present = any(admits(task.hosts, runner.host) for runner in facts.alive)
    lack = "no live runner for such tasks" if present else "no live runner"
    until = when(task.hosts_until, facts.at, zone) if task.hosts_until else ""
    failed = FAILED_HOST in task.hosts.split(",")
    hosts += ", where its last attempt failed" if failed else ""
    text = f"It waits for {hosts}, which {'has' if len(names) == 1 else 'have'} {lack}"
    text += f"; any host may take it {until}." if until else ", and no other host may take it."
    places = listed(dict.fromkeys(one_line(runner.host) for runner in runners))
    advice = f"start a runner there, or let {places} take it: runner edit {task.id} --hosts any"
    common = CommonCause(f"{hosts} has {lack}", "runner edit FILTER --hosts any")
    return Cause("host", text, advice, at_runner(runners[0]), common)


def _buckets(runners: Sequence[RunnerRow]) -> str:
    """The buckets of runners, each part once."""
    return listed(dict.fromkeys(one_line(runner.selection) for runner in runners))


def _behind_suspects(facts: Facts) -> Iterator[Cause]:
    if facts.suspect and facts.ahead.number:
        common = CommonCause("the task is suspected of killing its runner")
        yield Cause("behind", f"{_suspects(facts)} may run before it.", common=common)


def _stalled(facts: Facts) -> Iterator[Cause]:
    """Every runner of such tasks is blocked."""
    runners = [candidate.runner for candidate in facts.candidates]
    if all(runner.blocked_for for runner in runners):
        yield from map(blocked_runner, runners[:MOST_NAMED])


def _full(facts: Facts) -> Iterator[Cause]:
    if not all(candidate.full for candidate in facts.candidates):
        return
    running: Counter[str] = Counter()
    for candidate in facts.candidates:
        running.update(candidate.running)
    size = sum(candidate.size for candidate in facts.candidates)
    kind = facts.candidates[0].pool
    runners = [candidate.runner for candidate in facts.candidates]
    if not size and kind not in OWN_SLOTS:
        yield _no_executor(kind, runners)
        return
    if kind not in RESIZABLE:
        kind = "slots for deliveries" if kind == QUEUE else f"slots of executor {kind}"
    tasks = listed(f"{number:,} {one_line(name)}" for name, number in running.most_common())
    lost = sum(runner.abandoned - runner.replaced for runner in runners) if kind == "threads" else 0
    note = f"; {count_noun(lost, 'slot')} lost to abandoned threads, see `runner check`" if lost else ""
    early = sum(running.values()) - size
    use = f"{tasks or 'none'} {'for' if early > 0 else 'in'} {size:,} {kind}"
    use += f", {early:,} of them prefetched" if early > 0 else ""
    text = f"{claimants(runners)} such tasks, but no {kind} are free: {use}{note}."
    advice = resize(runners[0].id, facts.candidates[0].pool, 2 * size) if len(runners) == 1 else ""
    common = CommonCause(f"no {kind} are free: {use}", advice)
    other = "start another runner" + (", or resize these" if facts.candidates[0].pool in RESIZABLE else "")
    yield Cause("full", text, advice or other, tasks_of(runners), common)


def _no_executor(name: str, runners: list[RunnerRow]) -> Cause:
    text = f"{claimants(runners)} such tasks, but executor {one_line(name)} is not connected, or has no workers."
    advice = "start its workers; the log of the runner names the error of its last try to connect"
    common = CommonCause(f"executor {one_line(name)} is not connected, or has no workers")
    return Cause("executor", text, advice, at_runner(runners[0]), common)


def _between_scans(facts: Facts) -> Iterator[Cause]:
    """Every runner of such tasks takes them in scans with a long period, and the next one has not started yet."""
    runners = [candidate.runner for candidate in facts.candidates]
    scans = [_scan_of(runner.polling, facts.task.handler, facts.task.attempt) for runner in runners]
    periods = [scan[1] for scan in scans if scan is not None]
    wait = (facts.at - facts.task.run_at).total_seconds() if facts.task.run_at else 0.0
    if len(periods) < len(runners) or min(periods) < GRACE or wait > min(periods) + GRACE:
        return
    period = age(min(periods))
    names = listed(dict.fromkeys(one_line(scan[0]) for scan in scans if scan is not None))
    text = (
        f"{claimants(runners)} such tasks in a scan every {period} ({names}), with free slots. The next one takes it."
    )
    common = CommonCause(f"the next scan ({names}) has not started yet")
    yield Cause("scan", text, "start a runner with a shorter period", at_runner(runners[0]), common)


def _scan_of(polling: str, handler: str, failures: int) -> tuple[str, float] | None:
    """The scan that takes a task, as text and with its period in seconds; None if a submit causes it, or if unknown.

    Args:
        polling: the polling of a runner, from `describe_polling`; another program may have written anything.
    """
    main, *own = polling.split("; ")
    with contextlib.suppress(InvalidDuration, InvalidSettings):
        for part in own:
            pattern, _, period = part.rpartition("=")
            if fnmatchcase(handler, pattern.strip()):
                return part, parse_duration(period.strip()).total_seconds()
        mode = main.partition(" ")[0]
        tiers = parse_poll_mode(mode) if mode == "tiers" or mode.startswith("tiers:") else None
        if isinstance(tiers, Tiers) and failures > tiers.tiers[0].failures:
            return mode, next(
                (tier.period for tier in tiers.tiers if failures <= tier.failures), tiers.tiers[-1].period
            )
    return None


def _behind(facts: Facts) -> Iterator[Cause]:
    if not facts.suspect and facts.ahead.number and not is_in_reach(facts):
        yield _tasks_ahead(facts, "is" if facts.ahead == Count(1) else "are")


def _tasks_ahead(facts: Facts, verb: str) -> Cause:
    """More tasks are ahead than the next claims take. The advice is the priority that helps, if any does."""
    outlook = "; none of their kind has ended in the last 10 minutes"
    if facts.pace:
        outlook = f": {_outlook(facts)}"
    note = f" ({facts.order.note})" if facts.order.note else ""
    tasks = "1 task" if facts.ahead == Count(1) else f"{facts.ahead} tasks"
    text = f"{tasks} {verb} ahead of it{note}{outlook}."
    priority = better_priority(facts)
    advice = f"runner edit {facts.task.id} --priority {priority}" if priority is not None else ""
    if not facts.candidates:
        return Cause("behind", text, advice)
    size, free = (
        sum(numbers) for numbers in zip(*((each.size, max(0, each.free)) for each in facts.candidates), strict=True)
    )
    kind = facts.candidates[0].pool
    common = CommonCause(f"more tasks are due than {kind} are free: {free:,} of {size:,}")
    return Cause("behind", text, advice, common=common)


NEGLIGIBLE = 0.02
"""The share of the rate below which nothing of it is left for a task: the rates are estimates."""


def _outlook(facts: Facts) -> str:
    """The time until a task starts, at the rate that later tasks of a higher priority leave to it."""
    rest = facts.pace - facts.arrivals
    if rest <= NEGLIGIBLE * facts.pace:
        pace, arrived = (f"{60 * rate:,.0f}" for rate in (facts.pace, facts.arrivals))
        return (
            f"not at this rate: in the last 10 minutes, {pace} tasks a minute ended, and {arrived} of a higher "
            "priority became due"
        )
    about = "more than" if facts.ahead.more else "about"
    return f"{about} {age(facts.ahead.number / rest)} at the rate of the last 10 minutes"


def _suspects(facts: Facts) -> str:
    return f"{facts.ahead} older suspects" if facts.ahead.number != 1 or facts.ahead.more else "1 older suspect"


def _nothing(facts: Facts) -> Cause:
    task, runners = facts.task, [candidate.runner for candidate in facts.candidates]
    wait = (facts.at - task.run_at).total_seconds() if task.run_at else 0.0
    common = CommonCause("nothing: slots are free")
    if wait < GRACE:
        return Cause("now", "It just became due and should start within a second.", common=common)
    text = f"{claimants(runners)} such tasks, with free slots. Nothing blocks it, yet it has been due for {age(wait)}."
    return Cause("now", text, "if this lasts, check the log of that runner", at_runner(runners[0]), common)


def _registration(entry: RegistryEntry | None, at: datetime) -> str:
    if entry is None or entry.last_seen is None:
        return "no runner ever had it"
    return f"last seen {since(entry.last_seen, at)} ago"
