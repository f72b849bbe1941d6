"""Each family of text encoders that the docs list is served equal to transformers, or refused.

It would have caught ALBERT's classifiers, which failed in the warm-up, T5's encoders, said to lack
the weights of a decoder, and CLIP's texts, whose tokens were averaged.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchedmodel_model_server.api.batch import Array
from batchedmodel_model_server.batching.items import collate, examine, split
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.forward import LoadedModel, forward
from batchedmodel_model_server.handlers.hf import HuggingFace
from batchedmodel_model_server.profiling.self_test import with_sharing
from support.checkpoints import VOCABULARY, text_checkpoint
from support.encoders import BASES, ENCODERS, WITHOUT_HEADS
from support.model_server_handlers import arrays_of, batch_of, loaded
from support.random_checkpoints import generating_checkpoint

pytestmark = pytest.mark.torch

LENGTHS = (5, 1, 40, 5, 17, 64)
CLASSIFIERS = [one for one in ENCODERS if one not in WITHOUT_HEADS["ForSequenceClassification"]]
TAGGERS = [one for one in ENCODERS if one not in WITHOUT_HEADS["ForTokenClassification"]]
CLOSE = 1e-4
"""Of the largest number: rounding in float32 is a hundredth of it."""


def served(path: Path) -> LoadedModel:
    handler = HuggingFace()
    handler.parameters = {"dtype": "float32"}
    handler.load(path, "cpu")
    return with_sharing(loaded(handler, "cpu"))


def answered(model: LoadedModel, ids: Sequence[Array]) -> Mapping[str, list[Array]]:
    """The outputs by name, of all items in one batch and of types of tokens that alternate."""
    inputs = {"input_ids": list(ids)}
    if "token_type_ids" in model.declaration.inputs:
        inputs["token_type_ids"] = [kinds(item) for item in ids]
    examined = examine(model.declaration, batch_of(**inputs))
    assert not examined.faults
    collated = collate(model.declaration, examined)
    given, faults = split(model.declaration, forward(model, collated, 0.0), examined.count)
    assert not faults
    return {output.name: arrays_of(output) for output in given}


def kinds(item: Array) -> Array:
    return np.arange(len(item)) % 2


def token_ids() -> list[Array]:
    numbers = np.random.default_rng(1)
    return [numbers.integers(3, VOCABULARY, length) for length in LENGTHS]


def stock(path: Path, kind: str) -> Any:
    """Transformers' own class, with the attention that it picks itself."""
    import transformers

    return getattr(transformers, kind).from_pretrained(path).eval()


def ask(model: Any, **inputs: Array) -> Any:
    """One item by itself."""
    import torch

    with torch.inference_mode():
        return model(**{name: torch.from_numpy(array)[None] for name, array in inputs.items()})


@pytest.mark.parametrize("family", [one for one in ENCODERS if one != "CLIPText"])
def test_embeddings_are_the_mean_of_what_transformers_computes(tmp_path: Path, family: str) -> None:
    base = BASES.get(family, "Model")
    path = text_checkpoint(tmp_path, family, base)
    model, own, ids = served(path), stock(path, f"{family}{base}"), token_ids()
    for item, vector in zip(ids, answered(model, ids)["embedding"], strict=True):
        mean = ask(own, input_ids=item).last_hidden_state[0].mean(0).numpy()
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.parametrize("family", ENCODERS)
def test_texts_and_tokens_are_classified_as_by_transformers(
    tmp_path: Path, family: str, head: str
) -> None:
    if family in WITHOUT_HEADS[head]:
        pytest.skip("transformers has no such class that is an encoder alone")
    path = text_checkpoint(tmp_path, family, head, num_labels=3)
    model, own, ids = served(path), stock(path, f"{family}{head}"), token_ids()
    segmented = "token_type_ids" in model.declaration.inputs
    for item, logits in zip(ids, answered(model, ids)["logits"], strict=True):
        inputs = {"input_ids": item, **({"token_type_ids": kinds(item)} if segmented else {})}
        expected = ask(own, **inputs).logits[0].numpy()
        assert logits.shape == expected.shape
        assert np.abs(logits - expected).max() < CLOSE * np.abs(expected).max()


