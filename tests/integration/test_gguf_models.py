"""Models in GGUF files: each served architecture as transformers computes it, and SmolLM2."""

import re
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_model_server.api.generator import CacheSettings
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.gguf_models import ARCHITECTURES, checkpoint_of
from batchedmodel_model_server.handlers.hf import HuggingFace
from batchedmodel_model_server.handlers.transformers_models import Place, load_model
from support.gguf_files import TEMPLATE, model_file
from support.greedy import greedy_text
from support.repository import ROOT

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROMPT = [7, 80, 33, 120, 5]


def loaded(path: Path, dtype: str = "float32") -> HuggingFace:
    handler = HuggingFace()
    handler.parameters = {"dtype": dtype}
    handler.cache = CacheSettings(memory_bytes=1 << 26, max_context_tokens=256)
    handler.load(path, "cpu")
    return handler


def stock(file: Path) -> Any:
    """Transformers' own model of the file, by its own reader."""
    made = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    return made.eval()


@pytest.mark.parametrize("quantised", [False, True], ids=["float32", "Q8_0"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_of_the_docs_is_served_from_gguf_as_transformers_computes_it(
    tmp_path: Path, architecture: str, quantised: bool
) -> None:
    """Weights, config and text are those of transformers' own reader."""
    file = model_file(tmp_path / "tiny.gguf", architecture, quantised=quantised)
    expected = stock(file)
    with checkpoint_of(file) as folder:
        kind = type(expected).__name__
        model, _ = load_model(kind, folder, Place(device="cpu", dtype="float32"))
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for name, weight in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    left_out = {"_name_or_path", "quantization_config", "architectures", "dtype"}
    configs = [one.config.to_dict() for one in (model, expected)]
    ours, theirs = ({k: v for k, v in one.items() if k not in left_out} for one in configs)
    assert ours == theirs
    asked = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    for text in ("ab abc </s> Größe", " 12", ""):
        assert tokenizer(text)["input_ids"] == asked(text)["input_ids"]
    generator = loaded(tmp_path).generator
    assert generator is not None
    assert (generator.stop_ids, generator.chat_template) == ((2,), TEMPLATE)
    with torch.inference_mode():
        whole = expected.generate(
            torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None
        )
    answer = whole[0, len(PROMPT) :].tolist()
    assert greedy_text(generator, PROMPT, len(answer)) == answer


def test_the_docs_list_what_is_served_and_what_transformers_maps_beside_it() -> None:
    """Fails when transformers learns another architecture, which is then to be tried."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    page = (ROOT / "docs" / "sources.md").read_text("utf-8")
    (served,) = re.findall(r"^Served are the architectures (.*)\.$", page, re.MULTILINE)
    (others,) = re.findall(r"^Refused are, of those that .*?: (.*)\.$", page, re.MULTILINE)
    assert re.findall(r"`(.*?)`", served) == list(ARCHITECTURES)
    left = {*GGUF_SUPPORTED_ARCHITECTURES} - {*ARCHITECTURES, "general", "tokenizer"}
    assert re.findall(r"`(.*?)`", others) == sorted(left)


def test_a_model_whose_tensor_has_another_shape_than_its_config_is_refused(tmp_path: Path) -> None:
    file = model_file(tmp_path / "tiny.gguf", "llama")
    content = file.read_bytes()
    at = content.index(b"blk.1.ffn_up.weight") + len("blk.1.ffn_up.weight") + 4
    swapped = content[at + 8 : at + 16] + content[at : at + 8]
    file.write_bytes(content[:at] + swapped + content[at + 16 :])
    with pytest.raises(CannotLoad, match=r"mlp\.up_proj\.weight"):
        loaded(file)
