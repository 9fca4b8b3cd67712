"""Outcome rules: the outcome of an exception, a timeout, or None where a handler declares a result.

A handler has rules of its own (`on_error`, `on_none`), and the settings have one for all other handlers. The words and
the functions that a rule takes are described once, in runner.model.outcome.
"""

import importlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypeAlias

from runner.errors import InvalidHandler, InvalidSettings
from runner.handlers.context import Context, context_parameter
from runner.handlers.functions import signature_of
from runner.model.outcome import (
    HANDLER_OUTCOMES,
    ON_ERROR,
    ON_NONE,
    Dead,
    Done,
    ErrorWord,
    HandlerOutcome,
    NoneWord,
    Outcome,
    Retry,
    Unexpected,
)
from runner.own_code import OwnCodeFault, call_own
from runner.settings import Settings

log = logging.getLogger("runner.task")

OnError: TypeAlias = (
    ErrorWord
    | type[Exception]
    | tuple[type[Exception], ...]
    | Callable[[Exception], Outcome | None]
    | Callable[[Context, Exception], Outcome | None]
)
"""The outcome of exceptions and timeouts: always retry, always give up, give up for these classes, or a function.

The function returns or raises an outcome; None leaves the decision to the setting. A timeout is a TimeoutError."""

OnNone: TypeAlias = NoneWord | Callable[[Context], Outcome | None] | Callable[[Context, None], Outcome | None]
"""The outcome of None where a result is declared: success, retry, give up, or a function."""

WORDS: dict[str, Callable[[], Outcome]] = dict(zip(ON_NONE.choices, (Done, Retry, Dead), strict=True))
"""The outcome of each word."""

DEAD_WORD = ON_ERROR.choices[-1]

VALID_OUTCOMES = (Done, *HANDLER_OUTCOMES)


class Decision(NamedTuple):
    """The outcome of an unexpected result, without its failure.

    Args:
        outcome: the outcome.
        rule: the rule that decided, for people; "" for the default.
        fault: the error of a function that did not decide; "" without one.
    """

    outcome: Outcome
    rule: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class OutcomeRule:
    """A rule of a handler, or of the settings.

    Args:
        case: the results that it decides.
        value: a word, exception classes, or a function.
        call: calls the function with the result and the Context; None for a word or classes.
    """

    case: Unexpected
    value: Any
    origin: str
    call: Callable[[Any, Context], Any] | None = None

    @classmethod
    def of_handler(cls, name: str, case: Unexpected, value: Any) -> Self | None:
        """Check the option of a handler; None if it has none.

        Raises:
            InvalidHandler: the value is unknown, or the function takes other parameters.
        """
        if value is None:
            return None
        try:
            return cls._checked(case, value, f"{case.name} of the handler")
        except ValueError as error:
            raise InvalidHandler(name=name, why=f"{case.name} is {error}") from None

    @classmethod
    def of_setting(cls, case: Unexpected, text: str) -> Self:
        """Read a setting, and import its function.

        Raises:
            InvalidSettings: the text is unknown, or does not lead to such a function.
        """
        value: Any = text
        try:
            if text not in case.choices:
                value = _imported(text)
            return cls._checked(case, value, f"the setting {case.name}")
        except ValueError as error:
            raise InvalidSettings(where=case.name, why=f"{error}; use {case.values}") from None

    @classmethod
    def _checked(cls, case: Unexpected, value: Any, origin: str) -> Self:
        classes = value if isinstance(value, tuple) else (value,)
        is_word = isinstance(value, str) and value in case.choices
        if is_word or (case is ON_ERROR and all(map(_is_exception, classes))):
            return cls(case, value, origin)
        if not callable(value) or isinstance(value, type):
            words = ", ".join(repr(word) for word in case.choices)
            more = ", exception classes" if case is ON_ERROR else ""
            raise ValueError(f"{value!r}: use {words}{more} or a function of {case.argument}")
        return cls(case, value, origin, _caller(case, value))

    def decide(self, result: Exception | None, context: Callable[[], Context]) -> Decision | None:
        """Decide; None if the function leaves the decision to a more general rule.

        Args:
            result: the exception, or None.
        """
        try:
            outcome = call_own(self._outcome, result, context)
        except OwnCodeFault as fault:  # a function, or an exception class that decides about instances, may exit
            return Decision(Retry(), fault=f"{self.case.name} {fault}")
        if outcome is None:
            return None
        return Decision(outcome, "" if self._is_default else f"{_word(outcome)}, by {self.origin}")

    def _outcome(self, result: Exception | None, context: Callable[[], Context]) -> Outcome | None:
        """The outcome of the value.

        Raises:
            BaseException: of the function.
        """
        if isinstance(self.value, str):
            return WORDS[self.value]()
        if self.call is None:
            return Dead() if isinstance(result, self.value) else Retry()
        try:
            verdict = self.call(result, replace(context(), open_transaction=None))
        except HandlerOutcome as raised:
            verdict = raised
        if verdict is None:
            return None
        if not isinstance(verdict, VALID_OUTCOMES):
            raise OwnCodeFault(f"returned {type(verdict).__name__}, which is not an outcome")
        return replace(verdict) if isinstance(verdict, HandlerOutcome) else verdict  # without its traceback

    @property
    def _is_default(self) -> bool:
        return self.value == self.case.choices[0] and self.origin.startswith("the setting")


