"""Attention of one step over a paged cache, and that cache: pages of a fixed number of tokens.

Layers may differ in the number and size of their heads. How a page lies in memory is the device's
choice: a CPU computes on the tokens of one head at a time, kernels of GPUs on tokens with all their
heads.

`PagedStep` is the attention on a CPU. Each call writes the step's keys and values into their pages,
then each token attends to its own sequence. Single tokens compute on the pages where they lie: each
page is one small product, and what the pages of a sequence give is put together by their largest
scores, as flash decoding does. Copying the pages together first was four to fifteen times slower.
Several tokens of one sequence are enough work to copy its pages for, and are left to torch's own
kernel.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol

from batchedmodel_model_server.generation.step_layout import (
    PageRun,
    Span,
    StepLayout,
    pages_in_place,
)

_MOST_MASKED: Final = 1 << 22
"""Numbers of a mask that is made at once: queries x keys."""
_NEVER: Final = float("-inf")
_LEAST: Final = -60.0
"""Of a score below the largest one. What lies deeper has no part in a sum of floats, and numbers
next to zero (denormals) take a processor a hundred times as long."""


class LayerShape(NamedTuple):
    """What one layer keeps of a token."""

    heads: int
    key_size: int
    """Numbers of a head."""
    value_size: int

    @property
    def numbers(self) -> int:
        """Of a token."""
        return self.heads * (self.key_size + self.value_size)


class PagedCache:
    """Pages of keys and values on one device."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        blocks: int,
        block_tokens: int,
        dtype: Any,
        device: str,
        heads_first: bool,
    ) -> None:
        import torch

        def pages(heads: int, size: int) -> Any:
            inner = (heads, block_tokens) if heads_first else (block_tokens, heads)
            # Zeros that nobody touches take no memory of a CPU. What is no number, as memory may
            # hold at first, would reach everybody who shares a page's unused end.
            return torch.zeros(blocks, *inner, size, dtype=dtype, device=device)

        self.blocks: Final = blocks
        self.block_tokens: Final = block_tokens
        self.device: Final = device
        self.keys: Final = [pages(one.heads, one.key_size) for one in shapes]
        """For each layer blocks x heads x tokens x size, or blocks x tokens x heads x size."""
        self.values: Final = [pages(one.heads, one.value_size) for one in shapes]

    def copy(self, source: int, target: int) -> None:
        """Make a block's content another's as well."""
        for tensor in (*self.keys, *self.values):
            tensor[target].copy_(tensor[source])


def block_bytes(shapes: Sequence[LayerShape], block_tokens: int, number_bytes: int) -> int:
    """What a block takes in all layers together."""
    return block_tokens * number_bytes * sum(one.numbers for one in shapes)


class Terms(NamedTuple):
    """How a layer attends."""

    scaling: float
    window: int | None
    """So many tokens, the own one included; None: all before it."""
    softcap: float | None


class StepAttention(Protocol):
    """The attention of one step, whose layers call it in their order."""

    def attend(self, query: Any, key: Any, value: Any, terms: Terms) -> Any:
        """1 x heads x tokens x size in, 1 x tokens x heads x size out."""
        ...


_step: ContextVar[StepAttention | None] = ContextVar("step", default=None)


def current_step() -> StepAttention | None:
    """The step that is computed now; None outside of one."""
    return _step.get()


@contextmanager
def computing(step: StepAttention) -> Iterator[None]:
    """Within it the layers' attention belongs to this step."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


class _Pages(NamedTuple):
    """`PagesInPlace` as tensors."""

    runs: tuple[PageRun, ...]
    owners: Any
    queries: Any
    """As `owners`, but for nobody's pages any query."""
    hidden: Any
    """What is added to the scores."""
    table: Any


