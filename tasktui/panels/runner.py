"""The panel of one runner: its settings, and its handlers with their results."""

from collections.abc import Iterator

from runner.queries.reports import Flow
from runner.queries.runners import RunnerRow
from runner.text import formatting
from tasktui.data.runners import Workforce
from tasktui.panels.side import percent
from tasktui.render.plot import compact
from tasktui.render.render import line
from tasktui.render.rows import BLANK, Part, Row, fit, handler, heading, rule

LABEL = 10
"""Cells of the name of a setting."""

MOST_HANDLERS = 24
"""Maximum number of handlers to list: those that run or ran, then the others."""


def runner_rows(runner: RunnerRow, data: Workforce, width: int) -> list[Row]:
    """The settings of a runner, and its handlers with their results of the last ten minutes."""
    flows, running = data.flows.get(runner.id, {}), data.slots.get(runner.id, {})
    rows: list[Row] = [rule([heading(f"RUNNER {runner.id}")], width, [("10 minutes", "muted")])]
    for name, text in _facts(runner, data):
        rows.append(fit([(f"  {name:<{LABEL}}", "muted"), (line(text, width), "text")], width))
    names = sorted(
        {*runner.handlers, *flows, *running},
        key=lambda name: (-running.get(name, 0), -flows.get(name, Flow()).finished, name),
    )
    room = max(12, width - 34)
    rows += [BLANK, fit([(f"  {'HANDLER':<{room}}{'RUNS':>6}{'DONE':>8}{'FAILED':>8}{'P95':>9}", "muted")], width)]
    for name in names[:MOST_HANDLERS]:
        figures = _figures(running.get(name, 0), flows.get(name, Flow()), data.p95.get(name))
        rows.append(fit([("  ", ""), *handler(name, room), *figures], width))
    if len(names) > MOST_HANDLERS:
        rows.append([(f"  and {len(names) - MOST_HANDLERS:,} more", "faint")])
    return rows


def _facts(runner: RunnerRow, data: Workforce) -> Iterator[tuple[str, str]]:
    yield "version", f"{runner.version}, started {formatting.since(runner.started_at, data.at)} ago"
    yield "queues", ", ".join(runner.queues) or "all"
    kinds = [f"{number:,} {kind}" for kind, number in runner.sizes.items() if number]
    some = f": {', '.join(kinds)}" if len(kinds) > 1 else ""
    yield "slots", f"{min(runner.running_tasks, runner.capacity):,} of {runner.capacity:,} in use{some}"
    measured = [percent(runner.cpu), formatting.size(runner.memory)]
    if any(measured):
        yield "process", ", ".join(part for part in (f"pid {runner.pid}", *measured) if part)
    for remark in runner.remarks:
        yield "also", remark


def _figures(running: int, flow: Flow, p95: float | None) -> list[Part]:
    attempts = flow.failed + flow.succeeded
    share = flow.failed / attempts if attempts else 0.0
    return [
        (f"{running:>6,}", "text" if running else "faint"),
        (f"{compact(flow.finished):>8}", "text" if flow.finished else "faint"),
        (f"{f'{round(share * 100)} %' if attempts else '':>8}", "bold dead" if share >= 0.5 else "muted"),
        (f"{formatting.duration(p95) if p95 is not None else '':>9}", "muted"),
    ]
