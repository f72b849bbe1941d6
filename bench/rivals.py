"""MiniLM of ours beside other servers of it: requests a second and latencies.

    python bench/rivals.py [--quick] [--json FILE]

One text a request, of 4 to 120 words, from 1, 8 and 64 callers that each wait for their answer, on
a machine with nothing else to do and beside one process in an endless loop. Two tables: all in
float32, and each with its own default, which is bfloat16 for ours where the processor has it. The
others compute in float32 by default, so their rows are the same in both.

All servers run from the beginning with their defaults, and all but the measured one are stopped by
a signal. They warm up first, which does not count, and must give the same embedding. In each round
they take turns, another one first each time. Ours is `batchedmodel run` as plain Python, and once
more with compiled modules, as in the image; what is not kept is compiled first.

A quick run has one round on an idle machine, of ours in float32 as plain Python and of FastAPI.
"""

import os
import platform
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

from bench_report import new_parser, print_table, tell, write_json
from embedding_load import EMBEDDINGS, body, embed, texts
from embedding_rivals import SOURCE, rivals
from load_generator import ClosedLoop
from local_server import HOST, MODEL, LocalServer, busy_neighbour, ours
from rival_tables import GOALS, Load, Row, Sample, figures, markdown

FLOAT32: Final = "float32"
DEFAULTS: Final = "defaults"
DATATYPES: Final[Mapping[str, str]] = {"FP32": FLOAT32, "BF16": "bfloat16", "FP16": "float16"}
"""As ours says what it computes in."""
LEAST_COSINE: Final = 0.99
"""Between two embeddings of one text; rounding to bfloat16 leaves more."""
ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often and how long to measure."""

    rounds: int
    seconds: float
    warm_up_seconds: float
    beside: Sequence[bool]

    @property
    def loads(self) -> Sequence[Load]:
        return [Load(callers=callers, beside=beside) for beside in self.beside for callers in GOALS]


FULL: Final = Plan(rounds=5, seconds=5.0, warm_up_seconds=1.0, beside=(False, True))
QUICK: Final = Plan(rounds=1, seconds=1.0, warm_up_seconds=0.25, beside=(False,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A server that can be started, and the tables that show it."""

    name: str
    tables: Sequence[str]
    start: Callable[[str], AbstractContextManager[LocalServer]]
    is_ours: bool = False
    full_batch: int = 1
    """Fewer rows than these wait for seconds, whether the model is busy or not."""


Servers = Mapping[Candidate, LocalServer]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    options = new_parser(__doc__ or "").parse_args(arguments)
    plan = QUICK if options.quick else FULL
    with ExitStack() as stack:
        servers = started(stack, candidates(quick=options.quick))
        agree(servers.values())
        tables = {
            title: [candidate for candidate in servers if title in candidate.tables]
            for title in (FLOAT32, DEFAULTS)
        }
        datatypes = {
            candidate: datatype(server) if candidate.is_ours else FLOAT32
            for candidate, server in servers.items()
        }
        samples = measured(servers, plan)
    reported = []
    for title, shown in tables.items():
        rows = [
            Row(
                name=candidate.name,
                datatype=datatypes[candidate],
                is_ours=candidate.is_ours,
                samples=samples[candidate],
            )
            for candidate in shown
        ]
        if any(row.is_ours for row in rows):
            print(f"{markdown(title, rows)}\n")
            reported += figures(title, rows)
    print_table([figure for figure in reported if figure.goal is not None])
    print(f"\n{about(plan)}")
    if options.quick:
        print("left out, as this was a quick run: neighbours, the default datatype, most servers")
    if options.json is not None:
        write_json(options.json, reported)
    return 0


def candidates(*, quick: bool) -> Sequence[Candidate]:
    """All servers in the order in which they start."""
    mine = [
        Candidate(
            name=f"ours, {'compiled' if compiled else 'plain Python'}",
            tables=(title,),
            start=partial(
                ours,
                checkout=None,
                model={"source": SOURCE, "parameters": parameters},
                path=EMBEDDINGS,
                compiled=compiled,
            ),
            is_ours=True,
        )
        for title, parameters in ((FLOAT32, {"dtype": FLOAT32}), (DEFAULTS, {}))
        for compiled in (False, True)
    ]
    theirs = [
        Candidate(
            name=rival.name,
            tables=(FLOAT32, DEFAULTS),
            start=rival.start,
            full_batch=rival.full_batch,
        )
        for rival in rivals()
    ]
    return [mine[0], theirs[0]] if quick else [*mine, *theirs]


