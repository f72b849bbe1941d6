"""How tokens are chosen where a caller says nothing: as the checkpoint's own files say."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_model_server.api.generator import CacheSettings
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.handlers.hf import HuggingFace
from support.chain import running_chain
from support.checkpoints import text_checkpoint
from support.random_checkpoints import STOP, generating_checkpoint

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
OFF = {"generationConfig": "false"}


def checkpoint(folder: Path, **says: Any) -> Path:
    made = generating_checkpoint(folder / "llama", "Llama")
    file = made / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [STOP], **says}))
    return made


def handler_of(folder: Path, **parameters: str) -> HuggingFace:
    handler = HuggingFace()
    handler.parameters = {"dtype": "float32", **parameters}
    handler.cache = CacheSettings(memory_bytes=1 << 20, max_context_tokens=128)
    handler.load(folder, "cpu")
    return handler


async def test_callers_who_say_nothing_get_what_the_checkpoint_asks_for(tmp_path: Path) -> None:
    """`do_sample: false` is greedy in `generate()`; each such chat here had another answer."""
    folder = checkpoint(tmp_path, do_sample=False, temperature=0.6, max_new_tokens=12)
    async with running_chain(
        tmp_path, handler="hf", source={"path": str(folder)}, parameters={"dtype": "float32"}
    ) as chain:
        said = "generation_config.json holds: temperature 0, max_new_tokens 12"
        assert any(said in line for line in chain.model.lines)

        async def texts(**fields: Any) -> list[str]:
            message = {"role": "user", "content": "hello"}
            document = {"model": "m", "messages": [message], "n": 8, "ignore_eos": True, **fields}
            async with chain.session.post(
                chain.url("/v1/chat/completions"), json=document
            ) as response:
                assert response.status == 200
                answer = await response.json()
            assert answer["usage"]["completion_tokens"] == 8 * fields.get("max_tokens", 12)
            return [one["message"]["content"] for one in answer["choices"]]

        assert len(set(await texts())) == 1
        assert len(set(await texts(temperature=1, max_tokens=20))) > 1


def test_a_manifest_switches_off_what_the_checkpoint_asks_for(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, temperature=0.6, top_k=20)
    on, off = handler_of(folder).generator, handler_of(folder, **OFF).generator
    assert on is not None
    assert off is not None
    assert on.sampling_defaults == {"temperature": 0.6, "top_k": 20}
    assert off.sampling_defaults == {}
    assert on.stop_ids == off.stop_ids == (STOP,)


def test_the_switch_is_true_or_false_and_for_texts_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match='generationConfig: "no" is not true or false'):
        handler_of(checkpoint(tmp_path), generationConfig="no")
    with pytest.raises(CannotLoad, match="generationConfig: the model generates no text"):
        handler_of(text_checkpoint(tmp_path / "bert", "Bert"), **OFF)
