"""The differences between the databases."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from runner.db.dialects.dialect import Dialect
from runner.db.dialects.postgresql import PostgreSQL
from runner.db.dialects.sqlite import SQLite
from runner.db.types import ctid


def row_address(table: sa.FromClause, dialect: Dialect) -> sa.ColumnElement[Any]:
    """The fastest access to a row that was just read: its physical address if it has one, else its id.

    Args:
        table: table of the row, or its alias.
    """
    address: sa.ColumnElement[Any] = ctid(table) if dialect.row_addresses else table.c.id
    return address


def same_id(table: Any, batch: Any) -> sa.ColumnElement[bool]:
    """The condition that a row of a batch has the id of a task."""
    same: sa.ColumnElement[bool] = table.c.id == batch.c.id
    return same


class OrderedJoin(sa.sql.selectable.Join):
    """An inner join that searches its second table for each row of the first one.

    SQLite takes CROSS JOIN as this order. Otherwise 3.46 and newer scan a table of tasks for each row of a batch.
    """

    inherit_cache = True


@compiles(OrderedJoin, "sqlite")
def _ordered_join(join: OrderedJoin, compiler: SQLCompiler, **kw: Any) -> str:
    tables = [compiler.process(table, **kw | {"asfrom": True}) for table in (join.left, join.right)]
    condition = compiler.process(join.onclause, **kw | {"asfrom": False}) if join.onclause is not None else "1"
    return f"{' CROSS JOIN '.join(tables)} ON {condition}"


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (SQLite(), PostgreSQL())}

__all__ = ["DIALECTS", "Dialect", "OrderedJoin", "row_address", "same_id"]
