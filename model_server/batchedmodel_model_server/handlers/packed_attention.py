"""Attention over one row of concatenated items, registered with transformers.

`use` switches a model over whose attention runs through transformers' registry. It computes as it
did before, but within `packed` each item attends to its own tokens only. Whether the answers stay
the same is tried by the self-test. Within `stepping` each token attends to what a cache has of its
sequence; whether that is what the model itself does is tried when it is loaded.

The spans of the items are handed over by a context variable: models differ in which arguments they
hand down to their attention, and the mask, which would be total x total, must not be made either.

On a CPU each run of equal lengths is a call of its own. On a GPU, where many small calls cost more
than padding, one kernel of torch's takes them all. What that refuses, such as float32, is padded,
and the self-test says why.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final, NamedTuple

from batchedmodel_model_server.api.batch import Packed
from batchedmodel_model_server.generation.paged_attention import (
    StepAttention,
    Terms,
    computing,
    current_step,
)

NAME: Final = "batchedmodel_packed"
_STOCK: Final = "sdpa"


class _Spans(NamedTuple):
    """Where the items of a row lie."""

    runs: list[tuple[int, int]]
    """Neighbours of equal length, which one call computes: how many, and their length."""
    ends: Any
    """INT32 tensor on the device: 0, then the end of each item."""
    longest: int
    total: int


_spans: ContextVar[_Spans | None] = ContextVar("spans", default=None)


def use(model: Any) -> bool:
    """Switch a transformers model over; False for one whose attention cannot be reached."""
    # A model that is not run by SDPA has a reason for it, such as a bias of its own.
    if stock_attention(model) not in (_STOCK, NAME):
        return False
    _switch(model, NAME)
    return stock_attention(model) == NAME


def stock_attention(model: Any) -> str:
    """The name of the attention by which the model runs now."""
    return str(model.config._attn_implementation)


def _switch(model: Any, name: str) -> None:
    """Leaves a model as it is whose attention does not go through the registry."""
    from transformers import AttentionInterface, AttentionMaskInterface

    if stock_attention(model) != name:
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, _mask)
        model.set_attn_implementation(name)


@contextmanager
def stepping(model: Any, step: StepAttention) -> Iterator[None]:
    """Within it the model's layers attend by a step over a cache.

    Raises `NotImplementedError` for a model whose attention does not go through the registry.
    """
    before = stock_attention(model)
    _switch(model, NAME)
    try:
        if stock_attention(model) != NAME:
            raise NotImplementedError("its attention does not go through transformers' registry")
        with computing(step):
            yield
    finally:
        _switch(model, before)


@contextmanager
def packed(row: Packed, device: str) -> Iterator[None]:
    """Within it, attention stays inside each item of the row."""
    import torch

    runs = [(len(list(equal)), length) for length, equal in groupby(row.lengths.tolist())]
    ends = torch.tensor([0, *row.ends.tolist()], dtype=torch.int32, device=device)
    token = _spans.set(_Spans(runs, ends, row.longest, row.total))
    try:
        yield
    finally:
        _spans.reset(token)


def _mask(*args: Any, **kwargs: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    stock = _spans.get() is None and current_step() is None
    return sdpa_mask(*args, **kwargs) if stock else None


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """As transformers calls it: 1 x heads x total x size in, 1 x total x heads x size out."""
    step, spans = current_step(), _spans.get()
    if step is None and spans is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Any, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return result
    is_causal, sliding_window = kwargs.get("is_causal"), kwargs.get("sliding_window")
    if kwargs.get("position_bias") is not None or attention_mask is not None:
        raise NotImplementedError("attention with a bias or a mask of its own")
    if kwargs.get("s_aux") is not None:
        raise NotImplementedError("attention with sinks")
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    softcap = kwargs.get("softcap")
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise NotImplementedError("attention over something else than the row of tokens")
    if step is not None:
        if not causal:
            raise NotImplementedError("attention to tokens that come later")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return step.attend(query, key, value, Terms(scale, sliding_window, softcap)), None
    assert spans is not None, "only one of the two is there"
    if softcap or query.shape[2] != spans.total:
        raise NotImplementedError("attention with a cap, or over something else than the row")
    # Counted as flash kernels count it: so many tokens to the left and, unless causal, the right.
    window = None if sliding_window is None else sliding_window - 1
    if not query.is_cuda:
        return _by_runs(spans, query, key, value, scaling, window, causal=causal), None
    from torch.nn.attention.varlen import varlen_attn

    left = -1 if window is None else window
    output = varlen_attn(
        *(part[0].transpose(0, 1) for part in (query, key, value)),
        spans.ends,
        spans.ends,
        spans.longest,
        spans.longest,
        scale=scaling,
        window_size=(left, 0 if causal else left),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[None], None


def _by_runs(
    spans: _Spans,
    query: Any,
    key: Any,
    value: Any,
    scaling: float | None,
    window: int | None,
    *,
    causal: bool,
) -> Any:
    """Each token sees `window` tokens to the left and, unless causal, to the right; None: all."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    pieces = []
    tokens = [count * length for count, length in spans.runs]
    parts = zip(*(part[0].split(tokens, dim=1) for part in (query, key, value)), strict=True)
    for run, of_run in zip(spans.runs, parts, strict=True):
        # heads x (items x length) x size -> items x heads x length x size, without a copy.
        q, k, v = (part.unflatten(1, run).transpose(0, 1) for part in of_run)
        length, seen = run[1], None
        if window is not None and length > window + 1:
            # Tokens at most a window away, and none to the right when causal.
            at = torch.arange(length)
            distance = at[:, None] - at[None, :]
            seen = distance.abs() <= window
            if causal:
                seen &= distance >= 0
        found = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=seen,
            is_causal=causal and seen is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        pieces.append(found.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)[None] if len(pieces) > 1 else pieces[0][None]