def started(stack: ExitStack, all_of_them: Iterable[Candidate]) -> Servers:
    """They run from now on, stopped until they are measured."""
    servers: dict[Candidate, LocalServer] = {}
    for candidate in all_of_them:
        servers[candidate] = stack.enter_context(candidate.start(candidate.name))
        tell(f"{candidate.name} ({', '.join(candidate.tables)}) is ready")
    return servers


def agree(servers: Iterable[LocalServer]) -> None:
    """Let each embed one text; ends the run where two do not mean the same."""
    first: NDArray[np.float64] | None = None
    for server in servers:
        with server.going_on():
            told = np.array(numbers(asked(server, server.path, body(server, texts()[0]))))
        unit = told / np.linalg.norm(told)
        if first is None:
            first = unit
        elif first.shape != unit.shape or first @ unit < LEAST_COSINE:
            raise SystemExit(f"{server.name} embeds a text otherwise: {told[:4]}")


def measured(servers: Servers, plan: Plan) -> Mapping[Candidate, Mapping[Load, Sequence[Sample]]]:
    """All loads on all servers, in turns."""
    in_turn = list(servers)
    for candidate in in_turn:
        sample(candidate, servers[candidate], max(plan.loads, key=lambda load: load.callers), plan)
    samples: dict[Candidate, dict[Load, list[Sample]]] = {
        candidate: {load: [] for load in plan.loads} for candidate in servers
    }
    for _ in range(plan.rounds):
        for beside in plan.beside:
            loads = [load for load in plan.loads if load.beside == beside]
            one_slice(servers, in_turn, loads, plan, samples)
        in_turn = [*in_turn[1:], in_turn[0]]
    return samples


def one_slice(
    servers: Servers,
    in_turn: Sequence[Candidate],
    loads: Sequence[Load],
    plan: Plan,
    samples: Mapping[Candidate, Mapping[Load, list[Sample]]],
) -> None:
    """Loads that are alike in what is beside them, on each server."""
    with busy_neighbour() if loads[0].beside else nullcontext():
        for load in loads:
            for candidate in in_turn:
                one = sample(candidate, servers[candidate], load, plan)
                where = f"{load.name}, {candidate.name} ({', '.join(candidate.tables)})"
                tell(f"{where}: {one.rate:.4g} 1/s, p50 {one.p50:.4g} ms, p99 {one.p99:.4g} ms")
                samples[candidate][load].append(one)


def sample(candidate: Candidate, server: LocalServer, load: Load, plan: Plan) -> Sample:
    """One server under one load; where a batch waits for seconds, one such batch."""
    closed = ClosedLoop(
        connections=load.callers, seconds=plan.seconds, warm_up_seconds=plan.warm_up_seconds
    )
    if load.callers < candidate.full_batch:
        closed = ClosedLoop(connections=load.callers, requests=load.callers)
    with server.going_on():
        result = embed(server, closed)
    return Sample(rate=result.rate, p50=result.latency.p50 / 1000, p99=result.latency.p99 / 1000)


def datatype(server: LocalServer) -> str:
    """What ours says that it computes in."""
    with server.going_on():
        described = asked(server, f"/v2/models/{MODEL}")
    return DATATYPES[described["batchedmodel"]["precision"]]


def asked(server: LocalServer, path: str, content: bytes | None = None) -> Any:
    """The JSON that it answers."""
    request = urllib.request.Request(
        f"http://{HOST}:{server.port}{path}", content, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
        return orjson.loads(response.read())


def numbers(answer: Any) -> Sequence[float]:
    """The longest list of numbers in an answer, whatever its form: the embedding."""
    if isinstance(answer, list) and answer and all(isinstance(one, float) for one in answer):
        return answer
    inner = answer.values() if isinstance(answer, dict) else answer
    lists = [numbers(one) for one in inner] if isinstance(answer, dict | list) else []
    return max(lists, key=len, default=[])


def about(plan: Plan) -> str:
    """When and where it was measured, and with what."""
    processor = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.M)
    return (
        f"{time.strftime('%Y-%m-%d')}, {plan.rounds} rounds of {plan.seconds:g} s, "
        f"{os.cpu_count()} cores ({processor[1] if processor else platform.machine()}), "
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


if __name__ == "__main__":
    sys.exit(main())
