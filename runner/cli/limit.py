"""`runner limit`: the limits and the breakers of queues or handlers over all runners."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Literal, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, SINGLE_CHANGE, Connection, SingleChangeOptions, open_database
from runner.cli.output import print_answer, print_json, print_line, print_table
from runner.db.database import Database
from runner.errors import InvalidInput
from runner.filter.fields import suggestion
from runner.model.duration import parse_duration
from runner.operations.breaker import BreakerResult, breaker_of, close_by_hand, open_by_hand
from runner.operations.limit import DEFAULT, LimitEdit, preview_limits, set_limits
from runner.operations.names import name_warning
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import local_actor
from runner.operations.sql_export import breaker_script, limit_script
from runner.policy.breaker import OpenBreaker
from runner.policy.limits import LimitUsage, SharedLimits
from runner.queries.breakers import BreakerRow, breakers
from runner.queries.limits import limit_usages
from runner.text import formatting
from runner.text.columns import Column, figure, thousands
from runner.text.sanitize import one_line

BREAKER_COLUMNS: tuple[Column[BreakerRow], ...] = (
    Column("HANDLER", lambda row: row.handler),
    Column("BREAKER", lambda row: row.state, lambda state: _open_for(state) if state else "closed", fixed=True),
    Column("NEXT PROBE", lambda row: row.state, lambda state: _next_probe(state) if state else ""),
    Column("OPENS AFTER", lambda row: row.definition or "not readable"),
    Column("WHY", lambda row: formatting.text(row.state.why) if row.state else ""),
)


class BreakerChange(NamedTuple):
    """A breaker that an operator opened or closed.

    Args:
        changed: False if it was already open or closed.
    """

    verb: str
    changed: bool
    dry_run: bool
    breaker: BreakerRow


async def change_breaker(
    database: Database,
    action: Literal["open", "close"],
    handler: str,
    wait: timedelta | None,
    options: SingleChangeOptions,
) -> int:
    """Open or close the breaker of a handler, and print the result. Returns the exit code."""
    by = local_actor(options.reason)
    if action == "open":
        change = partial(open_by_hand, handler=handler, by=by, wait=wait)
    else:
        change = partial(close_by_hand, handler=handler, by=by)
    if options.sql:
        await database.read(breaker_of, handler)
        print(await database.write(breaker_script, handler, change), end="")
        return Exit.OK
    if options.dry_run:
        row = await database.read(breaker_of, handler)
        result = BreakerResult((row.state is None) == (action == "open"), row)
    else:
        result = await database.write(change)
    outcome = BreakerChange(f"breaker {action}", result.changed, options.dry_run, result.row)
    print_answer(outcome, _sentence(action, result, dry_run=options.dry_run), json=options.json)
    return Exit.OK if result.changed else Exit.CONFLICT


def _sentence(action: str, result: BreakerResult, *, dry_run: bool) -> str:
    subject = f"breaker of {one_line(result.row.handler)}"
    if not result.changed:
        return f"{subject} {'is' if dry_run else 'was'} already {'open' if action == 'open' else 'closed'}"
    if dry_run:
        return f"{subject} would be {'opened' if action == 'open' else 'closed'}"
    if result.row.state is None:
        return f"{subject} closed: its tasks start again"
    return f"{subject} opened: the next probe starts in {formatting.age(round(result.row.state.next_in))}"


def _open_for(state: OpenBreaker) -> str:
    return f"open for {state.since}{f' by {state.by}' if state.by else ''}"


def _next_probe(state: OpenBreaker) -> str:
    return f"in {formatting.age(state.next_in)}" if state.next_in > 0 else "now"


Value = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


class LimitList(NamedTuple):
    """The limits and the breakers.

    Args:
        limits: the queues and handlers with limits.
    """

    limits: Sequence[LimitUsage]
    breakers: Sequence[BreakerRow]


class LimitReport(NamedTuple):
    """The limits of a queue or a handler, before and after a change.

    Args:
        target: such as "queue mail".
    """

    verb: Literal["limit"]
    target: str
    before: SharedLimits
    after: SharedLimits
    dry_run: bool


DOCUMENTS = (LimitList, LimitReport, BreakerChange)


async def limit(  # noqa: PLR0913 - one argument per option
    kind: str | None = None,
    name: str | None = None,
    /,
    *,
    concurrency: Value = None,
    per_tenant: Value = None,
    rate: Value = None,
    breaker: Literal["open", "close"] | None = None,
    wait: Annotated[str | None, Parameter(name="--for")] = None,
    default: bool = False,
    new: bool = False,
    options: SingleChangeOptions = SINGLE_CHANGE,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Limit the tasks of a queue or a handler over all runners; open or close a breaker.

    Without options, list the limits and the breakers. A limit replaces the one of
    the handler's code, and applies to the next claims. Tasks that run already
    count, and none of them stops. `none` removes a limit. While a breaker is open,
    the tasks of its handler wait; it closes by itself when a probe succeeds.

    runner limit queue mail --concurrency 5
    runner limit handler sms.send --breaker open --for 10m
    runner limit handler sms.send --breaker close

    Args:
        kind: "queue" or "handler".
        name: Its name.
        concurrency: Maximum number of tasks that run at the same time, such as 5.
        per_tenant: The same for each tenant.
        rate: Maximum rate of starts: 5/s, 100/min, 2000/h. After a pause, as many start
            together.
        breaker: Open or close the breaker of the handler. Closed, its tasks start, and
            earlier failures do not count.
        wait: With --breaker open: time until the first probe, 30s or 10m; by default
            that of the handler's code.
        default: Return to the limits of the handler's code.
        new: Accept a name that no task, runner or limit has used.
        options: How the change is shown and recorded.
        connection: The database.
    """
    typed = {"concurrency": concurrency, "per-tenant": per_tenant, "rate": rate}
    values = {option: value for option, value in typed.items() if value is not None}
    length = _until_probe(breaker, wait)
    if breaker and (default or values):
        raise InvalidInput(why="--breaker excludes limits: change them with a command of their own")
    if default and values:
        raise InvalidInput(why=f"--{DEFAULT} excludes {', '.join(f'--{option}' for option in values)}")
    async with open_database(connection.settings()) as database:
        if breaker:
            if kind != PauseKind.HANDLER or not name:
                raise InvalidInput(why=f"name a handler: runner limit handler sms.send --breaker {breaker}")
            return await change_breaker(database, breaker, name, length, options)
        if values or default:
            return await _change(database, _target(kind, name), LimitEdit(values, default, new), options)
        return await _list(database, None if kind is None else _target(kind, name), json=options.json)


