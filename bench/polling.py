"""What asking the sidecars of a thousand models takes the autoscaler, and how long HPAs then wait.

The autoscaler's own parts without a cluster, in a process of their own. One process answers for all
sidecars, at loopback addresses and their usual port, and this one asks for sizes as an API server
does, at an even pace. CPU time is the kernel's; latencies are also those of a machine on which
three processes share the cores. `--quick` has shorter phases.

    python bench/polling.py [--quick] [--json FILE]
"""

import asyncio
import json
import random
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np

from bench_report import Figure, at_most, new_parser, report, tell
from even_pace import paced
from pretended_stats import steady_stats
from process_cpu import cpu_seconds
from same_arrivals import percentiles

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from batchedmodel_autoscaler.state.pace import MOST_POLLS_PER_SECOND
from batchedmodel_contract.processes.sidecar_api import STATS
from batchedmodel_kube.names import GROUP, METRICS_GROUP, PLURAL, REQUIRED_REPLICAS_METRIC
from cluster.certificates import Authority
from support.process_memory import peak_bytes

MODELS: Final = 1000
PODS_EACH: Final = 3
READS_PER_SECOND: Final = 160.0
"""As many as in `control_plane`: its own and those of the HPAs."""
_NAME: Final = "batchedmodel-autoscaler.batchedmodel.svc"
_FRONT: Final = "aggregator"
_HEADERS: Final = {"X-Remote-User": "system:kube-aggregator"}


class Child:
    """A process that is asked by lines."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def line(self) -> str:
        """The next one that it says."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError("a process of the benchmark has ended")
        return said

    def asked(self, order: object) -> Any:
        """What it answers to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self.line())

    def end(self) -> None:
        """Close its input, at which it ends."""
        self._process.communicate()


@contextmanager
def running(script: str, *arguments: str) -> Iterator[Child]:
    """A process from a script beside this one, for as long as the block."""
    child = Child(script, *arguments)
    try:
        yield child
    finally:
        child.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured; seconds and bytes."""

    polls: float
    silent: float
    polling_seconds: float
    cpu: float
    memory: int
    gap: float
    reads: list[float]


def measure(seconds: float) -> Found:
    """Both phases: only polls, then polls and reads."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        answers = json.dumps({STATS: ("200 OK", json.dumps(steady_stats().to_mapping()))})
        sidecars = stack.enter_context(running("many_sidecars.py", answers, "{}", STATS))
        if sidecars.line() != "listening\n":
            raise RuntimeError("the sidecars' process did not start")
        authority = Authority(folder, "front-ca")
        front = authority.issue(_FRONT, common_name=_FRONT)
        autoscaler = stack.enter_context(running("polled_autoscaler.py"))
        told = autoscaler.asked(
            {
                "pods": _pods(),
                "name": _NAME,
                "front": _FRONT,
                "authority": authority.certificate.read_text(),
            }
        )
        # Rounds in which what lasts is made, and the pace is found.
        time.sleep(3 * MODELS * PODS_EACH / MOST_POLLS_PER_SECOND)
        sidecars.asked([])
        before, spent, began = autoscaler.asked(None), cpu_seconds(autoscaler.pid), time.monotonic()
        time.sleep(seconds)
        after, used, ended = autoscaler.asked(None), cpu_seconds(autoscaler.pid), time.monotonic()
        memory = peak_bytes(autoscaler.pid)
        gap = sidecars.asked([])[0]
        tell("polled")
        tls = ssl.create_default_context(cadata=told["authority"])
        tls.load_cert_chain(front.certificate, front.key)
        reads = asyncio.run(_reads(told["port"], tls, seconds))
        tell("read")
        return Found(
            polls=after[0] - before[0],
            silent=after[1] - before[1],
            polling_seconds=ended - began,
            cpu=used - spent,
            memory=memory,
            gap=gap,
            reads=reads,
        )


async def _reads(port: int, tls: ssl.SSLContext, seconds: float) -> list[float]:
    """Each timed from the moment at which it was due."""
    async with aiohttp.ClientSession(
        f"https://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0), headers=_HEADERS
    ) as session:

        async def read(path: str) -> None:
            async with session.get(path, ssl=tls, server_hostname=_NAME) as response:
                await response.read()
                if response.status != 200:
                    raise RuntimeError(f"{path}: {response.status}")

        chosen = random.Random(1).choices(range(MODELS), k=int(seconds * READS_PER_SECOND))
        return await paced((partial(read, _path(one)) for one in chosen), READS_PER_SECOND)


def _path(number: int) -> str:
    resource = f"namespaces/team/{PLURAL}.{GROUP}/model-{number}"
    return f"/apis/{METRICS_GROUP}/v1beta2/{resource}/{REQUIRED_REPLICAS_METRIC}"


def _pods() -> dict[str, list[str]]:
    return {
        f"model-{number}": [
            f"127.66.{(PODS_EACH * number + pod) // 250}.{(PODS_EACH * number + pod) % 250 + 1}"
            for pod in range(PODS_EACH)
        ]
        for number in range(MODELS)
    }


def figures_of(found: Found) -> list[Figure]:
    """The table."""
    median, late = percentiles(np.array(found.reads), 50, 99)
    pods = f"{MODELS:,} models x {PODS_EACH} pods"
    return [
        Figure(
            name=f"{pods}: polls answered",
            value=found.polls / found.polling_seconds,
            unit="1/s",
        ),
        Figure(name="polls not answered", value=found.silent, unit=""),
        Figure(
            name="CPU of the autoscaler per poll", value=1e6 * found.cpu / found.polls, unit="us"
        ),
        Figure(
            name="CPU of the autoscaler", value=100 * found.cpu / found.polling_seconds, unit="%"
        ),
        Figure(
            name="memory of its process while it only polls", value=found.memory / 1e6, unit="MB"
        ),
        at_most("age of a metric at worst", found.gap, "s", 10.0),
        Figure(
            name=f"metric: GET, {READS_PER_SECOND:g} a second: median",
            value=1e3 * median,
            unit="ms",
        ),
        at_most("metric: GET, p99", 1e3 * late, "ms", 50.0),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser("Asking the sidecars of a thousand models.").parse_args(arguments)
    return report(figures_of(measure(10.0 if options.quick else 30.0)), options.json)


if __name__ == "__main__":
    sys.exit(main())
