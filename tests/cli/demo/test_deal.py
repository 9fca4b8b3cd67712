import ast
import json
from collections import Counter
from pathlib import Path

import pytest

import sample_handlers  # noqa: F401 - registers the handlers
from runner.cli.demo_round import FAILING, HANDLERS, SourceFile, deal, library, substitutes
from runner.handlers.registry import REGISTRY
from runner.model.task import NewTask
from sample_handlers.digest import LARGEST


def fails(task: NewTask) -> bool:
    """Find out in another way than the handlers whether a file is a trouble to the handler that it was given to."""
    content = Path(json.loads(task.payload)["path"]).read_bytes()
    match task.handler:
        case "source.digest":
            return len(content) > LARGEST
        case "source.count":
            return content.decode(errors="replace").encode() != content
    try:
        ast.parse(content)
    except SyntaxError:
        return True
    return False


@pytest.fixture(scope="module")
def files() -> list[SourceFile]:
    return library()


def dealt(sources: list[SourceFile]) -> list[NewTask]:
    return deal(sources, REGISTRY, "tests")


def test_every_handler_gets_its_share(files: list[SourceFile]) -> None:
    shares = Counter(task.handler for task in dealt(files))
    assert set(shares) == set(HANDLERS)
    assert min(shares.values()) > max(shares.values()) / 2


def test_every_file_is_dealt_once(files: list[SourceFile]) -> None:
    tasks = dealt(files)
    assert sorted(json.loads(task.payload)["path"] for task in tasks) == sorted(str(source.path) for source in files)
    assert sorted(task.key or "" for task in tasks) == sorted(source.name for source in files)


def test_a_file_always_goes_to_the_same_handler(files: list[SourceFile]) -> None:
    whole = {task.key: task.handler for task in dealt(files)}
    assert all(whole[task.key] == task.handler for task in dealt(files[100:120]))


def test_whatever_the_distribution_left_out_every_handler_meets_trouble() -> None:
    failing = {task.handler for task in dealt(substitutes()) if fails(task)}
    assert failing == set(HANDLERS)


def test_every_substitute_fails() -> None:
    tasks = dealt(substitutes())
    assert [task.key for task in tasks if not fails(task)] == []


def test_files_known_to_fail_do_and_come_first(files: list[SourceFile]) -> None:
    failing = [source for source in files if source.path.name in FAILING]
    tasks = dealt(files)[: len(failing)]
    assert {task.key for task in tasks} == {source.name for source in failing}
    assert [task.key for task in tasks if not fails(task)] == []


def test_retries_are_short_enough_to_watch(files: list[SourceFile]) -> None:
    (task,) = dealt(files[:1])
    assert (task.retry, task.max_attempts) == ("200ms,500ms", 3)
