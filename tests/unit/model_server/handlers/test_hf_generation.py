"""How a generator's layers multiply on a CPU."""

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 24), (24,), (1, 3, 24)])
def test_a_lone_row_is_multiplied_as_every_other(shape: tuple[int, ...], *, bias: bool) -> None:
    # A vector's product would lose the bias, or the shape that the next layer expects.
    import torch

    from batchedmodel_model_server.handlers.hf_generation import multiply_lone_rows

    torch.manual_seed(3)
    layer = torch.nn.Linear(24, 40, bias=bias, dtype=torch.bfloat16)
    given = torch.randn(shape, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = layer(given)
        multiply_lone_rows(torch.nn.Sequential(layer))
        found = layer(given)
    assert found.shape == expected.shape
    assert torch.allclose(found.float(), expected.float(), rtol=0.02, atol=0.02)
