"""What adapters cost: batches and generation with many of them, over the base alone.

An encoder of MiniLM's size with random numbers, float32 on the CPU, rank 8 on queries and values,
and a Llama of 32 million. Rounds go in turns; a ratio is the median of the ratios of rounds. Then
what callers notice when one is added (`adapter_added`), what choosing rows by adapter is worth
(`adapters_scheduling`, simulated), and what prompts save that share their beginning
(`shared_prefix`).

    python bench/adapters.py [--quick] [--json FILE]
"""

import sys
import time
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "images")]

import adapters_scheduling
from adapter_added import added_figures
from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.adapters import AdapterBounds, AdapterWeights, LowRank
from batchedmodel_model_server.api.batch import Batch
from batchedmodel_model_server.api.generator import CacheSettings, Draw, StepPart
from batchedmodel_model_server.handlers.hf import HuggingFace
from bench_report import Figure, at_least, at_most, new_parser, of_rounds, report, tell
from engine_rivals import MODEL, restart_as_in_image
from shared_prefix import prefix_figures
from support.checkpoints import VOCABULARY, text_checkpoint
from support.random_checkpoints import generating_checkpoint

_ROWS: Final = 32
_TOKENS: Final = 64
_RANK: Final = 8
_STREAMS: Final = 48
_OF_STREAMS: Final = 16
_MINILM: Final[Mapping[str, Any]] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
_OVER_NONE: Final = {1: 1.05, 8: 1.08, 32: 1.15}
_OVER_PARTS: Final = {8: 1.2, 32: 1.6}


def main() -> int:
    """Measure and report."""
    arguments = new_parser(__doc__ or "").parse_args()
    restart_as_in_image()
    rounds = 3 if arguments.quick else 15
    with TemporaryDirectory() as folder:
        figures = [*batches(Path(folder) / "encoder", rounds)]
        figures += generation(Path(folder) / "llama", rounds)
    figures += [
        *added_figures(_MINILM, quick=arguments.quick),
        *adapters_scheduling.rows(quick=arguments.quick),
        *prefix_figures(quick=arguments.quick),
    ]
    return report(figures, arguments.json)


def batches(folder: Path, rounds: int) -> list[Figure]:
    """Batch times of an encoder, over none and over one batch for each adapter."""
    base = text_checkpoint(folder, "Bert", **_MINILM)
    handler = loaded(base, 32, ("query", "value"))
    ids = np.random.default_rng(0).integers(3, VOCABULARY, (_ROWS, _TOKENS))

    def batch(slots: Any) -> None:
        count = len(slots)
        given = Batch(
            arrays={"input_ids": ids[:count]},
            sizes={"L": np.full(count, _TOKENS)},
            rows=count,
            device="cpu",
            handed_over=0.0,
            adapters=np.array(slots, np.int32),
        )
        handler.forward(given)

    def parts(adapters: int) -> None:
        for slot in range(1, adapters + 1):
            batch([slot] * (_ROWS // adapters))

    ways: dict[str, Callable[[], None]] = {"none": lambda: batch([0] * _ROWS)}
    for count in _OVER_NONE:
        ways[f"mixed {count}"] = partial(batch, [1 + at % count for at in range(_ROWS)])
    for count in _OVER_PARTS:
        ways[f"parts {count}"] = partial(parts, count)
    taken = in_turns(ways, rounds)
    found = []
    for count, bound in _OVER_NONE.items():
        name, ratios = f"batch with {count} adapters over none", taken[f"mixed {count}"]
        found.append(of_rounds(partial(_at_most, name, bound), ratios / taken["none"]))
    for count, bound in _OVER_PARTS.items():
        name = f"batches by adapter over one of {count} adapters"
        ratios = taken[f"parts {count}"] / taken[f"mixed {count}"]
        found.append(of_rounds(partial(_at_least, name, bound), ratios))
    return found


def generation(folder: Path, rounds: int) -> list[Figure]:
    """Tokens a second of many streams, each step one token of each."""
    base = generating_checkpoint(folder, "Llama", **MODEL)
    handler = loaded(base, _OF_STREAMS, ("q_proj", "v_proj"))
    assert handler.generator is not None
    runner = handler.generator.runner
    text = array("i", range(4, 28))
    greedy = Draw(Sampling(temperature=0.0), 0, text, len(text))

    def step(adapters: int) -> None:
        parts = [
            StepPart(text[:1], len(text), [at], [greedy], 1 + at % adapters if adapters else 0)
            for at in range(_STREAMS)
        ]
        runner.run(parts)

    taken = in_turns({"none": lambda: step(0), "mixed": lambda: step(_OF_STREAMS)}, 4 * rounds)
    name = f"tokens/s of {_STREAMS} streams with {_OF_STREAMS} adapters over the base"
    return [of_rounds(partial(_at_least, name, 0.9), taken["none"] / taken["mixed"])]


def _at_most(name: str, bound: float, value: float) -> Figure:
    return at_most(name, value, "x", bound)


def _at_least(name: str, bound: float, value: float) -> Figure:
    return at_least(name, value, "x", bound)


def loaded(base: Path, slots: int, targets: tuple[str, ...]) -> HuggingFace:
    """The checkpoint with an adapter in each slot."""
    import torch

    handler = HuggingFace()
    handler.parameters = {"dtype": "float32"}
    handler.adapters = AdapterBounds(slots=slots, max_rank=_RANK)
    handler.cache = CacheSettings(memory_bytes=128 << 20)
    handler.load(base, "cpu")
    bank: Any = handler.bank
    for slot in range(1, slots + 1):
        pairs = {
            name: LowRank(
                torch.randn(module.in_features, _RANK), torch.randn(_RANK, module.out_features)
            )
            for name, module in bank.modules.items()
            if name.endswith(targets)
        }
        bank.put(slot, AdapterWeights(modules=pairs, heads={}))
    return handler


def in_turns(ways: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, Any]:
    """Seconds of each way in each round, after one that does not count."""
    import torch

    taken: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        for number in range(rounds + 1):
            for name, work in ways.items():
                began = time.perf_counter()
                work()
                if number:
                    taken[name].append(time.perf_counter() - began)
    tell(f"{', '.join(ways)} measured")
    return {name: np.array(each) for name, each in taken.items()}


if __name__ == "__main__":
    sys.exit(main())
