"""KServe's agent, which batches in front of a model server: built from its Go module, and kept."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from load_generator import cache_folder

VERSION: Final = "v0.16.0"
_MODULE: Final = f"github.com/kserve/kserve@{VERSION}"
_SUM: Final = "h1:kDkcAU5VMiZf4zhdDXH+UdAIgzXhs10GMv0d9r4qvTs="
"""Of the module's files, as in a `go.sum`; they name and check all that they build on."""


class CannotBuild(Exception):
    """The agent could not be built; the message says why."""


def kserve_agent() -> Path:
    """The program, from the cache where this very module was built before.

    The first call takes some four minutes of two cores. Raises `CannotBuild`.
    """
    digest = _SUM.removeprefix("h1:").replace("/", "_")[:16]
    program = cache_folder(os.environ) / "foreign" / f"kserve-agent-{VERSION}-{digest}"
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent, prefix=".kserve-agent-") as folder:
        module = json.loads(_go("mod", "download", "-json", _MODULE, folder=folder))
        if module["Sum"] != _SUM:
            raise CannotBuild(f"{_MODULE} has the sum {module['Sum']}, not {_SUM}")
        partial = Path(folder, "agent")
        _go("build", "-trimpath", "-o", str(partial), "./cmd/agent", folder=module["Dir"])
        # Two that build at once both end with a whole program, for the later rename wins.
        partial.replace(program)
    return program


def _go(*words: str, folder: str) -> str:
    if shutil.which("go") is None:
        raise CannotBuild("KServe's agent is built with Go 1.24 or later, and none is in PATH")
    ended = subprocess.run(
        ["go", *words],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise CannotBuild(f"go {' '.join(words)}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout
