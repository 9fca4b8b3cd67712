"""Runner commands as text."""

import pytest

from runner.errors import InvalidEdit
from runner.policy.runner_command import RunnerCommand, parse_runner_command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("drain", RunnerCommand(drain=True)),
        ("concurrency=50", RunnerCommand(concurrency=50)),
        ("threads=4", RunnerCommand(threads=4)),
        ("concurrency=50 threads=4", RunnerCommand(concurrency=50, threads=4)),
        ("concurrency=1 stack=12 stack=13 drain", RunnerCommand(True, 1, stacks=(12, 13))),
    ],
)
def test_a_formatted_command_parses_to_an_equal_command(text: str, command: RunnerCommand) -> None:
    assert parse_runner_command(text) == command
    assert str(command) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dance",
        "concurrency=0",
        "slots=-1",
        "concurrency=1 concurrency=2",
        "drain drain",
        "stack=1 " * 21,
        "drain stack",
        "concurrency=9999999",
    ],
)
def test_an_invalid_command_is_rejected(text: str) -> None:
    with pytest.raises(InvalidEdit, match="drain"):
        parse_runner_command(text)


def test_a_command_that_follows_another_one_adds_to_it() -> None:
    first = RunnerCommand(concurrency=5, threads=3, stacks=(7,))
    both = first.followed_by(RunnerCommand(concurrency=9, stacks=(7, 8))).followed_by(RunnerCommand(drain=True))
    assert str(both) == "concurrency=9 threads=3 stack=7 stack=8 drain"
