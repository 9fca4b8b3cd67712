"""The types of settings: text from the environment and from files becomes a checked value."""

from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator, ByteSize, StringConstraints

from runner.errors import InvalidDuration
from runner.model.codec_key import key_id
from runner.model.duration import format_duration, parse_duration
from runner.model.outcome import ON_ERROR, ON_NONE, Unexpected
from runner.settings.queue_retention import require_different_queues
from runner.settings.receivers import WEB_SCHEMES, parse_receiver, require_different_names, require_sendable
from runner.settings.serve_tokens import parse_serve_token, require_different_tokens
from runner.text import formatting

MAX_PORT = 65_535

MAX_PREFIX = 20
"""Maximum length of a table prefix: with it, the longest index name fits into PostgreSQL's 63 bytes."""


def _duration(value: Any) -> timedelta:
    try:
        return parse_duration(value)
    except InvalidDuration:
        raise ValueError("expected a duration such as 250ms, 30s, 5m, 1h30m or 2d") from None


def _or_none(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in {"none", "never", "forever"} else value


def _items(value: Any) -> Any:
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _all_items(value: Any) -> Any:
    """The items of one list, or of several, such as those of a repeated option."""
    if isinstance(value, (tuple, list)):
        return [item for each in value for item in (_items(each) if isinstance(each, str) else [each])]
    return _items(value)


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _outcome_rule(case: Unexpected, text: str) -> str:
    """Check a rule for unexpected results; a runner imports its function when it starts."""
    module, colon, name = text.partition(":")
    if text not in case.choices and not (colon and all(map(str.isidentifier, (*module.split("."), name)))):
        raise ValueError(f"{text!r} is not {case.values}")
    return text


def split_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT into its parts.

    Raises:
        ValueError: the host is missing, or the port is not a number from 0 to 65535.
    """
    host, colon, port = text.rpartition(":")
    is_ip6 = host.startswith("[") and host.endswith("]")
    if not host or not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ValueError("expected HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464")
    if ":" in host and not is_ip6:
        raise ValueError("put an IPv6 address into brackets, such as [::1]:9464")
    return host.strip("[]"), int(port)


def _address(text: str) -> str:
    split_address(text)
    return text


class Masked(str):
    """Text that may hold secrets: its `repr`, and the list of the settings, show a part of it."""

    __slots__ = ("shown",)
    shown: str

    @classmethod
    def of(cls, text: str, shown: str) -> "Masked":
        """Return a text, and the part of it that is shown."""
        masked = cls(text)
        masked.shown = shown
        return masked

    def __repr__(self) -> str:
        return repr(self.shown)


def _receiver(text: str) -> Masked:
    return Masked.of(text, str(parse_receiver(text)))


def _serve_token(text: str) -> Masked:
    return Masked.of(text, str(parse_serve_token(text)))


def _words(value: Any) -> Any:
    """The items of a list with commas or white space between them."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


def _codec_key(text: str) -> Masked:
    return Masked.of(text, f"key {key_id(text)}")


def _web_address(text: str) -> Masked:
    parts = urlsplit(text)
    if parts.scheme not in WEB_SCHEMES or not parts.hostname:
        raise ValueError("expected an address such as https://example.com/ping")
    require_sendable(text)
    return Masked.of(text, f"{parts.scheme}://{parts.hostname}")


ZERO = timedelta(0)

SHORTEST_LEASE = timedelta(milliseconds=100)
"""The shortest lease: a runner sends five heartbeats in the time of one."""


def _lease(length: timedelta) -> timedelta:
    if length < SHORTEST_LEASE:
        raise ValueError(f"it must be at least {format_duration(SHORTEST_LEASE)}")
    return length


Delay: TypeAlias = Annotated[timedelta, Ge(ZERO), BeforeValidator(_duration)]
Period: TypeAlias = Annotated[timedelta, Gt(ZERO), BeforeValidator(_duration)]
Lease: TypeAlias = Annotated[timedelta, AfterValidator(_lease), BeforeValidator(_duration)]
Limit: TypeAlias = Annotated[Period | None, BeforeValidator(_or_none)]
Retention: TypeAlias = Annotated[Delay | None, BeforeValidator(_or_none)]
Count: TypeAlias = Annotated[int, Ge(1)]
Maximum: TypeAlias = Annotated[Count | None, BeforeValidator(_or_none)]
Number: TypeAlias = Annotated[int, Ge(0)]
Percentage: TypeAlias = Annotated[int, Ge(0), Le(100)]
Size: TypeAlias = Annotated[ByteSize, Ge(1)]


def module_name(text: str) -> str:
    """Check the name of a Python module.

    Raises:
        ValueError: it is not a dotted name; the message derives one from a path such as `shop/tasks.py`.
    """
    if all(part.isidentifier() for part in text.split(".")):
        return text
    dotted = text.strip("./").removesuffix(".py").replace("/", ".")
    example = dotted if all(part.isidentifier() for part in dotted.split(".")) else "shop.tasks"
    raise ValueError(f"it must be the name of a Python module, such as {example}, not {text!r}")


RESERVED_SIGNS = "%:\\$"
"""Characters with a meaning of their own in SQL texts and parameters."""


def identifier(longest: int, text: str) -> str:
    """Check a part of the names of tables: any printable text, such as `Shop "2"`, which statements quote.

    Args:
        longest: maximum number of bytes.

    Raises:
        ValueError: it is too long, or has characters that no name may have.
    """
    if len(text.encode(errors="surrogatepass")) > longest:
        raise ValueError(f"it must have at most {longest} bytes")
    signs = [sign for sign in text if sign in RESERVED_SIGNS or not sign.isprintable()]
    if signs:
        raise ValueError(f"it must not contain {signs[0]!r}")
    return text


Identifier: TypeAlias = Annotated[str, StringConstraints(min_length=1), AfterValidator(partial(identifier, 63))]
Prefix: TypeAlias = Annotated[str, AfterValidator(partial(identifier, MAX_PREFIX))]
Module: TypeAlias = Annotated[str, AfterValidator(module_name)]
Modules: TypeAlias = Annotated[tuple[Module, ...], BeforeValidator(_all_items)]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Names: TypeAlias = Annotated[tuple[Name, ...], BeforeValidator(_items)]
Address: TypeAlias = Annotated[str, AfterValidator(_address)]
ErrorRule: TypeAlias = Annotated[str, AfterValidator(partial(_outcome_rule, ON_ERROR))]
NoneRule: TypeAlias = Annotated[str, AfterValidator(partial(_outcome_rule, ON_NONE))]
ReceiverText: TypeAlias = Annotated[str, AfterValidator(_receiver)]
Receivers: TypeAlias = Annotated[
    tuple[ReceiverText, ...], BeforeValidator(_items), AfterValidator(require_different_names)
]
CodecKeys: TypeAlias = Annotated[tuple[Annotated[str, AfterValidator(_codec_key)], ...], BeforeValidator(_words)]
Secret: TypeAlias = Annotated[str, AfterValidator(lambda text: Masked.of(text, "***"))]
ServeTokens: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_serve_token)], ...],
    BeforeValidator(_items),
    AfterValidator(require_different_tokens),
]
QueueRetentions: TypeAlias = Annotated[
    tuple[str, ...], BeforeValidator(_items), AfterValidator(require_different_queues)
]
WebAddress: TypeAlias = Annotated[str, AfterValidator(_web_address)]
Durability: TypeAlias = Annotated[Literal["FULL", "NORMAL"], BeforeValidator(_upper)]


def value_text(value: Any) -> str:
    """Return the value of a setting as text, without secrets."""
    match value:
        case Masked():
            return value.shown
        case None | () | bool():
            return "on" if value else "off" if value is False else "none"
        case ByteSize():
            return formatting.size(value)
        case timedelta():
            return format_duration(value)
        case tuple():
            return ", ".join(value_text(each) for each in value)
    return str(value)
