"""Shard rule: the shard of a route."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from importlib import import_module
from typing import Any, TypeAlias

from runner.errors import InvalidSettings, InvalidTask
from runner.own_code import OwnCodeFault, call_own

HASH = "hash"
"""The rule without code of the application."""

ShardRule: TypeAlias = Callable[[str], str]
"""Returns the shard of a route."""


def load_shard_rule(text: str, shards: Sequence[str]) -> ShardRule:
    """Return the rule of a setting.

    Args:
        text: the setting `shard_rule`: `hash`, or a function as package.module:function.
        shards: the names of the shards.

    Raises:
        InvalidSettings: the function cannot be imported.
    """
    if text == HASH:
        return lambda route: by_hash(route, shards)
    module, colon, name = text.partition(":")
    if not colon:
        raise InvalidSettings(where="shard_rule", why=f"{text!r}: use hash, or a function as package.module:function")
    try:
        function = call_own(lambda: getattr(import_module(module), name))
    except OwnCodeFault as fault:  # the module may raise anything
        raise InvalidSettings(where="shard_rule", why=f"{text!r} cannot be loaded: {fault.error}") from None
    if not callable(function):
        raise InvalidSettings(where="shard_rule", why=f"{text!r}: {name} is not a function")
    return lambda route: _by_function(route, shards, text, function)


def by_hash(route: str, shards: Sequence[str]) -> str:
    """Return the shard of a route by rendezvous hashing: a new shard takes its part of the routes of each other one.

    The order of the shards does not matter.
    """
    key = route.encode()
    return max(shards, key=lambda shard: blake2b(key, digest_size=8, key=shard.encode()[:64]).digest())


def owner_of(schedule: str, shards: Sequence[str]) -> str:
    """Return the shard that owns a schedule, by its id: a rule of the application knows routes only."""
    return by_hash(schedule, shards)


def _by_function(route: str, shards: Sequence[str], text: str, function: Callable[[str], Any]) -> str:
    try:
        shard = call_own(function, route)
    except OwnCodeFault as fault:
        raise InvalidTask(field="route", value=route, why=f"the shard_rule {text} {fault}") from None
    if shard not in shards:
        why = f"the shard_rule {text} returned {str(shard)[:80]!r}, and the shards are {', '.join(shards)}"
        raise InvalidTask(field="route", value=route, why=why)
    return str(shard)
