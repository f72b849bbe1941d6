"""Chooses the next tokens from a model's scores (logits), for all rows of a step at once.

In this order, as transformers has it: penalties, temperature, `top_k`, `top_p`, `min_p`. Logprobs
are those of the model's own distribution, before any of these, as OpenAI and vLLM tell them.

A draw is decided by one number, which is a hash of the seed, the choice and the token's place in
the text, so it does not depend on what else is in a step. It is laid on the probabilities in the
order of the vocabulary: their own order may change by rounding where two are nearly equal.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw, Sampled
from batchedmodel_model_server.errors import ForwardFailed

_NEVER: Final = float("-inf")
_NOTHING: Final = float("nan")
_PLACE: Final = struct.Struct("<QQQ")
_LOW: Final = (1 << 64) - 1
_FIRST_LOOK: Final = 1024
"""Of so many of the most probable tokens `top_p` is tried first: sorting all takes longer."""


def uniform(seed: int, choice: int, place: int) -> float:
    """A number from 0 to below 1, always the same for the same three."""
    key = _PLACE.pack(seed & _LOW, choice & _LOW, place & _LOW)
    number = int.from_bytes(blake2b(key, digest_size=8).digest(), "little")
    return (number >> 11) * 2.0**-53


def sampled(logits: Any, draws: Sequence[Draw]) -> list[Sampled]:
    """What each draw gives by its row of logits (draws x vocabulary, floats, left as they are).

    Raises `ForwardFailed` where a row holds what is no number.
    """
    import torch

    logits = logits.float()
    largest, best = logits.max(-1)
    if not bool(torch.isfinite(largest).all()):
        raise ForwardFailed("the model's scores of a next token hold what is no number")
    samplings = [draw.sampling for draw in draws]
    chosen = best
    scores = _penalised(logits, draws)
    if scores is not logits:
        chosen = scores.argmax(-1)
    warm = [at for at, one in enumerate(samplings) if one.temperature > 0]
    if warm:
        rows = torch.tensor(warm, device=logits.device)
        numbers = [
            uniform(
                draws[at].sampling.seed,
                draws[at].choice,
                len(draws[at].ids) - draws[at].prompt_tokens,
            )
            for at in warm
        ]
        drawn = _drawn(scores.index_select(0, rows), [samplings[at] for at in warm], numbers)
        chosen = chosen.index_copy(0, rows, drawn)
    return _told(logits, largest, chosen, samplings)


def _penalised(logits: Any, draws: Sequence[Draw]) -> Any:
    """The scores after penalties; the same tensor where nobody asks for any."""
    import torch

    scores = logits
    for row, draw in enumerate(draws):
        how = draw.sampling
        if not (how.presence_penalty or how.frequency_penalty or how.repetition_penalty != 1):
            continue
        scores = logits.clone() if scores is logits else scores
        mine = scores[row]
        ids = np.frombuffer(draw.ids, np.int32)
        if how.repetition_penalty != 1:
            known = torch.from_numpy(np.unique(ids).astype(np.int64)).to(scores.device)
            given = mine[known]
            less, more = given / how.repetition_penalty, given * how.repetition_penalty
            mine[known] = torch.where(given > 0, less, more)
        text, counts = np.unique(ids[draw.prompt_tokens :], return_counts=True)
        if len(text) and (how.presence_penalty or how.frequency_penalty):
            taken = how.presence_penalty + how.frequency_penalty * counts
            at = torch.from_numpy(text.astype(np.int64)).to(scores.device)
            mine[at] -= torch.from_numpy(taken.astype(np.float32)).to(scores.device)
    return scores


def _drawn(scores: Any, samplings: Sequence[Sampling], numbers: Sequence[float]) -> Any:
    """One token for each row, all of which have a temperature."""
    import torch

    def column(values: Sequence[float]) -> Any:
        return torch.tensor(values, dtype=torch.float32, device=scores.device)[:, None]

    # The largest score becomes 0 first: a tiny temperature makes none of them infinite then.
    scores = scores - scores.amax(-1, keepdim=True)
    scores = scores / column([max(one.temperature, 1e-5) for one in samplings])
    vocabulary = scores.shape[-1]
    tops = [min(one.top_k, vocabulary) if one.top_k > 0 else vocabulary for one in samplings]
    fewest = max((top for top in tops if top < vocabulary), default=0)
    if fewest:
        best = scores.topk(fewest, -1).values
        least = best.gather(
            -1, torch.tensor(tops, device=scores.device)[:, None].clamp(max=fewest) - 1
        )
        unbound = torch.tensor([top == vocabulary for top in tops], device=scores.device)
        scores = scores.masked_fill((scores < least) & ~unbound[:, None], _NEVER)
    probabilities = scores.softmax(-1)
    if any(one.top_p < 1 for one in samplings):
        least = _least_of_top(probabilities, column([one.top_p for one in samplings]))
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    if any(one.min_p > 0 for one in samplings):
        least = probabilities.amax(-1, keepdim=True) * column([one.min_p for one in samplings])
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    summed = probabilities.cumsum(-1)
    whole = summed[:, -1:].contiguous()
    found = torch.searchsorted(summed, column(numbers) * whole, right=True)
    # A number just below 1 may be rounded up to the whole: then it is the last that has any part.
    last = torch.searchsorted(summed, whole)
    return torch.minimum(found, last)[:, 0]


def _least_of_top(probabilities: Any, wanted: Any) -> Any:
    """Each row's probability of the last token that belongs to the part `wanted`."""
    import torch

    vocabulary = probabilities.shape[-1]
    for count in (min(_FIRST_LOOK, vocabulary), vocabulary):
        best = probabilities.topk(count, -1).values
        before = best.cumsum(-1) - best
        # The most probable token always belongs to it.
        members = (before < wanted).sum(-1, keepdim=True).clamp(min=1)
        if count == vocabulary or bool((members < count).logical_or(wanted >= 1).all()):
            break
    least = best.gather(-1, members - 1)
    return torch.where(wanted >= 1, torch.zeros_like(least), least)


def _told(logits: Any, largest: Any, chosen: Any, samplings: Sequence[Sampling]) -> list[Sampled]:
    """The tokens, with their logprobs where those are asked for."""
    import torch

    tokens = chosen.tolist()
    asking = [at for at, one in enumerate(samplings) if one.logprobs is not None]
    found = [Sampled(token, _NOTHING) for token in tokens]
    if not asking:
        return found
    rows = torch.tensor(asking, device=logits.device)
    asked = logits.index_select(0, rows).log_softmax(-1)
    own = asked.gather(-1, chosen.index_select(0, rows)[:, None])[:, 0].tolist()
    most = min(max(samplings[at].logprobs or 0 for at in asking), asked.shape[-1])
    best = asked.topk(most, -1)
    values, places = best.values.tolist(), best.indices.tolist()
    for nth, at in enumerate(asking):
        count = samplings[at].logprobs or 0
        top = tuple(zip(places[nth][:count], values[nth][:count], strict=True))
        found[at] = Sampled(tokens[at], own[nth], top)
    return found
