"""What an engine can never serve is refused by field, value and rule."""

from dataclasses import replace

import pytest

from batchedmodel_contract.generation.frames import Submit
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.generation.engine import check_submit
from batchedmodel_scheduling.engine.step_planner import StepSettings
from support.engine_frames import submit

SETTINGS = StepSettings(max_sequences=4, max_tokens_per_step=16, block_tokens=4, blocks=8)
GOOD = submit(1, [0, 9], max_tokens=5)


def check(one: Submit, context: int = 40) -> None:
    check_submit(one, SETTINGS, 10, max_context_tokens=context)


def test_what_fits_is_taken() -> None:
    check(GOOD)
    check(replace(GOOD, given=1))
    check(replace(GOOD, choices=5))
    check(submit(1, [1] * 16, max_tokens=16))
    check(submit(1, [1] * 16, max_tokens=16, choices=4))


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (submit(1, []), "prompt: is empty"),
        (submit(1, [1, 2], given=2, max_tokens=9), "prompt: is empty"),
        (submit(1, [1, 10]), "prompt: 10 holds a token id that is not from 0 to 9"),
        (submit(1, [1, -1]), "prompt: -1 holds a token id"),
        (submit(1, [1, 2], given=1, max_tokens=1), "max_tokens: is not above the 1 tokens given"),
        (replace(GOOD, choices=2, given=1), "n: 2 is more than 1 for a text that has begun"),
        (replace(GOOD, max_tokens=39), "prompt: with its text has 41 tokens; the model takes 40"),
        (replace(GOOD, max_tokens=31), "prompt: with its text has 33 tokens; the cache holds 32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_never_be_served_is_refused(one: Submit, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(one)
    assert message in str(caught.value)
