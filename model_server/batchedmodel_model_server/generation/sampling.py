"""Chooses the next tokens from a model's scores (logits), for all rows of a step at once.

In this order, as transformers has it: penalties, temperature, `top_k`, `top_p`, `min_p`. Logprobs
are those of the model's own distribution, before any of these, as OpenAI and vLLM tell them.

A draw is decided by one number, which is a hash of the seed, the choice and the token's place in
the text, so it does not depend on what else is in a step. It is laid on the probabilities in the
order of the vocabulary: their own order may change by rounding where two are nearly equal.

A row costs what its own fields cost, whatever its neighbours ask for. A small `top_k` goes first:
all that follows sees few tokens then. The other rows are computed a few at a time, so that a
filter touches the rows that ask for it, and what lies between two passes stays in the cache.
"""

from __future__ import annotations  # array.array takes no type argument at run time

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from batchedmodel_contract.generation.frames import Sampling
from batchedmodel_model_server.api.generator import Draw, Sampled
from batchedmodel_model_server.errors import ForwardFailed

_NEVER: Final = float("-inf")
_NOTHING: Final = float("nan")
_PLACE: Final = struct.Struct("<QQQ")
_LOW: Final = (1 << 64) - 1
_SMALL_TOP_K: Final = 256
"""The largest `top_k` that goes first: to find more tokens takes longer than it saves."""
_TOP_K_SPARE: Final = 8
"""Tokens that are found beyond `top_k`: those that are as probable as the last one belong to it."""
_BLOCK_TOKENS: Final = 128
"""Neighbours of which the best one is found first."""
_REGISTER_FLOATS: Final = 16
"""Floats in the widest register of a CPU; a narrower one has a divisor of it."""
_ROWS_BYTES: Final = 1 << 20
"""Size of the rows that are computed together on a CPU: half of a core's own cache."""
_HIDDEN: Final = -3e38
"""Added to a score, it leaves the token no probability."""


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
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise ForwardFailed("the model's scores of a next token hold what is no number")
    return _told(logits, _chosen(logits, draws), [draw.sampling for draw in draws])


def _chosen(logits: Any, draws: Sequence[Draw]) -> list[int]:
    """The token of each row."""
    vocabulary = logits.shape[-1]
    tokens = [0] * len(draws)
    cold, few, many = list[int](), list[int](), list[int]()
    for at, draw in enumerate(draws):
        how = draw.sampling
        is_narrow = (how.top_k + _TOP_K_SPARE) * _REGISTER_FLOATS < vocabulary
        if how.temperature == 0:
            cold.append(at)
        elif 0 < how.top_k <= _SMALL_TOP_K and is_narrow:
            few.append(at)
        else:
            many.append(at)
    if cold:
        best = _scores(logits, cold, draws).argmax(-1).tolist()
        for at, token in zip(cold, best, strict=True):
            tokens[at] = token
    if few:
        for at, token in zip(few, _of_small_top_k(logits, few, draws), strict=True):
            if token is None:
                many.append(at)
            else:
                tokens[at] = token
    for rows in _together(logits, many):
        for at, token in zip(rows, _of_vocabulary(logits, rows, draws), strict=True):
            tokens[at] = token
    return tokens


def _of_small_top_k(logits: Any, rows: Sequence[int], draws: Sequence[Draw]) -> list[int | None]:
    """A token of each of these rows, all of which have a small `top_k`.

    None: more tokens belong to it than were found, as many are as probable as the last one.
    """
    import torch

    samplings = [draws[at].sampling for at in rows]
    count = max(one.top_k for one in samplings) + _TOP_K_SPARE
    values, tokens = _largest(_scores(logits, rows, draws), count)
    values = _scaled(values, samplings)
    last = torch.tensor([[one.top_k - 1] for one in samplings], device=logits.device)
    is_member = values >= values.gather(-1, last)
    is_whole = (~is_member[:, -1]).tolist()
    # In the order of the vocabulary, each in its place of a register: so they are added up to the
    # same sum as among all the others, which add nothing.
    tokens, order = tokens.sort(-1)
    values = values.masked_fill(~is_member, _NEVER).gather(-1, order)
    width = count * _REGISTER_FLOATS
    begins = torch.arange(0, width, _REGISTER_FLOATS, device=logits.device)
    spread = values.new_full((len(rows), width), _NEVER)
    spread.scatter_(-1, begins + tokens % _REGISTER_FLOATS, values)
    places = _drawn(spread, samplings, _numbers(rows, draws))[:, None] // _REGISTER_FLOATS
    chosen = tokens.gather(-1, places)[:, 0].tolist()
    return [token if whole else None for token, whole in zip(chosen, is_whole, strict=True)]


