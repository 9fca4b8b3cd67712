"""Alembic's context, without an ini file, an env.py or anything global: two databases may be migrated at once."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic.runtime.migration import MigrationContext, MigrationStep, RevisionStep
from alembic.script import ScriptDirectory

from runner.migrations.installation import version_table
from runner.migrations.revisions import FOLDER

NAMING = {
    "ck": "%(table_name)s_%(constraint_name)s",
    "pk": "%(table_name)s_pkey",
}
"""How constraints are named that a revision names in short or not at all. Frozen: databases have these names."""


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
        revisions: their numbers, in order.
        prefix: goes before every table's name.
        schema: the PostgreSQL schema of the tables; None stands for the search path.
        connection: with its transaction begun, which whoever opened it ends; None to write the statements down.
        dialect: of the database that the statements are written down for.
        options: further options of Alembic's MigrationContext.
    """
    opts = {
        "fn": lambda _heads, _context: steps(revisions),
        "version_table": version_table(prefix),
        "version_table_schema": schema,
        "target_metadata": sa.MetaData(naming_convention=NAMING),
        "transactional_ddl": True,  # SQLite's too, since our transactions begin with BEGIN IMMEDIATE
    }
    return MigrationContext.configure(connection, dialect=dialect, opts=opts | options)


def steps(revisions: Sequence[str]) -> list[RevisionStep]:
    """The steps that Alembic takes for revisions, in the order given."""
    script = ScriptDirectory(FOLDER)
    found = [script.get_revision(number) for number in revisions]
    return [MigrationStep.upgrade_from_script(script.revision_map, revision) for revision in found]
