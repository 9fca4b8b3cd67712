"""hosts: the SQL of the hosts that may take a task."""

from typing import Any

import sqlalchemy as sa

from runner.model.text_limits import FAILED_HOST


def admitted_by(hosts: sa.ColumnElement[str], own: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """The SQL of runner.text.hosts.admits, with the name of a host between commas."""
    comma: sa.ColumnElement[str] = sa.literal_column("','", sa.Text)
    names = comma + sa.func.replace(hosts, sa.literal_column("' '"), sa.literal_column("''"), type_=sa.Text) + comma
    without = sa.func.replace(names, own, comma)
    free = (hosts == sa.literal_column("''")) | (hosts == sa.literal_column(f"'{FAILED_HOST}'"))
    return free | (names != without)


def bound_hosts(task: Any) -> sa.ColumnElement[str]:
    """The SQL of the hosts for the attempt after a failed one: with FAILED_HOST, that of the failure."""
    own = sa.literal_column(f"'{FAILED_HOST},'", sa.Text) + task.host
    follows = (task.hosts == sa.literal_column(f"'{FAILED_HOST}'")) & task.host.is_not(None)
    return sa.case((follows, own), else_=task.hosts)
