"""`runner limit`: the limits of queues and handlers over all runners."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from runner.cli.connection import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.exit_codes import Exit
from runner.cli.output import TableColumn, print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.filter.fields import suggestion
from runner.model.task import State
from runner.operations.limit import DEFAULT, LimitEdit, LimitResult, preview_limits, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import local_actor
from runner.operations.sql_export import limit_script
from runner.policy.limits import LIMITS, LimitUsage
from runner.queries.limits import limit_usages
from runner.text import formatting

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
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Limit the tasks of a queue or a handler over all runners; without a name, list the limits.

    A limit replaces the one of the handler's code, and applies to the next claims. Tasks
    that run already count, and none of them stops. `none` removes a limit.

    Args:
        kind: "queue" or "handler".
        name: Its name.
        concurrency: Maximum number of tasks that run at the same time, such as 5.
        per_tenant: The same for each tenant.
        rate: Maximum rate of starts: 5/s, 100/min, 2000/h. After a pause, as many start
            at once.
        default: Return to the limits of the handler's code.
        new: Accept a name that no task, runner or limit has used.
        dry_run: Only show the change.
        sql: Only print equivalent SQL for psql or sqlite3.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
        connection: The database.
    """
    options = {"concurrency": concurrency, "per-tenant": per_tenant, "rate": rate}
    values = {option: value for option, value in options.items() if value is not None}
    if default and values:
        raise InvalidInput(why=f"--{DEFAULT} excludes {', '.join(f'--{option}' for option in values)}")
    changes, edit, by = bool(values) or default, LimitEdit(values, default, new), local_actor(reason)
    async with open_database(connection.settings()) as database:
        if not changes:
            place = None if kind is None else _place(kind, name)
            _show(await database.read(limit_usages), place, json=json)
            return Exit.OK
        place = _place(kind, name)
        if sql:
            print(await database.write(limit_script, place, edit, by), end="")
            return Exit.OK
        apply = partial(preview_limits, place=place, edit=edit) if dry_run else None
        result = await (database.read(apply) if apply else database.write(set_limits, place, edit, by))
    if json:
        print_json(_document(place, result) | {"dry_run": dry_run})
    else:
        print_line(f"{place}: {'would have ' if dry_run else ''}{result.after} (before: {result.before})")
    return Exit.OK


def _document(place: PauseTarget, result: LimitResult) -> dict[str, object]:
    return {"verb": "limit", "place": str(place), "before": result.before.columns, "after": result.after.columns}


def _place(kind: str | None, name: str | None) -> PauseTarget:
    kinds = tuple(each.value for each in PauseKind)
    if kind not in kinds or not name:
        hint = suggestion(kind, kinds) if kind and kind not in kinds else ""
        raise InvalidInput(why=f"name a queue or a handler{hint}: runner limit queue mail --concurrency 5")
    return PauseTarget(PauseKind(kind), name)


def _show(usages: Sequence[LimitUsage], place: PauseTarget | None, *, json: bool) -> None:
    usages = [usage for usage in usages if place is None or (usage.kind, usage.name) == tuple(place)]
    if json:
        print_json({"limits": [limit_document(usage) for usage in usages]})
    elif usages:
        print_table(COLUMNS, [_row(usage) for usage in usages])
    else:
        print_line(f"{place or 'No queue and no handler'} has {'no' if place else 'a'} limit.")


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
