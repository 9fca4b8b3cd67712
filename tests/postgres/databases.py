"""Databases that live for one test."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

URL_VARIABLE = "TASKTUI_TEST_POSTGRES_URL"


class Cluster(Protocol):
    """A source of database URLs: our own server, or one that was there before."""

    def url(self, database: str = ...) -> str: ...


class Remote:
    """A server of another owner, known by the URL of a database whose role may create others."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)

    def url(self, database: str = "") -> str:
        path = f"/{database}" if database else self._parts.path
        return self._parts._replace(path=path).geturl()


@contextmanager
def login(url: str, grants: str = "") -> Iterator[str]:
    """Make a role for a while, and yield the URL by which it reaches a database.

    Args:
        url: of the database, for a role that may make others.
        grants: a GRANT without its TO; by itself the role may only connect.
    """
    parts = urlsplit(url)
    role = sql.Identifier(name := f"limited_{uuid.uuid4().hex}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'hunter2'").format(role))
        if grants:
            connection.execute(sql.SQL(f"GRANT {grants} TO {{}}").format(role))
        try:
            yield parts._replace(netloc=f"{name}:hunter2@{parts.netloc.rpartition('@')[2]}").geturl()
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


def create_database(cluster: Cluster, template: str = "") -> str:
    """Create a database, empty or as a copy of the one at the URL `template`, and return its URL."""
    name = f"test_{uuid.uuid4().hex}"
    source = _name(template) if template else "template1"
    _execute(cluster, sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(source)))
    return cluster.url(name)


def drop_database(cluster: Cluster, url: str) -> None:
    """Drop it even with open connections: a test that failed may have left a connection."""
    _execute(cluster, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(_name(url))))


def _name(url: str) -> str:
    return urlsplit(url).path.lstrip("/")


def _execute(cluster: Cluster, statement: sql.Composed) -> None:
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute(statement)
