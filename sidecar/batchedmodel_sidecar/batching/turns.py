"""Where tenants take turns: the rows in line, and which of them the policy sees.

Rows of several kinds share no batch, and which kind goes first is not the policy's choice. So where
a batch may leave, the policy sees the rows of one kind. Where none may, it sees those of all, to
give up early what will be late; but not of very many kinds, since to show and to hide these again
around each batch would cost more than all else.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from batchedmodel_scheduling.core.base import BasePolicy
from batchedmodel_scheduling.core.fair_queue import FairQueue, length_class
from batchedmodel_scheduling.core.policy import Item, ItemId
from batchedmodel_sidecar.batching.isolation import Backoff

_FEW_KINDS: Final = 16


class Turns:
    """The line of one time in which tenants had more rows waiting than leave next."""

    def __init__(self, backoff: Backoff, tenant_of: Callable[[ItemId], str]) -> None:
        """`backoff` takes the rows that the server asked not to be sent."""
        self._backoff = backoff
        self._tenant_of = tenant_of
        self.line: Final = FairQueue[ItemId]()
        self._lined: Final[dict[ItemId, Item]] = {}
        """Rows in the line, seen by the policy or not."""
        self._shown: Final[dict[Hashable, dict[ItemId, None]]] = {}
        """Those that the line has shown, by their kinds."""
        self._only: Hashable = None
        """The kind of which alone the policy sees rows; None where it sees those of all."""
        self.payers: Final[set[ItemId]] = set()
        """The first row of each batch that has been paid for in the line, and has not ended."""

    def __contains__(self, item_id: ItemId) -> bool:
        """Whether a row is in the line."""
        return item_id in self._lined

    def add(self, tenant: str, item: Item, policy: BasePolicy) -> None:
        """Let a row wait for its turn."""
        self._lined[item.id] = item
        weight = policy.settings.tenants.share_of(tenant).weight
        work, rank = policy.work(item.length), policy.rank(item)
        self.line.add(tenant, item.id, work=work, rank=rank, weight=weight, kind=_kind(item))

    def discard(self, item_id: ItemId) -> None:
        """A row is not wanted any more, or waits elsewhere; its tenant pays nothing for it."""
        self._forget(item_id)
        self.line.discard(item_id)

    def left(self, item_id: ItemId) -> None:
        """A row left in a batch."""
        self._forget(item_id)
        self.line.left(item_id)

    def of(self, tenant: str) -> list[Item]:
        """The rows of a tenant."""
        return [item for item_id, item in self._lined.items() if self._tenant_of(item_id) == tenant]

    def show(self, ahead: tuple[float, int], policy: BasePolicy, now: float) -> None:
        """Go on to the rows whose turn it is, as `FairQueue.show`."""
        overtaken = self.line.overtaken
        self._show_next(ahead, policy)
        if overtaken and self.line.unseen:
            for item_id in self.line.take_back():
                policy.withdraw(item_id, now)
            self._shown.clear()
            self._show_next(ahead, policy)

    def choose(
        self,
        ahead: tuple[float, int],
        policy: BasePolicy,
        now: float,
        *,
        may_leave: bool,
        in_turn: bool,
    ) -> bool:
        """Let the policy see the rows of one kind or of all; whether others are kept from it.

        `may_leave`: whether a batch may; `in_turn`: then only of the kind whose turn it is.
        """
        if may_leave and in_turn:
            self._see_one(ahead, policy, now)
            return self._only is not None
        if may_leave or len(self._shown) <= _FEW_KINDS:
            self.see_all(ahead, policy)
        elif self._only not in self._shown:
            # By any row that it sees the policy says when a batch may leave.
            self._see_one(ahead, policy, now)
        return False

    def see_all(self, ahead: tuple[float, int], policy: BasePolicy) -> None:
        """Keep nothing that is shown from the policy; what was kept is shown if it is its turn."""
        if self._only is not None:
            kept = [kind for kind in self._shown if kind != self._only]
            self._only = None
            self.line.hide([item_id for kind in kept for item_id in self._shown.pop(kind)])
            self._show_next(ahead, policy)

    def _see_one(self, ahead: tuple[float, int], policy: BasePolicy, now: float) -> None:
        if len(self._shown) <= 1:
            self.see_all(ahead, policy)
            return
        turn, before = self.line.turn(), self._only
        if turn == before:
            return
        self._only = turn
        if before is not None:
            self._hide(self._shown.get(before, ()), policy, now)
            self._see(list(self._shown[turn]), policy)
            return
        for kind, shown in self._shown.items():
            if kind != turn:
                self._hide(shown, policy, now)

    def _show_next(self, ahead: tuple[float, int], policy: BasePolicy) -> None:
        while shown := self.line.show(*ahead):
            for item_id in shown:
                kind = _kind(self._lined[item_id])
                self._shown.setdefault(kind, {})[item_id] = None
                if self._only is None or self._only == kind:
                    self._see((item_id,), policy)

    def _see(self, item_ids: Iterable[ItemId], policy: BasePolicy) -> None:
        for item_id in item_ids:
            item = self._lined[item_id]
            if self._backoff.takes(item, self._tenant_of(item_id)):
                self.discard(item_id)  # and make room for one that can leave
            else:
                policy.take_over(item)

    def _hide(self, item_ids: Iterable[ItemId], policy: BasePolicy, now: float) -> None:
        for item_id in item_ids:
            policy.withdraw(item_id, now)

    def _forget(self, item_id: ItemId) -> None:
        item = self._lined.pop(item_id, None)
        if item is None:
            return
        kind = _kind(item)
        shown = self._shown.get(kind)
        if shown is not None and item_id in shown:
            del shown[item_id]
            if not shown:
                del self._shown[kind]


def _kind(item: Item) -> Hashable:
    """What rows have in common that may share a batch while tenants take turns."""
    return item.key, length_class(item.length)
