"""States in SQL: spelled so that partial indexes match."""

import sqlalchemy as sa

from runner.task import State


def state_literal(state: State) -> sa.ColumnElement[str]:
    """A state as a literal: as a parameter it would hide the partial indexes from a generic plan."""
    return sa.literal_column(f"'{state.value}'", sa.Text)


def is_state(column: sa.ColumnElement[str], *states: State) -> sa.ColumnElement[bool]:
    """The condition that a state column is one of these, spelled so that partial indexes match."""
    if len(states) == 1:
        return column == state_literal(states[0])
    return column.in_([state_literal(state) for state in states])


def state_list(*states: State) -> str:
    """States as they are written in the text of a statement."""
    return ", ".join(repr(state.value) for state in states)
