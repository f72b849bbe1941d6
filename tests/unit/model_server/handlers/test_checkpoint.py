"""What a checkpoint's own files say, and what is refused rather than served differently."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.inference.description import Activation, Classification
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.checkpoint import (
    Pooling,
    TaskName,
    TextFiles,
    classes_of,
    lowercasing,
    read_text_files,
    task_of,
)

CONFIG = {
    "architectures": ["BertModel"],
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 3,
}
MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
]
TOKENIZER = {"normalizer": None}
Write = Callable[..., Path]


def read(path: Path) -> TextFiles:
    """As the handler reads it: what it is for, then the rest."""
    task_of(path)
    return read_text_files(path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a checkpoint: JSON documents by file name, over those of a plain BERT."""

    def files(
        documents: Mapping[str, Any] | None = None, weights: str = "model.safetensors"
    ) -> Path:
        (tmp_path / weights).touch()
        plain = {"config.json": CONFIG, "tokenizer.json": TOKENIZER}
        for name, document in {**plain, **(documents or {})}.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            if document is not None:
                file.write_text(document if isinstance(document, str) else json.dumps(document))
        return tmp_path

    return files


def test_without_files_of_its_own_a_model_is_mean_pooled_and_normalised(write: Write) -> None:
    checkpoint = read(write())
    assert checkpoint.pooling is Pooling.MEAN
    assert checkpoint.normalize
    assert (checkpoint.vocabulary, checkpoint.pad) == (100, 3)
    assert checkpoint.text_limit is None


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, Pooling.MEAN),
        ({"pooling_mode_cls_token": True}, Pooling.CLS),
        ({"pooling_mode_max_tokens": True}, Pooling.MAX),
        ({"pooling_mode_lasttoken": True}, Pooling.LAST_TOKEN),
        ({"pooling_mode": "cls"}, Pooling.CLS),
        ({"pooling_mode": ["max"]}, Pooling.MAX),
    ],
)
def test_the_pooling_file_is_followed(
    write: Write, pooling: dict[str, object], expected: Pooling
) -> None:
    path = write({"modules.json": MODULES[:2], "1_Pooling/config.json": pooling})
    checkpoint = read(path)
    assert checkpoint.pooling is expected
    assert not checkpoint.normalize


def test_weights_in_a_folder_of_their_own_are_found(write: Write, tmp_path: Path) -> None:
    (tmp_path / "0_Transformer").mkdir()
    modules = [{**MODULES[0], "path": "0_Transformer"}, *MODULES[1:]]
    path = write(
        {
            "config.json": None,
            "tokenizer.json": None,
            "0_Transformer/config.json": CONFIG,
            "0_Transformer/tokenizer.json": TOKENIZER,
            "0_Transformer/sentence_roberta_config.json": {"max_seq_length": 32},
            "modules.json": modules,
            "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        },
        weights="0_Transformer/model.safetensors",
    )
    checkpoint = read(path)
    assert checkpoint.folder == path / "0_Transformer"
    assert checkpoint.text_limit == 32
    assert checkpoint.normalize


def test_the_tokenizers_own_limit_counts_when_nothing_else_does(write: Write) -> None:
    path = write({"tokenizer_config.json": {"model_max_length": 48}})
    assert read(path).text_limit == 48


@pytest.mark.parametrize("limit", [int(1e30), 1e30, 10**400])
def test_a_tokenizers_absurd_limit_is_none(write: Write, limit: float) -> None:
    path = write({"tokenizer_config.json": {"model_max_length": limit}})
    assert read(path).text_limit is None


@pytest.mark.parametrize("limit", [-math.inf, math.inf, math.nan, -1e300, -5, 0, 0.5, True, "48"])
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ],
)
def test_a_limit_that_no_text_could_have_is_refused_by_name(
    write: Write, file: str, name: str, limit: object
) -> None:
    rule = f"{name} {json.dumps(limit)} is not a finite number of at least 1"
    with pytest.raises(CannotLoad, match=re.escape(rule)):
        read(write({file: {name: limit}}))


