"""The shards of a profile on the command line: a command runs in the shards that its ids name, or in each."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

from runner.cli.capture import CAPTURE, Capture
from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.output import print_json, print_line, print_text
from runner.cli.shard_list import ShardList, continued, print_list
from runner.cli.shard_totals import ShardTotals, print_totals, totals_document
from runner.errors import RunnerError, ShardNotChosen
from runner.filter.fields import FIELDS
from runner.model.shard import CURRENT_SHARD
from runner.policy.shard_rule import owner_of
from runner.settings import load
from runner.settings.shards import shard_settings

SHARD_ID = re.compile(r"([\w-]+):(\d+)")
"""An id with its shard, such as eu:17."""

OPERATES_ON_ID = "schedules"
"""The command whose actions on an id run in the shard that owns it."""

Run = Callable[[Sequence[str]], int]

Whole: TypeAlias = "ShardTotals[Any, Any] | ShardList[Any] | None"


def run_in_shards(words: Sequence[str], run: Run, *, in_each: bool, reads: bool = False, whole: Whole = None) -> int:
    """Run a command in the shards that its ids name; otherwise in its database, or in each shard of its profile.

    Args:
        words: the command with its arguments.
        run: runs a command, which refuses a profile with shards before it does anything.
        in_each: True if the command may run in each shard.
        reads: True if it changes nothing, so that it runs in all shards at the same time.
        whole: how it sums up its figures, or merges its lists; None if it does not.

    Returns:
        The exit code; with several shards, the first that is no success.

    Raises:
        ShardNotChosen: the profile has shards, and the command needs one.
    """
    if isinstance(whole, ShardList) and (begins := _continued(words, whole)):
        return _read_each(begins, run, words, whole)
    if named := _named(words):
        return _run_each(named, run, words)
    try:
        return run(words)
    except ShardNotChosen as error:
        shards = str(error.fields["shards"]).split(", ")
        if owned := _owned(words):
            shards = [owner_of(owned, shards)]
        elif not in_each:
            raise
    shard_settings(load(profile=_option(words, "--profile"), config=_option(words, "--config")))  # once, not per shard
    by_shard = dict.fromkeys(shards, words)
    return _read_each(by_shard, run, words, whole) if reads and len(shards) > 1 else _run_each(by_shard, run, words)


def _continued(words: Sequence[str], listed: ShardList[Any]) -> dict[str, list[str]]:
    """The command for each shard whose list it continues; empty if it continues the list of one database, or none."""
    position = _option(words, listed.option) if listed.option else None
    if position is None or CURRENT_SHARD.get() is not None or _option(words, "--url") is not None:
        return {}
    settings = load(profile=_option(words, "--profile"), config=_option(words, "--config"))
    many = settings.shards and settings.shard is None
    return continued(listed, words, position, [*shard_settings(settings)]) if many else {}


def _named(words: Sequence[str]) -> dict[str, list[str]]:
    """The command for each shard that an id names; empty if none does."""
    ids = {word: match for word in words if (match := SHARD_ID.fullmatch(word)) and match[1] not in FIELDS}
    if not ids or words[0] == "submit":
        return {}
    shards = load(profile=_option(words, "--profile"), config=_option(words, "--config")).shards
    named = {match[1] for match in ids.values()} & set(shards)
    return {
        shard: [ids[word][2] if word in ids else word for word in words if word not in ids or ids[word][1] == shard]
        for shard in sorted(named)
    }


def _owned(words: Sequence[str]) -> str | None:
    """The id of the schedule that a command names, which one shard owns."""
    names = positionals(words)
    return names[1] if words[0] == OPERATES_ON_ID and len(names) > 1 and names[0] != "list" else None


def positionals(words: Sequence[str]) -> list[str]:
    """The words of a command without its name, its options, and the values that choose its profile."""
    values = {place + 1 for place, word in enumerate(words) if word in ("--profile", "--config")}
    return [word for place, word in enumerate(words) if place and place not in values and not word.startswith("-")]


def _option(words: Sequence[str], name: str) -> str | None:
    for word, value in zip(words, [*words[1:], None], strict=True):
        if word == name:
            return value
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _read_each(by_shard: Mapping[str, Sequence[str]], run: Run, words: Sequence[str], whole: Whole) -> int:
    """Run a command that reads in all shards at the same time, and print one list, or the totals first."""
    outer, as_json = CAPTURE.get(), "--json" in words
    read_only = outer is not None and outer.read_only
    captures = {shard: Capture(read_only=read_only, holds_text=True) for shard in by_shard}
    runs = [
        in_thread(partial(copy_context().run, _run_one, shard, own, run, captures[shard]))
        for shard, own in by_shard.items()
    ]
    codes = [each.result() for each in runs]
    code = next((code for code in codes if code), int(Exit.OK))
    if isinstance(whole, ShardList):
        if print_list(whole, by_shard, captures, as_json=as_json):
            return code
        whole = None
    if as_json:
        document: dict[str, Any] = {
            "shards": {shard: next(reversed(capture.documents), None) for shard, capture in captures.items()}
        }
        if whole is not None:
            document["totals"] = totals_document(whole, captures)
        print_json(document)
    elif whole is not None:
        print_totals(whole, captures)
    for number, (shard, capture) in enumerate(captures.items()):
        if not as_json and capture.text is not None:
            if number:
                print_line("")
            print_line(shard, style="bold reverse")
            print_text(capture.text.getvalue())
        for message in capture.messages:
            print_stderr(message)
    return code


def in_thread(work: Callable[[], int]) -> "Future[int]":
    """Run work in a thread that does not delay the end of the process."""
    future: Future[int] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _run_each(by_shard: Mapping[str, Sequence[str]], run: Run, words: Sequence[str]) -> int:
    as_json, documents, outer = "--json" in words, dict[str, Any](), CAPTURE.get()
    code = int(Exit.OK)
    for number, (shard, own) in enumerate(by_shard.items()):
        if len(by_shard) > 1 and not as_json:
            if number:
                print_line("")
            print_line(shard, style="bold reverse")
        read_only = outer is not None and outer.read_only
        capture = Capture(read_only=read_only) if as_json and len(by_shard) > 1 else None
        ended = copy_context().run(_run_one, shard, own, run, capture)
        code = code or ended
        if capture is not None:
            documents[shard] = capture.documents[-1] if capture.documents else None
            for message in capture.messages:
                print_stderr(message)
    if documents:
        print_json({"shards": documents})
    return code


def _run_one(shard: str, words: Sequence[str], run: Run, capture: Capture | None) -> int:
    CURRENT_SHARD.set(shard)
    if capture is not None:
        CAPTURE.set(capture)
    try:
        return run(words)
    except RunnerError as error:  # such as a shard that is away: the others answer
        print_stderr(f"runner: {shard}: {error}")
        return int(error.exit_code)
