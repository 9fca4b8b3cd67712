"""Logins with the shipped roles, which see one database each in their own way."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from runner.db.migrations.roles import ROLES, role, roles
from runner.urls import parse_url


@contextmanager
def logins(owner: str) -> Iterator[dict[str, str]]:
    """Give a database the roles of the script, and each role a login.

    Args:
        owner: the URL of a database with our tables, of a user who may create roles.

    Yields:
        The URL of the database as each role sees it.
    """
    names = {name: f"test_{name}_{uuid.uuid4().hex[:8]}" for name in ROLES}
    with psycopg.connect(owner, autocommit=True) as connection:
        for _ in range(2):  # running it again changes nothing
            connection.execute(roles(parse_url(owner)).encode())
        for name, login in names.items():
            words = "CREATE ROLE {} LOGIN PASSWORD 'secret' IN ROLE {}"
            connection.execute(sql.SQL(words).format(sql.Identifier(login), sql.Identifier(role(name))))
    yield {name: _seen_by(owner, login) for name, login in names.items()}
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {', '.join(map(role, ROLES))}".encode())
        connection.execute(f"DROP ROLE {', '.join([*names.values(), *map(role, ROLES)])}".encode())


def _seen_by(url: str, login: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{login}:secret@{parts.netloc.rpartition('@')[2]}").geturl()
