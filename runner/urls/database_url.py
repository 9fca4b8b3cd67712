"""Database URLs: parsing, printing without passwords, and conversion for SQLAlchemy.

Users write `sqlite:///file.db`, `file.db` or `postgresql://user@host/database`; this module selects the drivers.
It imports SQLAlchemy only to make one of its URLs, so that loading settings stays fast.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import quote

from runner.errors import FileMissing, InvalidUrl, PasswordInArguments
from runner.model.home import expand_home
from runner.urls.libpq import Host, Tls, Unreadable, read_parts, tls_for

if TYPE_CHECKING:
    from sqlalchemy import URL

Kind: TypeAlias = Literal["sqlite", "postgresql"]

# The long forms are SQLAlchemy's. The URL of an application works as it is; this module selects the driver.
SCHEMES: Mapping[str, Kind] = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "sqlite+aiosqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "postgresql+psycopg": "postgresql",
    "postgresql+psycopg2": "postgresql",
    "postgresql+asyncpg": "postgresql",
}

FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}")
_PASSWORD = re.compile(r"://[^/@]*:[^@]+@|\bpassword\s*=", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class DatabaseUrl:
    """The address of the database. `str` and `repr` omit the password.

    Args:
        kind: kind of database.
        database: absolute path of the SQLite file, or name of the PostgreSQL database; empty for libpq's default.
        user: login role; None for libpq's default.
        password: None for libpq's default: PGPASSWORD, ~/.pgpass, a service.
        hosts: servers to try in order; none for libpq's default: PGHOST, a service, a local socket.
        options: other libpq parameters, in the order written.
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
    def file(self) -> Path | None:
        """Path of the file that is the database; None if a server has it.

        The statements of a file run in threads of this process. It has no schemas, logins or passwords.
        """
        return Path(self.database) if self.kind == "sqlite" else None

    def require_file(self) -> None:
        """Check that the file exists: in a wrong directory, a connection would create an empty one.

        Raises:
            FileMissing: it does not exist.
        """
        if (path := self.file) is not None and not path.exists():
            raise FileMissing(path=path.absolute())

    @property
    def tls(self) -> Tls:
        """Protection of the connection, from the URL, the environment and the service file."""
        if self.file is not None:
            return Tls(local=True)
        return tls_for([host.name for host in self.hosts if host.name], dict(self.options))


def parse_url(text: str | DatabaseUrl) -> DatabaseUrl:
    """Parse a database URL.

    Args:
        text: `sqlite:///file.db` (in the current folder), `sqlite:////absolute/file.db`, a path that ends in .db,
            .sqlite or .sqlite3, or `postgresql://user:password@host:port/database?option=value` (also `postgres://`),
            with several hosts separated by commas. PostgreSQL URLs use percent-encoding for special characters, as in
            libpq.

    Returns:
        The decoded parts. A DatabaseUrl is returned as it is.

    Raises:
        InvalidUrl: the URL is not valid. The message repeats at most its scheme.
    """
    if isinstance(text, DatabaseUrl):
        return text
    scheme, mark, rest = text.strip().partition("://")
    scheme = scheme.lower()
    try:
        if not text.strip().isprintable():
            raise Unreadable("it contains control characters")
        return _read(scheme, rest) if mark else _file(text.strip())
    except Unreadable as error:
        safe_text = f"{scheme}://***" if mark and _SCHEME.fullmatch(scheme) else "***"
        raise InvalidUrl(url=safe_text, why=str(error)) from None


def async_url(url: str | DatabaseUrl) -> "URL":
    """Convert a URL for SQLAlchemy's async engines: sqlite+aiosqlite or postgresql+psycopg.

    Args:
        url: URL as text or parsed.

    Returns:
        SQLAlchemy's URL, with the password, and with sslmode=verify-full for a remote server if no sslmode is set.

    Raises:
        InvalidUrl: see `parse_url`.
    """
    return _for_sqlalchemy(parse_url(url), "sqlite+aiosqlite")


def sync_url(url: str | DatabaseUrl) -> "URL":
    """Same as `async_url`, for SQLAlchemy's sync engines: sqlite+pysqlite or postgresql+psycopg."""
    return _for_sqlalchemy(parse_url(url), "sqlite+pysqlite")


def redacted(url: str | DatabaseUrl) -> str:
    """Return a URL without its password.

    Raises:
        InvalidUrl: see `parse_url`.
    """
    return str(parse_url(url))


def refuse_password(url: str) -> None:
    """Reject a URL with a password from the command line, because every user of the machine can read it there.

    Args:
        url: argument as typed.

    Raises:
        PasswordInArguments: the URL contains a password, or looks like it. The message lists the alternatives.
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
        raise Unreadable("remove the driver from the scheme; it is selected automatically")
    raise Unreadable("only SQLite and PostgreSQL are supported")


def _sqlite(rest: str) -> DatabaseUrl:
    path = rest[1:]
    if rest in {"", "/"} or path.startswith(":memory:"):
        raise Unreadable("no other process could use a database in memory; name a file")
    if not rest.startswith("/"):
        raise Unreadable("write three slashes before the path of a file")
    if "?" in path or path.startswith("file:"):
        raise Unreadable("SQLite options are settings, not part of the URL")
    return DatabaseUrl("sqlite", _absolute(path))


def _file(path: str) -> DatabaseUrl:
    if path.startswith("file:") or _PASSWORD.search(path) or "host=" in path:
        raise Unreadable("it is neither a URL nor a file path")
    if Path(path).suffix.lower() not in FILE_ENDINGS:
        raise Unreadable("it has no scheme, and is not a path that ends in .db, .sqlite or .sqlite3")
    return DatabaseUrl("sqlite", _absolute(path))


def _absolute(path: str) -> str:
    """Make a path absolute once: a handler, or the application, may change the folder of the process later."""
    path = str(expand_home(path)) if path.startswith("~") else path
    if Path(path).is_absolute():
        return path
    try:
        return str(Path.cwd() / path)
    except OSError as error:
        why = f"its path is relative, and the current folder cannot be read: {error.strerror} (errno {error.errno})"
        raise Unreadable(why) from None


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
    """Format the servers as libpq does. Unlike SQLAlchemy, it supports lists and socket directories."""
    names = ",".join(host.name for host in hosts)
    ports = ",".join(str(host.port or "") for host in hosts)
    return {name: text for name, text in (("host", names), ("port", ports)) if text.strip(",")}
