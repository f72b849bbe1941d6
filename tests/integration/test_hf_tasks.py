"""Every task of the hf handler against transformers' own class, which runs each item alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.inference.description import (
    Activation,
    Classification,
    CostRule,
    description_from_metadata,
)
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.batch import Array
from batchedmodel_model_server.batching.declaration import Sharing, describe
from batchedmodel_model_server.batching.items import collate, examine, split
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.forward import LoadedModel, forward
from batchedmodel_model_server.handlers.hf import HuggingFace
from batchedmodel_model_server.profiling.self_test import with_sharing
from support.checkpoints import VOCABULARY, image_checkpoint, text_checkpoint
from support.examples import examples
from support.model_server_handlers import arrays_of, batch_of, loaded

pytestmark = pytest.mark.torch

LENGTHS = (5, 1, 40, 5, 17, 2, 40, 64)
PACKABLE = ("Bert", "Roberta", "DistilBert", "ModernBert", "Electra", "Qwen3")
NOT_PACKABLE = ("MPNet", "DebertaV2")


def served(path: Path, **parameters: str) -> LoadedModel:
    """The checkpoint as the server has it when it is ready."""
    handler = HuggingFace()
    # Equal within float32's rounding, whatever this processor would choose.
    handler.parameters = {"dtype": "float32", **parameters}
    handler.load(path, "cpu")
    return with_sharing(loaded(handler, "cpu"))


def answered(model: LoadedModel, **inputs: Sequence[Array]) -> Mapping[str, list[Array]]:
    """The outputs by name, one array for each item."""
    examined = examine(model.declaration, batch_of(**{k: list(v) for k, v in inputs.items()}))
    assert not examined.faults
    collated = collate(model.declaration, examined)
    given_, faults = split(model.declaration, forward(model, collated, 0.0), examined.count)
    assert not faults
    return {output.name: arrays_of(output) for output in given_}


def reference(path: Path, kind: str) -> Any:
    """Transformers' own class, with the attention that it picks itself."""
    import transformers

    return getattr(transformers, kind).from_pretrained(path).eval()


def token_ids(lengths: Sequence[int] = LENGTHS) -> list[Array]:
    numbers = np.random.default_rng(1)
    return [numbers.integers(3, VOCABULARY, length) for length in lengths]


def ask(model: Any, **inputs: Array) -> Any:
    import torch

    with torch.inference_mode():
        return model(**{name: torch.from_numpy(array)[None] for name, array in inputs.items()})


@pytest.mark.parametrize("family", [*PACKABLE, *NOT_PACKABLE])
def test_embeddings_equal_the_mean_of_the_reference(tmp_path: Path, family: str) -> None:
    path = text_checkpoint(tmp_path, family)
    model, stock, ids = served(path), reference(path, "AutoModel"), token_ids()
    expected_sharing = Sharing.PACKED if family in PACKABLE else Sharing.PADDED
    assert model.declaration.sharing is expected_sharing
    for item, vector in zip(ids, answered(model, input_ids=ids)["embedding"], strict=True):
        mean = ask(stock, input_ids=item).last_hidden_state[0].mean(0).numpy()
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)


@pytest.mark.parametrize("family", [*PACKABLE, *NOT_PACKABLE])
def test_texts_are_classified_as_by_the_reference(tmp_path: Path, family: str) -> None:
    labels = {0: "good", 1: "bad", 2: "odd"}
    path = text_checkpoint(tmp_path, family, "ForSequenceClassification", id2label=labels)
    model = served(path)
    assert model.handler.classification == Classification(
        output="logits", labels=("good", "bad", "odd"), activation=Activation.SOFTMAX
    )
    stock = reference(path, "AutoModelForSequenceClassification")
    ids, inputs = token_ids(), {}
    if "token_type_ids" in model.declaration.inputs:
        inputs["token_type_ids"] = [np.arange(len(item)) % 2 for item in ids]
    answers = answered(model, input_ids=ids, **inputs)["logits"]
    for index, (item, logits) in enumerate(zip(ids, answers, strict=True)):
        alone = {name: items[index] for name, items in inputs.items()}
        expected = ask(stock, input_ids=item, **alone).logits[0].numpy()
        assert logits == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert", "ModernBert", "DebertaV2"])
