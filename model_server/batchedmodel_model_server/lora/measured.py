"""Measures both ways of `mix` on the device, when a model is loaded: some milliseconds."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import numpy as np

from batchedmodel_model_server.api.adapters import AdapterBounds, LowRank
from batchedmodel_model_server.lora.mix import Costs, WayCost, groups_of, runs_of
from batchedmodel_model_server.lora.stack import Stack, gathered, in_place

_PIECES: Final = 16
_TOKENS: Final = 32
_ROUNDS: Final = 7


def measured(weight: Any, rank: int) -> Costs:
    """For modules such as the one with this weight, and adapters of this rank."""
    import torch

    outputs, inputs = weight.shape
    stack = Stack(AdapterBounds(slots=_PIECES, max_rank=rank), (inputs, outputs), weight)
    pair = LowRank(weight.new_zeros(inputs, rank), weight.new_zeros(rank, outputs))
    for slot in range(1, _PIECES + 1):
        stack.put(slot, pair)

    def seconds(pieces: int, tokens: int, *, together: bool) -> float:
        slots = np.repeat(np.arange(1, pieces + 1), tokens)
        given = weight.new_zeros(len(slots), inputs)
        output = weight.new_zeros(len(slots), outputs)
        if together:
            groups = groups_of(slots)
            index = torch.from_numpy(groups.slots - 1).to(weight.device)
            places = torch.from_numpy(groups.places).to(weight.device)
            real = torch.arange(places.numel(), device=weight.device)
            return _timed(
                lambda: gathered(stack, index, groups.slots, places, real, given, output), weight
            )
        runs = runs_of(slots)
        return _timed(lambda: in_place(stack, runs, given, output), weight)

    def cost(*, together: bool) -> WayCost:
        one = seconds(1, 1, together=together)
        many = seconds(_PIECES, 1, together=together)
        long = seconds(_PIECES, _TOKENS, together=together)
        token = max(0.0, (long - many) / (_PIECES * (_TOKENS - 1)))
        piece = max(0.0, (many - one) / (_PIECES - 1) - token)
        return WayCost(base=max(0.0, one - piece - token), piece=piece, token=token)

    with torch.inference_mode():
        return Costs(in_place=cost(together=False), gathered=cost(together=True))


def _timed(work: Callable[[], None], weight: Any) -> float:
    import torch

    taken = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        if weight.is_cuda:
            torch.cuda.synchronize(weight.device)
        taken.append(time.perf_counter() - began)
    return median(taken)
