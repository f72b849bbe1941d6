"""Where the tokens of a step lie: in the packed row that the model sees, and in the cache's pages.

Pure; numpy only, as nothing of it depends on the device.

Sequences that go on by one token lie in front of the row. What they attend to lies in pages all
over the cache. Where there are several, copying those pages together takes longer than all the
arithmetic, so a CPU computes on them where they lie: `PagesInPlace` says which page belongs to
which sequence.
"""

from __future__ import annotations  # array.array takes no type argument at run time

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchedmodel_model_server.api.generator import StepPart

Integers = NDArray[np.int64]
_FEWEST_SINGLES: Final = 4
"""So many single tokens are worth the calls that compute on pages in place. The pages of fewer are
copied as those of longer spans are: a lone token then takes half of the time."""
_MOST_SPARE: Final = 8
"""Pages in a row that are computed for nobody, rather than that the pages are cut into two runs:
a call costs as much as several pages."""


class Span(NamedTuple):
    """Tokens of one sequence in the row, whose pages are copied together."""

    begin: int
    """The first of them in the row."""
    tokens: int
    start: int
    """Tokens of the sequence that lie in the cache before these."""
    blocks: Integers
    """The pages with all tokens up to the last of these."""


class PageRun(NamedTuple):
    """Neighbouring pages of the cache."""

    entry: int
    """The place of the first of them among the entries."""
    page: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesInPlace:
    """The pages to which single tokens attend, as entries that are computed run by run.

    A page that several sequences share has an entry for each of them.
    """

    runs: tuple[PageRun, ...]
    owners: Integers
    """entries: which single token attends to the page; as many as there are, for nobody."""
    hidden: NDArray[np.bool_]
    """entries x tokens of a page: which of them the owner does not see."""
    table: Integers
    """singles x most pages: the entries of each; as many as there are entries, for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """The packed row of a step."""

    order: tuple[int, ...]
    """Numbers of the parts as they lie in the row: those of one token first."""
    ids: Integers
    """tokens."""
    positions: Integers
    """tokens: the place of each in its sequence."""
    slots: Integers
    """tokens: where in the cache its keys and values go: page x tokens of a page + offset."""
    begun: Integers
    """Pages of which this step writes the beginning and not the end: what their other slots hold
    is another sequence's."""
    singles: int
    """How many parts of one token attend to their pages in place."""
    blocks: tuple[Sequence[int], ...]
    """The pages of each of these, as those of `spans`."""
    spans: tuple[Span, ...]
    ends: Integers
    """parts, in the order of the row: the place of the last token of each."""


def layout_of(parts: Sequence[StepPart], page: int) -> StepLayout:
    """The row for these parts and pages of so many tokens."""
    order = sorted(range(len(parts)), key=lambda at: len(parts[at].ids) > 1)
    ordered = [parts[at] for at in order]
    counts = np.fromiter((len(part.ids) for part in ordered), np.int64, len(ordered))
    starts = np.fromiter((part.start for part in ordered), np.int64, len(ordered))
    ends = counts.cumsum() - 1
    ids = np.concatenate([np.frombuffer(part.ids, np.int32) for part in ordered]).astype(np.int64)
    positions = np.arange(len(ids)) - np.repeat(ends - counts + 1 - starts, counts)
    singles = int((counts == 1).sum())
    if singles < _FEWEST_SINGLES:
        singles = 0
    blocks = [np.asarray(part.blocks, np.int64) for part in ordered[singles:]]
    own = np.fromiter(
        (part.blocks[part.start // page] for part in ordered[:singles]), np.int64, singles
    )
    places = positions // page
    pages = np.concatenate(
        [
            own,
            *(
                table[places[end - count + 1 : end + 1]]
                for table, end, count in zip(blocks, ends[singles:], counts[singles:], strict=True)
            ),
        ]
    )
    last = positions[ends]
    # The last page of a part is begun when its beginning lies in the part and its end does not.
    begun = (last // page * page >= starts) & ((last + 1) % page != 0)
    spans = tuple(
        Span(int(end - count + 1), int(count), int(start), table[: (start + count - 1) // page + 1])
        for end, count, start, table in zip(
            ends[singles:], counts[singles:], starts[singles:], blocks, strict=True
        )
    )
    return StepLayout(
        order=tuple(order),
        ids=ids,
        positions=positions,
        slots=pages * page + positions % page,
        begun=pages[ends][begun],
        singles=singles,
        blocks=tuple(part.blocks for part in ordered[:singles]),
        spans=spans,
        ends=ends,
    )


def pages_in_place(layout: StepLayout, page: int, window: int | None) -> PagesInPlace:
    """The pages that the single tokens see; `window`: only so many tokens, the own one included."""
    singles = layout.singles
    lengths = layout.positions[:singles] + 1
    first_seen = np.zeros_like(lengths) if window is None else np.maximum(lengths - window, 0)
    skipped = first_seen // page
    counts = (lengths - 1) // page + 1 - skipped
    total = int(counts.sum())
    firsts = counts.cumsum() - counts
    seen = chain.from_iterable(
        table[skip : skip + count]
        for table, skip, count in zip(layout.blocks, skipped, counts, strict=True)
    )
    pages = np.fromiter(seen, np.int64, total)
    owners = np.repeat(np.arange(singles), counts)
    nth = np.arange(total) - firsts[owners]
    tokens = ((skipped[owners] + nth) * page)[:, None] + np.arange(page)
    hidden = (tokens >= lengths[owners, None]) | (tokens < first_seen[owners, None])
    runs, places, entries = _runs(pages)
    all_owners = np.full(entries, singles)
    all_owners[places] = owners
    all_hidden = np.ones((entries, page), bool)
    all_hidden[places] = hidden
    table = np.full((singles, int(counts.max())), entries)
    table[owners, nth] = places
    return PagesInPlace(runs=runs, owners=all_owners, hidden=all_hidden, table=table)


def _runs(pages: Integers) -> tuple[tuple[PageRun, ...], Integers, int]:
    """Runs over all these pages, the entry of each page, and how many entries there are."""
    order = np.argsort(pages, kind="stable")
    ordered = pages[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    # The second to share a page comes in a run behind those of all firsts, and so on.
    at = np.arange(len(pages))
    nth = at - np.maximum.accumulate(np.where(is_first, at, 0))
    if nth.any():
        by_nth = np.lexsort((ordered, nth))
        order, ordered, nth = order[by_nth], ordered[by_nth], nth[by_nth]
    steps = np.diff(ordered)
    cuts = (steps < 0) | (steps > _MOST_SPARE + 1) | (np.diff(nth) != 0)
    begins = np.concatenate([[0], np.flatnonzero(cuts) + 1])
    lasts = np.concatenate([begins[1:], [len(pages)]]) - 1
    sizes = ordered[lasts] - ordered[begins] + 1
    entries = sizes.cumsum() - sizes
    in_run = np.repeat(np.arange(len(begins)), lasts - begins + 1)
    places: Any = np.empty_like(pages)
    places[order] = entries[in_run] + ordered - ordered[begins][in_run]
    runs = tuple(
        PageRun(entry, first, size)
        for entry, first, size in zip(
            entries.tolist(), ordered[begins].tolist(), sizes.tolist(), strict=True
        )
    )
    return runs, places, int(sizes.sum())
