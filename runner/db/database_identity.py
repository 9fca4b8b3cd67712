"""Database identity: which database a connection leads to, whatever its address."""

from functools import cache
from typing import Any, TypeAlias

import sqlalchemy as sa

from runner.db.dialects import DIALECTS
from runner.db.file_identity import identity
from runner.db.statement import Prepared, Step, Steps
from runner.db.transaction import Transaction

DatabaseIdentity: TypeAlias = tuple[Any, ...]
"""Device and inode of a file; or the identifier of a server's data, and the name of one of its databases."""

_FILE = "SELECT file FROM pragma_database_list WHERE name = 'main'"
_SERVER = "SELECT system_identifier, current_database() FROM pg_control_system()"


def identity_steps(driver: sa.Dialect) -> Steps[DatabaseIdentity]:
    """The statement that reads the identity of the database of a connection."""
    is_server = DIALECTS[driver.name].is_server
    ((first, *rest),) = yield Step(_prepared(driver, is_server), {})
    return (int(first), str(*rest)) if is_server else (identity(first) or (first,))


@cache
def _prepared(driver: sa.Dialect, is_server: bool) -> Prepared:
    return Prepared(sa.text(_SERVER if is_server else _FILE), driver)


async def database_identity(tx: Transaction) -> DatabaseIdentity:
    """Read the identity of a database."""
    return await tx.follow(identity_steps(tx.driver))
