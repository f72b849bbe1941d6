"""Where one kernel of a GPU may compute a packed row: by its rules, for there is none here."""

import pytest

from batchedmodel_model_server.handlers.packed_attention import flash_obstacle


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize("dtype", ["torch.float16", "torch.bfloat16"])
@pytest.mark.parametrize("head", [8, 32, 64, 96, 256])
def test_halves_on_a_gpu_since_ampere_are_computed_by_one_kernel(
    capability: tuple[int, int], dtype: str, head: int
) -> None:
    assert flash_obstacle(capability, dtype, head=head, value_head=head) is None


@pytest.mark.parametrize(
    ("capability", "dtype", "head", "value_head", "reason"),
    [
        ((7, 5), "torch.float16", 64, 64, "compute capability is 7.5, below 8.0"),
        ((9, 0), "torch.float32", 64, 64, "the model computes in torch.float32"),
        ((9, 0), "torch.bfloat16", 264, 264, "heads have size 264, and it takes multiples of 8"),
        ((9, 0), "torch.bfloat16", 20, 20, "heads have size 20, and it takes multiples of 8"),
        ((9, 0), "torch.bfloat16", 64, 32, "heads of queries have size 64, those of values 32"),
    ],
)
def test_whatever_else_is_padded_for_a_reason(
    capability: tuple[int, int], dtype: str, head: int, value_head: int, reason: str
) -> None:
    found = flash_obstacle(capability, dtype, head=head, value_head=value_head)
    assert found is not None
    assert reason in found
