"""What the policy sees of the calls that wait: all of a short one, of a long list a part at a time.

Owned by the batcher. A list of thousands of rows would keep everybody behind it waiting. So it is
shown in parts whose rows yield, and is served in turns with what came after it.

While several tenants have more rows waiting than leave next, the policy sees only the rows whose
tenants' turn it is, so that no tenant can keep another waiting. With one tenant it sees all. Rows
whose key rests because the server asked for it are hidden until the rest is over.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import count
from typing import Final, NamedTuple

from batchedmodel_contract.inference.batch import BatchReply
from batchedmodel_contract.inference.description import CostRule
from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.tenants import Share
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_scheduling.batching.items import Batch, Item, ItemId, Refusal, Slots
from batchedmodel_scheduling.batching.policy import BasePolicy
from batchedmodel_scheduling.tenants import FairQueue, length_class
from batchedmodel_sidecar.batching.pending_request import (
    Members,
    PendingRequest,
    is_served,
    refused,
)
from batchedmodel_sidecar.errors import Unserved
from batchedmodel_sidecar.telemetry.ledger import Ledger

_MOST_KEYS: Final = 64


class Alone(NamedTuple):
    """The compatibility key of a row over which the server died: no other row has it."""

    item: ItemId


class Apart(NamedTuple):
    """The compatibility key of rows that share batches with rows of their own caller alone."""

    key: Hashable
    caller: str
    call: int = 0
    """The number of a call that shares batches with no other."""


def original(key: Hashable) -> Hashable:
    """The key that a row came with, whether or not it goes apart."""
    return key.key if isinstance(key, Apart) else key


def apart(item: Item, caller: str) -> Item:
    """The row with a key of its caller's own; it stays as it is where it has such a key already."""
    if isinstance(item.key, Apart | Alone):
        return item
    return item._replace(key=Apart(item.key, caller))


class Backoff:
    """Callers' keys that the server asked to be left alone with, and their rows, which wait here.

    The policy sees none of these rows, so that others go on. A server that refuses one kind of
    request with 429 or 503 (a tenant's quota, one of its models) says nothing of the others, and
    nothing of other callers' requests of that kind. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[Hashable, str], float] = {}
        self._held: dict[ItemId, tuple[Item, str]] = {}
        """With their callers."""
        self._cut_short = False
        """Whether rows may be held whose key rests no more."""

    def rest(self, key: Hashable, caller: str, until: float) -> None:
        """A caller's key rests until then; of too many the one that would end first ends now."""
        rests = original(key), caller
        self._until[rests] = max(until, self._until.get(rests, -math.inf))
        if len(self._until) > _MOST_KEYS:
            del self._until[min(self._until, key=lambda one: self._until[one])]
            self._cut_short = True

    def rests(self, key: Hashable, caller: str) -> bool:
        """Whether a caller's key rests; `woken` ends what is over."""
        return (original(key), caller) in self._until

    def takes(self, item: Item, caller: str) -> bool:
        """Whether the key of a caller's row rests; it waits here then."""
        if not self._until or not self.rests(item.key, caller):
            return False
        self._held[item.id] = item, caller
        return True

    def discard(self, item_id: ItemId) -> None:
        """A row is not wanted any more."""
        self._held.pop(item_id, None)

    def woken(self, now: float) -> list[Item]:
        """The rows whose keys rest no more; they wait here no longer."""
        over = [key for key, until in self._until.items() if until <= now]
        if not over and not self._cut_short:
            return []
        for key in over:
            del self._until[key]
        self._cut_short = False
        held = self._held.values()
        woken = [item for item, caller in held if not self.rests(item.key, caller)]
        for item in woken:
            del self._held[item.id]
        return woken

    def changes_at(self) -> float:
        """When the next key ends its rest; infinity when none rests."""
        return min(self._until.values(), default=math.inf)

    @property
    def holds_any(self) -> bool:
        """Whether any row waits here."""
        return bool(self._held)


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


