"""Own classes: the policies that an application writes, named by the path package.module:Class."""

import importlib
import logging
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from runner.errors import InvalidSettings
from runner.own_code import OwnCodeFault, call_own
from runner.text.sanitize import count_noun, one_line, value_text

log = logging.getLogger("runner")

Check = Callable[[Any], bool]

Comparison = Callable[[Any, Any], bool]

NO_CHECKS: Mapping[str, Check] = MappingProxyType({})


class OwnClass(NamedTuple):
    """The classes that a setting accepts.

    Args:
        methods: methods that a class must have.
        base: a class to derive from, as text.
        choices: the valid values, for people.
        standard: the policy that acts in place of an own one that fails; None if the caller contains its calls.
        checks: return whether a value of a method or an attribute is valid, by its name.
        lasting: True if the standard policy acts until the end of the process after a failure, because two policies
            cannot be mixed.
        keys: methods whose values are sorted.
    """

    setting: str
    methods: Sequence[str]
    base: str
    choices: str
    standard: Any = None
    checks: Mapping[str, Check] = NO_CHECKS
    lasting: bool = False
    keys: Collection[str] = ()

    def load(self, text: str) -> Any:
        """Import the class and make an instance.

        Raises:
            InvalidSettings: the text is not the path of such a class.
        """
        module, colon, name = text.strip().partition(":")
        if not colon:
            self.refuse(text, "it is not known")
        try:
            own = call_own(lambda: getattr(importlib.import_module(module), name))
            if not isinstance(own, type):
                self.refuse(text, f"{name} is not a class")
            policy: Any = call_own(own)
            missing = [method for method in self.methods if not callable(call_own(getattr, policy, method, None))]
        except OwnCodeFault as fault:  # the module may raise anything
            self.refuse(text, f"the class cannot be loaded: {fault.error}")
        if missing:
            self.refuse(text, f"the class lacks {', '.join(missing)}; derive it from {self.base}")
        return policy if self.standard is None else OwnPolicy(policy, text.strip(), self)

    def refuse(self, text: str, why: str) -> NoReturn:
        """Refuse a value.

        Raises:
            InvalidSettings: always.
        """
        raise InvalidSettings(where=self.setting, why=f"{text!r}: {why}; use {self.choices}")


class OwnPolicy:
    """An instance of an own class. Where it fails, the standard policy acts in its place, and the log names the fault.

    It has the methods and attributes of the standard policy, and counts as an instance of the own class.

    Args:
        own: the instance.
        path: the path of its class, as the setting names it.
        kind: the classes that the setting accepts.
    """

    def __init__(self, own: Any, path: str, kind: OwnClass) -> None:
        self._own, self._path, self._kind = own, path, kind
        self._faults = 0
        self._replaced = False

    @property  # type: ignore[misc] # read-only: the class of the instance
    def __class__(self) -> Any:
        return type(self._own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        standard = getattr(self._kind.standard, name)
        if not callable(standard):
            return self._take(name, lambda: getattr(self._own, name), lambda: standard)

        def method(*args: Any, **kwargs: Any) -> Any:
            return self._take(
                name, lambda: getattr(self._own, name)(*args, **kwargs), lambda: standard(*args, **kwargs)
            )

        def key(*args: Any) -> Any:
            value = method(*args)
            return value if self._replaced else OwnKey(value, standard(*args), partial(self._compare, name))

        vars(self)[name] = key if name in self._kind.keys else method
        return vars(self)[name]

    def _compare(self, name: str, compare: Comparison, first: "OwnKey", second: Any) -> bool:
        """Compare a sort key with another one, which is a standard key after a failure."""
        return bool(
            self._take(
                name,
                lambda: bool(compare(first.value, second.value)),
                lambda: compare(first.standard, second.standard if isinstance(second, OwnKey) else second),
            )
        )

    def __str__(self) -> str:
        return str(self._take("__str__", lambda: str.__str__(str(self._own)), lambda: self._path))

    def __hash__(self) -> int:
        return int(self._take("__hash__", lambda: hash(self._own), lambda: hash(self._path)))

    def __eq__(self, other: object) -> bool:
        if type(other) is not OwnPolicy or self._path != other._path or self._replaced != other._replaced:
            return False
        first, second = self._own, vars(other)["_own"]
        return bool(self._replaced or self._take("__eq__", lambda: bool(first == second), lambda: first is second))

    def _take(self, name: str, own: Callable[[], Any], standard: Callable[[], Any]) -> Any:
        """Return the value of the own policy, or that of the standard one if it fails."""
        if self._replaced:
            return standard()
        try:
            value = call_own(own)
            check = self._kind.checks.get(name)
            if check is not None and not call_own(check, value):
                raise OwnCodeFault(f"returned {value_text(value):.80}, which is not valid")
        except OwnCodeFault as fault:
            self._record(name, fault)
            return standard()
        return value

    def replace(self, fact: str) -> None:
        """Let the standard policy act from now on, because the database refuses the SQL of the own one.

        Args:
            fact: the error of the database.
        """
        self._record("SQL", OwnCodeFault(f"is refused by the database: {fact}"))

    def _record(self, name: str, fault: OwnCodeFault) -> None:
        self._faults += 1
        self._replaced = self._kind.lasting and not name.startswith("__")
        if self._faults.bit_count() != 1:  # 1, 2, 4, ...: a method that always fails must not fill the log
            return
        until = "until its restart" if self._replaced else f"this time ({count_noun(self._faults, 'fault')} so far)"
        place = self._kind.setting, self._path, name
        log.error(
            "%s %s: %s %s; the runner uses %s in its place %s", *place, one_line(str(fault)), self._kind.standard, until
        )


class OwnKey:
    """A sort key of an own policy. Where its comparison fails, the standard policy acts, with its own keys.

    Args:
        value: the key of the own policy.
        standard: that of the standard policy.
        compare: compares this key with another one.
    """

    __slots__ = ("_compare", "standard", "value")

    def __init__(self, value: Any, standard: Any, compare: Callable[[Comparison, "OwnKey", Any], bool]) -> None:
        self.value, self.standard, self._compare = value, standard, compare

    def __lt__(self, other: Any) -> bool:
        return self._compare(operator.lt, self, other)

    def __le__(self, other: Any) -> bool:
        return self._compare(operator.le, self, other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(operator.gt, self, other)

    def __ge__(self, other: Any) -> bool:
        return self._compare(operator.ge, self, other)

    def __eq__(self, other: object) -> bool:
        return self._compare(operator.eq, self, other)

    __hash__ = None  # type: ignore[assignment] # a key is only compared