def _of_vocabulary(logits: Any, rows: Sequence[int], draws: Sequence[Draw]) -> list[int]:
    """A token of each of these rows, which may be any of the vocabulary."""
    samplings = [draws[at].sampling for at in rows]
    values = _scaled(_scores(logits, rows, draws), samplings)
    for nth, one in enumerate(samplings):
        if 0 < one.top_k < values.shape[-1]:
            # Ones and zeros, times what hides a token.
            below = values[nth].clone().lt_(_nth_largest(values[nth], one.top_k))
            values[nth] += below.mul_(_HIDDEN)
    tokens: list[int] = _drawn(values, samplings, _numbers(rows, draws)).tolist()
    return tokens


def _together(logits: Any, rows: Sequence[int]) -> Iterator[Sequence[int]]:
    """These rows, as many at a time as are computed together."""
    count = max(1, len(rows))
    if logits.device.type == "cpu":
        count = max(1, _ROWS_BYTES // (logits.element_size() * logits.shape[-1]))
    return (rows[begin : begin + count] for begin in range(0, len(rows), count))


def _rows_of(logits: Any, rows: Sequence[int]) -> Any:
    """These rows, to be read only."""
    import torch

    if len(rows) == 1:
        return logits[rows[0] : rows[0] + 1]
    return logits.index_select(0, torch.tensor(rows, device=logits.device))


def _scores(logits: Any, rows: Sequence[int], draws: Sequence[Draw]) -> Any:
    """These rows after their penalties, to be read only."""
    every = [draws[at] for at in rows]
    if not any(map(_is_penalised, every)):
        return _rows_of(logits, rows)
    scores = _rows_of(logits, rows).clone()
    _penalise(scores, every)
    return scores


def _is_penalised(draw: Draw) -> bool:
    how = draw.sampling
    return bool(how.presence_penalty or how.frequency_penalty or how.repetition_penalty != 1)


def _penalise(scores: Any, draws: Sequence[Draw]) -> None:
    import torch

    flat, vocabulary = scores.view(-1), scores.shape[-1]

    def on_device(values: NDArray[Any]) -> Any:
        return torch.from_numpy(values).to(scores.device)

    def ids_of(draw: Draw, begin: int = 0) -> NDArray[np.int32]:
        """Those from there on that have a score: a head may be narrower than the embeddings."""
        ids = np.frombuffer(draw.ids, np.int32)[begin:]
        scored: NDArray[np.int32] = ids[ids < vocabulary]
        return scored

    def places(rows: Sequence[int], ids: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
        """Where these rows' tokens lie in `flat`."""
        begins = np.array(rows) * vocabulary
        return np.repeat(begins, [*map(len, ids)]) + np.concatenate(ids)

    repeating = [nth for nth, one in enumerate(draws) if one.sampling.repetition_penalty != 1]
    if repeating:
        ids = [ids_of(draws[nth]) for nth in repeating]
        penalties = [draws[nth].sampling.repetition_penalty for nth in repeating]
        penalty = on_device(np.repeat(np.array(penalties, np.float32), [*map(len, ids)]))
        known = on_device(places(repeating, ids))
        before = flat[known]
        # A token that is there twice is written twice, with the same score.
        flat[known] = torch.where(before > 0, before / penalty, before * penalty)
    presence = np.array([one.sampling.presence_penalty for one in draws])
    frequency = np.array([one.sampling.frequency_penalty for one in draws])
    counting = np.flatnonzero((presence != 0) | (frequency != 0)).tolist()
    if counting:
        texts = [ids_of(draws[nth], draws[nth].prompt_tokens) for nth in counting]
        distinct, counts = np.unique(places(counting, texts), return_counts=True)
        rows = distinct // vocabulary
        taken = presence[rows] + frequency[rows] * counts
        flat[on_device(distinct)] -= on_device(taken.astype(np.float32))


def _scaled(scores: Any, samplings: Sequence[Sampling]) -> Any:
    """The scores by their temperatures."""
    # The largest score becomes 0 first: a tiny temperature makes none of them infinite then.
    scores = scores - scores.amax(-1, keepdim=True)
    scores /= _column([max(one.temperature, 1e-5) for one in samplings], scores)
    return scores


def _numbers(rows: Sequence[int], draws: Sequence[Draw]) -> list[float]:
    """What decides the draws of these rows."""
    return [
        uniform(one.sampling.seed, one.choice, len(one.ids) - one.prompt_tokens)
        for one in (draws[at] for at in rows)
    ]


def _drawn(scores: Any, samplings: Sequence[Sampling], numbers: Sequence[float]) -> Any:
    """A place in each row of scaled scores."""
    import torch

    probabilities = scores.softmax(-1)
    least = None
    if any(one.top_p < 1 for one in samplings):
        least = _least_of_top(probabilities, _column([one.top_p for one in samplings], scores))
    if any(one.min_p > 0 for one in samplings):
        shares = _column([one.min_p for one in samplings], scores)
        other = probabilities.amax(-1, keepdim=True) * shares
        least = other if least is None else torch.maximum(least, other)
    if least is not None:
        # Ones and zeros. `masked_fill` takes ten times as long.
        probabilities *= probabilities.clone().ge_(least)
    summed = probabilities.cumsum(-1)
    whole = summed[:, -1:].contiguous()
    place = torch.searchsorted(summed, _column(numbers, scores) * whole, right=True)
    # A number just below 1 may be rounded up to the whole: then it is the last that has any part.
    last = torch.searchsorted(summed, whole)
    return torch.minimum(place, last)[:, 0]


def _least_of_top(probabilities: Any, wanted: Any) -> Any:
    """Each row's probability of the last token that belongs to the part `wanted`."""
    import torch

    best = _descending(probabilities)
    before = best.cumsum(-1).sub_(best)
    # The most probable token always belongs to it.
    members = before.lt_(wanted).sum(-1, keepdim=True).long().clamp_(min=1)
    least = best.gather(-1, members - 1)
    return torch.where(wanted >= 1, torch.zeros_like(least), least)


def _largest(values: Any, count: int) -> tuple[Any, Any]:
    """Each row's `count` largest values and their places, the largest first.

    They lie in the `count` blocks with the largest best ones. To look only there takes a quarter of
    the time of torch's `topk` over all.
    """
    import torch

    rows, width = values.shape
    blocks = width // _BLOCK_TOKENS
    if blocks <= count:
        return tuple(values.topk(count, -1))
    end = blocks * _BLOCK_TOKENS
    best = values[:, :end].view(rows, blocks, _BLOCK_TOKENS).amax(-1).topk(count, -1).indices
    within = torch.arange(_BLOCK_TOKENS, device=values.device)
    rest = torch.arange(end, width, device=values.device).expand(rows, -1)
    places = torch.cat([(best[..., None] * _BLOCK_TOKENS + within).flatten(1), rest], -1)
    largest, at = values.gather(-1, places).topk(count, -1)
    return largest, places.gather(-1, at)


def _nth_largest(values: Any, nth: int) -> float:
    """The smallest of the `nth` largest values of one row."""
    least = len(values) - nth
    if values.device.type != "cpu":
        return float(values.kthvalue(least + 1).values)
    # Fifteen times as fast as by torch.
    return float(np.partition(values.numpy(), least)[least])


def _descending(values: Any) -> Any:
    """Each row's values, the largest first."""
    import torch

    if values.device.type != "cpu":
        return values.sort(-1, descending=True).values
    # Twenty times as fast as by torch, which has every value carry its place.
    return torch.from_numpy(np.sort(-values.numpy(), axis=-1)).neg_()


def _column(values: Sequence[float], like: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]


def _told(logits: Any, tokens: Sequence[int], samplings: Sequence[Sampling]) -> list[Sampled]:
    """The tokens, with their logprobs where those are asked for."""
    import torch

    told = [Sampled(token, _NOTHING) for token in tokens]
    asking = [at for at, one in enumerate(samplings) if one.logprobs is not None]
    for rows in _together(logits, asking):
        logprobs = _rows_of(logits, rows).log_softmax(-1)
        chosen = torch.tensor([[tokens[at]] for at in rows], device=logits.device)
        own = logprobs.gather(-1, chosen)[:, 0].tolist()
        most = min(max(samplings[at].logprobs or 0 for at in rows), logprobs.shape[-1])
        values, places = (one.tolist() for one in _largest(logprobs, most))
        for nth, at in enumerate(rows):
            count = samplings[at].logprobs or 0
            top = tuple(zip(places[nth][:count], values[nth][:count], strict=True))
            told[at] = Sampled(tokens[at], own[nth], top)
    return told
