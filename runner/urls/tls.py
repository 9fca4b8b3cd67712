"""TLS: verify-full for every remote PostgreSQL server, unless the URL, a service or PGSSLMODE sets another sslmode."""

import os
from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as BrokenFile
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True)
class Tls:
    """The protection of a connection.

    Args:
        local: True if the server is on this machine: a file, a socket or a loopback address.
        sslmode: sslmode that the user set, or None.
    """

    local: bool
    sslmode: str | None = None

    @property
    def mode(self) -> str | None:
        """The effective sslmode; None for a local server without a set sslmode."""
        return self.sslmode or self.demand

    @property
    def demand(self) -> str | None:
        """The sslmode to add, because none is set and libpq's default would accept an unencrypted connection."""
        return None if self.local or self.sslmode else "verify-full"

    @property
    def weak(self) -> bool:
        """True if a third party in the network could read or change the traffic; the console shows a warning."""
        return not self.local and self.mode != "verify-full"


def tls_for(hosts: Sequence[str], options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Tls:
    """Decide the protection of a PostgreSQL connection.

    Args:
        hosts: servers in the URL; may be empty.
        options: other libpq parameters of the URL; hostaddr, service and sslmode count.
        environ: environment; os.environ by default.

    Returns:
        The protection. A server from a missing service counts as remote.
    """
    environ = os.environ if environ is None else environ
    name = options.get("service") or environ.get("PGSERVICE")
    service = read_service(name, environ) if name else {}
    # libpq connects to hostaddr if it is set. Precedence: URL, service, environment.
    address = (
        options.get("hostaddr")
        or ",".join(hosts)
        or service.get("hostaddr")
        or service.get("host")
        or environ.get("PGHOSTADDR")
        or environ.get("PGHOST")
        or ("unknown" if name and not service else "")
    )
    return Tls(
        local=all(is_local(host.strip()) for host in address.split(",")),
        sslmode=options.get("sslmode") or service.get("sslmode") or environ.get("PGSSLMODE"),
    )


def is_local(host: str) -> bool:
    """True if a host is this machine: empty, a socket directory, an abstract socket, localhost or loopback."""
    if host in {"", "localhost"} or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_service(name: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Look up a service in libpq's service files; empty if it is in none of them.

    Source: PostgreSQL manual, "The Connection Service File".
    """
    for path in _service_files(environ):
        parser = ConfigParser(interpolation=None, strict=False, delimiters=("=",), comment_prefixes=("#",))
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, BrokenFile, UnicodeDecodeError):
            continue
        if parser.has_section(name):
            return dict(parser[name])
    return {}


def _service_files(environ: Mapping[str, str]) -> list[Path]:
    own = environ.get("PGSERVICEFILE")
    files = [Path(own) if own else Path.home() / ".pg_service.conf"]
    if folder := environ.get("PGSYSCONFDIR"):
        files.append(Path(folder) / "pg_service.conf")
    return files
