"""States as SQL literals that match the conditions of partial indexes."""

from typing import TypeAlias

import sqlalchemy as sa

from runner.model.task import State


def state_literal(state: State) -> sa.ColumnElement[str]:
    """Return a state as a literal; as a parameter it would hide the partial indexes from a generic plan."""
    return sa.literal_column(f"'{state.value}'", sa.Text)


def is_state(column: sa.ColumnElement[str], *states: State) -> sa.ColumnElement[bool]:
    """Return the condition that a column has one of the states, in the form of the partial indexes."""
    if len(states) == 1:
        return column == state_literal(states[0])
    return column.in_([state_literal(state) for state in states])


def state_list(*states: State) -> str:
    """Return states as a SQL list."""
    return ", ".join(repr(state.value) for state in states)


Condition: TypeAlias = sa.ColumnElement[bool]


def ended(column: sa.ColumnElement[str], state: State) -> sa.ColumnElement[bool]:
    """The condition that a task ended in this state, in the form that SQLite's index needs.

    SQLite uses a partial index only if the query repeats the condition of the index.
    """
    match = is_state(column, state)
    return match if state is State.SUCCEEDED else match & (column != state_literal(State.SUCCEEDED))
