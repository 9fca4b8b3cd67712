"""Statements that run often: built and compiled once per installation, executed on the driver's own connection."""

import re
from typing import Any

import sqlalchemy as sa

ARRAY = re.compile(r"%\((\w+)\)s(?=::[A-Z ]+\[\])")
"""A parameter that psycopg is to send as an array."""


_KINDS: dict[Any, sa.Dialect] = {}


def compiled_for(dialect: sa.Dialect) -> sa.Dialect:
    """The dialect that stands for all of its kind: what was compiled for one engine serves every other one.

    Args:
        dialect: of a connection, which knows the server's version by then.
    """
    facts = (getattr(dialect, name, None) for name in ("server_version_info", "_backslash_escapes"))
    return _KINDS.setdefault((type(dialect), *facts), dialect)


class Prepared:
    """A statement as text for one driver, with the order in which the driver wants its parameters.

    Compiling costs more than running a batch of tasks, so it is done once; literal parts (states, limits that are
    constants) are already inside.
    """

    def __init__(self, statement: sa.ClauseElement, dialect: sa.Dialect) -> None:
        self.statement = statement
        compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        # Arrays in binary cost psycopg a tenth of what arrays as text do.
        self.sql = ARRAY.sub(r"%(\1)b", str(compiled)) if dialect.driver == "psycopg" else str(compiled)
        self._order: list[str] | None = getattr(compiled, "positiontup", None)
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def arguments(self, parameters: dict[str, Any]) -> Any:
        """The parameters as the driver takes them: by name, or as a tuple in order of appearance."""
        values = self._constants | parameters
        return tuple(values[name] for name in self._order) if self._order is not None else values
