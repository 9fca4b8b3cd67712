"""Receivers: the addresses to which a runner sends notices, as a resource of its handlers."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from runner.client.client import connected_settings
from runner.handlers.resources import resource
from runner.model.alert import DELIVERIES
from runner.model.outcome import Dead
from runner.settings import Settings, load
from runner.settings.receivers import Receiver, parse_receiver


class Receivers(NamedTuple):
    """The receivers of a runner by name, and its settings."""

    settings: Settings
    by_name: Mapping[str, Receiver]

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the receivers that the settings name."""
        return cls(settings, {receiver.name: receiver for receiver in map(parse_receiver, settings.alert_receivers)})

    @property
    def mail(self) -> list[Receiver]:
        """The receivers of e-mail."""
        return [receiver for receiver in self.by_name.values() if receiver.is_mail]

    @property
    def share(self) -> int:
        """The maximum number of calls of one receiver at the same time, which leaves slots for each other one."""
        return max(1, DELIVERIES // max(1, len(self.by_name)))

    def find(self, name: str) -> Receiver:
        """Return a receiver.

        Raises:
            Dead: no receiver has this name.
        """
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise Dead(f"this runner has no receiver {name}: the setting alert_receivers names {known}")
        return self.by_name[name]


@resource
def alert_receivers() -> Iterator[Receivers]:
    """Open the receivers of a process that is no runner; a runner passes its own."""
    yield Receivers.of(connected_settings() or load())
