"""Write the revisions down as SQL, for those whose databases are changed by others, or by hand."""

from io import StringIO

import sqlalchemy as sa

from runner.migrations.revisions import REVISIONS
from runner.urls import DatabaseUrl, sync_url


def sql(url: str | DatabaseUrl, prefix: str = "", schema: str | None = None) -> str:
    """Write down the statements that give an empty database its tables.

    Args:
        url: tells only which database they are for; nothing is connected to.
        prefix: goes before every table's name.
        schema: the PostgreSQL schema of the tables; None stands for the search path.

    Returns:
        A script for psql or sqlite3: one transaction, which also notes the revision.

    Raises:
        InvalidUrl: when the URL names nothing that we support.
    """
    from runner.migrations.context import context_for
    from runner.migrations.operations import Operations

    script, dialect = StringIO(), sync_url(url).get_dialect()()
    place = schema if dialect.name == "postgresql" else None
    context = context_for(REVISIONS, prefix, place, dialect=dialect, as_sql=True, output_buffer=script)
    with context.begin_transaction():
        if place:
            context.execute(sa.schema.CreateSchema(place, if_not_exists=True))
        context.run_migrations(op=Operations(context, prefix, place))
    return script.getvalue()
