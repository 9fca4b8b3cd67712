"""Sealed payload: the new payload of a task by an operator, encrypted as its handler needs it."""

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.handlers.codecs import FERNET
from runner.handlers.keyring import Keyring
from runner.handlers.parameters import read_signature
from runner.model.sealed import read_sealed
from runner.operations.edit_values import check_payload
from runner.queries.rows import text


async def seal_payload(
    tx: Transaction, keyring: Keyring | None, handler: str, payload: str, limit: int, stored: str = "{}"
) -> str:
    """Return a payload as it is stored: encrypted if its handler has a codec, or the payload before it was encrypted.

    Args:
        keyring: the keys of the operator; None leaves the payload as it is.
        limit: maximum number of bytes.
        stored: the payload before.

    Raises:
        KeyMissing, CodecFailed: the operator lacks the key, or the codec does not work; nothing was written.
        PayloadTooLarge: the encrypted payload exceeds the limit.
    """
    if keyring is None or read_sealed(payload) is not None:
        return payload
    before = read_sealed(stored)
    await note_codec(tx, keyring, handler)
    codec = keyring.of_name(handler) or (before and before.codec)
    if codec is None:
        return payload
    sealed = keyring.seal(codec if codec == FERNET else keyring.require_own(codec), handler, "payload", payload)
    check_payload(sealed, limit)
    return sealed


def open_payload(keyring: Keyring | None, handler: str, stored: str) -> str:
    """Return a stored payload, decrypted.

    Raises:
        KeyMissing, Undecodable, CodecFailed: it cannot be decrypted.
    """
    if keyring is None:
        return stored
    return keyring.opened(stored, handler, "payload") or stored


async def note_codec(tx: Transaction, keyring: Keyring, handler: str) -> None:
    """Let a keyring know the codec that the runners of a handler have stored."""
    table = tx.tables.handler.c
    stored = text(await tx.scalar(sa.select(table.signature).where(table.name == handler)))
    if (signature := read_signature(stored)) is not None:
        keyring.note(handler, signature.codec)
