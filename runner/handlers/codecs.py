"""Codecs: what encrypts the values of tasks, the built-in one and those of an application, by name."""

import importlib
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol

from runner.errors import InvalidHandler, PackageMissing
from runner.model.codec_key import key_id
from runner.own_code import OwnCodeFault, call_own

FERNET = "fernet"
"""The name of the codec that comes with this package."""

NONE = "none"
"""The value of the option and of the setting for no codec."""

PATH = re.compile(r"[A-Za-z_][\w.]{0,150}:[A-Za-z_]\w{0,48}")


class Codec(Protocol):
    """What an application's own codec must be: an object with two methods.

    Two attributes are optional. `key_id` is the id of the key that `encode` uses, at most 64 characters without spaces.
    `fast` is True if both methods take microseconds; otherwise a runner calls them in a thread.
    """

    def encode(self, text: str) -> str:
        """Encrypt a text of any length."""

    def decode(self, data: str) -> str:
        """Decrypt what `encode` returned.

        Raises:
            ValueError: the data was changed, or no key fits. The task is then dead.
            Exception: the codec does not work now. The task then waits, and the attempt does not count.
        """


class FernetCodec:
    """Fernet of the package cryptography: AES-128 in CBC mode and HMAC-SHA256. The first key encrypts.

    Args:
        keys: base64 texts, at least one.
    """

    fast = True

    def __init__(self, keys: Sequence[str]) -> None:
        from cryptography.fernet import Fernet, InvalidToken  # only processes with encrypted tasks need it

        self._invalid = InvalidToken
        self._by_id = {key_id(key): Fernet(key) for key in keys}
        self.key_id, self._first = next(iter(self._by_id.items()))

    @property
    def key_ids(self) -> frozenset[str]:
        """The ids of the keys that decrypt."""
        return frozenset(self._by_id)

    def encode(self, text: str) -> str:
        """Encrypt a text with the first key."""
        return self._first.encrypt(text.encode()).decode()

    def decode_with(self, key: str, data: str) -> str:
        """Decrypt with the key of an id.

        Raises:
            ValueError: the data was changed, or another key with the same id encrypted it.
        """
        try:
            return self._by_id[key].decrypt(data).decode()
        except (self._invalid, TypeError, UnicodeError):
            raise ValueError("the data was changed, or the key is another one") from None


def require_codec(name: object) -> None:
    """Check that a codec exists, and import an own one.

    Raises:
        ValueError: it does not.
        PackageMissing: cryptography is not installed.
    """
    if name in (FERNET, NONE):
        if name == FERNET and find_spec("cryptography") is None:
            raise PackageMissing(package="cryptography", use='codec="fernet"', extra="crypto", instead="")
    elif isinstance(name, str) and PATH.fullmatch(name):
        own_codec(name)
    else:
        raise ValueError(f'{name!r} is not a codec: use "fernet", an own one as package.module:name, or "none"')


def check_codec(handler: str, codec: object) -> None:
    """Check the codec of a handler.

    Raises:
        InvalidHandler: it does not exist, or its package is not installed.
    """
    try:
        if codec is not None:
            require_codec(codec)
    except (ValueError, PackageMissing) as error:
        raise InvalidHandler(name=handler, why=str(error)) from None


@lru_cache
def own_codec(path: str) -> Any:
    """Import an application's own codec.

    Args:
        path: package.module:name, of an object with `encode` and `decode`, or of a class of such objects.

    Raises:
        ValueError: it cannot be imported, or lacks a method.
    """
    module, _, name = path.partition(":")
    try:
        codec: Any = call_own(lambda: getattr(importlib.import_module(module), name))
        codec = call_own(codec) if isinstance(codec, type) else codec
        missing = [each for each in ("encode", "decode") if not callable(call_own(getattr, codec, each, None))]
    except OwnCodeFault as fault:
        raise ValueError(f"codec {path!r} cannot be loaded: {fault.error}") from None
    if missing:
        raise ValueError(f"codec {path!r} lacks the method {' and '.join(missing)}")
    return codec