@dataclass(frozen=True, slots=True)
class OutcomeRules:
    """The rules of the settings, which decide unless a handler has its own.

    Args:
        on_error: the outcome of exceptions and timeouts.
        on_none: the outcome of None where a result is declared.
    """

    on_error: OutcomeRule = OutcomeRule(ON_ERROR, ON_ERROR.choices[0], f"the setting {ON_ERROR.name}")
    on_none: OutcomeRule = OutcomeRule(ON_NONE, ON_NONE.choices[0], f"the setting {ON_NONE.name}")

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Read the rules of the settings.

        Raises:
            InvalidSettings: a rule is unknown, or its function cannot be imported or takes other parameters.
        """
        rules = (OutcomeRule.of_setting(ON_ERROR, settings.on_error), OutcomeRule.of_setting(ON_NONE, settings.on_none))
        return cls(*rules)

    def decide(
        self, own: OutcomeRule | None, handler: str, result: Exception | None, context: Callable[[], Context]
    ) -> Decision:
        """Decide the outcome of an unexpected result.

        If a function fails, the setting decides if it is `retry` or `dead`; if not, the task is retried.

        Args:
            own: the rule of the handler; None if it has none.
            result: the exception, or None.
        """
        general = self.on_none if result is None else self.on_error
        for rule in (own, general):
            decision = None if rule is None else rule.decide(result, context)
            if decision is None:
                continue
            if not decision.fault:
                return decision
            log.warning("%s of %s failed: %s", general.case.name, handler, decision.fault)
            outcome = WORDS[DEAD_WORD]() if general.value == DEAD_WORD else Retry()
            return Decision(outcome, f"{_word(outcome)}, because {general.case.name} failed", decision.fault)
        return Decision(WORDS[general.case.choices[0]]())


DEFAULT_RULES = OutcomeRules()


def _caller(case: Unexpected, function: Callable[..., Any]) -> Callable[[Any, Context], Any]:
    """Return a function of the result and the Context that calls another one with the parameters that it takes.

    Raises:
        ValueError: the function is async, or takes other parameters.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    remedy = f"use a function of {case.argument}, or of the Context and {case.argument}"
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"the async function {name}: {remedy}, without async")
    context = context_parameter(function)
    parameters = signature_of(function).parameters.values()
    required = [item for item in parameters if item.name != context and item.default is inspect.Parameter.empty]
    results = [item for item in required if item.kind in POSITIONAL_KINDS]
    if len(results) != len(required) or not (len(results) == 1 or (case is ON_NONE and context and not results)):
        raise ValueError(f"the function {name}{signature_of(function)}: {remedy}")

    def call(result: Any, made: Context) -> Any:
        order = [item.name for item in parameters if item.name == context or item in results]
        return function(*(made if item == context else result for item in order))

    return call


POSITIONAL_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _imported(text: str) -> Any:
    module, _, name = text.partition(":")
    try:
        return call_own(lambda: getattr(importlib.import_module(module), name))
    except OwnCodeFault as fault:  # the module may raise anything
        raise ValueError(f"{text!r}: the function cannot be loaded: {fault.error}") from None


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _word(outcome: Outcome) -> str:
    return type(outcome).__name__.lower() if not isinstance(outcome, Done) else "succeed"
