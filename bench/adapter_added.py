"""What callers of a model notice while an adapter is added to it.

An encoder of MiniLM's size with random numbers serves short texts through sidecar and model server,
at a third of the rate that it could. Then an adapter is written into the file that lists them.
Called by `adapters`.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from batchedmodel_contract.lora import ADAPTERS_FILE, AdapterSettings
from batchedmodel_contract.manifest.adapters import AdapterItem
from batchedmodel_contract.manifest.source import Source
from batchedmodel_kube.manifest.pod_settings import adapters_to_json
from bench_report import Figure, at_most, median_of, of_rounds, tell
from compile_modules import compiled_modules
from load_generator import ClosedLoop, LoadResult, PoissonArrivals, Target, cache_folder, run_load
from support.chain import Chain, running_chain
from support.checkpoints import text_checkpoint

_RANK: Final = 8
_BODY: Final = json.dumps({"model": "m", "input": "a text of a few words"}).encode()
_SHARE: Final = 1 / 3
_MOST: Final = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    before: LoadResult
    during: LoadResult


def added_figures(sizes: Mapping[str, Any], *, quick: bool) -> list[Figure]:
    """Failed requests, and their p99 over that before."""
    rounds = asyncio.run(_measured(sizes, rounds=1 if quick else 7, seconds=3.0 if quick else 6.0))
    every = [one for each in rounds for one in (each.before, each.during)]
    failed = sum(one.requests - one.ok for one in every)
    name = "an adapter is added under load"
    return [
        at_most(f"{name}: requests that failed", failed, "", 0),
        of_rounds(
            lambda value: at_most(f"{name}: p99 of others over before", value, "", _MOST),
            [one.during.latency.p99 / one.before.latency.p99 for one in rounds],
        ),
        Figure(
            name=f"{name}: p99 before",
            value=median_of([one.before.latency.p99 / 1000 for one in rounds]),
            unit="ms",
        ),
    ]


async def _measured(sizes: Mapping[str, Any], *, rounds: int, seconds: float) -> list[_Round]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        base = text_checkpoint(folder / "base", "Bert", **sizes)
        _write_adapter(folder / "adapter", sizes)
        (folder / "settings").mkdir()
        names: list[str] = []
        _wish(folder, names)
        async with running_chain(
            folder,
            handler="hf",
            source={"path": str(base)},
            parameters={"dtype": "float32"},
            compiled=compiled_modules(cache_folder(os.environ)),
            adapters_folder=str(folder / "settings"),
            adapter_header="task-id",
            adapter_slots=8,
        ) as chain:
            headers = {"Content-Type": "application/json"}
            aim = Target(port=chain.port, path="/v1/embeddings", headers=headers, bodies=[_BODY])
            closed = ClosedLoop(connections=16, seconds=seconds, warm_up_seconds=1.0)
            rate = _SHARE * (await asyncio.to_thread(run_load, aim, closed)).rate
            found = []
            for number in range(rounds):
                tell(f"an adapter is added, round {number + 1}")
                load = PoissonArrivals(rate=rate, seconds=seconds, seed=100 + number)
                before = await asyncio.to_thread(run_load, aim, load)
                during = asyncio.create_task(asyncio.to_thread(run_load, aim, load))
                await asyncio.sleep(seconds / 4)
                names.append(f"adapter{number}")
                _wish(folder, names)
                await _listed(chain, names[-1])
                found.append(_Round(before=before, during=await during))
            return found


async def _listed(chain: Chain, name: str) -> None:
    async with asyncio.timeout(30.0):
        while True:
            async with chain.session.get(chain.url("/v1/models")) as response:
                if name in (await response.json()).get("models", []):
                    return
            await asyncio.sleep(0.05)


def _wish(folder: Path, names: list[str]) -> None:
    source = Source(path=str(folder / "adapter"))
    items = tuple(AdapterItem(name=name, source=source) for name in names)
    new = folder / "settings" / ".new"
    new.write_text(adapters_to_json(AdapterSettings(slots=8, max_rank=_RANK, items=items)))
    new.replace(folder / "settings" / ADAPTERS_FILE)


def _write_adapter(folder: Path, sizes: Mapping[str, Any]) -> None:
    """As peft writes one of queries and values."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 16}
    config |= {"target_modules": ["query", "value"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    hidden, layers = sizes["hidden_size"], sizes["num_hidden_layers"]
    tensors = {}
    for layer in range(layers):
        for target in ("query", "value"):
            module = f"base_model.model.encoder.layer.{layer}.attention.self.{target}"
            tensors[f"{module}.lora_A.weight"] = torch.randn(_RANK, hidden) * 0.05
            tensors[f"{module}.lora_B.weight"] = torch.randn(hidden, _RANK) * 0.05
    save_file(tensors, folder / "adapter_model.safetensors")
