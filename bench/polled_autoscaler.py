"""The autoscaler's fleet, poller and metrics API in one process, without a cluster.

Started by `polling`. The first line of standard input is a document of the pods and of whom to
answer. Once all pods have been asked it is answered with a line of JSON, where the metrics API
listens; and every further line with one of how many questions were answered so far, and how many
were not. The process ends with its standard input.
"""

import asyncio
import gc
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_client import CollectorRegistry

from batchedmodel_autoscaler.cluster.objects import FrontProxy, Model, ModelKey, Owned, Pod
from batchedmodel_autoscaler.metrics_api.certificates import make_identity, server_context
from batchedmodel_autoscaler.metrics_api.server import MetricsApi
from batchedmodel_autoscaler.polling.poller import Poller
from batchedmodel_autoscaler.polling.sidecars import Sidecars, most_kept
from batchedmodel_autoscaler.replicas.formula import Target
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_autoscaler.telemetry import POLLS, PollResult, Telemetry
from batchedmodel_contract.processes.listening import raise_descriptors
from batchedmodel_http.ports.listener import Listener

_POLL_SECONDS: Final = 2.0
_TARGET: Final = Target(utilization=0.8, queue_length=32, outstanding=32, queue_wait_seconds=0.5)


def _fleet(pods: dict[str, list[str]]) -> ClusterState:
    known = ClusterState(_POLL_SECONDS)
    for name, addresses in pods.items():
        key = ModelKey("team", name)
        known.model_seen(Model(key=key, uid=name, target=_TARGET, capacity=None))
        deployment = Owned(uid=f"{name}-deployment", model=key, owner=name)
        known.ownership.seen(replace(deployment, replicas=len(addresses)))
        known.ownership.seen(Owned(uid=f"{name}-set", model=key, owner=deployment.uid))
        for address in addresses:
            known.pod_seen(_pod(key, address))
    return known


def _pod(key: ModelKey, address: str) -> Pod:
    return Pod(
        uid=address,
        model=key,
        address=address,
        ready=True,
        leaving=False,
        startup_seconds=40.0,
        fresh=False,
        created="2026-01-01T00:00:00Z",
        revision="a",
        owner=f"{key.name}-set",
    )


async def _serve(document: dict[str, Any]) -> None:
    registry = CollectorRegistry()
    sidecars = Sidecars(most_kept(raise_descriptors()))
    telemetry, known = Telemetry(registry), _fleet(document["pods"])
    poller = Poller(known, sidecars.stats, telemetry=telemetry)
    api = MetricsApi(known, telemetry, calendar=lambda: datetime.now(UTC))
    api.front_proxy = FrontProxy(
        authority=document["authority"],
        allowed_names=(document["front"],),
        user_headers=("X-Remote-User",),
    )
    identity = make_identity([document["name"]], datetime.now(tz=UTC))
    listener = Listener(api.application(), "127.0.0.1", 0)
    await listener.use(server_context(identity, document["authority"]))
    asking = asyncio.create_task(poller.run())
    for addresses in document["pods"].values():
        for address in addresses:
            poller.follow(address)
    await poller.all_asked()
    # As the service does.
    gc.collect()
    gc.freeze()
    print(json.dumps({"port": listener.port, "authority": identity.authority.decode()}), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        told = [
            registry.get_sample_value(POLLS, {"result": result}) or 0.0
            for result in (PollResult.ANSWERED, PollResult.SILENT)
        ]
        print(json.dumps(told), flush=True)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    sidecars.close()
    await listener.close()


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.stdin.readline())))
