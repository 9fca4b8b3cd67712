"""own class: load a policy of the user's own, given in a setting as package.module:Class.

A policy of this project has a name. Anything else with a colon is the path of a class, which the runner makes without
arguments when it starts. Errors name the setting, the value and the valid choices, so that a runner that refuses to
start has claimed nothing.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from runner.errors import InvalidSettings


class OwnClass(NamedTuple):
    """The classes that a setting accepts.

    Args:
        setting: name of the setting.
        methods: methods that a class must have.
        base: a class to derive from, as text.
        choices: the valid values, for people.
    """

    setting: str
    methods: Sequence[str]
    base: str
    choices: str

    def load(self, text: str) -> Any:
        """Import the class and make an instance.

        Args:
            text: package.module:Class.

        Raises:
            InvalidSettings: the text is not the path of such a class.
        """
        module, colon, name = text.strip().partition(":")
        if not colon:
            self.refuse(text, "it is not known")
        try:
            policy = getattr(importlib.import_module(module), name)()
        except Exception as error:  # the module may raise anything
            self.refuse(text, f"the class cannot be loaded: {type(error).__name__}: {error}")
        missing = [method for method in self.methods if not callable(getattr(policy, method, None))]
        if missing:
            self.refuse(text, f"the class lacks {', '.join(missing)}; derive it from {self.base}")
        return policy

    def refuse(self, text: str, why: str) -> NoReturn:
        """Refuse a value.

        Raises:
            InvalidSettings: always.
        """
        raise InvalidSettings(where=self.setting, why=f"{text!r}: {why}; use {self.choices}")