_BATCHES_SHOWN: Final = 2  # of one call per worker: one that leaves, and one behind it
_FORGOTTEN: Final = 1 + 1 / 256
"""By which the cheapest unit of work grows with each batch, as the device may have changed."""
_MOST_UNLEARNT: Final = 16.0
"""Full batches that one batch costs at most, unless such rows are known to take more. Whoever paid
for a stall of seconds would wait for seconds beside a flood."""
_LEAST_SECONDS: Final = 1e-6
"""Of a row; where nothing is learnt all rows pay alike."""


class RequestWindow:
    """Numbers rows and shows them."""

    def __init__(self, ledger: Ledger, pending_of: Callable[[ItemId], PendingRequest]) -> None:
        """`pending_of` says of which call a row is that the policy knows."""
        self._ledger = ledger
        self._pending_of = pending_of
        self._ids = count(1)
        self._unseen = 0
        """Rows of accepted calls that have no number yet."""
        self._room = ledger.tenants.room
        self._turns: Turns | None = None
        """Where tenants take turns; None while the policy sees everything."""
        self.backoff: Final = Backoff()
        """Rows that the server asked not to be sent for a while."""
        self._served_last: Collection[str] = ()
        """The tenants of the batch that left last."""
        self._unit_seconds = math.inf
        """What a unit of work takes in the cheapest batches, on a device that nobody measured."""
        self._left_behind: tuple[Collection[str], int] = (), 0
        """Who left a batch that the server may still be at beside the next one, and its length."""
        self._settings: BatchSettings | None = None
        """Those in force when the numbers below were computed."""
        self._next_rows = 0
        """Rows that leave next where all workers get full batches."""
        self._at_once = 0
        """How many rows of one call the policy sees."""

    def offer(self, pending: PendingRequest, policy: BasePolicy, now: float) -> Refusal | None:
        """Let all rows of a call wait, or none if there is no room."""
        self._follow(policy)
        rows, shown = len(pending.call.rows), self._at_once
        refusal = self._no_room(pending.share, rows, policy)
        if refusal is None and self._is_contended(pending.tenant, rows, policy):
            refusal = self._late_in_turn(pending, policy, now)
            if refusal is None:
                turns = self._take_turns(policy, now)
                while len(pending.ids) < min(rows, shown):
                    item = pending.show(ItemId(next(self._ids)), now)
                    turns.add(pending.tenant, item, policy)
        else:
            if refusal is None and rows > shown:
                work = self._ledger.work_live + pending.work
                refusal = self._late_behind(work, pending, policy, now)
            while refusal is None and len(pending.ids) < min(rows, shown):
                item = pending.show(ItemId(next(self._ids)), now)
                refusal = policy.offer(item, now)
                if refusal is None and self.backoff.takes(item, pending.tenant):
                    policy.withdraw(item.id, now)
        if refusal is not None:
            for item_id in pending.ids:
                policy.withdraw(item_id, now)
                self.backoff.discard(item_id)
            self._ledger.refused_rows(pending.tenant, pending.call.adapter_name, rows)
            return refusal
        self._unseen += rows - len(pending.ids)
        self._room.take(pending.share, rows)
        return None

    def show(self, policy: BasePolicy, now: float, slots: Slots, *, in_turn: bool) -> bool:
        """Let the policy see exactly the rows whose turn it is; whether it sees fewer of them.

        `in_turn`: where a batch may leave now, only rows that may share the one whose turn it is.
        Which tenant's batch is first is not the policy's choice.
        """
        for item in self.backoff.woken(now):
            tenant = self._tenant_of(item.id)
            if self._is_contended(tenant, 0, policy):
                self._take_turns(policy, now).add(tenant, item, policy)
            else:
                policy.take_over(item)
        if self._turns is None:
            return False
        ahead = self._ahead(policy)
        self._turns.show(ahead, policy, now)
        opens = policy.pipeline.opens_at(slots, now)
        may_leave = opens <= now or slots.early(opens)
        sees_less = self._turns.choose(ahead, policy, now, may_leave=may_leave, in_turn=in_turn)
        # While more wait than leave next, a new line for each row that comes would be dear.
        if not sees_less and self._room.taken <= self._next_rows:
            self._turns.see_all(ahead, policy)
            if not self._turns.line.unseen:
                self._turns = None
        return sees_less

    def pass_over(self, policy: BasePolicy, now: float, slots: Slots) -> bool:
        """All that the policy sees waits for company: whether it sees others where one may go."""
        opens = policy.pipeline.opens_at(slots, now)
        return self._turns is not None and opens <= now and self._turns.line.pass_over()

    def rest(
        self, key: Hashable, caller: str, until: float, policy: BasePolicy, now: float
    ) -> None:
        """The policy sees no row of a caller and key until then."""
        self.backoff.rest(key, caller, until)
        for one in list(policy.waiting()):
            if self.backoff.takes(one, self._tenant_of(one.id)):
                policy.withdraw(one.id, now)
                self._leave_line(one.id)

    def part(self, caller: str, policy: BasePolicy, now: float) -> None:
        """What waits of a caller shares batches with nobody's rows but its own."""
        for item in list(policy.waiting()):
            if self._tenant_of(item.id) == caller:
                policy.withdraw(item.id, now)
                if self._turns is None or item.id not in self._turns:
                    policy.take_over(apart(item, caller))
        for item in self._turns.of(caller) if self._turns is not None else ():
            self._leave_line(item.id)
            self._take_turns(policy, now).add(caller, apart(item, caller), policy)

    def come_back(self, item: Item, pending: PendingRequest, policy: BasePolicy) -> None:
        """A row that left waits once more; it had its turn."""
        if not self.backoff.takes(item, pending.tenant):
            policy.take_over(item)

    def show_more(self, pending: PendingRequest, policy: BasePolicy, now: float) -> range:
        """Rows of a call have left: show as many of its unseen ones; returns their places."""
        self._follow(policy)
        unseen = len(pending.call.rows) - len(pending.ids)
        more = max(0, min(unseen, self._at_once - (pending.waiting - unseen)))
        for _ in range(more):
            item = pending.show(ItemId(next(self._ids)), now)
            if self._turns is None:
                self.come_back(item, pending, policy)
            else:
                self._turns.add(pending.tenant, item, policy)
        self._unseen -= more
        return range(len(pending.ids) - more, len(pending.ids))

    def ended(
        self,
        batch: Batch,
        members: Members,
        reply: BatchReply | Unserved,
        seconds: float,
        policy: BasePolicy,
    ) -> None:
        """A batch took so long: the tenants that were refused in it pay for unexpected time.

        Where the server hung or died nobody knows why, so no more than a full batch is charged.
        Where nothing is learnt yet, time is counted by the cheapest batches.
        Where nobody has measured the device, a price says nothing of a row's size: who makes a
        batch longer than a full one of the cheapest rows pays for that, though all were served.
        """
        lengths, first = [item.length for item in batch.items], batch.items[0].id
        has_paid = self._turns is not None and first in self._turns.payers
        if self._turns is not None:
            self._turns.payers.discard(first)
        if isinstance(reply, BatchReply) and is_served(reply):
            one_pass = reply.passes == 1 and reply.compute_seconds > 0
            if one_pass and not policy.pipeline.times.counts_seconds:
                paid = policy.batch_work(lengths)
                work = self._work_of(reply.compute_seconds, paid)
                # A server may stall once beside anybody's rows; what comes again is learnt.
                learnt = policy.pipeline.times.predict(lengths) or 0.0
                work = min(work, max(_MOST_UNLEARNT, 2 * learnt / self._unit_seconds))
                left, length = self._left_behind
                beyond, part = work - max(1.0, paid), length / (length + sum(lengths))
                self._charge(left, beyond * part)
                if has_paid:
                    self._divide(beyond * (1 - part), lengths, members, policy)
                self._left_behind = (), 0
            return
        tenants = [pending.tenant for pending, _ in refused(reply, members)]
        took = policy.work_of(seconds, max(lengths))
        if took is None:
            took = min(_MOST_UNLEARNT, seconds / self._unit_seconds)
        if isinstance(reply, Unserved) and not reply.answered:
            took = min(took, policy.work(max(lengths)) * policy.settings.max_batch_size)
        self._charge(tenants, took - policy.batch_work(lengths))

    def dropped(
        self, batch: Batch, callers: Collection[str], seconds: float, policy: BasePolicy
    ) -> None:
        """Nobody wants a batch any more: its tenants pay for its time, if no profile knew it."""
        lengths = [item.length for item in batch.items]
        if self._turns is not None:
            self._turns.payers.discard(batch.items[0].id)
        if not policy.pipeline.times.counts_seconds:
            self._left_behind = callers, sum(lengths)
            took = min(_MOST_UNLEARNT, seconds / self._unit_seconds)
            self._charge(callers, took - policy.batch_work(lengths))

    def _work_of(self, seconds: float, paid: float) -> float:
        """What a batch's time costs, where the cheapest batches lately cost what they paid."""
        unit = seconds / paid if paid > 0 else math.inf
        self._unit_seconds = min(unit, self._unit_seconds * _FORGOTTEN)
        return seconds / self._unit_seconds

    def _divide(
        self, work: float, lengths: Sequence[int], members: Members, policy: BasePolicy
    ) -> None:
        """The tenants of a batch pay for work that its rows have not paid.

        A tenant's part of it is how much sooner the batch would have ended without its rows, by
        what has been learnt; equal rows pay alike.
        """
        if self._turns is None or work <= 0:
            return
        rows = Counter([pending.tenant for pending, _ in members])
        parts: dict[str, float] = dict(rows)
        if len(set(lengths)) > 1:
            predict = policy.pipeline.times.predict
            together = predict(lengths) or 0.0
            for tenant, its in rows.items():
                others = [
                    length
                    for length, (pending, _) in zip(lengths, members, strict=True)
                    if pending.tenant != tenant
                ]
                without = predict(others) or 0.0 if others else 0.0
                parts[tenant] = max(together - without, _LEAST_SECONDS * its)
        whole = sum(parts.values())
        for tenant, part in parts.items():
            self._turns.line.charge(tenant, work * part / whole)

    def _charge(self, tenants: Collection[str], work: float) -> None:
        """The tenants pay equal parts of the work."""
        if self._turns is not None and work > 0:
            for tenant in tenants:
                self._turns.line.charge(tenant, work / len(tenants))

    def left(self, items: Sequence[Item], members: Members, policy: BasePolicy) -> None:
        """These rows left in a batch, whose whole time is charged while tenants take turns.

        `members` are the same rows. The tenant of the costliest row pays for padding. All pay for
        places in the batch that no row could fill, and for rows that had no turn.
        """
        if (turns := self._turns) is not None:
            turns.payers.add(items[0].id)
            padded = policy.pipeline.times.rule is CostRule.PADDED
            lined = [item for item in items if item.id in turns]
            paid = turns.line.leave_together([item.id for item in lined], padded=padded)
            prices = [policy.work(item.length) for item in lined] or [0.0]
            price = len(lined) * max(prices) if padded else sum(prices)
            # The rows were paid for at prices that may have changed since.
            beyond = policy.batch_work([item.length for item in items]) - price
            self._charge(
                [pending.tenant for pending, _ in members],
                beyond * (paid / price if price else 1.0),
            )
            for item in items:
                turns.left(item.id)
        self._served_last = rows_of = Counter([pending.tenant for pending, _ in members])
        for tenant, rows in rows_of.items():
            self._room.give_back(tenant, rows)

    @property
    def callers(self) -> Collection[str]:
        """The tenants whose rows wait."""
        return self._room.tenants

    def discard(self, item_id: ItemId) -> None:
        """A row that waited is not wanted any more."""
        self.backoff.discard(item_id)
        self._leave_line(item_id)

    def waits_again(self, pending: PendingRequest) -> None:
        """A row of an accepted call came back; it has room, however full the queue is."""
        pending.waiting += 1
        self._room.take(pending.share, 1)

    def settled(self, pending: PendingRequest, *, answered: bool) -> None:
        """An accepted call ended, however many of its rows were shown."""
        self._unseen -= len(pending.call.rows) - len(pending.ids)
        if answered:
            self._ledger.answered_call(pending.tenant, pending.call)
        self._room.give_back(pending.tenant, pending.waiting)

    def refusal(self, share: Share, rows: int, policy: BasePolicy) -> Refusal | None:
        """What a tenant's next call of so many rows would be told now."""
        self._follow(policy)
        refusal = None if self._is_contended(share.tenant, rows, policy) else policy.refusal()
        refusal = refusal or self._no_room(share, rows, policy)
        if refusal is not None:
            self._ledger.tenants.refused(share.tenant, rows)
        return refusal

    def most_rows(self, share: Share, policy: BasePolicy) -> int:
        """How many rows the next call of a tenant may have; alone it asks the policy."""
        self._follow(policy)
        if not self._room.has_others(share.tenant):
            return policy.settings.max_queue_size
        return self._room.most_now(share)

    def _no_room(self, share: Share, rows: int, policy: BasePolicy) -> Refusal | None:
        """The refusal of rows that do not fit; the policy cannot know, as it sees only a part."""
        reason = self._room.refusal(share, rows)
        if reason is None:
            return None
        hides = self._unseen or self._turns or self.backoff.holds_any
        sees_all = not (hides or rows > self._at_once or self._room.has_others(share.tenant))
        if reason is Rejection.QUEUE_FULL and sees_all:
            return None
        return Refusal(reason=reason, retry_after=policy.retry_after(self._room.taken))

    def _follow(self, policy: BasePolicy) -> None:
        """Use the policy's settings, which may have changed."""
        settings = policy.settings
        if settings is not self._settings:
            self._settings = settings
            self._room.size, self._room.spare = settings.max_queue_size, settings.spare_rows
            self._next_rows = settings.max_concurrent_batches * settings.max_batch_size
            self._at_once = _BATCHES_SHOWN * self._next_rows

    def _tenant_of(self, item_id: ItemId) -> str:
        return self._pending_of(item_id).tenant

    def _is_contended(self, tenant: str, rows: int, policy: BasePolicy) -> bool:
        """Whether tenants take turns once these rows wait as well."""
        if self._turns is not None:
            return True
        self._follow(policy)
        return self._room.has_others(tenant) and self._room.taken + rows > self._next_rows

    def _take_turns(self, policy: BasePolicy, now: float) -> Turns:
        """From now on the policy sees what the line shows; all that waits lines up."""
        if self._turns is None:
            self._turns = Turns(self.backoff, self._tenant_of)
            for item in list(policy.waiting()):
                policy.withdraw(item.id, now)
                self._turns.add(self._tenant_of(item.id), item, policy)
            for tenant in self._served_last:
                self._turns.line.served(tenant)
        return self._turns

    def _leave_line(self, item_id: ItemId) -> None:
        if self._turns is not None:
            self._turns.discard(item_id)

    def _ahead(self, policy: BasePolicy) -> tuple[float, int]:
        """The work and the rows of what leaves next, at the mean length of what is here."""
        self._follow(policy)
        books, rows = self._ledger, self._next_rows
        return rows * books.work_live / max(1, books.rows_live), rows

    def _late_in_turn(
        self, pending: PendingRequest, policy: BasePolicy, now: float
    ) -> Refusal | None:
        """Whether a call that is no use when late would be late after its tenant's own rows."""
        tenants = len(self._room) + (not self._room.of(pending.tenant))
        own = self._room.of(pending.tenant) * self._ledger.work_live
        in_turn = tenants * (pending.work + own / max(1, self._ledger.rows_live))
        # Most tenants may have a row or two: it waits for no more than what is here.
        work = min(in_turn, self._ledger.work_live + pending.work)
        return self._late_behind(work, pending, policy, now)

    def _late_behind(
        self, work: float, pending: PendingRequest, policy: BasePolicy, now: float
    ) -> Refusal | None:
        """Whether a call that is no use when late is late though so much work has full batches."""
        strict = pending.due == pending.deadline and policy.pipeline.times.counts_seconds
        if not strict or now + work / policy.pipeline.workers <= pending.deadline:
            return None
        delay = policy.retry_after(self._ledger.rows_waiting)
        return Refusal(reason=Rejection.PREDICTED_LATE, retry_after=delay)
