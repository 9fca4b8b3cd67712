"""Keyed handlers: those that a runner can decrypt."""

import logging
from collections.abc import Mapping

from runner.errors import InvalidSettings
from runner.handlers.keyring import Keyring
from runner.handlers.registry import Handler
from runner.settings import Settings

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