@pytest.mark.parametrize("pad", [[], [3], "3", "", False, 3.0, -1, 100, {}])
def test_a_pad_that_is_no_word_of_the_vocabulary_is_refused_by_name(
    write: Write, pad: object
) -> None:
    rule = f"pad_token_id {json.dumps(pad)} is not an integer from 0 to 99"
    with pytest.raises(CannotLoad, match=re.escape(rule)):
        read(write({"config.json": {**CONFIG, "pad_token_id": pad}}))


@pytest.mark.parametrize("config", [{**CONFIG, "pad_token_id": None}, CONFIG])
def test_padding_is_0_where_the_config_names_none(write: Write, config: dict[str, Any]) -> None:
    config = {name: value for name, value in config.items() if value != 3}
    assert read(write({"config.json": config})).pad == 0


@pytest.mark.parametrize("layers", [1001, 1e9, math.inf, math.nan])
@pytest.mark.parametrize("inside", [False, True], ids=["of the model", "of a part"])
def test_more_layers_than_any_model_has_are_refused(
    write: Write, layers: float, inside: bool
) -> None:
    said: dict[str, Any] = {"num_hidden_layers": layers}
    rule = f"num_hidden_layers is {json.dumps(layers)}; at most 1000 are made"
    with pytest.raises(CannotLoad, match=re.escape(rule)):
        task_of(write({"config.json": {**CONFIG, **({"vision_config": said} if inside else said)}}))


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ({"config.json": None}, "config.json is missing"),
        ({"config.json": "{"}, "config.json cannot be read"),
        ({"config.json": "[]"}, "config.json is not a JSON object"),
        ({"config.json": {**CONFIG, "vocab_size": None}}, "vocab_size is not a positive integer"),
        ({"config.json": {**CONFIG, "vocab_size": True}}, "vocab_size is not a positive integer"),
        (
            {"config.json": {**CONFIG, "architectures": ["BertForMaskedLM"]}},
            "BertForMaskedLM is a model for masked LM; handler hf serves base models such as Bert",
        ),
        ({"config.json": {**CONFIG, "architectures": []}}, "architectures names no class"),
        ({"config.json": {**CONFIG, "auto_map": {}}}, "needs code of its own"),
        (
            {"config.json": {**CONFIG, "is_encoder_decoder": True}},
            "BertModel is an encoder-decoder",
        ),
        ({"tokenizer.json": None}, "has no tokenizer.json"),
        ({"modules.json": MODULES}, "1_Pooling/config.json is missing"),
        ({"modules.json": "{"}, "modules.json cannot be read"),
        ({"modules.json": [1]}, "modules.json is not a list of modules"),
        (
            {"modules.json": [*MODULES[:2], {"type": "x.Dense", "path": ""}]},
            "modules Transformer, Pooling, Dense are not supported",
        ),
        (
            {"modules.json": MODULES, "1_Pooling/config.json": {"pooling_mode": "weightedmean"}},
            "pooling weightedmean is not supported, only one of mean, cls, max, lasttoken",
        ),
        (
            {"modules.json": MODULES, "1_Pooling/config.json": {"pooling_mode": ["cls", "mean"]}},
            r"pooling cls \+ mean is not supported",
        ),
        (
            {"modules.json": MODULES, "1_Pooling/config.json": {}},
            "pooling none is not supported",
        ),
        (
            {"modules.json": MODULES, "1_Pooling/config.json": {"pooling_mode": {"a": 1}}},
            'pooling {"a": 1} is not supported',
        ),
        (
            {"sentence_bert_config.json": {"max_seq_length": "many"}},
            'max_seq_length "many" is not a finite number of at least 1',
        ),
        (
            {
                "sentence_bert_config.json": {"do_lower_case": True},
                "tokenizer.json": {"normalizer": [1]},
            },
            "tokenizer.json: its normalizer cannot be read",
        ),
        (
            {
                "modules.json": MODULES,
                "config_sentence_transformers.json": {"default_prompt_name": "query"},
            },
            "default prompt 'query' is not supported",
        ),
        (
            {
                "modules.json": MODULES,
                "config_sentence_transformers.json": {"prompts": {"query": "query: "}},
                "1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False},
            },
            "include_prompt: false is not supported",
        ),
    ],
)
def test_what_cannot_be_served_faithfully_is_refused_with_the_reason(
    write: Write, documents: dict[str, Any], message: str
) -> None:
    with pytest.raises(CannotLoad, match=message):
        read(write(documents))


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("DetrForObjectDetection", "a model for object detection"),
        ("T5ForConditionalGeneration", "a model for conditional generation"),
        ("Wav2Vec2ForCTC", "a model for CTC"),
        ("T5Model", "an encoder-decoder model"),
        ("BartForSequenceClassification", "an encoder-decoder model"),
        ("DPRQuestionEncoder", "a model for another purpose"),
        ("SiglipTextModel", "a model of texts that are filled up to one length"),
    ],
)
def test_a_refusal_says_what_kind_of_model_it_is_and_what_is_served(
    write: Write, architecture: str, kind: str
) -> None:
    """All of these that an encoder and a decoder make up were called so, whatever they are for."""
    config = {**CONFIG, "architectures": [architecture], "is_encoder_decoder": True}
    with pytest.raises(CannotLoad) as refused:
        task_of(write({"config.json": config}))
    assert f"{architecture} is {kind}; handler hf serves base models" in str(refused.value)
    assert "T5EncoderModel" in str(refused.value)