@pytest.mark.parametrize("eos", [2, 7])
@pytest.mark.parametrize("head", ["Model", "ModelWithProjection"])
def test_clip_embeds_a_text_by_the_token_that_ends_it(tmp_path: Path, head: str, eos: int) -> None:
    # Up to eos 2 CLIP takes the largest id for the end; from then on the first that ends a text.
    path = text_checkpoint(tmp_path, "CLIPText", head, eos_token_id=eos, projection_dim=12)
    model, own, ids = served(path), stock(path, f"CLIPText{head}"), token_ids()
    for item in ids[2:]:
        item[len(item) // 2] = VOCABULARY - 1 if eos == 2 else eos
    for item, vector in zip(ids, answered(model, ids)["embedding"], strict=True):
        given = ask(own, input_ids=item)
        pooled = (given.pooler_output if head == "Model" else given.text_embeds)[0].numpy()
        assert vector == pytest.approx(pooled / np.linalg.norm(pooled), abs=1e-5)


def test_a_text_that_ends_in_padding_is_classified_by_its_last_token(tmp_path: Path) -> None:
    # Heads of decoders look for the last token that is no padding.
    path = text_checkpoint(tmp_path, "Llama", "ForSequenceClassification", num_labels=3)
    model, own = served(path), stock(path, "LlamaForSequenceClassification")
    own.config.pad_token_id = None
    ids = [*token_ids(), np.array([9, 8, 0])]
    for item, logits in zip(ids, answered(model, ids)["logits"], strict=True):
        expected = ask(own, input_ids=item).logits[0].numpy()
        assert logits == pytest.approx(expected, abs=1e-4)


OF_OTHER_KINDS = {
    "ResNetModel": "pixel_values (image), not input_ids (text) alone",
    "SiglipModel": "input_ids (image and text), not input_ids (text) alone",
    "Wav2Vec2Model": "input_values (audio), not input_ids (text) alone",
    "Wav2Vec2ForSequenceClassification": "input_values (audio), not input_ids (text) alone",
    "LayoutLMv3ForTokenClassification": "input_ids (image and text), not input_ids (text) alone",
    "ASTModel": "input_values (audio), not pixel_values (image) alone",
}


@pytest.mark.parametrize("architecture", OF_OTHER_KINDS)
def test_a_model_of_images_or_sounds_is_called_so(tmp_path: Path, architecture: str) -> None:
    """Each was said to lack `vocab_size` or a tokenizer.json, which such models do not have."""
    patches = {"patch_size": 16} if architecture == "ASTModel" else {}
    config = {"architectures": [architecture], **patches}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CannotLoad) as refused:
        served(tmp_path)
    kind = f"{architecture} takes {OF_OTHER_KINDS[architecture]}; handler hf serves base models"
    assert kind in str(refused.value)


NO_GENERATORS: Mapping[str, Mapping[str, Any]] = {
    "Mamba": {},
    "Bloom": {"n_head": 4, "n_layer": 2},
    "Falcon": {},
    "GPTNeo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4},
    "Qwen3Next": {},
}


@pytest.mark.parametrize("family", NO_GENERATORS)
def test_a_language_model_that_our_engine_cannot_run_is_told_what_can(
    tmp_path: Path, family: str
) -> None:
    """The reasons spoke of a registry of functions, and of nothing that one could do."""
    path = generating_checkpoint(tmp_path, family, **NO_GENERATORS[family])
    with pytest.raises(CannotLoad, match="Llama, Qwen3 and GPT-2 .* another engine, such as vLLM"):
        served(path)


def test_a_model_without_a_bound_on_its_texts_says_where_to_set_one(tmp_path: Path) -> None:
    path = text_checkpoint(tmp_path, "XLNet", "Model")
    (path / "tokenizer_config.json").unlink()
    with pytest.raises(CannotLoad, match="set model_max_length in tokenizer_config.json"):
        served(path)
