"""A model server starts without the parts of torch that no forward pass uses.

By what is imported and not by time, which depends on whatever else runs.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_model_server.api.weights import weightless
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def imported(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, frozenset[str]]:
    """What one process had imported when it was ready with each, one version after the other."""
    folder = tmp_path_factory.mktemp("lean")
    source = {"path": str(folder / "model")}
    # Python tells of every module that is really made, however it is asked for.
    environ = {"PYTHONVERBOSE": "1"}
    first, *others = CHECKPOINTS.values()
    first(folder / "model" / "1")
    async with model_server(
        folder, "hf", source=source, environ=environ, max_batch_size=2
    ) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        for number, made in enumerate(others, 2):
            made(folder / "coming").rename(folder / "model" / str(number))
            await server.hop.load()
        await server.stop()
    modules: set[str] = set()
    until_ready = []
    for line in server.log:
        if line.startswith("import '"):
            modules.add(line.split("'")[1])
        elif " READY: " in line:
            until_ready.append(frozenset(modules))
    return dict(zip(CHECKPOINTS, until_ready, strict=True))


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_start_imports_no_compiler_and_nothing_for_several_machines(
    imported: Mapping[str, frozenset[str]], kind: str
) -> None:
    assert "transformers.modeling_utils" in imported[kind]
    assert not UNUSED & imported[kind]


BEGINNING = """
import json, os, sys, traceback
from batchedmodel_model_server.handlers.transformers_models import COMPILER, import_transformers
import_transformers()
assert COMPILER not in sys.modules
"""
EACH_IN_A_COPY = """
said = {}
for name, code in json.load(sys.stdin).items():
    ours, theirs = os.pipe()
    if not os.fork():
        os.close(ours)
        try:
            exec(code)
            wrong = "nothing"
        except BaseException:
            wrong = traceback.format_exc()
        os.write(theirs, wrong.encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as told:
        said[name] = told.read()
    os.wait()
print(json.dumps(said))
"""
"""A process that has just begun is copied for each: the beginning takes the longest."""
WANTS = {
    "what stood in, when it is called": """
import torch
from transformers.masking_utils import TransformGetItemToIndex
assert COMPILER not in sys.modules
table = torch.arange(9)
with TransformGetItemToIndex():
    assert torch.vmap(lambda at: table[at])(torch.arange(3)).tolist() == [0, 1, 2]
""",
    "any of its modules": """
import torch._dynamo.config
from torch._dynamo import config
assert torch._dynamo is sys.modules[COMPILER]
assert config.__spec__.origin.endswith("config.py")
assert torch._dynamo.list_backends()
""",
    "a compiled model": """
import torch
from transformers import BertConfig, BertModel
sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
model = BertModel(BertConfig(vocab_size=9, **sizes)).eval()
ids = torch.tensor([[1, 2, 3]])
with torch.inference_mode():
    compiled = torch.compile(model, backend="eager")(ids).last_hidden_state
    torch.testing.assert_close(compiled, model(ids).last_hidden_state)
""",
}


@pytest.fixture(scope="module")
def wrong() -> Mapping[str, str]:
    """What is wrong with each want."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGINNING + EACH_IN_A_COPY],
        input=json.dumps(WANTS),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=240,
    )
    found: dict[str, str] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("want", WANTS)
def test_whoever_wants_the_compiler_gets_all_of_it(wrong: Mapping[str, str], want: str) -> None:
    assert wrong[want] == "nothing"


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