def test_an_encoder_is_served_though_its_config_is_that_of_both_halves(write: Write) -> None:
    config = {**CONFIG, "architectures": ["T5EncoderModel"], "is_encoder_decoder": True}
    assert task_of(write({"config.json": config})) is TaskName.TEXT_EMBEDDING


def test_weights_that_are_no_safetensors_are_refused(write: Write) -> None:
    with pytest.raises(CannotLoad, match=r"holds no \*.safetensors file"):
        read(write(weights="pytorch_model.bin"))


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("BertModel", TaskName.TEXT_EMBEDDING),
        ("BertForSequenceClassification", TaskName.TEXT_CLASSIFICATION),
        ("BertForTokenClassification", TaskName.TOKEN_CLASSIFICATION),
        ("ViTForImageClassification", TaskName.IMAGE_CLASSIFICATION),
        ("CLIPModel", TaskName.IMAGE_EMBEDDING),
        ("CLIPVisionModelWithProjection", TaskName.IMAGE_EMBEDDING),
    ],
)
def test_the_architecture_says_what_a_checkpoint_is_for(
    write: Write, architecture: str, expected: TaskName
) -> None:
    assert task_of(write({"config.json": {**CONFIG, "architectures": [architecture]}})) is expected


def test_a_base_model_of_patches_embeds_images(write: Write) -> None:
    config = {"architectures": ["ViTModel"], "patch_size": 16}
    assert task_of(write({"config.json": config})) is TaskName.IMAGE_EMBEDDING


def test_a_checkpoint_of_sentence_transformers_embeds_texts_whatever_it_was_trained_as(
    write: Write,
) -> None:
    config = {**CONFIG, "architectures": ["BertForMaskedLM"]}
    path = write({"config.json": config, "modules.json": MODULES})
    assert task_of(path) is TaskName.TEXT_EMBEDDING


@pytest.mark.parametrize(
    ("config", "labels", "activation"),
    [
        ({"id2label": {"1": "bad", "0": "good"}}, ("good", "bad"), Activation.SOFTMAX),
        ({}, ("LABEL_0", "LABEL_1"), Activation.SOFTMAX),
        (
            {"id2label": {"0": "a", "1": "b"}, "problem_type": "multi_label_classification"},
            ("a", "b"),
            Activation.SIGMOID,
        ),
    ],
    ids=["labelled", "unlabelled", "several may hold"],
)
def test_labels_and_what_makes_probabilities_are_the_configs(
    config: dict[str, Any], labels: tuple[str, ...], activation: Activation
) -> None:
    assert classes_of(config) == Classification(
        output="logits", labels=labels, activation=activation
    )


