"""Every scrape shows books that agree with themselves, and with what callers sent and were told."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from batchedmodel_contract.manifest.batching import BatchSettings
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.outcomes import Rejection
from batchedmodel_contract.processes import sidecar_api
from batchedmodel_sidecar.http.passthrough import MOST_AT_ONCE
from support.chain import Chain
from support.row_server import RowServer, in_front

PREDICT: Final = "/v1/models/m:predict"
CALLERS: Final = 200
AT_ONCE: Final = MOST_AT_ONCE // 2
"""So few that nobody who passes through unbatched is refused, however slow the machine."""
ROWS: Final = '{"instances": [1, 2, 3]}'
KINDS: Final = {
    "served": (PREDICT, ROWS, {}),
    "poisoned": (PREDICT, '{"instances": ["poison"]}', {}),
    "unreadable": (PREDICT, '{"instances": [1', {}),
    "alone": (PREDICT, ROWS, {"x-batch": "off"}),
    "elsewhere": ("/v1/models/other:predict", "{}", {}),
}
"""Path, body and headers."""


async def scraped(chain: Chain) -> Counter[str]:
    """The sum over the labels of each metric, all of one moment."""
    sums: Counter[str] = Counter()
    _, text = await chain.admin(sidecar_api.METRICS)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name.removeprefix("batchedmodel_")] += int(sample.value)
    return sums


async def test_the_books_balance_at_every_moment_and_tell_what_was_sent(
    tmp_path: Path, server: RowServer
) -> None:
    chance, sent, told = random.Random(7), Counter[str](), Counter[int]()
    places = asyncio.Semaphore(AT_ONCE)
    server.seconds = 0.01
    settings = BatchSettings(max_batch_size=8, max_queue_size=4096)
    async with in_front(server, tmp_path, ServerProtocol.V1, settings) as chain:

        async def call(kind: str) -> None:
            path, body, headers = KINDS[kind]
            await asyncio.sleep(chance.random())
            async with places:
                sent[kind] += 1
                url = chain.url(path)
                async with chain.session.post(url, data=body, headers=headers) as response:
                    await response.read()
            told[response.status] += 1

        callers = asyncio.gather(*(call(chance.choice([*KINDS])) for _ in range(CALLERS)))
        scrapes = busy = 0
        while not callers.done():
            at_least = told.total()
            found = await scraped(chain)
            ongoing = found["queue_requests"] + found["inflight_requests"]
            assert found["requests_accepted_total"] == found["requests_settled_total"] + ongoing
            assert at_least <= found["requests_offered_total"] <= sent.total()
            assert found["requests_settled_total"] + found["requests_rejected_total"] >= at_least
            scrapes += 1
            busy += ongoing > 0
        await callers
        assert busy > scrapes / 4, "most scrapes must find somebody on his way"

        found = await scraped(chain)
        assert found["requests_offered_total"] == sent.total() == CALLERS
        assert found["requests_rejected_total"] == sent["unreadable"] == told[400]
        assert found["requests_settled_total"] == CALLERS - sent["unreadable"]
        assert found["offered_items_total"] == 3 * sent["served"] + sent["poisoned"]
        completed = await chain.metric("batchedmodel_requests_settled_total", outcome="completed")
        assert completed == sent["served"] + sent["alone"] == told[200]
        invalid = Rejection.INVALID.value
        assert await chain.metric("batchedmodel_requests_rejected_total", reason=invalid) > 0
