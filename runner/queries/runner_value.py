"""runner_value: a value of a live or an ended runner, as a column of another query."""

from typing import Any, Literal

import sqlalchemy as sa

from runner.db.schema import Tables


def runner_value(tables: Tables, runner_id: sa.ColumnElement[Any], name: Literal["pid", "version"]) -> sa.Label[Any]:
    """A value of the runner with an id, as the column `name`; null if its row was pruned.

    Args:
        runner_id: the column with its id.
    """
    live, ended = tables.runner.c, tables.ended_runner.c
    of_live = sa.select(live[name]).where(live.id == runner_id).scalar_subquery()
    of_ended = sa.select(ended[name]).where(ended.runner_id == runner_id).scalar_subquery()
    return sa.func.coalesce(of_live, of_ended).label(name)
