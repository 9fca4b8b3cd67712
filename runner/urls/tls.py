"""Whether the way to a PostgreSQL server is safe: verify-full for every server elsewhere, unless told otherwise."""

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
    """How the way to the server is protected.

    Args:
        local: the server is on this machine: a file, a socket or a loopback address.
        chosen: the sslmode that somebody asked for, or None.
    """

    local: bool
    chosen: str | None = None

    @property
    def mode(self) -> str | None:
        """The sslmode in force; None where the way does not leave this machine and nobody asked for one."""
        return self.chosen or self.demand

    @property
    def demand(self) -> str | None:
        """The sslmode that we add, because nobody chose one and libpq's own default would accept plain text."""
        return None if self.local or self.chosen else "verify-full"

    @property
    def weak(self) -> bool:
        """Somebody on the way could read or change what is sent: show a badge."""
        return not self.local and self.mode != "verify-full"


def tls_for(hosts: Sequence[str], options: Mapping[str, str], environ: Mapping[str, str] | None = None) -> Tls:
    """Decide how a PostgreSQL connection is protected.

    Args:
        hosts: servers named in the URL; may be empty.
        options: the URL's other parameters of libpq (hostaddr, service and sslmode matter).
        environ: the environment; os.environ when left out.

    Returns:
        The protection. A service that cannot be found counts as a server elsewhere.
    """
    environ = os.environ if environ is None else environ
    name = options.get("service") or environ.get("PGSERVICE")
    service = read_service(name, environ) if name else {}
    # hostaddr is where libpq connects to. A parameter given goes before the service; the environment comes last.
    place = (
        options.get("hostaddr")
        or ",".join(hosts)
        or service.get("hostaddr")
        or service.get("host")
        or environ.get("PGHOSTADDR")
        or environ.get("PGHOST")
        or ("unknown" if name and not service else "")
    )
    return Tls(
        local=all(is_local(host.strip()) for host in place.split(",")),
        chosen=options.get("sslmode") or service.get("sslmode"),
    )


def is_local(host: str) -> bool:
    """Whether a host is this machine: no name, a socket directory, an abstract socket, localhost or loopback."""
    if host in {"", "localhost"} or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_service(name: str, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Look a service up where libpq does; empty when it is nowhere.

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
