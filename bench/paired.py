"""This checkout against another one, in turns: what a change costs and gains on the data path.

    python bench/paired.py OTHER [--rounds 9] [--seconds 3] [--only NAME] [--quick] [--json FILE]

OTHER is a checkout with a virtual environment of its own in `.venv`. Each side runs its own
processes, the sidecar with its own compiled modules, and both are there all the time; the load
generator is this checkout's for both. In each round every load is offered to one side and then to
the other, as often this one first as that one. A figure is the median of the rounds' ratios, this
side over the other, with the interval in which that median lies with 95 % (order statistics).
"""

import asyncio
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).resolve().parent.parent
_COVERED: Final = 0.95
_TEXT_PARAMETERS: Final = {
    "generates": "true", "stepSeconds": "0.004", "prefillTokenSeconds": "0.000002"
}  # fmt: skip
_TEXTS: Final = "texts"
_UPSTREAM: Final = "upstream"
_MIXED: Final = "mixed"
_MIXED_PARAMETERS: Final = {"generates": "true", "stepSeconds": "0.01", "rowSeconds": "0.001"}
_STREAMS: Final = 64


# In the checkout that is measured: only what both have is imported.


async def _hold(folder: Path) -> None:
    """Run this side's processes until the standard input ends; print where they are."""
    import os

    from batchedmodel_contract.manifest.batching import BatchSettings
    from compile_modules import compiled_modules
    from device_chain import device_chain, running_chain
    from load_generator import cache_folder
    from process_family import family_bytes
    from stream_chain import SETTINGS, stream_chain
    from streams import ENGINE
    from throughput_loads import DEVICES

    async with contextlib.AsyncExitStack() as stack:
        told: dict[str, dict[str, int]] = {}
        chains: dict[str, Any] = {}
        for number, device in enumerate(DEVICES):
            chains[device.name] = await stack.enter_async_context(
                device_chain(
                    folder / str(number),
                    curve=device.curve,
                    settings=device.settings,
                    parameters=device.parameters,
                )
            )
        chains[_TEXTS] = await stack.enter_async_context(
            running_chain(
                folder / _TEXTS,
                handler="simulated",
                parameters=_TEXT_PARAMETERS,
                settings=SETTINGS,
                compiled=compiled_modules(cache_folder(os.environ)),
            )
        )
        chains[_MIXED] = await stack.enter_async_context(
            running_chain(
                folder / _MIXED,
                handler="simulated",
                parameters=_MIXED_PARAMETERS,
                settings=BatchSettings(max_batch_size=32, max_queue_size=512),
                compiled=compiled_modules(cache_folder(os.environ)),
            )
        )
        upstream = await stack.enter_async_context(stream_chain(folder / _UPSTREAM, ENGINE))
        chains[_UPSTREAM] = upstream.chain
        for name, chain in chains.items():
            told[name] = {
                "port": chain.port, "admin": chain.admin_port, "sidecar": chain.sidecar.pid
            }  # fmt: skip
            if name != _UPSTREAM:
                told[name] |= {"model": chain.model.pid}
            told[name]["bytes"] = family_bytes(chain.sidecar.pid)
        print(json.dumps(told), flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _start(folder: Path) -> None:
    """Print the seconds from nothing to a sidecar whose model is ready."""
    from device_chain import device_chain
    from throughput_loads import FIRST

    began = time.monotonic()
    async with device_chain(folder, curve=FIRST.curve, settings=FIRST.settings):
        print(time.monotonic() - began, flush=True)


def _of_side(checkout: Path, what: str, folder: str) -> subprocess.Popen[str]:
    """A process of that checkout which does what is named."""
    program = (
        f"import sys; sys.path[:0] = [{str(checkout / 'bench')!r}, {str(checkout / 'tests')!r}, "
        f"{str(checkout / 'images')!r}]; import importlib.util as u, asyncio, pathlib; "
        f"s = u.spec_from_file_location('paired_side', {str(_HERE / 'bench/paired.py')!r}); "
        "m = u.module_from_spec(s); sys.modules['paired_side'] = m; s.loader.exec_module(m); "
        f"asyncio.run(m.{what}(pathlib.Path({folder!r})))"
    )
    python = str(checkout / ".venv/bin/python")
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [python, "-P", "-c", program], stdin=pipe, stdout=pipe, text=True, cwd=checkout
    )


