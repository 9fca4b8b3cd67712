"""The confirmation that a change requires."""

from runner.operations.targets import RequiredConfirmation, required_confirmation


def test_larger_changes_require_a_stronger_confirmation() -> None:
    assert required_confirmation(1, production=False, name="db") == RequiredConfirmation("y")
    assert required_confirmation(20, production=False, name="db") == RequiredConfirmation("y")
    assert required_confirmation(21, production=False, name="db") == RequiredConfirmation("21")
    assert required_confirmation(1_001, production=False, name="db") == RequiredConfirmation("db", reason=True)
    assert required_confirmation(1, production=True, name="db") == RequiredConfirmation("db", reason=True)
