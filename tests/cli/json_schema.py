"""The JSON Schema of each command, derived from the classes of its documents."""

import re
import types
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from importlib import import_module
from inspect import cleandoc, getdoc
from typing import Annotated, Any, Literal, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from runner.cli.app import CLI_COMMANDS
from runner.cli.shard_changes import ShardChanges, ShardMatches
from runner.text.document import Flat, JsonProperty, Treatment, is_model, keys_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"

SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    timedelta: {"type": "number", "description": "Seconds."},
    Any: {},
    object: {},
}

WORDS = {"None": "null", "True": "true", "False": "false"}
"""The values of Python in descriptions, as JSON writes them."""


def schema_of_command(name: str) -> dict[str, Any] | None:
    """The schema of the documents of a command; None for a command without --json."""
    (command,) = (each for each in CLI_COMMANDS if each.name == name)
    documents = getattr(import_module(f"runner.cli.{command.module}"), "DOCUMENTS", ())
    return _Schema().of_command(name, documents) if documents else None


BY_FILTER = ("retry", "terminate", "delay", "unblock", "edit", "erase", "undo")
"""The commands that change tasks of all shards."""


class _Schema:
    """A schema, with the definitions that it refers to."""

    def __init__(self) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}

    def of_command(self, name: str, documents: Sequence[type]) -> dict[str, Any]:
        references = [self.of(document) for document in documents]
        references += self._over_shards(name, references)
        body = {"anyOf": references} if len(references) > 1 else references[0]
        title = {"$schema": DIALECT, "title": f"runner {name}", "type": "object"}
        return {**title, **body, "$defs": dict(sorted(self.definitions.items()))}

    def _over_shards(self, name: str, references: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The document over shards, of a command that runs in each."""
        (command,) = (each for each in CLI_COMMANDS if each.name == name)
        if not (command.each or name in BY_FILTER):
            return []
        each = {"anyOf": [*references, {"type": "null"}], "description": "Null without an answer of the shard."}
        properties = {"shards": {"type": "object", "additionalProperties": each}}
        totals = getattr(import_module(f"runner.cli.{command.module}"), "TOTALS", None)
        kinds: list[Any] = [ShardMatches, ShardChanges] if name in BY_FILTER else []
        if totals is not None:
            hints = get_type_hints(totals.document), get_type_hints(totals.add)
            kinds = [next(own for hint in hints if is_model(own := hint["return"]))]
        if kinds:
            properties["totals"] = self._totals({"anyOf": [*map(self.of, kinds), {"type": "null"}]})
        text = "The documents of several shards"
        text += ", with a row of figures for each shard and their total." if kinds else "."
        body = {"type": "object", "properties": properties, "required": list(properties)}
        self.definitions["OverShards"] = {"description": text, **body}
        return [{"$ref": "#/$defs/OverShards"}]

    def _totals(self, figures: dict[str, Any]) -> dict[str, Any]:
        error = {"type": ["string", "null"], "description": "Why the shard has no figures; null with them."}
        row = {"shard": {"type": "string"}, "figures": figures, "error": error}
        parts = {
            "rows": {"type": "array", "items": {"type": "object", "properties": row, "required": list(row)}},
            "total": figures,
            "partial": {"type": "boolean", "description": "True if a shard has no figures."},
        }
        return {"type": "object", "properties": parts, "required": list(parts)}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of a type."""
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Required:
            return self.of(arguments[0])
        if origin is Annotated:
            return self._marked(arguments[0], arguments[1:])
        if hint in SCALARS:
            return dict(SCALARS[hint])
        if origin in (Union, types.UnionType):
            return _union([self.of(each) for each in arguments])
        if origin is Literal:
            return {"enum": list(arguments)}
        return self._class(hint) if origin is None else self._container(hint, origin, arguments)

    def _class(self, hint: Any) -> dict[str, Any]:
        if is_typeddict(hint):
            return self._define(hint, lambda: self._typed_dict(hint))
        if issubclass(hint, Enum):
            return self._define(hint, lambda: {"enum": [str(each) for each in hint]})
        assert is_model(hint), f"no JSON for {hint!r}"
        return self._define(hint, lambda: self._model(hint))

    def _container(self, hint: Any, origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if origin is tuple and (len(arguments) != 2 or arguments[1] is not ...):
            return {"type": "array", "prefixItems": [self.of(each) for each in arguments]}
        if issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        assert issubclass(origin, Sequence), f"no JSON for {hint!r}"
        return {"type": "array", "items": self.of(arguments[0])}

    def _marked(self, hint: Any, marks: tuple[Any, ...]) -> dict[str, Any]:
        if Treatment.JSON in marks:
            return {}
        if Treatment.AUDIT in marks:
            return {"type": "object"}
        return self.of(hint) | next((mark for mark in marks if isinstance(mark, dict)), {})

    def _define(self, kind: Any, schema: Any) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a model may contain itself
            text = _json_words(cleandoc(getdoc(kind) or "").partition("\n\n")[0])
            self.definitions[name] = {"description": text, **schema()}
        return {"$ref": f"#/$defs/{name}"}

    def _typed_dict(self, kind: Any) -> dict[str, Any]:
        properties = self._properties(kind, get_type_hints(kind, include_extras=True))
        return {"type": "object", "properties": properties, "required": sorted(kind.__required_keys__)}

    def _model(self, kind: type) -> dict[str, Any]:
        hints = get_type_hints(kind, include_extras=True)
        properties: dict[str, Any] = {}
        for name, mark in keys_of(kind).items():
            if isinstance(mark, Flat):
                inner = self._model(get_args(hints[name])[0])["properties"]
                properties |= {key: value for key, value in inner.items() if key not in mark.without}
            elif mark is not Treatment.HIDDEN:
                properties |= self._properties(kind, {name: hints[name] if name in hints else _result(kind, name)})
        return {"type": "object", "properties": properties, "required": list(properties)}

    def _properties(self, kind: type, hints: Mapping[str, Any]) -> dict[str, Any]:
        described = descriptions(kind)
        texts = {name: {"description": described[name]} if name in described else {} for name in hints}
        return {name: {**self.of(hint), **texts[name]} for name, hint in hints.items()}


def _result(kind: type, name: str) -> Any:
    attribute = next(vars(each)[name] for each in kind.__mro__ if name in vars(each))
    assert isinstance(attribute, JsonProperty)
    return get_type_hints(attribute.read, include_extras=True)["return"]


def _union(options: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a union; types without anything else merge."""
    if {} in options:
        return {}
    if all(set(option) <= {"type", "format", "description"} for option in options):
        merged = {key: value for option in options for key, value in option.items()}
        return {**merged, "type": [option["type"] for option in options]}
    return {"anyOf": options}


def descriptions(kind: type) -> dict[str, str]:
    """The descriptions of the fields of a class, from Args in its docstring, and of its properties."""
    text = cleandoc(kind.__doc__ or "").partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    found = {name: " ".join(entry.split()) for name, entry in entries}
    for each in kind.__mro__:
        found |= {name: value.__doc__ or "" for name, value in vars(each).items() if isinstance(value, JsonProperty)}
    return {name: _json_words(f"{entry[:1].upper()}{entry[1:]}") for name, entry in found.items()}


def _json_words(text: str) -> str:
    return re.sub(r"\b(?:None|True|False)\b", lambda match: WORDS[match[0]], " ".join(text.split()))
