"""Which language models are served: each as transformers computes it, and none otherwise."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_model_server.api.generator import CacheSettings
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.generation.paged_attention import PagedStep, Terms
from batchedmodel_model_server.handlers import hf_generation
from batchedmodel_model_server.handlers.hf import HuggingFace
from support.greedy import greedy_text
from support.random_checkpoints import ARCHITECTURES, generating_checkpoint, reference

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PROMPT = [7, 80, 33, 120, 5]
WIDE_WINDOW = 128
"""One token of so many changes scores less than bfloat16 rounds them."""
WRONG: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "scaling": ("Gemma3", {}),
    "softcap": ("Gemma2", {"attn_logit_softcapping": 50.0}),
    "window": ("Mistral", {"sliding_window": WIDE_WINDOW, "initializer_range": 0.05}),
}


def loaded(folder: Path, dtype: str) -> HuggingFace:
    handler = HuggingFace()
    handler.parameters = {"dtype": dtype}
    handler.cache = CacheSettings(memory_bytes=1 << 24)
    handler.load(folder, "cpu")
    return handler


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_of_the_docs_is_served_as_transformers_computes_it(
    tmp_path: Path, name: str
) -> None:
    # Catches an architecture that is refused since a rule of the trial became stricter, and
    # one whose text is another than transformers'.
    folder = generating_checkpoint(tmp_path, name)
    assert loaded(folder, "bfloat16").generator is not None
    generator = loaded(folder, "float32").generator
    assert generator is not None
    with torch.inference_mode():
        whole = reference(folder).generate(
            torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False, eos_token_id=None
        )
    expected = whole[0, len(PROMPT) :].tolist()
    assert greedy_text(generator, PROMPT, len(expected)) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("mistake", WRONG)
def test_a_model_whose_attention_is_misread_by_a_little_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str, dtype: str
) -> None:
    """In bfloat16 all three were served: the rounding of halves was taken for the reason."""

    class Misread(PagedStep):
        def attend(self, query: Any, key: Any, value: Any, terms: Terms) -> Any:
            wrong: Mapping[str, Any] = {
                "scaling": terms.scaling * 1.1,
                "softcap": None,
                "window": terms.window and terms.window - 1,
            }
            return super().attend(query, key, value, terms._replace(**{mistake: wrong[mistake]}))

    name, config = WRONG[mistake]
    folder = generating_checkpoint(tmp_path, name, **config)
    loaded(folder, dtype)
    monkeypatch.setattr(hf_generation, "PagedStep", Misread)
    with pytest.raises(CannotLoad, match="other scores step by step than in one pass"):
        loaded(folder, dtype)


def test_a_model_whose_scores_are_no_numbers_is_told_so(tmp_path: Path) -> None:
    """It was told that something beside attention, such as a convolution, saw other tokens."""
    from safetensors.torch import load_file, save_file

    folder = generating_checkpoint(tmp_path, "Llama")
    file = folder / "model.safetensors"
    weights = {name: weight * 1e30 for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(CannotLoad, match="its scores are not finite"):
        loaded(folder, "float32")


def test_a_wide_model_is_judged_by_what_its_own_passes_of_few_and_many_rows_differ_by(
    tmp_path: Path,
) -> None:
    """Sums over a thousand numbers round otherwise in a step of one token: it was refused."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8}
    folder = generating_checkpoint(
        tmp_path, "Mistral", num_hidden_layers=6, num_key_value_heads=4, head_dim=128, **sizes
    )
    assert loaded(folder, "bfloat16").generator is not None


def test_a_deep_model_that_enlarges_rounding_is_judged_by_its_own(tmp_path: Path) -> None:
    # Its scores differ by more than the least tolerance from one pass of its own to another.
    sizes = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 512}
    folder = generating_checkpoint(tmp_path, "Llama", num_hidden_layers=40, **sizes)
    assert loaded(folder, "float32").generator is not None
