"""`postgresql://` URLs as libpq reads them, but strict: an ambiguous URL is rejected, and TLS is the default."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

from runner.model.home import expand_home

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


class Tls(NamedTuple):
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
    from configparser import ConfigParser  # few URLs name a service
    from configparser import Error as BrokenFile

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
    files = [Path(own) if own else expand_home("~/.pg_service.conf")]
    if folder := environ.get("PGSYSCONFDIR"):
        files.append(Path(folder) / "pg_service.conf")
    return files


# Options without secrets, which may be printed. The list also catches typos such as `sslmod=disable`.
OPTIONS = frozenset(
    {
        *("hostaddr", "service", "passfile", "application_name", "fallback_application_name", "options"),
        *("sslmode", "sslnegotiation", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir", "sslsni"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "channel_binding", "require_auth", "requirepeer"),
        *("connect_timeout", "tcp_user_timeout", "target_session_attrs", "load_balance_hosts", "client_encoding"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
        *("gssencmode", "gssdelegation", "gsslib", "krbsrvname"),
    }
)

PLACES = frozenset({"host", "port", "user", "password", "dbname"})
"""Parts that may also be values as query options."""

HIGHEST_PORT = 65535

# Exactly one unencoded @, before the hosts: guessing which one ends the password could print part of it.
_REST = re.compile(
    r"(?:(?P<user>[^:/?#@]*)(?::(?P<password>[^/?@]*))?@)?"
    r"(?P<hosts>[^/?#@]*)"
    r"(?:/(?P<dbname>[^/?#@]*))?"
    r"(?:\?(?P<query>[^#@]*))?"
)
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]*)(?::(?P<port>[^:]*))?")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Unreadable(Exception):
    """The reason why a URL cannot be parsed, without any text of the URL."""


class Host(NamedTuple):
    """A server.

    Args:
        name: host name, address or socket directory; empty for libpq's default.
        port: port; None for libpq's default.
    """

    name: str
    port: int | None


class Parts(NamedTuple):
    """The decoded parts of a PostgreSQL URL. Empty values and None mean libpq's defaults."""

    database: str
    user: str | None
    password: str | None
    hosts: tuple[Host, ...]
    options: tuple[tuple[str, str], ...]


def read_parts(rest: str) -> Parts:
    """Parse the part of a URL after `postgresql://`.

    Args:
        rest: `user:password@host:port,host:port/database?option=value`, every part optional and percent-encoded.

    Raises:
        Unreadable: the text does not have this form.

    Source: PostgreSQL manual, "Connection Strings", "Connection URIs".
    """
    match = _REST.fullmatch(rest)
    if match is None:
        _reject("write user@host:port/database?option=value, and percent-encode special characters")
    values: dict[str, str] = {}
    _add(values, ((name, match[name]) for name in ("user", "password", "dbname")))
    _add(values, _query(match["query"] or ""))
    if values.get("sslmode", "disable") not in SSL_MODES:
        _reject(f"sslmode must be one of {', '.join(SSL_MODES)}")
    return Parts(
        database=values.get("dbname", ""),
        user=values.get("user"),
        password=values.get("password"),
        hosts=_merge(_hosts(match["hosts"]), values.get("host", ""), values.get("port", "")),
        options=tuple((name, value) for name, value in values.items() if name not in PLACES),
    )


def _reject(why: str) -> NoReturn:
    raise Unreadable(why) from None


def _add(values: dict[str, str], pairs: Iterable[tuple[str, str | None]]) -> None:
    for name, raw in pairs:
        if not raw:
            continue
        if name in values:
            _reject(f"{name} is set twice")
        values[name] = _decode(raw, name)


def _decode(raw: str, name: str) -> str:
    if _BROKEN_ESCAPE.search(raw):
        _reject(f"the {name} contains a % that is not part of an escape; write %25 for a percent sign")
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        _reject(f"the {name} is not UTF-8 when decoded")
    if not text.isprintable():
        _reject(f"the {name} contains control characters")
    return text


def _query(query: str) -> Iterable[tuple[str, str]]:
    for pair in filter(None, query.split("&")):
        name, mark, value = pair.partition("=")
        if not mark or name not in OPTIONS | PLACES:
            _reject("an option after the ? is unknown, or is a secret, which belongs in a service file")
        yield name, value


def _hosts(text: str) -> tuple[Host, ...]:
    return tuple(map(_host, text.split(",")))


def _host(item: str) -> Host:
    match = _HOST.fullmatch(item)
    if match is None:
        _reject("a host is not valid; if it is part of the password, percent-encode it")
    return Host(_decode(match["name"].strip("[]"), "host"), _port(match["port"] or ""))


def _port(digits: str) -> int | None:
    if not digits:
        return None
    if not re.fullmatch("[0-9]{1,5}", digits) or not 1 <= int(digits) <= HIGHEST_PORT:
        _reject(f"a port must be a number from 1 to {HIGHEST_PORT}")
    return int(digits)


def _merge(hosts: tuple[Host, ...], names: str, ports: str) -> tuple[Host, ...]:
    """Combine the hosts and ports of the URL with those in its query."""
    if (names and any(host.name for host in hosts)) or (ports and any(host.port for host in hosts)):
        _reject("hosts or ports are set twice")
    all_names = names.split(",") if names else [host.name for host in hosts]
    all_ports = [_port(port) for port in ports.split(",")] if ports else [host.port for host in hosts]
    if len(all_ports) == 1:  # one port applies to every host
        all_ports *= len(all_names)
    if len(all_ports) != len(all_names):
        _reject("the number of ports differs from the number of hosts")
    merged = tuple(map(Host, all_names, all_ports))
    return () if merged == (Host("", None),) else merged
