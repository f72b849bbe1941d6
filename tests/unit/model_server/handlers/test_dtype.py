"""What a checkpoint is computed in: as the manifest says, else as the processor can."""

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.handlers.transformers_models import chosen_dtype


@pytest.mark.parametrize("has_bfloat16", [True, False])
@pytest.mark.parametrize("given", ["float32", "bfloat16", "float16"])
def test_what_the_manifest_says_holds_whatever_the_device_has(
    given: str, has_bfloat16: bool
) -> None:
    assert chosen_dtype(given, has_bfloat16=has_bfloat16) == given


def test_left_to_choose_it_is_bfloat16_where_the_device_has_that() -> None:
    assert chosen_dtype("auto", has_bfloat16=True) == "bfloat16"
    assert chosen_dtype("auto", has_bfloat16=False) == "float32"


def test_another_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidInput, match="is not one of auto, float32, float16, bfloat16"):
        chosen_dtype("int3", has_bfloat16=True)
