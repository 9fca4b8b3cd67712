"""The rules of handlers: no live runner, an open breaker, failing attempts."""

from collections.abc import Container, Iterator
from shlex import quote

from runner.model.alert import Alert, AlertRule, Severity
from runner.queries.alerts.facts import MAX_ERROR, MAX_TEXT, AlertFacts, shown
from runner.queries.counting import total_of
from runner.queries.counts import QueueCounts
from runner.queries.overview import FEW, NEGLECTED, RECENT
from runner.queries.reports import Flow
from runner.queries.runners import HandlerWithoutRunner
from runner.text import formatting
from runner.text.sanitize import clean, count_noun


def causes_of(handler: str) -> str:
    """The command that lists the failures of a handler."""
    return f"The causes: runner failures {quote(f'handler:{clean(handler)}')}"


def open_breakers(facts: AlertFacts) -> Iterator[Alert]:
    """The breaker of a handler is open: its tasks wait for a probe to succeed."""
    for handler, state in ((row.handler, row.state) for row in facts.overview.breakers):
        if state is None:
            continue
        probe = f"next probe in {formatting.age(state.next_in)}" if state.next_in > 0 else _probe(facts, handler)
        by = f" by {shown(state.by)}" if state.by else ""
        why = f": {shown(state.why, MAX_ERROR)}" if state.why else ""
        title = f"the breaker of {shown(handler)} is open"
        text = f"opened {state.since} ago{by}{why}; {probe}"
        yield Alert(AlertRule.BREAKER_OPEN, handler, Severity.CRITICAL, title, text, causes_of(handler))


def _probe(facts: AlertFacts, handler: str) -> str:
    """The due probe of a handler, which a pause of the handler or of each of its queues holds back."""
    if handler in facts.overview.handlers:
        return "no probe while the handler is paused"
    due, recent = ({queue for queue, name in pairs if name == handler} for pairs in (facts.slow.due, facts.slow.flows))
    queues, paused = due or recent, {queue.queue for queue in facts.overview.queues if queue.paused}
    if queues and queues <= paused:
        names = shown(", ".join(sorted(queues)))
        return f"no probe while {f'queue {names} is' if len(queues) == 1 else f'queues {names} are'} paused"
    return "probes now"


def without_runner(unknown: HandlerWithoutRunner, behind: dict[str, QueueCounts]) -> Alert:
    """A handler that no live runner takes, in one line with the queues that fall behind because of it.

    Args:
        behind: the queues that fall behind, by name; those that this handler explains are removed.
    """
    name = shown(unknown.handler)
    name += shown(f" on {' or '.join(unknown.hosts)}", MAX_TEXT) if unknown.hosts else ""
    wait = formatting.age(abs(unknown.due))
    text = f"{f'due for {wait}' if unknown.due >= 0 else f'due in {wait}'}, queue "
    text += shown(", ".join(unknown.queues), MAX_ERROR)
    caused = [behind.pop(queue) for queue in unknown.queues if queue in behind and not behind[queue].minute.finished]
    if caused:
        text += f": {total_of(queue.ready for queue in caused)} ready, none ends"
    severity = Severity.CRITICAL if unknown.due >= NEGLECTED else Severity.NOTE
    advice = "Start a runner with the module that defines it (-H), or terminate these tasks."
    if unknown.hosts:
        advice = "Start a runner on such a host, or let any host take them: runner edit 'hosts:*' --hosts any."
    title = f"no live runner takes {name}"
    return Alert(AlertRule.HANDLER_UNCLAIMED, unknown.handler, severity, title, text, advice)


def failing_handlers(facts: AlertFacts, named: Container[str] = ()) -> Iterator[Alert]:
    """Most attempts of a handler fail.

    Args:
        named: the queues whose alert covers their attempts.
    """
    flows: dict[str, Flow] = {}
    for (queue, handler), flow in facts.slow.flows.items():
        if queue not in named:
            flows[handler] = flows.get(handler, Flow()) + flow
    share = facts.thresholds.failing
    for handler, flow in sorted(flows.items()):
        failed, attempts = flow.failed, flow.failed + flow.succeeded
        if failed > FEW and failed > share * attempts:
            of, period = f"{failed:,} of {count_noun(attempts, 'attempt')}", formatting.age(RECENT.total_seconds())
            text = f"{of} in {period} failed (threshold {share:.0%})"
            title = f"{shown(handler)} is failing"
            yield Alert(AlertRule.HANDLER_FAILING, handler, Severity.CRITICAL, title, text, causes_of(handler))
