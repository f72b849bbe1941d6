"""The most probable text of a generator, without an engine."""

from array import array
from collections.abc import Sequence

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw, Generator, StepPart


def greedy_text(generator: Generator, prompt: Sequence[int], count: int) -> list[int]:
    """As an engine's steps give it: first the prompt, then token by token."""
    ids, start = array("i", prompt), 0
    while len(ids) < len(prompt) + count:
        draw = Draw(Sampling(temperature=0.0), 0, ids, len(ids) - len(prompt))
        [[drawn]] = generator.runner.run([StepPart(ids[start:], start, range(2), [draw])])
        start = len(ids)
        ids.append(drawn.token)
    return ids[len(prompt) :].tolist()