async def _change(database: Database, target: PauseTarget, edit: LimitEdit, options: SingleChangeOptions) -> int:
    by = local_actor(options.reason)
    if options.sql:
        print(await database.write(limit_script, target, edit, by), end="")
        return Exit.OK
    apply = partial(preview_limits, target=target, edit=edit) if options.dry_run else None
    result = await (database.read(apply) if apply else database.write(set_limits, target, edit, by))
    line = f"{target}: {'would have ' if options.dry_run else ''}{result.after} (before: {result.before})"
    report = LimitReport("limit", str(target), result.before, result.after, options.dry_run)
    print_answer(report, line, json=options.json)
    return Exit.OK


async def _list(database: Database, target: PauseTarget | None, *, json: bool) -> int:
    _show(await database.read(limit_usages), await database.read(breakers), target, json=json)
    if target is not None and (warning := await database.read(name_warning, target)):
        print_stderr(f"runner: {warning}")
    return Exit.OK


def _target(kind: str | None, name: str | None) -> PauseTarget:
    kinds = tuple(each.value for each in PauseKind)
    if kind not in kinds or not name:
        hint = suggestion(kind, kinds) if kind and kind not in kinds else ""
        raise InvalidInput(why=f"name a queue or a handler{hint}: runner limit queue mail --concurrency 5")
    return PauseTarget(PauseKind(kind), name)


def _until_probe(breaker: str | None, wait: str | None) -> timedelta | None:
    if wait is not None and breaker != "open":
        raise InvalidInput(why="--for applies to --breaker open")
    return None if wait is None else parse_duration(wait)


def _show(
    usages: Sequence[LimitUsage], breaker_rows: Sequence[BreakerRow], target: PauseTarget | None, *, json: bool
) -> None:
    usages = [usage for usage in usages if any(usage.limits)]  # not only an open breaker
    usages = [usage for usage in usages if target is None or (usage.kind, usage.name) == tuple(target)]
    shown = [row for row in breaker_rows if target is None or target == (PauseKind.HANDLER, row.handler)]
    if json:
        print_json(LimitList(usages, shown))
        return
    if usages:
        print_table(COLUMNS, usages)
    if usages and shown:
        print_line("")
    if shown:
        print_table(BREAKER_COLUMNS, shown)
    if not usages and not shown:
        print_line(f"{target or 'No queue and no handler'} has {'no' if target else 'a'} limit or breaker.")


def _holders(holders: Mapping[str, int]) -> str:
    return formatting.text(", ".join(f"{number:,} on {holder}" for holder, number in holders.items()))


def _author(usage: LimitUsage) -> str:
    return f"{usage.since} ago by {usage.by}{f': {usage.why}' if usage.why else ''}" if usage.since else "in code"


COLUMNS: tuple[Column[LimitUsage], ...] = (
    Column("OF", lambda usage: f"{usage.kind} {usage.name}"),
    figure("RUN", lambda usage: usage.total, thousands),
    Column("LIMITS", lambda usage: usage.limits),
    Column("RUNNERS", lambda usage: usage.holders, _holders),
    Column("SET", _author),
)
