"""Database URLs: what people write, what may be printed of it, and what SQLAlchemy is given.

People write `sqlite:///file.db`, `file.db` or `postgresql://user@host/database`. The drivers are ours to choose.
SQLAlchemy is imported only when one of its URLs is asked for, so that reading settings stays quick.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import quote

from runner.errors import InvalidUrl, PasswordInArguments
from runner.urls.libpq import Host, Unreadable, read_parts
from runner.urls.tls import Tls, tls_for

if TYPE_CHECKING:
    from sqlalchemy import URL

Kind: TypeAlias = Literal["sqlite", "postgresql"]

# The long forms are SQLAlchemy's names for the drivers that we choose anyway.
SCHEMES: Mapping[str, Kind] = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "sqlite+aiosqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "postgresql+psycopg": "postgresql",
}

FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}")
_PASSWORD = re.compile(r"://[^/@]*:[^@]+@|\bpassword\s*=", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class DatabaseUrl:
    """Where the tables live. Its text and repr show everything but the password.

    Args:
        kind: which database.
        database: path of the SQLite file, or name of the PostgreSQL database; empty for libpq's default.
        user: role to log in as; None leaves it to libpq.
        password: None leaves it to libpq: PGPASSWORD, ~/.pgpass, a service.
        hosts: servers to try in turn; none leaves it to libpq: PGHOST, a service, a local socket.
        options: other parameters of libpq, in the order written.
    """

    kind: Kind
    database: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    hosts: tuple[Host, ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if self.kind == "sqlite":
            return f"sqlite:///{self.database}"
        secret = ":***" if self.password else ""
        login = f"{quote(self.user or '', safe='')}{secret}@" if self.user or secret else ""
        query = "&".join(f"{name}={quote(value, safe='/:.,-=')}" for name, value in self.options)
        return (
            f"postgresql://{login}{','.join(map(_host_text, self.hosts))}"
            f"/{quote(self.database, safe='')}{'?' if query else ''}{query}"
        )

    def __repr__(self) -> str:
        return f"DatabaseUrl({str(self)!r})"

    @property
    def tls(self) -> Tls:
        """How the way to the server is protected; where the URL is silent, the environment and the service count."""
        if self.kind == "sqlite":
            return Tls(local=True)
        return tls_for([host.name for host in self.hosts if host.name], dict(self.options))


def parse_url(text: str | DatabaseUrl) -> DatabaseUrl:
    """Read a database URL as people write it.

    Args:
        text: `sqlite:///file.db`, `sqlite:////absolute/file.db`, a path ending in .db, .sqlite or .sqlite3, or
            `postgresql://user:password@host:port/database?option=value` (also `postgres://`), several hosts separated
            by commas. In PostgreSQL URLs special characters are percent-encoded, as libpq wants them.

    Returns:
        The parts, decoded. What is parsed already comes back as it is.

    Raises:
        InvalidUrl: it is none of these; the message repeats the scheme at most.
    """
    if isinstance(text, DatabaseUrl):
        return text
    scheme, mark, rest = text.strip().partition("://")
    scheme = scheme.lower()
    try:
        if not text.strip().isprintable():
            raise Unreadable("it holds control characters")
        return _read(scheme, rest) if mark else _file(text.strip())
    except Unreadable as error:
        shown = f"{scheme}://***" if mark and _SCHEME.fullmatch(scheme) else "***"
        raise InvalidUrl(url=shown, why=str(error)) from None


def async_url(url: str | DatabaseUrl) -> "URL":
    """Translate for SQLAlchemy's async engines: sqlite+aiosqlite or postgresql+psycopg.

    Args:
        url: what people write, or the same parsed.

    Returns:
        SQLAlchemy's URL, password included; with sslmode=verify-full where nobody chose and the server is elsewhere.

    Raises:
        InvalidUrl: see `parse_url`.
    """
    return _for_sqlalchemy(parse_url(url), "sqlite+aiosqlite")


def sync_url(url: str | DatabaseUrl) -> "URL":
    """Translate for SQLAlchemy's ordinary engines: sqlite+pysqlite or postgresql+psycopg; otherwise as `async_url`."""
    return _for_sqlalchemy(parse_url(url), "sqlite+pysqlite")


def redacted(url: str | DatabaseUrl) -> str:
    """Write a URL for people: everything but the password.

    Raises:
        InvalidUrl: see `parse_url`.
    """
    return str(parse_url(url))


def refuse_password(url: str) -> None:
    """Refuse a URL from the command line that holds a password: every user of the machine can list it.

    Args:
        url: the argument as typed.

    Raises:
        PasswordInArguments: it holds one, or looks as if it did; the message names the other ways.
        InvalidUrl: see `parse_url`.
    """
    if _PASSWORD.search(url) or parse_url(url).password:
        raise PasswordInArguments


def _read(scheme: str, rest: str) -> DatabaseUrl:
    match SCHEMES.get(scheme):
        case "sqlite":
            return _sqlite(rest)
        case "postgresql":
            return DatabaseUrl("postgresql", **read_parts(rest)._asdict())
    if scheme.partition("+")[0] in SCHEMES:
        raise Unreadable("the driver is chosen for you, leave it out")
    raise Unreadable("only SQLite and PostgreSQL are supported")


def _sqlite(rest: str) -> DatabaseUrl:
    path = rest[1:]
    if rest in {"", "/"} or path.startswith(":memory:"):
        raise Unreadable("a queue in memory would end with this process and no other could see it, so name a file")
    if not rest.startswith("/"):
        raise Unreadable("the path of a file comes after three slashes")
    if "?" in path or path.startswith("file:"):
        raise Unreadable("options of SQLite are settings of ours and do not stand in the URL")
    return DatabaseUrl("sqlite", _home(path))


def _file(path: str) -> DatabaseUrl:
    if path.startswith("file:") or _PASSWORD.search(path) or "host=" in path:
        raise Unreadable("it is neither a URL nor the path of a file")
    if Path(path).suffix.lower() not in FILE_ENDINGS:
        raise Unreadable("it has no scheme, and does not end in .db, .sqlite or .sqlite3 as the path of a file would")
    return DatabaseUrl("sqlite", _home(path))


def _home(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _host_text(host: Host) -> str:
    name = f"[{host.name}]" if ":" in host.name else quote(host.name, safe="")
    return f"{name}:{host.port}" if host.port else name


def _for_sqlalchemy(url: DatabaseUrl, sqlite_driver: str) -> "URL":
    from sqlalchemy import URL

    if url.kind == "sqlite":
        return URL.create(sqlite_driver, database=url.database)
    tls = {"sslmode": url.tls.demand} if url.tls.demand else {}
    return URL.create(
        "postgresql+psycopg",
        username=url.user,
        password=url.password,
        database=url.database or None,
        query={**_servers(url.hosts), **dict(url.options), **tls},
    )


def _servers(hosts: tuple[Host, ...]) -> dict[str, str]:
    """Name the servers as libpq does, which unlike SQLAlchemy knows lists of them and socket directories."""
    names = ",".join(host.name for host in hosts)
    ports = ",".join(str(host.port or "") for host in hosts)
    return {name: text for name, text in (("host", names), ("port", ports)) if text.strip(",")}
