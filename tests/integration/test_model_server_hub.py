"""Fetching a model from a hub, which here is a small server of our own."""

import asyncio
import os
import sys
from pathlib import Path

from support.model_server_hub import COMMIT, hub

FILES = {
    "config.json": b"{}",
    "1_Pooling/config.json": b'{"pooling_mode": "cls"}',
    "vocab.txt": b"a\nb",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle",
    "onnx/model.onnx": b"for another runtime",
}
SCRIPT = """
import sys
from pathlib import Path
from batchedmodel_contract.spec import HuggingFace, Source
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources import model_folder
source = Source(hugging_face=HuggingFace(repo=sys.argv[1], revision=sys.argv[2]))
try:
    print(model_folder(source, Path(sys.argv[3])))
except CannotLoad as error:
    print("cannot load:", error)
"""


def files_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}


async def fetch(
    cache: Path, endpoint: str, repo: str = "us/small", revision: str = "main", **environ: str
) -> str:
    """What a fresh process says; the hub's client reads its environment once."""
    variables = {**os.environ, "HF_ENDPOINT": endpoint, **environ}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, repo, revision, str(cache)),
        env=variables,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


async def test_only_what_a_model_needs_is_fetched_and_kept(tmp_path: Path) -> None:
    async with hub("us/small", FILES) as served:
        folder = Path(await fetch(tmp_path, served.endpoint))
        wanted = {"config.json", "1_Pooling/config.json", "vocab.txt", "model.safetensors"}
        assert files_in(folder) == wanted
        assert set(served.fetched) == wanted
        assert tmp_path in folder.parents

        served.fetched.clear()
        assert Path(await fetch(tmp_path, served.endpoint)) == folder
        assert served.fetched == []
        endpoint = served.endpoint
    # The hub is gone: what is in the cache is served from there.
    assert Path(await fetch(tmp_path, endpoint, HF_HUB_OFFLINE="1")) == folder
    assert Path(await fetch(tmp_path, endpoint, revision=COMMIT, HF_HUB_OFFLINE="1")) == folder


async def test_a_model_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    async with hub("us/small", FILES) as served:
        absent = await fetch(tmp_path, served.endpoint, repo="us/other")
        assert "cannot load: source.huggingFace: us/other at main is not on the hub" in absent
        revision = await fetch(tmp_path, served.endpoint, revision="v2")
        assert "us/small at v2 is not on the hub" in revision
        offline = await fetch(tmp_path, served.endpoint, HF_HUB_OFFLINE="1")
        assert "is not in the cache and the hub was not reached" in offline
