"""A call between its acceptance and its end, as the batcher keeps it."""

import asyncio
from typing import Final

from batchedmodel_scheduling.policy import Item, ItemId
from batchedmodel_sidecar.calls import Answer, Call, Row, Value
from batchedmodel_sidecar.terms import Terms


class LiveCall:
    """An accepted call that is not settled."""

    __slots__ = (
        "accepted_at",
        "answers",
        "call",
        "deadline",
        "due",
        "future",
        "ids",
        "missing",
        "recorded",
        "terms",
        "waiting",
        "work",
    )

    def __init__(self, call: Call, now: float, arrived: float, terms: Terms) -> None:
        self.call: Final = call
        self.accepted_at: Final = now
        self.terms: Final = terms
        self.due: Final = arrived + terms.due
        self.deadline: Final = arrived + terms.limit
        self.future: Final[asyncio.Future[Answer]] = asyncio.get_running_loop().create_future()
        self.ids: list[ItemId] = []
        self.answers: list[tuple[Value, ...] | None] = [None] * len(call.rows)
        self.missing = len(call.rows)
        self.recorded = 0
        """Number of its first row in the flight recorder."""
        self.work = 0.0
        self.waiting = len(call.rows)
        """Rows that have not left."""

    def item(self, item_id: ItemId, row: Row) -> Item:
        """One of its rows as the policy sees it."""
        return Item(
            id=item_id,
            key=self.call.key,
            length=row.length,
            arrived=self.accepted_at,
            due=self.due,
            deadline=self.deadline,
            priority=self.terms.priority,
            fan_out=self.terms.fan_out,
        )
