"""Alembic's context for the revisions. Importing it loads Alembic, which takes a third of a second."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext, MigrationStep, RevisionStep
from alembic.script import ScriptDirectory

from runner.db.migrations.installation import version_table
from runner.db.migrations.revisions import FOLDER

NAMING = {
    "ck": "%(table_name)s_%(constraint_name)s",
    "pk": "%(table_name)s_pkey",
}
"""Constraint names for short or missing names in a revision. Do not change them: existing databases use them."""


def context_for(
    revisions: Sequence[str],
    prefix: str,
    schema: str | None,
    *,
    connection: sa.Connection | None = None,
    dialect: sa.Dialect | None = None,
    **options: Any,
) -> MigrationContext:
    """Prepare Alembic to apply revisions.

    Args:
        revisions: revisions in order.
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.
        connection: connection in a transaction that the caller ends; None to write SQL text.
        dialect: dialect of the SQL text.
        options: further options of Alembic's MigrationContext.
    """
    opts = {
        "fn": lambda _heads, _context: steps(revisions),
        "version_table": version_table(prefix),
        "version_table_schema": schema,
        "target_metadata": sa.MetaData(naming_convention=NAMING),
        "transactional_ddl": True,  # on SQLite too, because our transactions start with BEGIN IMMEDIATE
    }
    return MigrationContext.configure(connection, dialect=dialect, opts=opts | options)


def steps(revisions: Sequence[str]) -> list[RevisionStep]:
    """Return Alembic's steps for revisions, in the given order."""
    script = ScriptDirectory(FOLDER)
    scripts = [script.get_revision(number) for number in revisions]
    return [MigrationStep.upgrade_from_script(script.revision_map, revision) for revision in scripts]


def last_incompatible(revisions: Sequence[str]) -> str | None:
    """Return the last of some revisions that is not additive; None if all are.

    Programs that know only earlier revisions go on with an additive one: it adds tables, indexes, and columns that are
    nullable or have a default. Each revision declares this as `additive`.
    """
    script = ScriptDirectory(FOLDER)
    return next((number for number in reversed(revisions) if not script.get_revision(number).module.additive), None)
