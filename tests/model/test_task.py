"""Tasks: the texts that explain states and moves."""

import pickle

import pytest

from runner.model.task import MOVES, Shown, State

EXPLAINED = {
    **{f"state {state}": state.description for state in State},
    **{f"shown {shown}": shown.description for shown in Shown},
    **{f"move {verb}": move.description for verb, move in MOVES.items()},
}


@pytest.mark.parametrize("description", EXPLAINED.values(), ids=EXPLAINED)
def test_every_state_and_move_has_a_one_sentence_description(description: str) -> None:
    assert (description[:1].isupper(), description.endswith("."), ". " in description) == (True, True, False)


@pytest.mark.parametrize("state", [state for state in State if state.value in set(Shown)])
def test_a_displayed_state_that_is_stored_has_the_description_of_the_stored_one(state: State) -> None:
    assert Shown(state.value).description == state.description


@pytest.mark.parametrize("state", [*State, *Shown])
def test_a_state_equals_its_value_and_survives_pickling(state: State | Shown) -> None:
    assert (state, str(state), type(state)(state.value)) == (state.value, state.value, state)
    assert pickle.loads(pickle.dumps(state)) is state
