"""How a database gets its tables: the revisions in `versions`, applied in the order of their numbers.

Importing this loads no Alembic, which takes a third of a second; only applying a revision does.
"""

from typing import TYPE_CHECKING

from runner.later import names_of

if TYPE_CHECKING:
    from runner.migrations.apply import ensure, upgrade
    from runner.migrations.guards import unguarded
    from runner.migrations.installation import Installation
    from runner.migrations.offline import sql
    from runner.migrations.revisions import HEAD, REVISIONS, check, found
    from runner.migrations.roles import ROLES, role, roles

__all__ = [
    "HEAD",
    "REVISIONS",
    "ROLES",
    "Installation",
    "check",
    "ensure",
    "found",
    "role",
    "roles",
    "sql",
    "unguarded",
    "upgrade",
]

__getattr__ = names_of(__name__)
