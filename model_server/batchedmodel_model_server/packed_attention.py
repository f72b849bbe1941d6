"""Attention over one row of concatenated items, registered with transformers.

All contact with transformers' attention registry is here. A model whose attention runs through the
registry is switched over by `use`, once; from then on it computes as it did before, but within
`packed` each item attends to its own tokens only. Whether a model really gives the same answers so
is not known here: the self-test at load time tries it.

The spans travel beside the call and not as an argument of the model, because models differ in which
arguments they hand down, and because the mask, too, must not be made: it would be total x total.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

from batchedmodel_model_server.batch import Packed

NAME: Final = "batchedmodel_packed"
_STOCK: Final = "sdpa"
_HALF_BYTES: Final = 2  # per number in float16 and bfloat16, which is all that flash kernels take
_WIDEST_HEAD: Final = 256  # of the flash kernels behind varlen_attn


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


_spans: ContextVar[_Spans | None] = ContextVar("spans", default=None)


def use(model: Any) -> bool:
    """Switch a transformers model over; False for one whose attention cannot be reached."""
    from transformers import AttentionInterface, AttentionMaskInterface

    # A model that is not run by SDPA has a reason for it, such as a bias of its own.
    if model.config._attn_implementation != _STOCK:
        return False
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    if not model._can_set_attn_implementation():
        return False
    model.set_attn_implementation(NAME)
    return bool(model.config._attn_implementation == NAME)


@contextmanager
def packed(row: Packed, device: str) -> Iterator[None]:
    """Within it, attention stays inside each item of the row."""
    runs, start = [], 0
    for length, equal in groupby(row.lengths.tolist()):
        runs.append(_Run(start=start, count=len(list(equal)), length=length))
        start = runs[-1].end
    import torch

    ends = torch.tensor([0, *row.ends.tolist()], dtype=torch.int32, device=device)
    token = _spans.set(_Spans(runs=tuple(runs), ends=ends, longest=row.longest))
    try:
        yield
    finally:
        _spans.reset(token)


def _mask(*args: Any, **kwargs: Any) -> Any:
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **kwargs) if _spans.get() is None else None


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: Any = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """As transformers calls it: 1 x heads x total x size in, 1 x total x heads x size out."""
    spans = _spans.get()
    if spans is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Any, None] = sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            is_causal=is_causal,
            sliding_window=sliding_window,
            position_bias=position_bias,
            **kwargs,
        )
        return result
    if position_bias is not None or attention_mask is not None or kwargs.get("softcap"):
        raise NotImplementedError("attention with a bias, a mask or a cap of its own")
    if query.shape[0] != 1 or query.shape[2] != spans.runs[-1].end:
        raise NotImplementedError("attention over something else than the row of tokens")
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    # Counted as flash kernels count it: so many tokens to the left and, unless causal, the right.
    window = None if sliding_window is None else sliding_window - 1
    head = max(query.shape[-1], value.shape[-1])
    flash = query.is_cuda and query.element_size() == _HALF_BYTES and head <= _WIDEST_HEAD
    compute = _by_flash_kernel if flash else _by_runs
    return compute(spans, query, key, value, _Terms(scaling, causal, window)), None


class _Terms(NamedTuple):
    """What holds for every span."""

    scaling: float | None
    causal: bool
    window: int | None
    """How many tokens to the left and, unless causal, to the right are seen; None: all."""


def _by_flash_kernel(spans: _Spans, query: Any, key: Any, value: Any, terms: _Terms) -> Any:
    from torch.nn.attention.varlen import varlen_attn

    left = -1 if terms.window is None else terms.window
    output = varlen_attn(
        *(part[0].transpose(0, 1) for part in (query, key, value)),
        spans.ends,
        spans.ends,
        spans.longest,
        spans.longest,
        scale=terms.scaling,
        window_size=(left, 0 if terms.causal else left),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[None]


def _by_runs(spans: _Spans, query: Any, key: Any, value: Any, terms: _Terms) -> Any:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    _, causal, window = terms
    pieces = []
    for run in spans.runs:
        q, k, v = (
            # heads x (items x length) x size -> items x heads x length x size, without a copy.
            part[0, :, run.start : run.end].unflatten(1, (run.count, run.length)).transpose(0, 1)
            for part in (query, key, value)
        )
        windowed = window is not None and run.length > window + 1
        found = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=_band(run.length, window, causal, query.device) if windowed else None,
            is_causal=causal and not windowed,
            scale=terms.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        pieces.append(found.transpose(1, 2).flatten(0, 1))
    return torch.cat(pieces)[None] if len(pieces) > 1 else pieces[0][None]


def _band(length: int, window: int | None, causal: bool, device: Any) -> Any:
    """Which tokens see which: those at most a window away, and none to the right when causal."""
    import torch

    at = torch.arange(length, device=device)
    distance = at[:, None] - at[None, :]
    seen = distance.abs() <= (length if window is None else window)
    return seen & (distance >= 0) if causal else seen
