"""`runner limit`: the limits of queues and handlers over all runners."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import DEFAULT_CONNECTION, SINGLE_CHANGE, Connection, SingleChangeOptions, open_database
from runner.cli.output import TableColumn, print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.filter.fields import suggestion
from runner.model.duration import parse_duration
from runner.model.task import State
from runner.operations.limit import (
    DEFAULT,
    BreakerResult,
    LimitEdit,
    LimitResult,
    breaker_of,
    close_by_hand,
    open_by_hand,
    preview_limits,
    set_limits,
)
from runner.operations.pause import PauseKind, PauseTarget, name_warning
from runner.operations.results import local_actor
from runner.operations.sql_export import breaker_script, limit_script
from runner.policy.limits import LIMITS, LimitUsage
from runner.queries.registries import BreakerRow, breakers, limit_usages
from runner.text import formatting
from runner.text.sanitize import one_line

Value = Annotated[str | None, Parameter(allow_leading_hyphen=True)]

COLUMNS = (
    TableColumn("OF"),
    TableColumn("RUN", right=True, no_wrap=True),
    TableColumn("LIMITS"),
    TableColumn("RUNNERS"),
    TableColumn("SET"),
)


async def limit(  # noqa: PLR0913 - one argument per option
    kind: str | None = None,
    name: str | None = None,
    /,
    *,
    concurrency: Value = None,
    per_tenant: Value = None,
    rate: Value = None,
    default: bool = False,
    new: bool = False,
    options: SingleChangeOptions = SINGLE_CHANGE,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Limit the tasks of a queue or a handler over all runners; without a name, list the limits.

    A limit replaces the one of the handler's code, and applies to the next claims.
    Tasks that run already count, and none of them stops. `none` removes a limit.

    Args:
        kind: "queue" or "handler".
        name: Its name.
        concurrency: Maximum number of tasks that run at the same time, such as 5.
        per_tenant: The same for each tenant.
        rate: Maximum rate of starts: 5/s, 100/min, 2000/h. After a pause, as many start
            together.
        default: Return to the limits of the handler's code.
        new: Accept a name that no task, runner or limit has used.
        options: How the change is shown and recorded.
        connection: The database.
    """
    limits = {"concurrency": concurrency, "per-tenant": per_tenant, "rate": rate}
    values = {option: value for option, value in limits.items() if value is not None}
    if default and values:
        raise InvalidInput(why=f"--{DEFAULT} excludes {', '.join(f'--{option}' for option in values)}")
    changes, edit, by = bool(values) or default, LimitEdit(values, default, new), local_actor(options.reason)
    async with open_database(connection.settings()) as database:
        if not changes:
            target = None if kind is None else _target(kind, name)
            _show(await database.read(limit_usages), target, json=options.json)
            if target is not None and (warning := await database.read(name_warning, target)):
                print_stderr(f"runner: {warning}")
            return Exit.OK
        target = _target(kind, name)
        if options.sql:
            print(await database.write(limit_script, target, edit, by), end="")
            return Exit.OK
        apply = partial(preview_limits, target=target, edit=edit) if options.dry_run else None
        result = await (database.read(apply) if apply else database.write(set_limits, target, edit, by))
    if options.json:
        print_json(_document(target, result) | {"dry_run": options.dry_run})
    else:
        print_line(f"{target}: {'would have ' if options.dry_run else ''}{result.after} (before: {result.before})")
    return Exit.OK


def _document(target: PauseTarget, result: LimitResult) -> dict[str, object]:
    return {"verb": "limit", "target": str(target), "before": result.before.columns, "after": result.after.columns}


def _target(kind: str | None, name: str | None) -> PauseTarget:
    kinds = tuple(each.value for each in PauseKind)
    if kind not in kinds or not name:
        hint = suggestion(kind, kinds) if kind and kind not in kinds else ""
        raise InvalidInput(why=f"name a queue or a handler{hint}: runner limit queue mail --concurrency 5")
    return PauseTarget(PauseKind(kind), name)


def _show(usages: Sequence[LimitUsage], target: PauseTarget | None, *, json: bool) -> None:
    usages = [usage for usage in usages if any(usage.limits)]  # not only an open breaker
    usages = [usage for usage in usages if target is None or (usage.kind, usage.name) == tuple(target)]
    if json:
        print_json({"limits": [limit_document(usage) for usage in usages]})
    elif usages:
        print_table(COLUMNS, [_row(usage) for usage in usages])
    else:
        print_line(f"{target or 'No queue and no handler'} has {'no' if target else 'a'} limit.")


