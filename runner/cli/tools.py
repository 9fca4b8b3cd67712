"""The tools that `runner mcp` offers: commands, whose arguments and results are described by their signatures."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from inspect import cleandoc, getdoc
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from cyclopts.argument import Argument

from runner.cli.app import CLI_COMMANDS, INSPECT, OPERATE, CliCommand, build, run
from runner.cli.capture import CAPTURE, Capture
from runner.cli.exit_codes import exit_code_of
from runner.cli.options import Connection
from runner.cli.schemas import SCHEMAS
from runner.errors import InvalidInput
from runner.model.shard import CURRENT_SHARD
from runner.text.operator import ASSISTANT
from runner.text.sanitize import clean

WITHHELD = frozenset(
    {
        *("url", "profile", "config", "beside"),  # the person who starts the server chooses the database
        *("json", "sql", "csv", "html", "output", "traceback"),  # other forms of the result
        "archive",  # files on the machine of the server
        *("handlers", "against"),  # code that the server would import
        *("follow", "stack", "reveal"),  # an endless answer, a change, and secrets
    }
)
"""Options of commands that no tool has."""

OF_CHANGES = frozenset({"reason", "dry_run", "yes"})
"""Options that only changes have."""

SHARD = "shard"
"""The argument that chooses one of several shards."""

LONGEST_STRING = 8_000
"""Characters of a text in a result; a longer one is cut."""

MOST_BYTES = 400_000
"""Bytes of a result as JSON."""

TYPES: Mapping[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    tuple: {"type": "array", "items": {"type": ["string", "integer"]}},
}


@dataclass(frozen=True)
class AssistantTool:
    """A command as a tool.

    Args:
        changes: it may change something.
        shards: the shards of the profile; empty for one database.
    """

    command: CliCommand
    changes: bool
    shards: tuple[str, ...] = ()

    @cached_property
    def _named(self) -> dict[str, Argument]:
        arguments = build(self.command.name)[self.command.name].assemble_argument_collection(parse_docstring=True)
        return {_name(argument): argument for argument in arguments if argument.names != ("*",)}

    @cached_property
    def arguments(self) -> dict[str, Argument]:
        """The arguments of the command by their names in the tool, in order."""
        hidden = WITHHELD | (frozenset() if self.changes else OF_CHANGES)
        hidden |= {"until"} if self.command.reads and not self.changes else set()
        return {name: argument for name, argument in self._named.items() if name not in hidden}

    @property
    def description(self) -> str:
        """The help of the command."""
        function = getattr(import_module(f"runner.cli.{self.command.module}"), self.command.name)
        return cleandoc(getdoc(function) or "").partition("\n\nArgs:")[0]

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        properties = {name: self._property(argument) for name, argument in self.arguments.items()}
        required = [name for name, argument in self.arguments.items() if argument.required]
        if self.shards:
            text = "Only this shard. Without it, a command covers all shards where it can; an id is eu:17."
            properties[SHARD] = {"enum": list(self.shards), "description": text}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The JSON Schema of its results; None with shards, whose results have a document for each of them."""
        if self.shards:
            return None
        schema: dict[str, Any] = json.loads((SCHEMAS / f"{self.command.name}.json").read_text())
        return schema

    def _property(self, argument: Argument) -> dict[str, Any]:
        text = " ".join((argument.parameter.help or "").split())
        hint = _plain_type(argument.hint)
        if get_origin(hint) is Literal:
            reads = self.command.reads if _name(argument) == "action" and not self.changes else ()
            schema: dict[str, Any] = {"enum": list(reads or get_args(hint))}
        else:
            schema = dict(TYPES.get(get_origin(hint) or hint, {"type": "string"}))
            if self.shards and hint is int and argument.index is not None:
                schema = {"type": ["integer", "string"]}
        return {**schema, "description": text} if text else schema

    def reads(self, values: Mapping[str, Any]) -> bool:
        """True if a call with these arguments changes nothing."""
        action = values.get("action", self.command.reads[0] if self.command.reads else "")
        return not self.changes or action in self.command.reads or bool(values.get("dry_run"))

    def words(self, values: Mapping[str, Any], connection: Connection) -> list[str]:
        """The words of a call on the command line.

        Args:
            values: the arguments by name.
            connection: the database, for a command that reads one.

        Raises:
            InvalidInput: an argument asks for standard input, or an argument before the given ones is missing.
        """
        database = {"url": connection.url, "profile": connection.profile, "config": connection.config}
        options = [f"--{name}={value}" for name, value in database.items() if value is not None and name in self._named]
        positions = list[str]()
        for name, argument in self.arguments.items():
            value = values.get(name)
            if argument.index is None:
                options += _option(argument, value)
            elif value is not None:
                positions += _position(name, value)
            elif any((self.arguments[other].index or 0) > argument.index for other in values):
                positions.append(_default(name, argument))
        return [self.command.name, *options, "--json", "--", *positions]


