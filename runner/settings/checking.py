"""Checking: values that somebody has chosen, by the kinds and bounds of their settings, and how they fit together."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, create_model, field_validator

from runner.errors import InvalidSettings
from runner.people.times import format_duration
from runner.settings import kinds
from runner.settings.values import NAMES, Settings


class _Rules(BaseModel):
    """What the kinds of single values cannot say."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    @field_validator("table_schema", check_fields=False)
    @classmethod
    def _schema_fits(cls, schema: str | None, info: ValidationInfo) -> str | None:
        if schema is not None and schema.startswith("pg_"):
            raise ValueError("PostgreSQL keeps schemas that begin with pg_ to itself")
        if schema is not None and "url" in info.data and info.data["url"].kind == "sqlite":
            raise ValueError("SQLite has no schemas; use table_prefix")
        return schema

    @field_validator("beat", check_fields=False)
    @classmethod
    def _beat_fits(cls, beat: timedelta, info: ValidationInfo) -> timedelta:
        lease = info.data.get("lease")
        if lease is not None and beat > lease / 2:
            raise ValueError(
                f"it must be at most half of the lease ({format_duration(lease)}), so that one lost beat costs nothing"
            )
        return beat


def _model() -> type[BaseModel]:
    hints = get_type_hints(Settings, localns=vars(kinds), include_extras=True)
    default = Settings()
    known: dict[str, Any] = {name: (hints[name], getattr(default, name)) for name in NAMES}
    return create_model("Settings", __base__=_Rules, **known)


MODEL = _model()
"""The settings as pydantic knows them."""


def checked(values: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> Settings:
    """Make settings of values that somebody has chosen.

    Args:
        values: by name of the setting, as people write them or as they are.
        origins: where they stand, by name of the setting, for complaints.

    Raises:
        InvalidSettings: one of them cannot be.
    """
    try:
        found = MODEL(**values)
    except ValidationError as error:
        raise _explained(error, origins or {}) from None
    return Settings(**{name: getattr(found, name) for name in values})


def _explained(error: ValidationError, origins: Mapping[str, str]) -> InvalidSettings:
    """Turn pydantic's complaints into ours, which say where each value stands and do not repeat it."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    (where, why), *more = [(_place(item["loc"], origins), _reason(item["msg"])) for item in found]
    return InvalidSettings(where=where, why="; ".join([why, *(f"{place}: {reason}" for place, reason in more)]))


def _place(path: Sequence[int | str], origins: Mapping[str, str]) -> str:
    name = str(path[0]) if path else "settings"
    return origins.get(name, name)


def _reason(message: str) -> str:
    return message.removeprefix("Value error, ").replace("Input should be", "it must be")