def test_tokens_are_classified_as_by_the_reference(tmp_path: Path, family: str) -> None:
    labels = dict(enumerate(("person", "place", "firm", "other", "none")))
    path = text_checkpoint(tmp_path, family, "ForTokenClassification", id2label=labels)
    model, ids = served(path), token_ids()
    assert model.handler.classification == Classification(
        output="logits", labels=tuple(labels.values()), activation=Activation.SOFTMAX
    )
    stock = reference(path, "AutoModelForTokenClassification")
    inputs = {}
    if "token_type_ids" in model.declaration.inputs:
        inputs["token_type_ids"] = [np.zeros_like(item) for item in ids]
    answers = answered(model, input_ids=ids, **inputs)["logits"]
    for item, logits in zip(ids, answers, strict=True):
        expected = ask(stock, input_ids=item).logits[0].numpy()
        assert logits.shape == (len(item), 5)
        assert np.abs(logits - expected).max() < 1e-4


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
def test_a_model_with_one_label_ranks_pairs(tmp_path: Path, family: str) -> None:
    path = text_checkpoint(tmp_path, family, "ForSequenceClassification", num_labels=1)
    model, ids = served(path), token_ids()
    handler = model.handler
    assert (handler.ranking, handler.classification) == ("score", None)
    assert handler.text is not None
    # RoBERTa knows one kind of token only.
    segmented = family == "Bert"
    assert handler.text.segments == ("token_type_ids" if segmented else None)
    segments = [(np.arange(len(item)) > len(item) // 2).astype(np.int64) for item in ids]
    inputs = {"token_type_ids": segments} if segmented else {}
    stock = reference(path, "AutoModelForSequenceClassification")
    scores = answered(model, input_ids=ids, **inputs)["score"]
    for index, (item, score) in enumerate(zip(ids, scores, strict=True)):
        alone = {name: items[index] for name, items in inputs.items()}
        assert score.item() == pytest.approx(
            ask(stock, input_ids=item, **alone).logits.item(), abs=1e-4
        )


def test_a_description_tells_of_labels_and_sharing(tmp_path: Path) -> None:
    path = text_checkpoint(tmp_path, "Bert", "ForSequenceClassification", num_labels=3)
    model = served(path)
    description = describe("m", model.handler, model.declaration)
    assert description_from_metadata(description.to_metadata()) == description
    assert description.cost_rule is CostRule.PACKED


@pytest.mark.parametrize("pixels", ["float32", "uint8"])
def test_images_are_classified_as_by_the_reference(tmp_path: Path, pixels: str) -> None:
    path = image_checkpoint(tmp_path, "ViT", "ForImageClassification", id2label={0: "a", 1: "b"})
    model, stock = served(path, pixels=pixels), reference(path, "AutoModelForImageClassification")
    assert model.declaration.cost_rule is CostRule.ROWS
    assert model.handler.classification is not None
    assert model.handler.classification.labels == ("a", "b")
    sent, normalised = images(pixels)
    for pixel_values, logits in zip(
        normalised, answered(model, pixel_values=sent)["logits"], strict=True
    ):
        expected = ask(stock, pixel_values=pixel_values).logits[0].numpy()
        assert logits == pytest.approx(expected, abs=1e-4)


IMAGE_MODELS: dict[str, dict[str, Any]] = {
    "ViT": {},
    "Dinov2": {},
    "Beit": {},
    "SiglipVision": {},
    "Swin": {
        "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_attention_heads": [2, 2],
        "window_size": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", IMAGE_MODELS)
def test_an_image_is_embedded_by_what_the_model_itself_pools(tmp_path: Path, family: str) -> None:
    path = image_checkpoint(tmp_path, family, "Model", **IMAGE_MODELS[family])
    model, stock = served(path), reference(path, "AutoModel")
    sent, normalised = images("float32")
    for pixel_values, vector in zip(
        normalised, answered(model, pixel_values=sent)["embedding"], strict=True
    ):
        pooled = ask(stock, pixel_values=pixel_values).pooler_output[0].numpy()
        assert vector == pytest.approx(pooled / np.linalg.norm(pooled), abs=1e-5)


def test_a_vit_without_the_weights_of_its_pooler_embeds_images_by_the_class_token(
    tmp_path: Path,
) -> None:
    path = without_pooler(image_checkpoint(tmp_path, "ViT", "Model"))
    model, stock = served(path), reference(path, "AutoModel")
    sent, normalised = images("float32")
    for pixel_values, vector in zip(
        normalised, answered(model, pixel_values=sent)["embedding"], strict=True
    ):
        first = ask(stock, pixel_values=pixel_values).last_hidden_state[0, 0].numpy()
        assert vector == pytest.approx(first / np.linalg.norm(first), abs=1e-5)


def test_a_model_that_pools_nothing_is_not_served_by_its_first_patch(tmp_path: Path) -> None:
    path = image_checkpoint(tmp_path, "ViTMAE", "Model")
    with pytest.raises(CannotLoad, match="ViTMAEModel gives no vector for an image"):
        served(path)


def without_pooler(folder: Path) -> Path:
    """The checkpoint, as those are that were trained without one."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    kept = {name: one for name, one in load_file(file).items() if not name.startswith("pooler.")}
    save_file(kept, file, metadata={"format": "pt"})
    return folder


def test_clip_embeds_images_by_its_projection(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": 2, "projection_dim": 12}
    vision = {**sizes, "image_size": 8, "patch_size": 4}
    text = {**sizes, "vocab_size": 50}
    path = image_checkpoint(
        tmp_path, "CLIP", "Model", vision_config=vision, text_config=text, projection_dim=12
    )
    model, stock = served(path), reference(path, "CLIPVisionModelWithProjection")
    sent, normalised = images("float32")
    for pixel_values, vector in zip(
        normalised, answered(model, pixel_values=sent)["embedding"], strict=True
    ):
        expected = ask(stock, pixel_values=pixel_values).image_embeds[0].numpy()
        assert vector.shape == (12,)
        assert vector == pytest.approx(expected / np.linalg.norm(expected), abs=1e-5)


def images(pixels: str) -> tuple[list[Array], list[Array]]:
    """What is sent, and the pixels as the model's processor makes them."""
    numbers = np.random.default_rng(2)
    raw = [numbers.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(3)]
    mean, deviation = np.array([0.1, 0.2, 0.3]), np.array([0.5, 0.6, 0.7])
    normalised = [
        ((image / 255 - mean) / deviation).transpose(2, 0, 1).astype(np.float32) for image in raw
    ]
    return (raw if pixels == "uint8" else normalised), normalised


def test_pixels_are_for_images_only(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="pixels: the model takes text"):
        served(text_checkpoint(tmp_path, "Bert"), pixels="uint8")


def test_an_unknown_form_of_pixels_is_named(tmp_path: Path) -> None:
    path = image_checkpoint(tmp_path, "ViT", "Model")
    with pytest.raises(InvalidInput, match="pixels: .* is not one of float32, uint8"):
        served(path, pixels="jpeg")


@pytest.mark.parametrize("size", [{"height": 8}, {"height": 0, "width": 8}, [8], "large"])
def test_images_without_a_size_are_refused(tmp_path: Path, size: object) -> None:
    path = image_checkpoint(tmp_path, "ViT", "Model")
    (path / "preprocessor_config.json").write_text(json.dumps({"size": size}))
    with pytest.raises(CannotLoad, match="says how large images are"):
        served(path)


@pytest.mark.parametrize(
    "size", [8, [8, 8], {"shortest_edge": 8}, {"height": None, "width": None, "shortest_edge": 8}]
)
def test_the_size_of_images_is_read_in_all_its_forms(tmp_path: Path, size: object) -> None:
    """Such as configs with two numbers, which were refused for a while."""
    path = image_checkpoint(tmp_path, "ViT", "Model")
    (path / "preprocessor_config.json").write_text(json.dumps({"size": size}))
    assert served(path).declaration.inputs["pixel_values"].shape == (3, 8, 8)


Lengths = st.lists(st.integers(1, 64), min_size=1, max_size=12)


@pytest.fixture(scope="module", params=["packed", "padded"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The same model packed, and as it runs where it cannot be packed."""
    from dataclasses import replace

    model = served(text_checkpoint(tmp_path_factory.mktemp("bert"), "Bert"))
    sharing = Sharing.PACKED if request.param == "packed" else Sharing.PADDED
    return replace(model, declaration=replace(model.declaration, sharing=sharing))


@settings(max_examples=examples(40))
@given(lengths=Lengths, seed=st.integers(0, 2**32 - 1))
def test_an_item_is_answered_in_any_batch_as_alone(
    either: LoadedModel, lengths: list[int], seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    ids = [numbers.integers(0, VOCABULARY, length) for length in lengths]
    together = answered(either, input_ids=ids)["embedding"]
    again = answered(either, input_ids=ids)["embedding"]
    for item, vector, repeated in zip(ids, together, again, strict=True):
        alone = answered(either, input_ids=[item])["embedding"][0]
        assert np.abs(vector - alone).max() < 2e-6
        # The same batch gives the same bits.
        assert np.array_equal(vector, repeated)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_stay_close_to_float32(tmp_path: Path, dtype: str) -> None:
    path = text_checkpoint(tmp_path, "Bert", initializer_range=0.05)
    ids = token_ids()
    exact = answered(served(path), input_ids=ids)["embedding"]
    coarse = served(path, dtype=dtype)
    assert coarse.declaration.sharing is Sharing.PACKED
    for one, other in zip(exact, answered(coarse, input_ids=ids)["embedding"], strict=True):
        assert other.dtype == np.float32
        assert float(one @ other) > 0.999


def test_forwards_keep_no_graph(tmp_path: Path) -> None:
    import torch

    seen = []

    class Looking(HuggingFace):
        def forward(self, batch: Any) -> Any:
            seen.append(torch.is_inference_mode_enabled())
            return super().forward(batch)

    handler = Looking()
    handler.parameters = {}
    handler.load(text_checkpoint(tmp_path, "Bert"), "cpu")
    with_sharing(loaded(handler, "cpu"))
    assert seen
    assert all(seen)
