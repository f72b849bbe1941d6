"""A call between its acceptance and its end, as the batcher keeps it."""

import asyncio
from typing import Final

from batchedmodel_scheduling.policy import ItemId
from batchedmodel_sidecar.calls import Answer, Call, Value


class LiveCall:
    """An accepted call that is not settled."""

    __slots__ = (
        "accepted_at",
        "answers",
        "call",
        "deadline",
        "future",
        "ids",
        "limit",
        "missing",
        "waiting",
        "work",
    )

    def __init__(self, call: Call, now: float, arrived: float, limit: float) -> None:
        self.call: Final = call
        self.accepted_at: Final = now
        self.limit: Final = limit
        self.deadline: Final = arrived + limit
        self.future: Final[asyncio.Future[Answer]] = asyncio.get_running_loop().create_future()
        self.ids: list[ItemId] = []
        self.answers: list[tuple[Value, ...] | None] = [None] * len(call.rows)
        self.missing = len(call.rows)
        self.work = 0.0
        self.waiting = len(call.rows)
        """Rows that have not left."""
