"""The list of a command over shards: a page of each shard, merged into one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from runner.cli.capture import Capture
from runner.cli.exit_codes import print_stderr
from runner.cli.output import print_line

M = TypeVar("M")


class ShardList(NamedTuple, Generic[M]):
    """How a command merges its lists.

    Args:
        kind: the class of its read model.
        show: prints one list, as JSON or for people, from the read model of each shard that answered, and from the
            error and the position of each other one; returns True if the list has a row.
        option: the option that continues a list; empty without one.
        split: the value of the option for each shard whose list goes on, from its text and the shards; an empty one
            begins the list.
    """

    kind: type[M]
    show: Callable[[Mapping[str, M], Mapping[str, "Unlisted"], bool], bool]
    option: str = ""
    split: Callable[[str, Sequence[str]], Mapping[str, str]] = lambda _text, _shards: {}


class Unlisted(NamedTuple):
    """A shard without an answer.

    Args:
        error: why it has none.
        position: where its list goes on; empty for its beginning.
    """

    error: str
    position: str


def continued(listed: ShardList[Any], words: Sequence[str], text: str, shards: Sequence[str]) -> dict[str, list[str]]:
    """The words for each shard whose list goes on.

    Args:
        text: the value of the option.

    Raises:
        InvalidInput: the value names no position in each shard.
    """
    rest, skip = [], False
    for word in words:
        if skip or word.startswith(f"{listed.option}="):
            skip = False
        elif word == listed.option:
            skip = True
        else:
            rest.append(word)
    positions = listed.split(text, shards)
    return {shard: [*rest, *([f"{listed.option}={own}"] if own else [])] for shard, own in positions.items()}


def print_list(
    listed: ShardList[Any], by_shard: Mapping[str, Sequence[str]], captures: Mapping[str, Capture], *, as_json: bool
) -> bool:
    """Print one list of all shards; False if the command printed something else than its list.

    Hints of a shard are printed if no shard has a row, as they are about an empty list.

    Args:
        by_shard: the words of each shard.
        captures: the output of each shard.
        as_json: print one JSON document.
    """
    models: dict[str, Any] = {}
    for shard, capture in captures.items():
        models.update((shard, model) for model in capture.models if isinstance(model, listed.kind))
    if not models:
        return False
    missing = {
        shard: Unlisted(" ".join(capture.messages), _position(listed, by_shard[shard]))
        for shard, capture in captures.items()
        if shard not in models
    }
    has_rows = listed.show(models, missing, as_json)
    shown = [capture for shard, capture in captures.items() if shard in missing or not has_rows]
    for message in dict.fromkeys(message for capture in shown for message in capture.messages):
        print_stderr(message)
    return True


def _position(listed: ShardList[Any], words: Sequence[str]) -> str:
    return next(
        (word.partition("=")[2] for word in words if listed.option and word.startswith(f"{listed.option}=")), ""
    )


def print_partial(missing: Mapping[str, Unlisted]) -> None:
    """Name the shards without an answer, whose rows a list lacks."""
    if missing:
        print_line(f"The list is partial, without {', '.join(missing)}.", style="bold")


def errors_of(missing: Mapping[str, Unlisted]) -> dict[str, str]:
    """The error of each shard without an answer, for programs."""
    return {shard: each.error for shard, each in missing.items()}
