r"""server_encoding: texts in a PostgreSQL database whose encoding is not UTF-8.

A character that the encoding cannot hold is stored as an escape of JSON, such as \u20ac. Payloads and results keep
their meaning, and other texts get the character back when this program reads them. Without that, one such character in
a result or an error would fail the outcome of an attempt.
"""

import codecs
import re
from functools import lru_cache, partial
from typing import Any, Protocol

import sqlalchemy as sa

ANY = ("UTF8", "SQL_ASCII")
"""Encodings that hold any text: SQL_ASCII stores bytes as they are."""

CODECS = {
    "EUC_CN": "gb2312",
    "EUC_JIS_2004": "euc_jis_2004",
    "KOI8R": "koi8_r",
    "KOI8U": "koi8_u",
    "SHIFT_JIS_2004": "shift_jis_2004",
}
"""Python's names of encodings, where they differ in more than the prefix of code pages."""

_ESCAPE = re.compile(r"\\u([0-9a-f]{4})(?:\\u(d[c-f][0-9a-f]{2}))?")


class ArrayText(str):
    """A list in PostgreSQL's form of an array, where a backslash is doubled."""

    __slots__ = ()


@lru_cache
def codec_of(encoding: str) -> str | None:
    """Return Python's codec for an encoding of PostgreSQL; None if it holds any text."""
    if encoding in ANY:
        return None
    name = CODECS.get(encoding) or re.sub(r"^WIN(?=\d)", "cp", encoding)
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "ascii"


def escaped(text: str, codec: str, mark: str = "\\u") -> str:
    """Replace the characters that an encoding cannot hold by escapes of JSON."""
    if text.isascii():
        return text
    try:
        text.encode(codec)
    except UnicodeEncodeError:
        return "".join(_held(character, codec) or _units(character, mark) for character in text)
    return text


def unescaped(text: str, codec: str) -> str:
    """Restore the characters that `escaped` has replaced; escapes of characters that the encoding holds stay."""
    return _ESCAPE.sub(partial(_restored, codec), text) if "\\u" in text else text


def _held(character: str, codec: str) -> str:
    try:
        character.encode(codec)
    except UnicodeEncodeError:
        return ""
    return character


def _units(character: str, mark: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"{mark}{units[index : index + 4]}" for index in range(0, len(units), 4))


def _restored(codec: str, match: re.Match[str]) -> str:
    units = bytes.fromhex(match[1] + (match[2] or ""))
    try:
        text = units.decode("utf-16-be")
    except UnicodeDecodeError:
        return match[0]
    return match[0] if all(_held(character, codec) for character in text) else text


class EncodedTransaction(Protocol):
    """An open transaction."""

    connection: Any
    dialect: Any


async def encoding_of(tx: EncodedTransaction) -> str:
    """Return the encoding of the database, by PostgreSQL's name."""
    return str((await tx.connection.execute(sa.select(tx.dialect.encoding()))).scalar_one())


def escaping_note(encoding: str) -> str:
    """Return the note on a database that cannot hold all characters."""
    return f"the database has the encoding {encoding}: characters that it cannot hold are stored as escapes of JSON"


def adapt(driver: Any) -> None:
    """Let a connection of psycopg write and read texts that the encoding of its database cannot hold."""
    from psycopg.types.string import StrDumper, StrDumperUnknown, TextLoader

    codec = codec_of(driver.info.parameter_status("server_encoding") or "UTF8")
    if codec is None:
        return

    def dump(base: Any, mark: str) -> Any:
        def escape(self: Any, text: str) -> Any:
            return base.dump(self, escaped(str(text), codec, mark))

        return type(f"Escaping{base.__name__}", (base,), {"dump": escape})

    def load(self: Any, data: Any) -> Any:
        text = TextLoader.load(self, data)
        return unescaped(text, codec) if isinstance(text, str) else text

    for base in (StrDumper, StrDumperUnknown):
        driver.adapters.register_dumper(str, dump(base, "\\u"))
        driver.adapters.register_dumper(ArrayText, dump(base, "\\\\u"))
    loader = type("UnescapingTextLoader", (TextLoader,), {"load": load})
    for kind in ("text", "varchar", "bpchar", "name"):
        driver.adapters.register_loader(kind, loader)
