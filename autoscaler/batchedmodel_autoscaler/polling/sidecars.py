"""Asks sidecars for their stats, by connections that are kept between two polls."""

import json
from typing import Final

from batchedmodel_autoscaler.polling.stats_document import stats_from_mapping
from batchedmodel_contract.invalid_input import InvalidInput
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT, STATS
from batchedmodel_contract.processes.stats import SidecarStats
from batchedmodel_kube.admin_client import KEPT_SECONDS, AdminClient, NoAnswer, Whom

LARGEST_ANSWER: Final = 16_384
"""Bytes of a body. A sidecar's have less than two thousand."""
POLL_TIMEOUT_SECONDS: Final = 1.0
"""For all of an exchange, from the connection to the last byte."""
_OWN_DESCRIPTORS: Final = 512
"""For HPAs, watches, probes, and the questions of which no connection is kept."""
_MOST_KEPT: Final = 10_000
"""The connections that there is memory for beside all else: 9 KB each."""


def most_kept(descriptors: int) -> int:
    """How many connections a process may keep that may have so many descriptors."""
    return max(0, min(_MOST_KEPT, descriptors - _OWN_DESCRIPTORS))


class Sidecars:
    """The stats of all sidecars; used inside one event loop."""

    def __init__(
        self, most_kept: int, *, port: int = ADMIN_PORT, kept_seconds: float = KEPT_SECONDS
    ) -> None:
        """At most `most_kept` connections are kept, and those of questions under way besides."""
        self._client = AdminClient(
            timeout_seconds=POLL_TIMEOUT_SECONDS,
            largest_body=LARGEST_ANSWER,
            port=port,
            most_kept=most_kept,
            kept_seconds=kept_seconds,
        )

    async def stats(self, address: str, whom: Whom) -> SidecarStats:
        """What the pod at an IP address tells; raises `NoAnswer`, also when it is another."""
        answer = await self._client.ask(address, STATS, whom=whom)
        if answer.status != 200:
            raise NoAnswer(f"an answer with status {answer.status}")
        try:
            return stats_from_mapping(json.loads(answer.body))
        except (InvalidInput, ValueError, RecursionError) as error:
            raise NoAnswer(f"nonsense: {error}") from error

    def close(self) -> None:
        """Drop all connections."""
        self._client.close()