def limit_document(usage: LimitUsage) -> dict[str, object]:
    """The limits of a queue or a handler, and their use, as a JSON object."""
    return {
        "kind": usage.kind,
        "name": usage.name,
        **usage.limits.columns,
        State.RUNNING: usage.total,
        "tenants": {tenant: number for tenant, number in usage.running.items() if tenant},
        "runners": usage.holders,
        "full": [limit.name for limit in LIMITS if limit.full(usage, None)],
        "by": usage.by,
        "why": usage.why,
    }


def _row(usage: LimitUsage) -> Sequence[str]:
    set_by = f"{usage.since} ago by {usage.by}{f': {usage.why}' if usage.why else ''}" if usage.since else "in code"
    holders = ", ".join(f"{number:,} on {holder}" for holder, number in usage.holders.items())
    return [f"{usage.kind} {usage.name}", f"{usage.total:,}", str(usage.limits), formatting.text(holders), set_by]


BREAKER_COLUMNS = (
    TableColumn("HANDLER"),
    TableColumn("BREAKER", no_wrap=True),
    TableColumn("NEXT PROBE"),
    TableColumn("OPENS AFTER"),
    TableColumn("WHY"),
)


async def breaker(
    action: Literal["show", "open", "close"] = "show",
    name: str | None = None,
    /,
    *,
    wait: Annotated[str | None, Parameter(name="--for")] = None,
    options: SingleChangeOptions = SINGLE_CHANGE,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List, open or close the breakers of handlers.

    runner breaker [show [HANDLER]]  list the breakers
    runner breaker open HANDLER      its tasks wait; --for sets the first probe
    runner breaker close HANDLER     its tasks start; earlier failures do not count

    An open breaker closes by itself when a probe succeeds.

    Args:
        action: show, open or close.
        name: The handler.
        wait: Time until the first probe: 30s, 10m; by default that of the handler's code.
        options: How the change is shown and recorded.
        connection: The database.
    """
    if wait is not None and action != "open":
        raise InvalidInput(why="--for applies to runner breaker open")
    length = None if wait is None else parse_duration(wait)
    async with open_database(connection.settings()) as database:
        if action == "show":
            rows = [await database.read(breaker_of, name)] if name else await database.read(breakers)
            _show_breakers(rows, as_json=options.json)
            return Exit.OK
        if not name:
            raise InvalidInput(why=f"name the handler: runner breaker {action} sms.send")
        by = local_actor(options.reason)
        if action == "open":
            change = partial(open_by_hand, handler=name, by=by, wait=length)
        else:
            change = partial(close_by_hand, handler=name, by=by)
        if options.sql:
            await database.read(breaker_of, name)
            print(await database.write(breaker_script, name, change), end="")
            return Exit.OK
        if options.dry_run:
            row = await database.read(breaker_of, name)
            result = BreakerResult((row.state is None) == (action == "open"), row)
        else:
            result = await database.write(change)
    if options.json:
        verb = f"breaker {action}"
        print_json({"verb": verb, "changed": result.changed, "dry_run": options.dry_run} | breaker_document(result.row))
    else:
        print_line(_sentence(action, result, dry_run=options.dry_run))
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


def _show_breakers(rows: Sequence[BreakerRow], *, as_json: bool) -> None:
    if as_json:
        print_json({"breakers": [breaker_document(row) for row in rows]})
    elif rows:
        print_table(BREAKER_COLUMNS, [_cells(row) for row in rows])
    else:
        print_line('No handler has a breaker: @handler(..., breaker="10/min") sets one.')


def breaker_document(row: BreakerRow) -> dict[str, object]:
    """A breaker as a JSON object."""
    state = row.state
    return {
        "handler": row.handler,
        "open": state is not None,
        "opened_at": state and state.opened_at,
        "next_probe_in": state and max(0.0, state.next_in),
        "round": state and state.round,
        "by": state and state.by,
        "why": state and state.why,
        "closed_at": row.closed_at,
        "definition": row.definition and row.definition._asdict(),
    }


def _cells(row: BreakerRow) -> Sequence[str]:
    definition = "not readable" if row.definition is None else str(row.definition)
    if row.state is None:
        return [row.handler, "closed", "", definition, ""]
    by = f" by {row.state.by}" if row.state.by else ""
    probe = f"in {formatting.age(row.state.next_in)}" if row.state.next_in > 0 else "now"
    return [row.handler, f"open for {row.state.since}{by}", probe, definition, formatting.text(row.state.why)]
