"""What stands behind `postgresql://`, read as libpq reads it, and strictly: whatever is ambiguous is refused."""

import re
from collections.abc import Iterable
from typing import NamedTuple, NoReturn
from urllib.parse import unquote_to_bytes

from runner.urls.tls import SSL_MODES

# Options that hold no secret, and so may be printed. Naming them also catches `sslmod=disable`.
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
"""What may be written in the query as well as in front of it."""

HIGHEST_PORT = 65535

# Exactly one raw @, in front of the hosts: to guess which one ends the password could print a part of it.
_REST = re.compile(
    r"(?:(?P<user>[^:/?#@]*)(?::(?P<password>[^/?@]*))?@)?"
    r"(?P<hosts>[^/?#@]*)"
    r"(?:/(?P<dbname>[^/?#@]*))?"
    r"(?:\?(?P<query>[^#@]*))?"
)
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]*)(?::(?P<port>[^:]*))?")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Unreadable(Exception):
    """Why a URL cannot be read, in words that repeat nothing of it."""


class Host(NamedTuple):
    """One server.

    Args:
        name: a name, an address or a socket directory; empty for libpq's default.
        port: None for libpq's default.
    """

    name: str
    port: int | None


class Parts(NamedTuple):
    """The parts of a PostgreSQL URL, decoded. What is empty or None is left to libpq."""

    database: str
    user: str | None
    password: str | None
    hosts: tuple[Host, ...]
    options: tuple[tuple[str, str], ...]


def read_parts(rest: str) -> Parts:
    """Take apart what follows `postgresql://`.

    Args:
        rest: `user:password@host:port,host:port/database?option=value`, every piece optional and percent-encoded.

    Returns:
        The parts.

    Raises:
        Unreadable: it is not of that form.

    Source: PostgreSQL manual, "Connection Strings", "Connection URIs".
    """
    match = _REST.fullmatch(rest)
    if match is None:
        _refuse("it is not of the form user@host:port/database?option=value with special characters percent-encoded")
    given: dict[str, str] = {}
    _add(given, ((name, match[name]) for name in ("user", "password", "dbname")))
    _add(given, _query(match["query"] or ""))
    if given.get("sslmode", "disable") not in SSL_MODES:
        _refuse(f"sslmode must be one of {', '.join(SSL_MODES)}")
    return Parts(
        database=given.get("dbname", ""),
        user=given.get("user"),
        password=given.get("password"),
        hosts=_merged(_hosts(match["hosts"]), given.get("host", ""), given.get("port", "")),
        options=tuple((name, value) for name, value in given.items() if name not in PLACES),
    )


def _refuse(why: str) -> NoReturn:
    raise Unreadable(why) from None


def _add(given: dict[str, str], pairs: Iterable[tuple[str, str | None]]) -> None:
    for name, raw in pairs:
        if not raw:
            continue
        if name in given:
            _refuse(f"{name} is given twice")
        given[name] = _decoded(raw, name)


def _decoded(raw: str, name: str) -> str:
    if _BROKEN_ESCAPE.search(raw):
        _refuse(f"the {name} holds a % that begins no escape: write %25 for a percent sign")
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        _refuse(f"the {name} is not UTF-8 when decoded")
    if not text.isprintable():
        _refuse(f"the {name} holds control characters")
    return text


def _query(query: str) -> Iterable[tuple[str, str]]:
    for pair in filter(None, query.split("&")):
        name, mark, value = pair.partition("=")
        if not mark or name not in OPTIONS | PLACES:
            _refuse("an option after the ? is unknown, or holds a secret and belongs in a service file")
        yield name, value


def _hosts(text: str) -> tuple[Host, ...]:
    return tuple(map(_host, text.split(",")))


def _host(item: str) -> Host:
    match = _HOST.fullmatch(item)
    if match is None:
        _refuse("a host cannot be read; if that is a part of the password, percent-encode it")
    return Host(_decoded(match["name"].strip("[]"), "host"), _port(match["port"] or ""))


def _port(digits: str) -> int | None:
    if not digits:
        return None
    if not re.fullmatch("[0-9]{1,5}", digits) or not 1 <= int(digits) <= HIGHEST_PORT:
        _refuse(f"a port must be a number from 1 to {HIGHEST_PORT}")
    return int(digits)


def _merged(hosts: tuple[Host, ...], names: str, ports: str) -> tuple[Host, ...]:
    """Join what stands before the query with what stands in it."""
    if (names and any(host.name for host in hosts)) or (ports and any(host.port for host in hosts)):
        _refuse("hosts or ports are given twice")
    all_names = names.split(",") if names else [host.name for host in hosts]
    all_ports = [_port(port) for port in ports.split(",")] if ports else [host.port for host in hosts]
    if len(all_ports) == 1:  # One port serves every host.
        all_ports *= len(all_names)
    if len(all_ports) != len(all_names):
        _refuse("there are not as many ports as hosts")
    merged = tuple(map(Host, all_names, all_ports))
    return () if merged == (Host("", None),) else merged
