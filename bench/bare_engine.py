"""Our own engine without anything around it: the yardstick of the whole chain.

    python bare_engine.py CHECKPOINT < lines

Each line is a list of requests as JSON, `[prompt's token ids, tokens]`; it is answered, on a line,
with the tokens per second that they were generated at when all came at once. Started by
`generation_overhead` as a process of its own, with as many threads as the model server takes.
"""

import sys
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import orjson

from batchedmodel_contract.generation.frames import Sampling, Submit
from batchedmodel_model_server.api.generator import CacheSettings, Generator
from batchedmodel_model_server.generation.engine import Engine
from batchedmodel_model_server.handlers.hf import HuggingFace
from batchedmodel_scheduling.engine.step_planner import StepSettings
from batchedmodel_scheduling.latency.step_times import StepCost

SEQUENCES: Final = 64
TOKENS_PER_STEP: Final = 512
"""Both as the model server has them on a CPU."""
_CACHE_BYTES: Final = 512 << 20
_FREE: Final = StepCost(base=0.0, prefill_token=0.0, sequence=0.0)


def loaded(checkpoint: Path, dtype: str = "float32") -> Generator:
    """The model."""
    handler = HuggingFace()
    handler.parameters = {"dtype": dtype}
    handler.cache = CacheSettings(memory_bytes=_CACHE_BYTES)
    handler.load(checkpoint, "cpu")
    assert handler.generator is not None
    return handler.generator


def engine_of(generator: Generator, sequences: int = SEQUENCES) -> Engine:
    """An engine that knows nothing of costs and has no target."""
    return Engine(
        generator.runner,
        StepSettings(
            max_sequences=sequences,
            max_tokens_per_step=TOKENS_PER_STEP,
            block_tokens=generator.runner.block_tokens,
            blocks=generator.runner.blocks,
        ),
        _FREE,
        vocabulary=generator.vocabulary,
        max_context_tokens=generator.max_context_tokens,
    )


def rate(generator: Generator, requests: Iterable[tuple[list[int], int]]) -> float:
    """Tokens per second."""
    engine = engine_of(generator)
    began, given = time.perf_counter(), 0
    for number, (ids, tokens) in enumerate(requests):
        greedy = Sampling(temperature=0.0)
        engine.submit(
            Submit(id=number, ids=array("i", ids), max_tokens=tokens, sampling=greedy), 0.0
        )
    while engine.busy:
        engine.step(0.0)
        report, _ = engine.take(0.0)
        given += len(report.tokens)
    return given / (time.perf_counter() - began)


def main() -> None:
    """Answer lines until there are no more."""
    generator = loaded(Path(sys.argv[1]))
    for line in sys.stdin:
        print(f"rate: {rate(generator, orjson.loads(line))}", flush=True)


if __name__ == "__main__":
    main()
