"""The panels of a failure group: its row, the finding in one sentence, shares, tasks, and the latest of them."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from runner.model.task import Shown, is_new
from runner.queries.contrast import Contrast
from runner.queries.failures import FailureChange, Failures, LatestTask, Shares
from runner.queries.shard_failures import shards_text
from runner.text import formatting
from runner.text.formatting import SIGNS
from tasktui.data.failures import MOST_LATEST, FailureGroups, GroupDetail
from tasktui.render.code import error_rows
from tasktui.render.plot import BLOCKS, EIGHTHS, compact, gauge, joined, sparkline
from tasktui.render.render import Cell, RenderedRow, fitted, handler_cell, line
from tasktui.render.rows import BLANK, Part, Row, beside, fit, heading, rule, state, width_of, wrapped
from tasktui.render.theme import SHADES, current

MINUTE = timedelta(minutes=1)

NORMAL = 100
"""Columns of a screen that has room for panels side by side."""

FRESH = 10.0
"""Seconds for which the states of the tasks of a group count as present."""

FEW_LATEST = 3
"""Latest tasks of a group at least."""

WITH_HOSTS = 66
"""Cells of the list of the latest tasks that has room for their hosts."""

TREND, SHORT_TREND = 14, 9
"""Cells of the sparkline of a group, and of one on a narrow screen."""

HOT_RATE, HOT_RISE, ALWAYS_HOT = 1.0, 2.0, 20.0
"""Attempts per minute from which a failure group is in trouble if they rise, as a multiple of the first half of its
trend, and from which it always is."""


TENTHS = 100
"""Failures per minute below which a rate has a decimal, so that the column is aligned."""


def is_hot(rate: float, trend: Sequence[int]) -> bool:
    """True if a failure group happens now, and more often than before; a steady one is quiet."""
    half = len(trend) // 2
    rises = sum(trend[half:]) >= HOT_RISE * sum(trend[:half])
    return rate >= ALWAYS_HOT or (rate >= HOT_RATE and rises)


UNREAD = "┄"
"""The cells of a sparkline whose attempts were not read."""


def group_line(group: Failures, data: FailureGroups, total: int, *, narrow: bool = False) -> RenderedRow:
    """Render a failure group as a row.

    Args:
        total: attempts of all groups.
        narrow: the error comes before its handler, because there is no room for both.
    """
    at, numbers = data.at, data.trends.get(group.fingerprint, (0,))
    change = data.changes.get(group.fingerprint, FailureChange(0.0))
    hot = change.new or is_hot(group.rate, numbers)
    trend = _trend(data, numbers, change, SHORT_TREND if narrow else TREND, hot=hot)
    first, is_bound = group.first, group.count.more
    if is_bound and change.began is not None and change.began >= data.since:
        first, is_bound = change.began, False
    share = group.count.number / total if total else 0.0
    bar = [(" ", ""), *gauge([(share, "dead" if hot else "spark")], 9)]
    error = formatting.brief(f"{group.error_type}: {group.message}")
    kind, colon, rest = error.partition(": ")
    name = handler_cell(line(group.handler))
    named = name.parts or ((name.text, "text"),)
    rate = _rate(group.rate) + "+" * group.has_rate_bound
    age = formatting.age(_whole_minutes(at - change.began)) if change.began else ""
    badge: tuple[Part, ...] = ((f" NEW {age} ", "bold dead on tint_dead"), (" ", "")) if change.new else ()
    named_error: Part = (kind, "strong" if hot else "text")
    both = (
        (named_error, ("  ", ""), *named) if narrow else (*named, ("  ", ""), named_error, (f"{colon}{rest}", "muted"))
    )
    cause: tuple[Part, ...] = ((" ", ""), *badge, *both)
    return RenderedRow(
        (
            Cell.of(trend, "spark"),
            Cell(str(group.count), "bold strong" if hot else "text"),
            Cell.of(bar, "spark"),
            Cell(rate, "bold dead" if hot else "muted" if group.rate else "faint"),
            Cell("" if change.usual is None else _rate(change.usual), "muted" if change.usual else "faint"),
            Cell(str(group.counted(group.tasks)), "text"),
            Cell(str(group.counted(group.dead)), _role_of_dead(group, at)),
            Cell(f"{formatting.since(first, at)}{'+' * is_bound}", "muted"),
            Cell(formatting.since(group.last, at), "muted"),
            *([Cell(f" {line(shards_text(data.shards[group.fingerprint]))}", "text")] if data.shards else []),
            Cell.of(cause, "text"),
        )
    )


def _rate(rate: float) -> str:
    return f"{rate:.1f}" if 0 < rate < TENTHS else compact(rate)


BEGIN = "┊"
"""The mark of the beginning in a sparkline."""


def _whole_minutes(age: timedelta) -> timedelta:
    """Seconds of an older age would take the place of the error."""
    return age - age % MINUTE if age >= MINUTE else age


def _trend(data: FailureGroups, numbers: Sequence[int], change: FailureChange, width: int, *, hot: bool) -> list[Part]:
    """The attempts over the span with the unread part and the mark of the beginning of a rise."""
    missing = round(data.unread * width)
    read = numbers[round(data.unread * len(numbers)) :]
    parts: list[Part] = [(UNREAD * missing, "faint")]
    parts += sparkline(read, width - missing, "trouble" if hot else "spark")
    span = data.at - data.since
    if change.rose_at is None or span <= timedelta(0):
        return parts
    cells = [(sign, role) for text, role in parts for sign in text]
    place = int((change.rose_at - data.since) / span * width) - 1  # before the first bar, which stays
    if 0 <= place < len(cells):
        cells[place] = (BEGIN, "bold accent")
    return joined(cells)


def _role_of_dead(group: Failures, at: datetime) -> str:
    """Red is for tasks that died in the last hour."""
    return "faint" if not group.dead else "dead" if is_new(group.last, at) else "muted"


def finding(
    group: Failures, shares: Shares | None, data: FailureGroups, contrast: Contrast | None = None
) -> list[Part]:
    """A group in a few sentences: the values that its attempts have in common, and the period."""
    parts: list[Part] = []
    for counts, word in ((shares.versions, "version"), (shares.hosts, "host")) if shares is not None else ():
        name, number = max(counts.items(), key=lambda item: item[1], default=("", 0))
        named, share = line(name, 40), number / max(1, sum(counts.values()))
        if len(counts) == 1 and word == "version" and counts.keys() == data.versions.keys():
            continue  # All runners have this version.
        if contrast is not None and any(each.field == word for each in contrast.differences):
            if after := _after_deploy(group, name, data) if word == "version" else "":
                parts.append((f"First failed {after.removeprefix(', first ')}. ", "bold strong"))
            continue  # The comparison with successes names it.
        if len(counts) == 1 and contrast is not None and contrast.is_possible:
            continue  # The successes have it too.
        if len(counts) == 1:
            after = _after_deploy(group, name, data) if word == "version" else ""
            common = f"Only version {named}{after}. " if word == "version" else f"All on host {named}. "
            parts.append((common, "bold strong" if after else "text"))
        elif counts:
            text = f"{round(share * 100)} % on {named}. " if share >= 0.8 else f"On {len(counts)} {word}s. "
            parts.append((text, "text"))
    since, tasks = formatting.since(group.first, data.at), group.counted(group.tasks).of("task")
    older = ", older ones not read" if group.count.more else ""
    if contrast is not None and (sentence := contrast.sentence):
        parts.insert(0, (f"{line(sentence)} ", "bold strong" if contrast.differences else "text"))
    return [*parts, (f"{group.count.of('attempt')} of {tasks} in {since}{older}.", "muted")]


def _after_deploy(group: Failures, version: str, data: FailureGroups) -> str:
    """How long after the start of a newer version the first attempt failed; empty if that was not in this span."""
    started = data.versions.get(version)
    if started is None or group.first is None or version == next(iter(data.versions)):
        return ""
    is_after = data.since <= started <= group.first
    return f", first {formatting.since(started, group.first)} after its deploy" if is_after else ""


def detail(
    group: Failures,
    tasks_detail: GroupDetail | None,
    data: FailureGroups,
    width: int,
    room: int,
    *,
    unfold: bool,
    contrast: Contrast | None = None,
) -> list[Row]:
    """The group under the cursor: the finding, shares, one traceback, and as many latest tasks as there is room for."""
    error = formatting.brief(f"{group.error_type}: {group.message}")
    kind, _, message = error.partition(": ")
    note: list[Part] = [("fingerprint ", "muted"), (line(group.fingerprint, 16), "text")]
    title: list[Part] = [(kind, "bold strong"), (f" {message}", "muted")]
    most = width - width_of(note) - 8
    rows: list[Row] = [rule(title if width_of(title) < most else fit(title, most), width, note)]
    found = finding(group, tasks_detail.shares if tasks_detail else None, data, contrast)
    rows += [*wrapped([("  ", ""), *found], width), BLANK]
    left, right = 46, width - 50 if width >= NORMAL else width - 2
    trace = error_rows(group.error_type, group.message, group.traceback, right, reveal=False, unfold=unfold)
    if tasks_detail is None:
        return [*rows, *trace]
    now = _now(group, tasks_detail, data)
    most = min(max(FEW_LATEST, room - len(rows) - len(trace) - 2), MOST_LATEST)
    trace = [*trace, *latest_tasks(group, tasks_detail.tasks.latest[:most], data.at, right)]
    if width < NORMAL:
        traced: list[Row] = [[("  ", ""), *row] for row in trace]
        return [*rows[:-1], *_shared_briefly(tasks_detail.shares, width), *now, BLANK, *traced]
    shared = [*_shared(tasks_detail.shares, data.versions), BLANK, *now]
    bordered: list[Row] = [[("│ ", "line"), *row] for row in trace]
    return [*rows, *beside(shared, bordered, left, 1)]


def _shared(shares: Shares, versions: Iterable[str]) -> list[Row]:
    """The attempts of a group by version, host and number; a version without any shows that it is not the cause."""
    rows: list[Row] = []
    others = dict.fromkeys(list(versions)[-2:], 0) if shares.versions else {}
    ordered = {name: shares.numbers[name] for name in ("first", "second", "later") if name in shares.numbers}
    for word, counts in (("version", others | shares.versions), ("host", shares.hosts), ("attempt", ordered)):
        total = sum(counts.values())
        listed = list(counts.items()) if word == "attempt" else sorted(counts.items(), key=lambda item: -item[1])
        for index, (name, number) in enumerate(listed[:3]):
            share = number / total
            alone = share >= 0.9 and len(counts) > 1 and word != "attempt"
            bar = gauge([(share, "dead" if alone else "spark")], 16)
            label = fitted(word if not index else "", 9)
            figure = (f"{round(share * 100):>4} %", "text" if number else "faint")
            rows.append([(f"  {label}", "muted"), (fitted(line(name), 12), "text"), (" ", ""), *bar, figure])
    return rows


def _shared_briefly(shares: Shares, width: int) -> list[Row]:
    """The largest shares of a group in two lines."""
    rows: list[list[Part]] = [[(" ", "")], [(" ", "")]]
    for place, word, counts in (
        (0, "version", shares.versions),
        (0, "host", shares.hosts),
        (1, "attempt", shares.numbers),
    ):
        rows[place].append((f" {word} ", "muted"))
        for name, number in sorted(counts.items(), key=lambda item: -item[1])[:3]:
            rows[place] += [(line(name, 16), "text"), (f" {round(number / sum(counts.values()) * 100)} %  ", "muted")]
    return [fit(row, width) for row in rows]


def _now(group: Failures, tasks_detail: GroupDetail, data: FailureGroups) -> list[Row]:
    """The present tasks of a group, with the age of the figures if they are old, and the next runs."""
    tasks, age = tasks_detail.tasks, (data.at - tasks_detail.at).total_seconds()
    shown: list[Part] = [("  now      ", "muted")]
    more = "+" if tasks.more else ""
    counts = {Shown(name): number for name, number in tasks.states.items()}
    ended = [(state, counts.pop(state)) for state in (Shown.DEAD, Shown.SUCCEEDED, Shown.CANCELLED) if state in counts]
    for shown_state, number in (*sorted(counts.items(), key=lambda item: -item[1])[:2], *ended):
        shown += [(f"{SIGNS[shown_state]} ", str(shown_state)), (f"{number:,}{more}  ", "text")]
    shown += [] if counts or ended else [("removed by retention  ", "text")]
    shown += [(f"{formatting.age(age)} ago  ", "retrying")] if age > FRESH else []
    shown += [("breaker open", "retrying")] if any(each.handler == group.handler for each in data.breakers) else []
    waits = sum(counts.get(each, 0) for each in (Shown.RETRYING, Shown.READY, Shown.SCHEDULED))
    next_runs = (f"{tasks.soon:,}{more} within 10 min" if tasks.soon else "none within 10 min", "text")
    return [shown, *([[("  next     ", "muted"), next_runs]] if waits else [])]


def latest_tasks(group: Failures, latest: Sequence[LatestTask], at: datetime, width: int) -> list[Row]:
    """The tasks of a group that failed last, as they are now."""
    if not latest:
        return []
    note: Part = (f"of {group.counted(group.tasks).of('task')}", "muted")
    rows: list[Row] = [BLANK, rule([heading("LATEST")], width, [note])]
    digits = max(len(str(each.task.id)) for each in latest)
    for each in latest:
        task, failed_at = each.task, each.failed_at
        sign, role = state(task.shown)
        tried = formatting.attempts(task.attempt, task.max_attempts)
        ago = f"{formatting.since(failed_at, at)} ago"
        row: list[Part] = [(f"{task.id!s:>{digits}}  ", "text"), (fitted(sign, 12), role), (" ", "")]
        row += [(fitted(line(task.key) if task.key else "", 15 if width >= WITH_HOSTS else 11), "text")]
        row.append((f"{tried:>5}{ago:>12}", "muted"))
        row += [(f"  on {line(each.runner, 30)}", "muted")] if each.runner and width >= WITH_HOSTS else []
        rows.append(fit(row, width))
    return rows


def in_front(rows: Sequence[Row], values: Sequence[float], top: float) -> list[Row]:
    """Put a second area in front of an area, at least one eighth high; its colour is the brightest of `failed`."""
    result: list[Row] = []
    for place, row in enumerate(rows):
        cells = [(character, spec) for text, spec in row for character in text]
        for column, value in enumerate(values):
            eighths = max(1, round(value / top * len(rows) * EIGHTHS)) if value > 0 else 0
            level = min(max(eighths - (len(rows) - 1 - place) * EIGHTHS, 0), EIGHTHS)
            if level:
                ground = cells[column][1].partition(" on ")[2] or cells[column][1] if level < EIGHTHS else ""
                covers = ground and current().name != "none" and cells[column][0] != " "
                cells[column] = (BLOCKS[level], f"failed@{SHADES - 1}{f' on {ground}' if covers else ''}")
        result.append(joined(cells))
    return result
