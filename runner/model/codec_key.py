"""Codec key: a secret of the built-in codec, and its id."""

import base64
import hashlib
import secrets

KEY_BYTES = 32


def new_key() -> str:
    """Return a new random key."""
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def key_id(key: str) -> str:
    """Return the id of a key: eight hexadecimal digits, from which no one can derive the key.

    Raises:
        ValueError: the text is not a key; the message does not repeat it.
    """
    try:
        raw = base64.b64decode(key.strip().encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise ValueError("a key is 32 random bytes in URL-safe base64, which has 44 characters")
    return hashlib.sha256(raw).hexdigest()[:8]
