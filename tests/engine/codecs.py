"""A codec of an application, and encrypted handlers that worker processes import."""

import base64
from itertools import cycle

from runner import Context, handler

SECRET = "4111-1111"


class Xor:
    """A codec for tests: it hides nothing from a reader of this file."""

    key_id = "xor-1"

    def __init__(self) -> None:
        self.broken: Exception | None = None
        """The error of the key service."""

    def encode(self, text: str) -> str:
        return base64.b64encode(self._mix(text.encode())).decode()

    def decode(self, data: str) -> str:
        if self.broken is not None:
            raise self.broken
        return self._mix(base64.b64decode(data, validate=True)).decode()

    @staticmethod
    def _mix(data: bytes) -> bytes:
        return bytes(one ^ two for one, two in zip(data, cycle(b"tests"), strict=False))


xor = Xor()


class NoCodec:
    """A class without the methods of a codec."""

    encode = None


@handler("codecs.process", executor="process", codec="fernet")
def in_process(ctx: Context, card: str) -> str:
    ctx.checkpoint({"card": card})
    ctx.logger.info("charging %s", card)
    return f"charged {card}"
