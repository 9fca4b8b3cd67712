"""`runner check --against`: validate the payloads of live tasks against new code, before it is deployed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.cli.connection import Connection, open_database
from runner.cli.exit_codes import Exit
from runner.cli.handlers import load_handlers
from runner.cli.output import plain, print_json, print_line
from runner.db.database import Database
from runner.errors import InvalidPayload
from runner.handlers.registry import Handler
from runner.queries.payloads import MOST_PAYLOADS, PayloadRow, newest_payloads, oldest_payloads
from runner.text.sanitize import count_noun, one_line

EXAMPLES = 5
"""Tasks that are named per handler."""


@dataclass(slots=True)
class PayloadCheck:
    """The check of the tasks of one handler.

    Args:
        handler: name of the handler.
        known: True if the new code has it.
        tasks: number of checked tasks.
        failures: number of payloads that do not fit.
        examples: the first of them, with the reason.
    """

    handler: str
    known: bool
    tasks: int = 0
    failures: int = 0
    examples: list[str] = field(default_factory=list)


async def check_against(module: str, connection: Connection, *, json: bool) -> int:
    """Check the payloads of live tasks against the handlers of a module; return the exit code.

    Args:
        module: the module with the new code.
        connection: the database.
        json: print one JSON document.
    """
    settings = connection.settings(handlers=(module,))
    handlers = load_handlers(settings)
    async with open_database(settings) as database:
        checks, complete = await _check(database, handlers)
    if json:
        print_json({"module": module, "complete": complete, "handlers": plain(checks)})
    else:
        _print(module, checks, complete=complete)
    return Exit.ERROR if any(item.failures or not item.known for item in checks) else Exit.OK


async def _check(database: Database, handlers: Mapping[str, Handler]) -> tuple[list[PayloadCheck], bool]:
    """Check all live tasks, or the oldest and the newest of very many."""
    checks: dict[str, PayloadCheck] = {}
    after, seen = 0, 0
    while seen < MOST_PAYLOADS:
        rows = await database.read(oldest_payloads, after)
        if not rows:
            return _sorted(checks), True
        for row in rows:
            _check_row(row, handlers, checks)
        after, seen = rows[-1].id, seen + len(rows)
    for row in await database.read(newest_payloads, after):
        _check_row(row, handlers, checks)
    return _sorted(checks), False


def _sorted(checks: Mapping[str, PayloadCheck]) -> list[PayloadCheck]:
    return [checks[name] for name in sorted(checks)]


def _check_row(row: PayloadRow, handlers: Mapping[str, Handler], checks: dict[str, PayloadCheck]) -> None:
    handler = handlers.get(row.handler)
    item = checks.setdefault(row.handler, PayloadCheck(row.handler, handler is not None))
    item.tasks += 1
    if handler is None:
        return
    try:
        handler.signature.decode(row.payload)
    except InvalidPayload as error:
        item.failures += 1
        if len(item.examples) < EXAMPLES:
            item.examples.append(f"task {row.id}: {error.fields['why']}")


def _print(module: str, checks: list[PayloadCheck], *, complete: bool) -> None:
    total = Counter(fit=sum(item.tasks - item.failures for item in checks if item.known))
    for item in checks:
        name = one_line(item.handler)
        if not item.known:
            print_line(f"✗ {name}: {module} has no such handler, and {count_noun(item.tasks, 'task')} would wait")
        elif item.failures:
            print_line(f"✗ {name}: {item.failures:,} of {count_noun(item.tasks, 'payload')} would fail")
            for example in item.examples:
                print_line(f"    {one_line(example)}")
        else:
            print_line(f"✓ {name}: {count_noun(item.tasks, 'payload')} fit")
    if not checks:
        print_line("No tasks are waiting, blocked or running.")
    elif not complete:
        print_line(f"Sampled: the oldest {MOST_PAYLOADS:,} live tasks and the newest; {total['fit']:,} payloads fit.")
