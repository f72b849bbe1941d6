"""Checks from outside whether an installation works; `helm test` runs it in a pod of its own.

Its account may ask what any account may ask an API server, and may read the operator's Lease.

Exit codes: 0 when all is well, 1 when something is not, 2 for wrong settings.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.processes import logs
from batchedmodel_contract.processes.environment import EXIT_WRONG_SETTINGS, from_environment
from batchedmodel_contract.processes.logs import LogLevel
from batchedmodel_contract.schema.reading import setting
from batchedmodel_contract.schema.rules import Choice, Real, Text, Truth
from batchedmodel_kube.client import Client
from batchedmodel_kube.errors import ClusterError
from batchedmodel_kube.names import (
    EXTERNAL_METRICS_GROUP,
    GROUP,
    METRICS_GROUP,
    PLURAL,
    REQUIRED_REPLICAS_METRIC,
)
from batchedmodel_operator.cluster.client import KubernetesCluster
from batchedmodel_operator.kinds import RESOURCES, Kind

_log: Final = logging.getLogger("batchedmodel_operator.helm_test")
_RETRY_SECONDS: Final = 1.0
_METRIC: Final = f"{PLURAL}.{GROUP}/{REQUIRED_REPLICAS_METRIC}"

Check = Callable[[], Awaitable[str]]
"""Says in a sentence what is wrong, and nothing when nothing is. Raises `ClusterError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelmTestSettings:
    """What the chart says of the installation."""

    namespace: str = setting(Text(), required=True)
    """Namespace of the operator."""
    lease_name: str = setting(Text(), required=True)
    """Lease of the operator."""
    custom_metrics: bool = setting(Truth(), default=True)
    """Whether the autoscaler serves custom.metrics.k8s.io."""
    external_metrics: bool = setting(Truth(), default=False)
    """Whether the autoscaler serves external.metrics.k8s.io."""
    patience_seconds: float = setting(Real(minimum=0, maximum=600), default=60.0)
    """How long something may take to come right, after an installation."""
    log_format: logs.LogFormat = setting(Choice(of=logs.LogFormat), default=logs.LogFormat.TEXT)
    """In which form to log."""


def main() -> int:
    """Run all checks, and log their results."""
    try:
        settings = from_environment(HelmTestSettings, os.environ)
    except InvalidManifest as error:
        print(error, file=sys.stderr)  # noqa: T201  # logging is configured by these settings
        return EXIT_WRONG_SETTINGS
    logs.configure(LogLevel.INFO, settings.log_format, logs.Process.HELM_TEST)
    try:
        return 0 if asyncio.run(_run(settings)) else 1
    except ClusterError as error:
        _log.error("%s", error)
        return 1


async def all_is_well(checks: Mapping[str, Check], patience: float) -> bool:
    """Repeat each check until nothing is wrong; False when something still is in the end.

    All at once: `patience`, in seconds, is that of the whole.
    """
    return all(await asyncio.gather(*(_passes(*check, patience) for check in checks.items())))


class LeaseRenewal:
    """Whether a Lease is renewed: two reads compare its version, so no clock matters."""

    def __init__(self, read: Callable[[], Awaitable[tuple[str, str]]]) -> None:
        """`read`: the holder, empty if there is none, and the Lease's version."""
        self._read = read
        self._first = "", ""

    async def check(self) -> str:
        """A check."""
        holder, version = await self._read()
        if not holder:
            return "nobody holds the operator's Lease"
        if self._first[0] != holder:
            self._first = holder, version
        if self._first[1] == version:
            return f"{holder} holds the operator's Lease and does not renew it"
        return ""


async def _run(settings: HelmTestSettings) -> bool:
    client = await Client.connect(os.environ)
    cluster = KubernetesCluster(client)

    async def lease() -> tuple[str, str]:
        found = await cluster.read(Kind.LEASE, settings.namespace, settings.lease_name)
        if found is None:
            return "", ""
        holder = found.get("spec", {}).get("holderIdentity") or ""
        return holder, found["metadata"]["resourceVersion"]

    async def definition() -> str:
        served = await cluster.serves(Kind.BATCHED_MODEL)
        return "" if served else "the definition of BatchedModel is not installed"

    async def metrics(group: str, version: str, name: str) -> str:
        listed = name in await cluster.served(group, version)
        return "" if listed else f"{group}/{version} does not list {name}"

    apis = []
    if settings.custom_metrics:
        apis += [(METRICS_GROUP, version, _METRIC) for version in ("v1beta1", "v1beta2")]
    if settings.external_metrics:
        apis.append((EXTERNAL_METRICS_GROUP, "v1beta1", REQUIRED_REPLICAS_METRIC))
    checks: dict[str, Check] = {
        f"{RESOURCES[Kind.BATCHED_MODEL].api_version} is served": definition,
        "the operator works": LeaseRenewal(lease).check,
        **{f"{api[0]}/{api[1]} answers": partial(metrics, *api) for api in apis},
    }
    try:
        return await all_is_well(checks, settings.patience_seconds)
    finally:
        await client.close()


async def _passes(name: str, check: Check, patience: float) -> bool:
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience
    while True:
        try:
            mistake = await check()
        except ClusterError as error:
            mistake = str(error)
        if not mistake:
            _log.info("ok: %s", name)
            return True
        if clock() >= deadline:
            _log.error("not ok: %s: %s", name, mistake)
            return False
        await asyncio.sleep(_RETRY_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
