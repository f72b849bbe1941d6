"""Runs the compiled load generator of `loadgen/` and reads its figures.

Called by the benchmark scripts and by tests. It compiles the program once per version of its
source and knows nothing of what is being measured.
"""

import hashlib
import json
import math
import os
import shutil
import struct
import subprocess
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

SOURCE_FOLDER = Path(__file__).resolve().parent / "loadgen"
COMPILERS = ("cc", "gcc", "clang")
COMPILER_OPTIONS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
# The generator's own bounds: an hour of warm-up, one of load, twenty minutes until all connections
# have started and the last request has timed out; a minute on top for sorting and writing.
LONGEST_RUN_SECONDS = 2 * 3600 + 1200 + 60


class LoadGeneratorError(Exception):
    """The load generator could not be built or did not run; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go and what they carry; every body is used in turn."""

    port: int
    host: str = "127.0.0.1"
    path: str = "/"
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    bodies: Sequence[bytes] = (b"",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Each connection sends its next request as soon as it has its answer.

    Ends after `seconds` or after `requests`, whichever comes first; one of both must be given.
    What ends within `warm_up_seconds`, which begin once every connection has had an answer, is not
    counted; without a warm-up everything is, the first connecting included.
    """

    connections: int
    seconds: float | None = None
    requests: int | None = None
    warm_up_seconds: float = 0.0

    def arguments(self, folder: Path) -> list[str]:
        return [
            *_options(connections=self.connections, duration=self.seconds, requests=self.requests),
            *_options(warm_up=self.warm_up_seconds),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonArrivals:
    """Requests due at random times, `rate` per second on average, the same for the same seed.

    `connections` bounds how many are in flight; what is due while none is free waits, and its
    latency grows. What is due within `warm_up_seconds` is not counted.
    """

    rate: float
    seed: int = 0
    connections: int = 256
    seconds: float | None = None
    requests: int | None = None
    warm_up_seconds: float = 0.0

    def arguments(self, folder: Path) -> list[str]:
        return [
            *_options(rate=self.rate, seed=self.seed, connections=self.connections),
            *_options(duration=self.seconds, requests=self.requests, warm_up=self.warm_up_seconds),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenArrivals:
    """Requests due at the given microseconds after the start, in ascending order."""

    offsets_microseconds: Sequence[int]
    connections: int = 256
    warm_up_seconds: float = 0.0

    def arguments(self, folder: Path) -> list[str]:
        file = folder / "arrivals"
        file.write_text("".join(f"{offset}\n" for offset in self.offsets_microseconds))
        return _options(arrivals=file, connections=self.connections, warm_up=self.warm_up_seconds)


Load = ClosedLoop | PoissonArrivals | GivenArrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Requests that got no answer, by what went wrong."""

    connect: int
    reset: int
    timeout: int
    protocol: int

    @property
    def total(self) -> int:
        return self.connect + self.reset + self.timeout + self.protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Microseconds over all answers with a status of 200 to 299; NaN when there was none."""

    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, float] | None) -> Self:
        if mapping is None:
            nan = math.nan
            return cls(mean=nan, p50=nan, p90=nan, p99=nan, p999=nan, max=nan)
        return cls(**{name.replace(".", ""): value for name, value in mapping.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What was counted, `requests` being all answers and all errors.

    `rate` is answers of status 200 to 299 per second. `late_sends` left more than a millisecond
    after they were due. `bytes_received` has heads and bodies. `cpu_share` is the generator's own
    use of one core; near 1 the figures say more about it than about the server.
    """

    requests: int
    ok: int
    statuses: Mapping[int, int]
    errors: Errors
    seconds: float
    rate: float
    latency: Latency
    late_sends: int
    bytes_received: int
    cpu_share: float

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        return cls(
            requests=mapping["requests"],
            ok=mapping["ok"],
            statuses={int(status): count for status, count in mapping["statuses"].items()},
            errors=Errors(**mapping["errors"]),
            seconds=mapping["seconds"],
            rate=mapping["rate"],
            latency=Latency.from_mapping(mapping["latency_microseconds"]),
            late_sends=mapping["late_sends"],
            bytes_received=mapping["bytes"],
            cpu_share=mapping["cpu_share"],
        )


def run_load(
    target: Target,
    load: Load,
    *,
    timeout_seconds: float = 10.0,
    latencies_file: Path | None = None,
) -> LoadResult:
    """Put the load on the target and wait until it has ended.

    `timeout_seconds` is for each request, from its start or, with arrivals, from when it was due.
    `latencies_file` gets the raw latencies, see `read_latencies`. Raises `LoadGeneratorError`.
    """
    with tempfile.TemporaryDirectory(prefix="loadgen-") as name:
        folder = Path(name)
        bodies = folder / "bodies"
        bodies.write_bytes(_framed(target.bodies))
        command = [
            str(build_load_generator(os.environ)),
            *_options(host=target.host, port=target.port, path=target.path, method=target.method),
            *(f"--header={header}: {value}" for header, value in target.headers.items()),
            *_options(bodies=bodies, timeout=timeout_seconds, latencies=latencies_file),
            *load.arguments(folder),
        ]
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LONGEST_RUN_SECONDS,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip() or f"it ended with {error.returncode}"
            raise LoadGeneratorError(reason) from error
        except subprocess.TimeoutExpired as error:
            raise LoadGeneratorError(f"no end after {error.timeout:.0f} s") from error
    return LoadResult.from_mapping(json.loads(ended.stdout))


def read_latencies(path: Path) -> Sequence[int]:
    """The microseconds in a file of raw latencies, in the order in which answers came."""
    latencies = array("I")
    latencies.frombytes(path.read_bytes())
    return latencies


def build_load_generator(environment: Mapping[str, str]) -> Path:
    """The compiled program, from the cache where this very source was compiled before."""
    sources = sorted(SOURCE_FOLDER.glob("*.[ch]"))
    program = cache_folder(environment) / f"loadgen-{_digest(sources)}"
    if program.exists():
        return program
    search_path = environment.get("PATH", "")
    found = (shutil.which(name, path=search_path) for name in COMPILERS)
    compiler = next(filter(None, found), None)
    if compiler is None:
        raise LoadGeneratorError(
            f"the load generator needs a C compiler, and none of {', '.join(COMPILERS)} is in PATH"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent, prefix=".loadgen-") as folder:
        partial = Path(folder) / program.name
        files = [str(source) for source in sources if source.suffix == ".c"]
        command = [compiler, *COMPILER_OPTIONS, "-o", str(partial), *files, "-lm"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise LoadGeneratorError(f"the load generator does not compile:\n{ended.stderr}")
        # Two that build at once both end with a whole program, for the later rename wins.
        partial.replace(program)
    return program


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where compiled things are kept between runs."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "batchedmodel"


def _digest(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(" ".join(COMPILER_OPTIONS).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _framed(bodies: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def _options(**values: object) -> list[str]:
    return [
        f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None
    ]
