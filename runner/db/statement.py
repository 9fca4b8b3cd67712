"""Prepared statements: built and compiled once per installation, executed on the driver's own connection."""

import re
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import sqlalchemy as sa

from runner.db.dialects import DIALECTS, Dialect
from runner.db.errors import NOT_INSERTED
from runner.db.schema import Tables, tables
from runner.errors import DatabaseRefused
from runner.model.task import NewTask
from runner.settings import Settings

ARRAY = re.compile(r"%\((\w+)\)s(?=::[A-Z ]+\[\])")
"""A parameter that psycopg sends as an array."""


_KINDS: dict[Any, sa.Dialect] = {}


def compiled_for(dialect: sa.Dialect) -> sa.Dialect:
    """Return one shared dialect per kind, so that engines share compiled statements.

    Args:
        dialect: the dialect of a connection, which has read the server's version.
    """
    facts = (getattr(dialect, name, None) for name in ("server_version_info", "_backslash_escapes"))
    return _KINDS.setdefault((type(dialect), *facts), dialect)


class Prepared:
    """A compiled statement as text for one driver, with the order of its parameters.

    Compiling costs more than executing a batch of tasks, so it happens once; literals such as states are included.
    """

    def __init__(self, statement: sa.ClauseElement, dialect: sa.Dialect) -> None:
        self.statement = statement
        compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        # For psycopg, binary arrays cost a tenth of text arrays.
        self.sql = ARRAY.sub(r"%(\1)b", str(compiled)) if dialect.driver == "psycopg" else str(compiled)
        self._order: list[str] | None = getattr(compiled, "positiontup", None)
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def around(self, name: str, parameters: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the parameters before and after one of them, for a driver with parameters by position."""
        order = self._order or []
        values, place = self._constants | parameters, order.index(name)
        before, after = order[:place], order[place + 1 :]
        return tuple(values[item] for item in before), tuple(values[item] for item in after)

    def arguments(self, parameters: dict[str, Any]) -> Any:
        """Return the parameters in the form of the driver: by name, or as a tuple in order of appearance."""
        values = self._constants | parameters
        return tuple(values[name] for name in self._order) if self._order is not None else values


T = TypeVar("T")


class Step(NamedTuple):
    """One statement to execute."""

    prepared: Prepared
    parameters: dict[str, Any]


def require_inserted(ids: list[int], number: int = 1) -> list[int]:
    """Return the ids of inserted tasks, if the database has inserted all of them.

    Args:
        ids: the ids that the statement returned.
        number: the number of submitted tasks.

    Raises:
        DatabaseRefused: a trigger skipped a task; the transaction must not commit.
    """
    if len(ids) < number:
        raise DatabaseRefused(why=f"{number - len(ids)} of {number}{NOT_INSERTED}")
    return ids


class SingleInsert(NamedTuple):
    """The statement that submits one task, with all its values except the payload. It commits by itself.

    Args:
        task: the task without its payload.
        sql: the statement, with parameters by position. It returns the id, unless the driver knows it.
        before: the values of the parameters before the payload.
        after: the values of the parameters after the payload.
    """

    task: NewTask
    sql: str
    before: tuple[Any, ...]
    after: tuple[Any, ...]


Steps: TypeAlias = Generator[Step, list[Any], T]
"""Yields statements, receives the rows of each as tuples, and returns the result of the verb."""


class Frame(Protocol):
    """The properties for building statements; Transaction and other connections implement them."""

    @property
    def tables(self) -> Tables:
        """The tables of the installation."""

    @property
    def dialect(self) -> Dialect:
        """The dialect of the database."""

    @property
    def driver(self) -> sa.Dialect:
        """The dialect for compiling statements."""


class StatementFrame(NamedTuple):
    """The frame of statements on a connection of the driver, or of the application.

    Args:
        dialect: our dialect of the database.
        driver: SQLAlchemy dialect that compiles the statements.
    """

    tables: Tables
    dialect: Dialect
    driver: sa.Dialect

    @classmethod
    def of(cls, settings: Settings, driver: sa.Dialect) -> Self:
        """Take prefix and schema from the settings and the database from the driver."""
        dialect = DIALECTS[driver.name]
        schema = settings.table_schema if dialect.schemas else None
        return cls(tables(settings.table_prefix, schema), dialect, driver)


StepsBuilder: TypeAlias = Callable[[sa.Dialect], Steps[T]]
"""Returns the steps of a store verb, compiled for a dialect."""
