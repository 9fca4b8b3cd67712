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
        "drain concurrency=1",
        "concurrency=9999999",
    ],
)
def test_an_invalid_command_is_rejected(text: str) -> None:
    with pytest.raises(InvalidEdit, match="drain"):
        parse_runner_command(text)
