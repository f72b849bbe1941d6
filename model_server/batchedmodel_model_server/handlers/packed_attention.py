"""Attention over one row of concatenated items, registered with transformers.

`use` switches a model over whose attention runs through transformers' registry. It computes as it
did before, but within `packed` each item attends to its own tokens only. Whether the answers stay
the same is tried by the self-test. Within `stepping` each token attends to what a cache has of its
sequence; whether that is what the model itself does is tried when it is loaded.

The spans of the items are handed over by a context variable: models differ in which arguments they
hand down to their attention, and the mask, which would be total x total, must not be made either.

On a CPU each run of equal lengths is a call of its own. On a GPU, where many small calls cost more
than padding, one kernel of torch's takes them all. If it cannot, the row is refused, and the
self-test says why the model is padded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from batchedmodel_model_server.api.batch import Packed
from batchedmodel_model_server.generation.paged_attention import (
    StepAttention,
    Terms,
    computing,
    current_step,
)

NAME: Final = "batchedmodel_packed"
_STOCK: Final = "sdpa"
# What the flash kernels behind torch's varlen_attn take, as torch's own checks of them say.
_FLASH_DTYPES: Final = ("torch.float16", "torch.bfloat16")
_WIDEST_HEAD: Final = 256
_HEAD_STEP: Final = 8
_FIRST_CAPABILITY: Final = (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Neighbours of equal length, which one call computes."""

    start: int
    count: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.count * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    runs: tuple[_Run, ...]
    ends: Any
    """INT32 tensor on the device: 0, then the end of each item."""
    longest: int
    capability: tuple[int, int] | None
    """Of the GPU; None on a CPU."""


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
def running_by(model: Any, name: str) -> Iterator[None]:
    """Within it the model runs by the attention of this name."""
    before = stock_attention(model)
    _switch(model, name)
    try:
        yield
    finally:
        _switch(model, before)


@contextmanager
def stepping(model: Any, step: StepAttention) -> Iterator[None]:
    """Within it the model's layers attend by a step over a cache.

    Raises `NotImplementedError` for a model whose attention does not go through the registry.
    """
    with running_by(model, NAME), computing(step):
        if stock_attention(model) != NAME:
            raise NotImplementedError("its attention does not go through transformers' registry")
        yield


@contextmanager
def packed(row: Packed, device: str) -> Iterator[None]:
    """Within it, attention stays inside each item of the row."""
    runs, start = [], 0
    for length, equal in groupby(row.lengths.tolist()):
        runs.append(_Run(start=start, count=len(list(equal)), length=length))
        start = runs[-1].end
    import torch

    ends = torch.tensor([0, *row.ends.tolist()], dtype=torch.int32, device=device)
    capability = torch.cuda.get_device_capability(device) if ends.is_cuda else None
    token = _spans.set(
        _Spans(runs=tuple(runs), ends=ends, longest=row.longest, capability=capability)
    )
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
    if softcap or query.shape[2] != spans.runs[-1].end:
        raise NotImplementedError("attention with a cap, or over something else than the row")
    # Counted as flash kernels count it: so many tokens to the left and, unless causal, the right.
    window = None if sliding_window is None else sliding_window - 1
    if spans.capability is None:
        return _by_runs(spans, query, key, value, scaling, window, causal=causal), None
    obstacle = flash_obstacle(
        spans.capability, str(query.dtype), head=query.shape[-1], value_head=value.shape[-1]
    )
    if obstacle is not None:
        raise NotImplementedError(f"torch's varlen_attn cannot be used: {obstacle}")
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


def flash_obstacle(
    capability: tuple[int, int], dtype: str, *, head: int, value_head: int
) -> str | None:
    """Why one kernel cannot compute a packed row on a GPU of this capability; None if it can.

    `head` and `value_head` are the sizes of a head in queries and in values.
    """
    if capability < _FIRST_CAPABILITY:
        found, least = (".".join(map(str, one)) for one in (capability, _FIRST_CAPABILITY))
        return f"the GPU's compute capability is {found}, below {least}"
    if dtype not in _FLASH_DTYPES:
        return f"it takes {' and '.join(_FLASH_DTYPES)}, and the model computes in {dtype}"
    if head != value_head:
        return f"heads of queries have size {head}, those of values {value_head}"
    if head > _WIDEST_HEAD or head % _HEAD_STEP:
        rule = f"multiples of {_HEAD_STEP} up to {_WIDEST_HEAD}"
        return f"heads have size {head}, and it takes {rule}"
    return None


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
    for run in spans.runs:
        q, k, v = (
            # heads x (items x length) x size -> items x heads x length x size, without a copy.
            part[0, :, run.start : run.end].unflatten(1, (run.count, run.length)).transpose(0, 1)
            for part in (query, key, value)
        )
        seen = None
        if window is not None and run.length > window + 1:
            # Tokens at most a window away, and none to the right when causal.
            at = torch.arange(run.length, device=query.device)
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