@pytest.mark.parametrize("labels", [{"0": "a", "2": "b"}, {"x": "a"}, ["a"]])
def test_labels_that_are_not_counted_from_zero_are_refused(labels: object) -> None:
    with pytest.raises(CannotLoad, match="id2label"):
        classes_of({"id2label": labels})


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (None, {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}),
        (
            {"type": "NFC"},
            {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFC"}]},
        ),
        (
            {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
            {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFC"}]},
        ),
        ({"type": "BertNormalizer", "lowercase": True}, None),
        ({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}, None),
    ],
    ids=["none", "one", "several", "bert lowers", "lowers already"],
)
def test_a_text_is_lowered_once(normalizer: object, expected: object) -> None:
    document = json.dumps({"normalizer": normalizer}).encode()
    lowered = lowercasing(document)
    assert json.loads(lowered)["normalizer"] == (normalizer if expected is None else expected)


def test_the_tokenizer_that_is_handed_out_lowers_case_where_the_model_wants_it(
    write: Write,
) -> None:
    path = write({"sentence_bert_config.json": {"max_seq_length": 9, "do_lower_case": True}})
    assert b"Lowercase" in read(path).tokenizer


@pytest.mark.parametrize(
    ("said", "shortest"),
    [
        ({}, None),
        ({"is_matryoshka": False}, None),
        ({"is_matryoshka": True}, 1),
        ({"matryoshka_dimensions": [64, 32, 128]}, 32),
        ({"is_matryoshka": True, "matryoshka_dimensions": [64]}, 64),
    ],
)
def test_embeddings_may_be_cut_where_the_checkpoint_was_trained_for_it(
    write: Write, said: dict[str, object], shortest: int | None
) -> None:
    assert read(write({"config.json": CONFIG | said})).shortest == shortest


@pytest.mark.parametrize("listed", [[], [0, 64], ["64"], 64, [True]])
def test_sizes_that_are_none_are_refused(write: Write, listed: object) -> None:
    path = write({"config.json": CONFIG | {"matryoshka_dimensions": listed}})
    with pytest.raises(CannotLoad, match="matryoshka_dimensions is not a list of sizes"):
        read(path)


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "\0", 7, None])
@pytest.mark.parametrize("module", [0, 1, 2])
def test_modules_in_other_folders_are_refused_by_name(
    write: Write, path: object, module: int
) -> None:
    listed = [{**entry, "path": path} if i == module else entry for i, entry in enumerate(MODULES)]
    with pytest.raises(CannotLoad, match="leads out of the model's folder") as refused:
        task_of(write({"modules.json": listed}))
    assert f"modules.json: {json.dumps(path)} leads" in str(refused.value)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; at most 1000 are made"),
        ({"n_layer": 1001}, "n_layer is 1001; at most 1000 are made"),
    ],
)
def test_layers_without_end_are_refused(write: Write, config: dict[str, Any], rule: str) -> None:
    with pytest.raises(CannotLoad, match=rule):
        task_of(write({"config.json": {**CONFIG, **config}}))


@pytest.mark.parametrize("labels", [10**12, 0, "2", 1.5])
def test_labels_without_end_are_refused(labels: object) -> None:
    with pytest.raises(CannotLoad, match="num_labels is not a number from 1 to 1000000"):
        classes_of({"num_labels": labels})


def test_adapter_is_refused_since_it_would_not_be_served(write: Write) -> None:
    adapter = {"base_model_name_or_path": "/var/run/secrets"}
    with pytest.raises(CannotLoad, match=r"adapter_config\.json: adapters are not supported"):
        task_of(write({"adapter_config.json": adapter}))


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("config.json", " " * (16 * 2**20) + "{}", "is longer than 16777216 bytes"),
        ("modules.json", "[" * 100_000, "cannot be read: maximum recursion depth"),
        ("tokenizer.json", " " * (64 * 2**20 + 1), "is longer than 67108864 bytes"),
    ],
)
def test_files_beyond_any_measure_are_refused(
    write: Write, name: str, content: str, rule: str
) -> None:
    with pytest.raises(CannotLoad, match=rule):
        read(write({name: content}))


@pytest.mark.parametrize("named", ["/etc", "../other", "us/small"])
def test_backbone_that_is_another_model_is_refused(write: Write, named: str) -> None:
    with pytest.raises(CannotLoad, match="backbone names another model"):
        task_of(write({"config.json": {**CONFIG, "backbone": named}}))
