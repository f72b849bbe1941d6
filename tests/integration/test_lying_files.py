"""Real processes over files that lie: the model has failed with the reason, and nothing crashed."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from batchedmodel_contract.link.model_state import ModelState
from support.checkpoints import text_checkpoint
from support.model_server_process import model_server

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def with_header(file: Path, edit: Any) -> None:
    """The same file, its header as `edit` leaves it."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def beyond(header: dict[str, Any]) -> None:
    last = max((name for name in header if name != "__metadata__"), key=lambda n: end(header[n]))
    header[last]["data_offsets"][1] = 2**60


def overlapping(header: dict[str, Any]) -> None:
    names = [name for name in header if name != "__metadata__"]
    header[names[0]]["data_offsets"] = header[names[1]]["data_offsets"]


def overflowing(header: dict[str, Any]) -> None:
    header[next(name for name in header if name != "__metadata__")]["shape"] = [2**40, 2**40]


def end(tensor: dict[str, Any]) -> int:
    return int(tensor["data_offsets"][1])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = text_checkpoint(tmp_path_factory.mktemp("sound"), "Bert")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (beyond, "cannot be loaded: Error while deserializing header: "),
        (overlapping, "cannot be loaded: Error while deserializing header: "),
        (overflowing, "is none that a tensor can have"),
    ],
)
async def test_weights_whose_header_lies_fail_the_model_with_the_reason(
    tmp_path: Path, checkpoint: dict[str, bytes], edit: Any, reason: str
) -> None:
    model = copied(tmp_path / "model", checkpoint)
    with_header(model / "model.safetensors", edit)
    assert reason in await failure(tmp_path, model)


async def test_index_that_names_a_file_elsewhere_fails_the_model_and_reads_nothing_there(
    tmp_path: Path, checkpoint: dict[str, bytes]
) -> None:
    model = copied(tmp_path / "model", checkpoint)
    weights = (model / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    copied(model, {"decoy.safetensors": weights.read_bytes()})
    index = {"metadata": {}, "weight_map": {"embeddings": "../elsewhere.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert '"../elsewhere.safetensors" leads out of the model\'s folder' in await failure(
        tmp_path, model
    )


def copied(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


async def failure(folder: Path, model: Path) -> str:
    """Why the model failed, told by a server that goes on."""
    async with model_server(folder, "hf", source={"path": str(model)}) as server:
        event = await server.settled()
        assert event.state is ModelState.FAILED
        assert (await server.hop.state()).state is ModelState.FAILED
        assert await server.stop() == 0
    return event.detail
