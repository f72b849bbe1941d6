"""A model server starts without the parts of torch that no forward pass uses.

By what is imported and not by time, which depends on whatever else runs.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.server_api import ModelState
from batchedmodel_model_server.weightless import weightless
from support.checkpoints import image_checkpoint, text_checkpoint
from support.model_server_process import model_server

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

UNUSED = {
    "sentence_transformers",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
}
CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "BERT": lambda folder: text_checkpoint(folder, "Bert"),
    "a decoder with rotary positions": lambda folder: text_checkpoint(folder, "Qwen3"),
    "ViT": lambda folder: image_checkpoint(folder, "ViT", "ForImageClassification"),
}


@pytest.mark.parametrize("made", CHECKPOINTS.values(), ids=CHECKPOINTS)
async def test_a_start_imports_no_compiler_and_nothing_for_several_machines(
    tmp_path: Path, made: Callable[[Path], Path]
) -> None:
    source = {"path": str(made(tmp_path / "checkpoint"))}
    # Python tells of every module that is really made, however it is asked for.
    environ = {"PYTHONVERBOSE": "1"}
    async with model_server(
        tmp_path, "hf", source=source, environ=environ, max_batch_size=2
    ) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        await server.stop()
    imported = {line.split("'")[1] for line in server.log if line.startswith("import '")}
    assert "transformers.modeling_utils" in imported
    assert not UNUSED & imported


BEGINNING = """
import sys
from batchedmodel_model_server.handlers.lean_transformers import (
    COMPILER, import_transformers, without_compiler
)
import_transformers()
assert COMPILER not in sys.modules
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            """
with without_compiler():
    import torch._dynamo
    assert torch._dynamo.disable(len) is len
    assert torch._dynamo.disable(recursive=False)(len) is len
    assert not hasattr(torch._dynamo, "__nothing__")
    # Not among the marks.
    assert torch._dynamo.list_backends()
assert sys.modules[COMPILER].__spec__ is not None
assert torch._dynamo is sys.modules[COMPILER]
""",
            id="another name",
        ),
        pytest.param(
            """
with without_compiler():
    import torch._dynamo.config
    from torch._dynamo import config
assert config is torch._dynamo.config is sys.modules["torch._dynamo.config"]
assert config.__spec__.origin.endswith("config.py")
""",
            id="another module",
        ),
        pytest.param(
            """
import torch
with without_compiler():
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
assert COMPILER not in sys.modules
table = torch.arange(9)
with TransformGetItemToIndex():
    assert torch.vmap(lambda at: table[at])(torch.arange(3)).tolist() == [0, 1, 2]
""",
            id="what stood in, when it is called",
        ),
        pytest.param(
            """
import torch._dynamo
real = torch._dynamo
with without_compiler():
    import torch._dynamo
    assert torch._dynamo is real
assert torch._dynamo is sys.modules[COMPILER] is real
""",
            id="the compiler, which was there before",
        ),
        pytest.param(
            """
import torch
from transformers import BertConfig, BertModel
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
model = BertModel(BertConfig(vocab_size=9, **sizes)).eval()
ids = torch.tensor([[1, 2, 3]])
with torch.inference_mode():
    compiled = torch.compile(model, backend="eager")(ids).last_hidden_state
    torch.testing.assert_close(compiled, model(ids).last_hidden_state)
""",
            id="a compiled model",
        ),
    ],
)
def test_whoever_wants_the_compiler_gets_all_of_it(code: str) -> None:
    subprocess.run([sys.executable, "-c", BEGINNING + code], check=True, timeout=120)


def made_weightless(make: Callable[[], Any]) -> Any:
    with weightless(), torch.device("meta"):
        return make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(2, 9, 3),
        lambda: torch.arange(0.0, 1.0, 0.25),
        lambda: torch.arange(0, 8, 2, dtype=torch.int64).float() / 8,
        lambda: 1.0 / (10000.0 ** (torch.arange(0, 8, 2) / 8)),
        lambda: torch.arange(3) ** 2,
        lambda: torch.randn(2, 3, dtype=torch.float16),
        lambda: torch.rand((4,)),
        lambda: torch.empty_like(torch.zeros(2, 3, dtype=torch.int32), device="cpu"),
        lambda: torch.nn.Embedding(5, 4, padding_idx=0).weight,
        lambda: torch.nn.Linear(3, 2).bias,
    ],
)
def test_what_is_made_without_weights_is_as_torch_makes_it(make: Callable[[], Any]) -> None:
    with torch.device("meta"):
        expected = make()
    found = made_weightless(make)
    assert (found.shape, found.dtype, found.device) == (
        expected.shape,
        expected.dtype,
        expected.device,
    )
    assert found.stride() == expected.stride()
    assert (type(found), found.requires_grad) == (type(expected), expected.requires_grad)


def test_what_has_memory_is_filled_as_ever() -> None:
    with weightless():
        assert torch.equal(torch.arange(4) / 2, torch.tensor([0.0, 0.5, 1.0, 1.5]))
        assert torch.nn.init.constant_(torch.zeros(2), 3.0).tolist() == [3.0, 3.0]
        assert torch.nn.Linear(8, 8).weight.abs().sum() > 0
