"""`runner migrate`: create or upgrade the tables."""

from typing import NamedTuple

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_unchecked
from runner.cli.output import print_json, print_line
from runner.db.migrations.apply import sql as write_sql
from runner.db.migrations.apply import upgrade
from runner.db.migrations.revisions import check as check_schema
from runner.db.migrations.revisions import require_tables
from runner.db.migrations.roles import roles as write_roles
from runner.db.migrations.sequences import late_sequences, repair_sequences
from runner.db.server_encoding import ANY, encoding_of, escaping_note
from runner.errors import InvalidInput, SequenceLate


class MigrateDocument(NamedTuple):
    """The state of the tables.

    Args:
        schema: the number of their schema.
        applied: the names of the migrations that were applied.
        sequences: the sequences of ids that were repaired, as sentences.
    """

    schema: str
    applied: list[str]
    sequences: list[str]


DOCUMENTS = (MigrateDocument,)


async def migrate(
    *,
    check: bool = False,
    sql: bool = False,
    roles: bool = False,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Create or upgrade the tables.

    Several programs may do this at the same time. The first command that uses a
    SQLite file migrates it; a PostgreSQL database needs this command. It also
    advances a sequence of ids that a data-only restore or a switch to a logical
    replica has left behind the rows.

    Args:
        check: Only check that this release can use the tables, and the sequences.
        sql: Only print the statements that create the tables.
        roles: Only print the statements that create the PostgreSQL roles
            producer, runner, operator and reader with their privileges.
        json: Print one JSON document.
        connection: The database.
    """
    if check + sql + roles > 1:
        raise InvalidInput(why="choose one of --check, --sql and --roles")
    settings = connection.settings()
    if sql or roles:
        render = write_sql if sql else write_roles
        print(render(settings.url, settings.table_prefix, settings.table_schema))
        return Exit.OK
    async with open_unchecked(settings, must_exist=check) as database:
        revisions = [] if check else await upgrade(database)
        number = await check_schema(database)
        await require_tables(database)
        late = await (database.read(late_sequences) if check else database.write(repair_sequences))
        encoding = await database.read(encoding_of)
    if check and late:
        raise SequenceLate(why="; ".join(sequence.text for sequence in late))
    if json:
        print_json(MigrateDocument(number, revisions, [sequence.text for sequence in late]))
    else:
        summary = f"applied {', '.join(revisions)}" if revisions else "nothing to do"
        print_line(f"{settings.url} is at schema {number}: {summary}.")
        if encoding not in ANY:
            print_line(f"{escaping_note(encoding)}.")
        for sequence in late:
            print_line(f"repaired: {sequence.text}.")
    return Exit.OK
