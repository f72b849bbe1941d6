"""The program that fetches a model from a hub, run and watched by tests; a small model for it."""

import asyncio
import hashlib
import os
import re
import resource
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from batchedmodel_contract.manifest.source import HuggingFace, Source
from batchedmodel_contract.processes.environment import FetchSettings
from batchedmodel_kube.manifest.pod_settings import source_to_json, to_environment
from support.model_server_hub import ServedHub

WEIGHTS = hashlib.sha256(b"weights").digest() * 100_000
FILES = {
    "config.json": b"{}",
    "1_Pooling/config.json": b'{"pooling_mode": "cls"}',
    "vocab.txt": b"a\nb",
    "empty.txt": b"",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"a pickle",
    "onnx/model.onnx": b"for another runtime",
    "README.md": b"# Small",
}
WANTED = {"config.json", "1_Pooling/config.json", "vocab.txt", "empty.txt", "model.safetensors"}
ASKED_FOR = WANTED - {"empty.txt"}
CONTENT = {name: FILES[name] for name in WANTED}


@contextmanager
def limited_file_size(limit: int) -> Iterator[None]:
    """For processes started within: writing beyond it fails as on a full disk, by another errno."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def whole_folders(cache: Path) -> list[Path]:
    """What a model server could be given: the folders that are not hidden."""
    return [
        path
        for path in cache.glob("hub/*/*")
        if path.is_dir() and not path.name.startswith(".") and path.name != "revisions"
    ]


WITHOUT_LOCKS = """
import errno, fcntl, sys

def flock(*_):
    raise OSError(errno.ENOTSUP, "this file system has no locks")

fcntl.flock = flock
from batchedmodel_model_server.sources.fetch import main
sys.exit(main())
"""
"""The same program, as on a file system that has none."""


async def start(
    cache: Path,
    endpoint: str,
    repo: str = "us/small",
    revision: str = "main",
    code: str = "",
    **environ: str,
) -> Process:
    """The program that an init container runs, or `code` in its place."""
    source = Source(hugging_face=HuggingFace(repo=repo, revision=revision))
    settings = FetchSettings(
        source=source_to_json(source),
        cache_folder=str(cache),
        report_file=str(cache / "report"),
    )
    os.makedirs(cache, exist_ok=True)
    # A token of whoever runs the tests is nobody's business here.
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache / "home"), "HF_TOKEN": ""}
    variables = {**os.environ, **own, **to_environment(settings), **environ}
    program = ("-c", code) if code else ("-m", "batchedmodel_model_server.sources.fetch")
    return await asyncio.create_subprocess_exec(
        sys.executable, *program, env=variables, stderr=PIPE
    )


async def ended(process: Process, expected: int) -> str:
    """What the program had to say."""
    _, output = await process.communicate()
    said = output.decode()
    assert process.returncode == expected, said
    return said


async def fetched(cache: Path, endpoint: str, **given: str) -> Path:
    """The folder that the program says it fetched."""
    said = await ended(await start(cache, endpoint, **given), 0)
    found = re.search(r"the model's files are in (.+)$", said, re.MULTILINE)
    assert found is not None, said
    return Path(found[1])


async def refused(cache: Path, endpoint: str, **given: str) -> str:
    """Why nothing could be fetched, which the program's report says as well."""
    said = await ended(await start(cache, endpoint, **given), 1)
    reason = (cache / "report").read_text().strip()
    assert reason in said
    assert whole_folders(cache) == []
    return reason


def part_of_weights(cache: Path) -> Path | None:
    return next(cache.rglob("model.safetensors.part"), None)


async def part_grows(cache: Path, beyond: int) -> Path:
    def grown() -> bool:
        part = part_of_weights(cache)
        return part is not None and part.stat().st_size > beyond

    await until(grown)
    part = part_of_weights(cache)
    assert part is not None
    return part


async def until(condition: Callable[[], bool]) -> None:
    """For what happens on a disk or in another process, and cannot be waited for otherwise."""
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


def is_asked_for_weights(served: ServedHub) -> bool:
    return "model.safetensors" in served.fetched
