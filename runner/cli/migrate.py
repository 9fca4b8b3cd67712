"""`runner migrate`: the tables."""

from runner.cli.connection import NOWHERE, Connection, unopened
from runner.cli.ending import Exit
from runner.cli.printing import print_json, print_line
from runner.errors import InvalidInput
from runner.migrations import HEAD, upgrade
from runner.migrations import check as check_schema
from runner.migrations import roles as write_roles
from runner.migrations import sql as write_sql
from runner.settings import Settings


async def migrate(
    *,
    check: bool = False,
    sql: bool = False,
    roles: bool = False,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Create the tables of a database, or bring them up to date.

    Any number of programs may do this at once. A SQLite file is migrated by
    whatever uses it first; a PostgreSQL database only by this.

    Args:
        check: Only tell whether the tables are as this program needs them.
        sql: Only print the statements that give an empty database its tables.
        roles: Only print the statements that give a PostgreSQL database roles: a
            producer, a runner, an operator and a reader, each with what it needs.
        json: Print one JSON document.
        connection: Which database.
    """
    if check + sql + roles > 1:
        raise InvalidInput(why="--check looks into the database, --sql and --roles print: only one of them makes sense")
    settings = connection.settings()
    if sql or roles:
        write = write_sql if sql else write_roles
        print(write(settings.url, settings.table_prefix, settings.table_schema))
        return Exit.OK
    applied = await _checked(settings) if check else await _upgraded(settings)
    if json:
        print_json({"schema": HEAD, "applied": applied})
    else:
        done = f"applied {', '.join(applied)}" if applied else "nothing to do"
        print_line(f"{settings.url} is at schema {HEAD}: {done}.")
    return Exit.OK


async def _checked(settings: Settings) -> list[str]:
    async with unopened(settings, must_exist=True) as database:
        await check_schema(database)
    return []


async def _upgraded(settings: Settings) -> list[str]:
    async with unopened(settings) as database:
        return await upgrade(database)
