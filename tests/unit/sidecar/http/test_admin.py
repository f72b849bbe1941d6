"""What the kubelet is told, and so when the sidecar is restarted."""

from typing import Any, cast

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry

from batchedmodel_contract.processes import sidecar_api
from batchedmodel_sidecar.http.admin import Admin
from batchedmodel_sidecar.lora.served import ServedAdapters


class Dispatcher:
    """As much of a batcher as the probe asks."""

    wrong: str | None = None

    def ailment(self) -> str | None:
        return self.wrong


async def test_liveness_follows_the_dispatcher() -> None:
    dispatcher, nothing = Dispatcher(), cast("Any", None)
    admin = Admin(
        name="m",
        batcher=cast("Any", dispatcher),
        link=nothing,
        lifecycle=nothing,
        registry=CollectorRegistry(),
        recorder=nothing,
        repository=None,
        stats=nothing,
        adapters=ServedAdapters("m"),
        token="",
    )
    async with TestClient(TestServer(admin.application())) as kubelet:
        for wrong, status in ((None, 200), ("a decision is 6 s late", 503), (None, 200)):
            dispatcher.wrong = wrong
            async with kubelet.get(sidecar_api.LIVE) as response:
                assert response.status == status
                assert (wrong or "live") in await response.text()
