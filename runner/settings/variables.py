"""Variables of the environment, as pydantic-settings reads them."""

from collections.abc import Iterable
from typing import Any

from pydantic import create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from runner.settings.sources import PREFIX


class _Variables(BaseSettings):
    """How variables are named and read; never constructed, their values are checked like all others."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, enable_decoding=False, defer_build=True)


def read_variables(known: Iterable[str]) -> dict[str, Any]:
    """Return the settings in the environment of this process, as text and by name; empty ones count as not given.

    Args:
        known: names of all settings.
    """
    texts: dict[str, Any] = dict.fromkeys(known, (str | None, None))
    return EnvSettingsSource(create_model("Variables", __base__=_Variables, **texts))()
