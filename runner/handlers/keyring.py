"""Keyring: the codecs and keys of a process, which encrypt the values of its tasks.

An encrypted text begins with its use and its handler, so that the value of one place does not decrypt in another.
"""

import logging
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias

from runner.errors import CodecFailed, InvalidSettings, KeyMissing, PackageMissing, RunnerError, Undecodable
from runner.handlers.codecs import FERNET, NONE, FernetCodec, own_codec, require_codec
from runner.handlers.registry import REGISTRY, Handler
from runner.model.sealed import EXACT, PREFIX, Sealed, read_sealed
from runner.own_code import OwnCodeFault, call_own
from runner.settings import Settings
from runner.settings.codec_keys import codec_keys

Use: TypeAlias = Literal["payload", "result", "checkpoint", "text"]
"""The use of a sealed value; "text" is an error, a traceback or a line of a log."""


class Keyring:
    """The codecs and keys of a process.

    Args:
        settings: the default codec, and the keys; a program that prints them runs when the first one is needed.

    Raises:
        InvalidSettings: the default codec does not exist.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.default = None if settings.codec == NONE else str(settings.codec)
        self.accepts_plain = settings.codec_plain == "accept"
        self.stored: dict[str, str | None] = {}
        """The codecs of handlers whose code is not loaded, as their runners stored them."""
        if self.default is not None:
            try:
                require_codec(self.default)
            except ValueError as error:
                raise InvalidSettings(where=settings.origins.of("codec"), why=str(error)) from None

    @cached_property
    def fernet(self) -> FernetCodec | None:
        """The built-in codec; None without a key.

        Raises:
            InvalidSettings: the keys cannot be read.
            PackageMissing: cryptography is not installed.
        """
        keys = codec_keys(self._settings)
        if not keys:
            return None
        try:
            return FernetCodec(keys)
        except ImportError:
            raise PackageMissing(package="cryptography", use="codec_keys", extra="crypto", instead="") from None

    def of(self, handler: Handler) -> str | None:
        """Return the codec of a handler; None without one."""
        own = handler.defaults.codec
        return self.default if own is None else None if own == NONE else own

    def of_name(self, name: str) -> str | None:
        """Return the codec of a handler that may not be loaded; None without one, or if it is not known."""
        handler = REGISTRY.get(name)
        return self.of(handler) if handler is not None else self.stored.get(name, self.default)

    def note(self, name: str, codec: str | None) -> None:
        """Keep the codec of a handler whose code is not loaded, as its runners stored it."""
        self.stored[name] = codec

    def require_own(self, codec: str) -> str:
        """Return a codec of a loaded handler or of the setting: the name may come from a database.

        Raises:
            KeyMissing: it is another one.
        """
        if codec != FERNET and codec not in self._own_codecs:
            raise KeyMissing(what="payload", needs="needs a key", codec=codec, known="no codec of this name")
        return codec

    def has(self, sealed: Sealed) -> bool:
        """True if this process has the key and the codec of a sealed value."""
        if sealed.codec != FERNET:
            return sealed.codec in self._own_codecs
        return self.fernet is not None and sealed.key in self.fernet.key_ids

    def missing(self, codec: str | None) -> bool:
        """True if this process lacks the keys of a codec."""
        return codec == FERNET and self.fernet is None

    def is_fast(self, codec: str) -> bool:
        """True if the codec takes microseconds, so that an event loop may call it."""
        return codec == FERNET or getattr(own_codec(codec), "fast", False) is True

    def key_of(self, codec: str) -> str:
        """Return the id of the key that a codec encrypts with; empty if it has no ids.

        Raises:
            KeyMissing: there is no key.
        """
        if codec == FERNET:
            return self._fernet("value", "").key_id
        return str(getattr(own_codec(codec), "key_id", ""))[:64]

    def seal(self, codec: str, handler: str, use: Use, text: str) -> str:
        """Encrypt a text, and return the stored text.

        Raises:
            KeyMissing: the codec has no key here.
            CodecFailed: an own codec raised an exception.
        """
        bound = f"{use} {handler}\n{text}"
        if codec == FERNET:
            fernet = self._fernet(use, "", handler)
            return f'{PREFIX}"fernet","key":"{fernet.key_id}","data":"{fernet.encode(bound)}"}}'
        try:
            data = call_own(own_codec(codec).encode, bound)
        except (ValueError, OwnCodeFault) as fault:
            raise CodecFailed(codec=codec, what=_what(use, handler), why=_kind(fault)) from None
        if not isinstance(data, str):
            raise CodecFailed(codec=codec, what=_what(use, handler), why=f"encode returned {type(data).__name__}")
        return Sealed(codec, self.key_of(codec), data).text

    def open(self, sealed: Sealed, handler: str, use: Use) -> str:
        """Decrypt a sealed value.

        Raises:
            KeyMissing: this process lacks its key or its codec. A database never names a module to import: an own codec
                is that of a loaded handler, or of the setting.
            Undecodable: it was changed, it is a value of another handler or another use, or the key does not fit.
            CodecFailed: an own codec does not work now.
        """
        what, name = _what(use, handler), {"codec": sealed.codec, "key": sealed.key or "(without an id)"}
        try:
            if sealed.codec == FERNET:
                bound = self._fernet(use, sealed.key, handler).decode_with(sealed.key, sealed.data)
            elif sealed.codec in self._own_codecs:
                bound = call_own(_decode, own_codec(sealed.codec), sealed.data)
            else:
                needs = "is encrypted with a key"
                raise KeyMissing(what=what, needs=needs, codec=sealed.codec, known="no codec of this name")
        except ValueError as error:
            why = str(error) if sealed.codec == FERNET else "decode raised a ValueError"
            raise Undecodable(what=what, why=why, **name) from None
        except OwnCodeFault as fault:
            if isinstance(fault.__cause__, ValueError):
                raise Undecodable(what=what, why=f"decode raised {_kind(fault)}", **name) from None
            raise CodecFailed(codec=sealed.codec, what=what, why=f"decode raised {_kind(fault)}") from None
        head, _, text = bound.partition("\n")
        if head != f"{use} {handler}":
            raise Undecodable(what=what, why="it was encrypted for another handler, or for another use", **name)
        return text

    def _fernet(self, use: str, key: str, handler: str = "") -> FernetCodec:
        """Return the built-in codec, which has the key of an id; any key without one."""
        fernet = self.fernet
        if fernet is None or (key and key not in fernet.key_ids):
            known = f"only {', '.join(sorted(fernet.key_ids))}" if fernet else "no key"
            needs = f"is encrypted with key {key}" if key else "needs a key"
            raise KeyMissing(what=_what(use, handler), needs=needs, codec=FERNET, known=known)
        return fernet

    @property
    def _own_codecs(self) -> set[str | None]:
        return {self.default, *(handler.defaults.codec for handler in REGISTRY.values())}

    def opened(self, text: str | None, handler: str, use: Use) -> str | None:
        """Return a stored text, decrypted if it is sealed."""
        sealed = read_sealed(text)
        return text if sealed is None else self.open(sealed, handler, use)

    def open_text(self, text: str, handler: str) -> str:
        """Decrypt the sealed values inside of an error or a line of a log; one that cannot be decrypted stays."""
        if PREFIX not in text:
            return text

        def replaced(match: re.Match[str]) -> str:
            try:
                return self.open(Sealed(match["codec"], match["key"], match["data"]), handler, "text")
            except RunnerError:
                return match[0]

        return EXACT.sub(replaced, text)

    def vault(self, handler: str, codec: str) -> "Vault":
        """Return the vault for the tasks of a handler."""
        return Vault(self, handler, codec)


class Vault:
    """Encrypts and decrypts the values of one attempt."""

    __slots__ = ("_handler", "_keyring", "codec")

    def __init__(self, keyring: Keyring, handler: str, codec: str) -> None:
        self._keyring, self._handler, self.codec = keyring, handler, codec

    def seal(self, use: Use, text: str) -> str:
        """Encrypt a text; see `Keyring.seal`."""
        return self._keyring.seal(self.codec, self._handler, use, text)

    def open(self, use: Use, text: str) -> str:
        """Decrypt a stored text; a plain one is returned as it is. See `Keyring.open`."""
        return self._keyring.opened(text, self._handler, use) or text

    @property
    def is_fast(self) -> bool:
        """True if an event loop may call it."""
        return self._keyring.is_fast(self.codec)


def _decode(codec: Any, data: str) -> str:
    text = codec.decode(data)
    if not isinstance(text, str):
        raise TypeError(f"decode returned {type(text).__name__}")
    return text


def _kind(fault: BaseException) -> str:
    """The class of an exception: its text may repeat the value."""
    return type(fault.__cause__ or fault).__name__


def _what(use: str, handler: str) -> str:
    return f"{use} of handler {handler}" if handler else use


log = logging.getLogger("runner")

NO_KEY = "codec fernet of {names} has no key here; set TASKTUI_CODEC_KEYS_FILE"


def keyed_handlers(settings: Settings, handlers: Mapping[str, Handler]) -> Mapping[str, Handler]:
    """Leave out the handlers whose codec has no key here, and log their names.

    Raises:
        InvalidSettings: no handler is left, or the keys cannot be read.
    """
    keyring = Keyring(settings)
    keyless = sorted(name for name, handler in handlers.items() if keyring.missing(keyring.of(handler)))
    if not keyless:
        return handlers
    why = NO_KEY.format(names=", ".join(keyless))
    if len(keyless) == len(handlers):
        raise InvalidSettings(where="codec_keys", why=f"this runner could execute nothing: {why}")
    log.warning("%s. Other runners take these tasks", why)
    return {name: handler for name, handler in handlers.items() if name not in keyless}