# In this checkout


@dataclass(slots=True)
class Side:
    """Where the processes of one checkout are."""

    chains: dict[str, dict[str, int]]


Measured = dict[str, float]
"""Values of one load at one side, by the names of figures."""


@contextlib.contextmanager
def _sides(checkouts: Sequence[Path]) -> Iterator[list[Side]]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="paired-"))
        processes = [
            stack.enter_context(_of_side(one, "_hold", str(Path(folder, str(number)))))
            for number, one in enumerate(checkouts)
        ]
        sides = []
        for process in processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("a side did not start")
            sides.append(Side(json.loads(line)))
        yield sides
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()


def _loads(seconds: float) -> dict[str, Callable[[Side, int], Measured]]:
    from load_generator import ClosedLoop, Load, PoissonArrivals, Target, run_load
    from mixed_load import mixed
    from process_cpu import cpu_seconds
    from process_family import family_cpu_seconds
    from stream_plan import Stream, StreamLoad, run_streams
    from throughput_loads import BUSY, LONE, ONE_ROW, SHAPES, Ask

    def offered(name: str, ask: Ask, load: Load) -> Callable[[Side, int], Any]:
        def offer(side: Side, seed: int) -> Any:
            chain = side.chains[name]
            headers = {"Content-Type": "application/json"} if ask.headers is None else ask.headers
            to = Target(
                port=chain["port"], path="/v2/models/m/infer", headers=headers, bodies=[ask.body]
            )
            pids = (chain["sidecar"], chain["model"])
            before = [cpu_seconds(pid) for pid in pids]
            result = run_load(to, load)
            spent = [cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
            return result, [1e6 * one / max(1, result.requests) for one in spent]

        return offer

    def closed(one: Any, *, rate: bool, median: bool = False) -> Callable[[Side, int], Measured]:
        load = ClosedLoop(connections=one.connections, seconds=seconds, warm_up_seconds=0.3)
        offer = offered(one.device.name, one.ask, load)

        def measure(side: Side, seed: int) -> Measured:
            result, (sidecar, model) = offer(side, seed)
            found = {"CPU of the sidecar per request": sidecar}
            found["CPU of the model server per request"] = model
            if rate:
                found["answers a second"] = result.rate
            if median:
                found["median"] = result.latency.p50
            found["failed"] = float(result.requests - result.ok)
            return found

        return measure

    def poisson(side: Side, seed: int) -> Measured:
        load = PoissonArrivals(
            rate=500.0, seed=seed, connections=256, seconds=seconds, warm_up_seconds=0.3
        )
        result, _ = offered("device 1", ONE_ROW, load)(side, seed)
        return {"p99": result.latency.p99, "failed": float(result.requests - result.ok)}

    def texts(name: str, *, marked: bool) -> Callable[[Side, int], Measured]:
        def measure(side: Side, seed: int) -> Measured:
            chain = side.chains[name]
            streams = [
                Stream(mark=seed * 100_000 + number, tokens=40, marked=marked)
                for number in range(int(4000 * seconds))
            ]
            load = StreamLoad(port=chain["port"], streams=streams, seconds=seconds, closed=_STREAMS)
            before = family_cpu_seconds(chain["sidecar"])
            result = asyncio.run(run_streams(load))
            spent = family_cpu_seconds(chain["sidecar"]) - before
            tokens = sum(one.tokens for one in result.records)
            gaps = sorted(one.longest_gap for one in result.records if one.tokens > 1)
            found = {"CPU of the sidecar per token": 1e6 * spent / max(1, tokens)}
            found["tokens a second"] = tokens / seconds
            found["longest gap of a text, median"] = gaps[len(gaps) // 2] if gaps else math.nan
            return found

        return measure

    return {
        BUSY[0].name: closed(BUSY[0], rate=True),
        BUSY[1].name: closed(BUSY[1], rate=True),
        LONE[0].name: closed(LONE[0], rate=False, median=True),
        "device 1, 500/s": poisson,
        SHAPES[-1].name: closed(SHAPES[-1], rate=True),
        "streamed chats of our engine": texts(_TEXTS, marked=False),
        "streamed chats of an upstream": texts(_UPSTREAM, marked=True),
        "texts beside images and JSON of 13 MiB": lambda side, seed: mixed(
            side.chains[_MIXED], seconds
        ),
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Bounds between which the median lies with 95 %, by the order of the values."""
    ordered, count = sorted(values), len(values)
    best = 0
    for rank in range(1, count // 2 + 1):
        outside = 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count
        if 1 - outside >= _COVERED:
            best = rank
    return (ordered[best - 1], ordered[count - best]) if best else (ordered[0], ordered[-1])


def _starts(checkouts: Sequence[Path], rounds: int) -> list[list[float]]:
    seconds: list[list[float]] = [[], []]
    for turn in range(rounds):
        for at in (0, 1) if turn % 2 == 0 else (1, 0):
            with (
                tempfile.TemporaryDirectory(prefix="paired-") as folder,
                _of_side(checkouts[at], "_start", folder) as process,
            ):
                assert process.stdout is not None
                seconds[at].append(float(process.stdout.readline() or "nan"))
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit code."""
    sys.path[:0] = [str(_HERE / folder) for folder in ("bench", "tests", "images")]
    from dataclasses import replace

    from bench_report import Figure, at_least, at_most, new_parser, report, tell
    from mixed_load import LIVE

    parser = new_parser("This checkout against another one, in turns.")
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", action="append", metavar="NAME", help="a part of a load's name")
    options = parser.parse_args(arguments)
    rounds, seconds = (1, 1.0) if options.quick else (options.rounds, options.seconds)
    checkouts = [_HERE, options.other.resolve()]
    loads = _loads(seconds)
    if options.only:
        loads = {
            name: one for name, one in loads.items() if any(part in name for part in options.only)
        }
    ratios: dict[str, list[float]] = defaultdict(list)
    values: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    figures: list[Figure] = []
    with _sides(checkouts) as sides:
        for turn in range(rounds):
            tell(f"round {turn + 1} of {rounds}")
            for name, load in loads.items():
                measured: list[Measured] = [{}, {}]
                for at in (0, 1) if turn % 2 == 0 else (1, 0):
                    measured[at] = load(sides[at], turn)
                for what, mine in measured[0].items():
                    for at in (0, 1):
                        values[f"{name}: {what}"][at].append(measured[at][what])
                    if what not in ("failed", LIVE):
                        ratios[f"{name}: {what}"].append(mine / (measured[1][what] or math.nan))
        held = [sum(chain["bytes"] for chain in side.chains.values()) for side in sides]
        ratios["memory of idle sidecars"].append(held[0] / held[1])
    if not options.only:
        for mine, other in zip(*_starts(checkouts, rounds), strict=True):
            ratios["start to a ready model"].append(mine / other)
    for name, found in ratios.items():
        low, high = interval(found)
        median = sorted(found)[len(found) // 2]
        label = f"{name} ({low:.3f} to {high:.3f})"
        more_is_better = "a second" in name
        bound = 0.9 if more_is_better and "images" in name else 0.95
        most = 1.1 if "beside" in name else 1.05
        one = (
            at_least(label, median, "x", bound)
            if more_is_better
            else at_most(label, median, "x", most)
        )
        figures.append(replace(one, rounds=tuple(found)))
    figures += [
        at_most(f"{name}, all rounds", max(both[0]), "s", 1.0)
        for name, both in values.items()
        if name.endswith(LIVE)
    ]
    failed = sum(sum(both[0]) for name, both in values.items() if name.endswith(": failed"))
    figures.append(at_most("requests of this side that failed", failed, "", 0.0))
    for name, (mine_all, other_all) in values.items():
        if not name.endswith(": failed"):
            print(
                f"{name}: {sorted(mine_all)[len(mine_all) // 2]:.4g} against "
                f"{sorted(other_all)[len(other_all) // 2]:.4g}"
            )
    return report(figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
