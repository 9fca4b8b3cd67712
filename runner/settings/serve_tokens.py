"""Serve token: a secret with which HTTP executors pull the tasks of its handlers, from the setting `serve_tokens`."""

import re
from typing import NamedTuple

TOKEN_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")

SECRET = re.compile(r"[A-Za-z0-9_.~/=-]{16,200}")

HANDLER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")


class ServeToken(NamedTuple):
    """One token.

    Args:
        handlers: the names of the handlers whose tasks it may pull.
    """

    name: str
    secret: str
    handlers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}=***@{'+'.join(self.handlers)}"

    def __repr__(self) -> str:
        return str(self)


def parse_serve_token(text: str) -> ServeToken:
    """Parse a token, such as node=SECRET@mail.send+sms.send.

    Raises:
        ValueError: it is not valid; the message does not repeat it, because it holds a secret.
    """
    name, _, rest = text.strip().partition("=")
    secret, _, names = rest.rpartition("@")
    if not TOKEN_NAME.fullmatch(name):
        raise ValueError("a token begins with a name and =, such as node=SECRET@mail.send+sms.send")
    if not SECRET.fullmatch(secret):
        raise ValueError(f"the secret of token {name} needs 16 to 200 letters, digits and _ . ~ / = - before its @")
    handlers = tuple(names.split("+"))
    if not all(HANDLER.fullmatch(handler) for handler in handlers):
        raise ValueError(f"token {name} ends with the names of its handlers, such as @mail.send+sms.send")
    return ServeToken(name, secret, handlers)


def require_different_tokens(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tokens of the setting, which are checked.

    Raises:
        ValueError: two have the same name or the same secret.
    """
    tokens = [parse_serve_token(text) for text in texts]
    for each in ("name", "secret"):
        values = [getattr(token, each) for token in tokens]
        if len(set(values)) < len(values):
            raise ValueError(f"two tokens have the same {each}")
    return texts