class PagedStep:
    """The attention of a step on a CPU; its cache has the heads in front of the tokens."""

    def __init__(self, cache: PagedCache, layout: StepLayout) -> None:
        import torch

        self._cache: Final = cache
        self._layout: Final = layout
        self._slots: Final = torch.from_numpy(layout.slots)
        self._begun: Final = torch.from_numpy(layout.begun)
        self._layer = 0
        # Layers that attend alike share these.
        self._rows: Final[dict[int, Any]] = {}
        self._gathering: Final[dict[tuple[int, int], Any]] = {}
        self._pages: Final[dict[int | None, _Pages]] = {}
        self._masks: Final[dict[tuple[int, int, int | None], Any]] = {}
        self._tables: Final = [torch.from_numpy(span.blocks) for span in layout.spans]

    def attend(self, query: Any, key: Any, value: Any, terms: Terms) -> Any:
        """1 x heads x tokens x size in, 1 x tokens x heads x size out."""
        import torch

        keys, values = self._cache.keys[self._layer], self._cache.values[self._layer]
        self._layer += 1
        if len(self._begun):
            # Zero times what is no number is none: an unused end must hold numbers.
            keys.index_fill_(0, self._begun, 0)
            values.index_fill_(0, self._begun, 0)
        self._write(keys, key)
        self._write(values, value)
        pieces = []
        singles = self._layout.singles
        if singles:
            pieces.append(self._single_tokens(query[0, :, :singles], keys, values, terms))
        for number, span in enumerate(self._layout.spans):
            here = slice(span.begin, span.begin + span.tokens)
            if span.start:
                seen = (self._gathered(keys, number), self._gathered(values, number))
            else:
                seen = (key[0, :, here], value[0, :, here])
            pieces.append(self._several_tokens(query[0, :, here], *seen, span, terms))
        return (torch.cat(pieces) if len(pieces) > 1 else pieces[0])[None]

    def _write(self, pages: Any, given: Any) -> None:
        """Into blocks x heads x tokens x size, of 1 x heads x tokens x size."""
        import torch

        heads, page = pages.shape[1:3]
        rows = self._rows.get(heads)
        if rows is None:
            block, offset = self._slots // page, self._slots % page
            rows = (block[:, None] * heads + torch.arange(heads)) * page + offset[:, None]
            rows = self._rows[heads] = rows.flatten()
        flat = pages.view(-1, pages.shape[-1])
        flat.index_copy_(0, rows, given[0].transpose(0, 1).reshape(-1, pages.shape[-1]))

    def _gathered(self, pages: Any, number: int) -> Any:
        """Heads x tokens x size, of the pages of one span's sequence."""
        import torch

        heads, page, size = pages.shape[1:]
        rows = self._gathering.get((heads, number))
        if rows is None:
            blocks = self._tables[number]
            rows = (torch.arange(heads)[:, None] + blocks * heads).flatten()
            self._gathering[heads, number] = rows
        return pages.view(-1, page * size).index_select(0, rows).view(heads, -1, size)

    def _single_tokens(self, query: Any, keys: Any, values: Any, terms: Terms) -> Any:
        """Heads x singles x size in, singles x heads x size out."""
        import torch

        heads, page, size = keys.shape[1:]
        singles, value_size = query.shape[1], values.shape[-1]
        pages = self._pages_for(terms.window)
        entries, group = len(pages.owners), query.shape[0] // heads
        # Singles x heads of keys x queries of each x size.
        queries = (query.transpose(0, 1) * terms.scaling).view(singles, heads, group, size)
        owned = queries.index_select(0, pages.queries).view(-1, group, size)
        scores = owned.new_empty(entries * heads, group, page)
        for run in pages.runs:
            here = slice(run.entry * heads, (run.entry + run.pages) * heads)
            theirs = keys[run.page : run.page + run.pages].view(-1, page, size).transpose(1, 2)
            torch.bmm(owned[here], theirs, out=scores[here])
        scores = scores.float().view(entries, heads, group, page)
        if terms.softcap is not None:
            scores.div_(terms.softcap).tanh_().mul_(terms.softcap)
        scores.add_(pages.hidden)
        largest = _largest(scores.amax(-1), pages.table)
        scores.sub_(largest.index_select(0, pages.owners)[..., None])
        weights = scores.clamp_(min=_LEAST).exp_()
        total = weights.new_zeros(singles + 1, heads, group)
        total.index_add_(0, pages.owners, weights.sum(-1))
        weights = weights.to(values.dtype).view(-1, group, page)
        found = weights.new_empty(entries * heads, group, value_size)
        for run in pages.runs:
            here = slice(run.entry * heads, (run.entry + run.pages) * heads)
            theirs = values[run.page : run.page + run.pages].view(-1, page, value_size)
            torch.bmm(weights[here], theirs, out=found[here])
        summed = total.new_zeros(singles + 1, heads, group, value_size)
        summed.index_add_(0, pages.owners, found.float().view(entries, heads, group, value_size))
        output = summed[:singles].div_(total[:singles, ..., None])
        return output.view(singles, -1, value_size).to(values.dtype)

    def _pages_for(self, window: int | None) -> _Pages:
        import torch

        found = self._pages.get(window)
        if found is None:
            made = pages_in_place(self._layout, self._cache.block_tokens, window)
            owners = torch.from_numpy(made.owners)
            hidden = torch.from_numpy(made.hidden)[:, None, None]
            found = self._pages[window] = _Pages(
                made.runs,
                owners,
                owners.clamp(max=self._layout.singles - 1),
                torch.zeros(hidden.shape).masked_fill_(hidden, _NEVER),
                torch.from_numpy(made.table),
            )
        return found

    def _several_tokens(self, query: Any, key: Any, value: Any, span: Span, terms: Terms) -> Any:
        """Heads x tokens x size in, tokens x heads x size out; keys may go on behind the last."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention

        length = span.start + span.tokens
        heads, group = key.shape[0], query.shape[0] // key.shape[0]
        most = max(1, _MOST_MASKED // length)
        pieces = []
        for begin in range(0, span.tokens, most):
            end = min(begin + most, span.tokens)
            last = span.start + end
            first = span.start + begin
            least = 0 if terms.window is None else max(0, first + 1 - terms.window)
            # The queries of one head of keys follow each other: no head of keys is repeated.
            q = query[:, begin:end].reshape(1, heads, -1, query.shape[-1])
            k, v = key[None, :, least:last], value[None, :, least:last]
            mask = None
            if last > first + 1:  # one token sees all that is left
                mask = self._mask(first, last, least, terms.window)
                mask = mask.repeat(group, 1) if group > 1 else mask
            if terms.softcap is None:
                found = scaled_dot_product_attention(q, k, v, mask, scale=terms.scaling)
            else:
                scores = torch.matmul(q, k.transpose(2, 3)).float().mul_(terms.scaling)
                scores.div_(terms.softcap).tanh_().mul_(terms.softcap)
                if mask is not None:
                    scores.add_(mask)
                found = torch.matmul(scores.softmax(-1).to(v.dtype), v)
            pieces.append(found.view(-1, end - begin, found.shape[-1]).transpose(0, 1))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _mask(self, first: int, last: int, least: int, window: int | None) -> Any:
        """What is added to the scores of tokens first .. last for keys from `least` on."""
        import torch

        kept = (first, last, window)
        found = self._masks.get(kept)
        if found is None:
            distance = torch.arange(first, last)[:, None] - torch.arange(least, last)
            hidden = distance < 0
            if window is not None:
                hidden |= distance >= window
            found = torch.zeros(hidden.shape).masked_fill_(hidden, _NEVER)
            self._masks[kept] = found
        return found


def _largest(by_entry: Any, table: Any) -> Any:
    """Of entries x heads x queries those of each single token, and zeros for nobody."""
    import torch

    padded = torch.cat([by_entry, torch.full_like(by_entry[:1], _NEVER)])
    largest = padded.index_select(0, table.flatten()).view(*table.shape, *by_entry.shape[1:])
    return torch.cat([largest.amax(1), torch.zeros_like(by_entry[:1])])