def _name(argument: Argument) -> str:
    return argument.names[0].lstrip("-").replace("-", "_").lower()


def _plain_type(hint: Any) -> Any:
    """The type of an argument without None."""
    if get_origin(hint) in (Union, UnionType):
        return next(each for each in get_args(hint) if each is not NoneType)
    return _plain_type(get_args(hint)[0]) if hasattr(hint, "__metadata__") else hint


def _option(argument: Argument, value: Any) -> Iterator[str]:
    if value is True:
        yield argument.names[0]
    elif value is not None and value is not False:
        for each in value if isinstance(value, list) else [value]:
            yield f"{argument.names[0]}={each}"


def _position(name: str, value: Any) -> list[str]:
    words = [str(each) for each in value] if isinstance(value, list) else [str(value)]
    if "-" in words:
        raise InvalidInput(why=f"{name} is -, the standard input, which belongs to the protocol; give the value itself")
    return words


def _default(name: str, argument: Argument) -> str:
    default = argument.field_info.default
    if not isinstance(default, str):
        raise InvalidInput(why=f"give {name} too; a later argument needs it")
    return default


def assistant_tools(*, operations: bool, shards: Sequence[str] = ()) -> dict[str, AssistantTool]:
    """The tools by name.

    Args:
        operations: include those that change something.
        shards: the shards of the profile; empty for one database.
    """
    tools, names = {}, tuple(shards)
    for command in CLI_COMMANDS:
        if command.group == INSPECT or command.name == "check":
            tools[command.name] = AssistantTool(command, operations and bool(command.reads), names)
        elif command.group == OPERATE and operations:
            tools[command.name] = AssistantTool(command, True, names)
    return tools


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call.

    Args:
        document: the JSON document; None if the command failed.
        messages: its warnings, or the reason of the failure.
    """

    document: Any
    messages: tuple[str, ...]


def call_tool(tool: AssistantTool, values: Mapping[str, Any], connection: Connection, assistant: str) -> ToolResult:
    """Run the command of a tool in this thread.

    Args:
        values: the arguments, valid by the input schema of the tool.
        assistant: the name of the program that calls it; the audit log has it beside the operator.
    """
    reads = tool.reads(values)
    capture = Capture(read_only=reads)

    def command() -> int:
        if not reads and "reason" in tool.arguments and not values.get("reason"):
            raise InvalidInput(why="an operation by an assistant needs a reason, which the audit log keeps")
        return run(tool.words(values, connection))

    def captured() -> int:
        CAPTURE.set(capture)
        ASSISTANT.set(assistant)
        if SHARD in values:
            CURRENT_SHARD.set(values[SHARD])
        return exit_code_of(command)

    code = copy_context().run(captured)
    if not capture.documents:
        return ToolResult(None, tuple(capture.messages) or (f"the command ended with exit code {code}",))
    document = _cut(capture.documents[-1])
    if (size := len(json.dumps(document))) > MOST_BYTES:
        why = f"the result has {size:,} bytes, more than {MOST_BYTES:,}: narrow the filter, or set a smaller limit"
        return ToolResult(None, (why,))
    return ToolResult(document, tuple(capture.messages))


def _cut(value: Any) -> Any:
    """Shorten the texts of a document, and show their control characters as pictures."""
    match value:
        case str():
            return clean(value, LONGEST_STRING, newlines=True)
        case dict():
            return {name: _cut(item) for name, item in value.items()}
        case list():
            return [_cut(item) for item in value]
    return value
