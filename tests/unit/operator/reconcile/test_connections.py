"""An operator at an API server over real HTTP: looks that hang do not cost it the Lease."""

import asyncio
from pathlib import Path

import pytest

from batchedmodel_operator import __main__ as entry
from batchedmodel_operator.cluster.client import KubernetesCluster
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.observed.state import Key
from batchedmodel_operator.reconcile.work_queue import Workers
from batchedmodel_operator.settings import OperatorSettings
from support.pretend_api_server import becomes, pretend_api_server

READS = 16 * 8
"""More than there are at once."""
SETTINGS = OperatorSettings(
    sidecar_image="sidecar", model_server_image="server", namespace="ns", probe_port=0
)


async def test_the_lease_is_dated_by_the_api_servers_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lead(*_: object) -> None:
        """End at once."""

    async with pretend_api_server(tmp_path) as (server, kubeconfig):
        server.date = "Tue, 06 May 2031 07:08:09 GMT"
        monkeypatch.setattr(entry.Operator, "lead", lead)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        await entry._run(SETTINGS)
        assert server.lease is not None
        assert server.lease["spec"]["renewTime"].startswith("2031-05-06T07:08:")


@pytest.mark.slow
async def test_reads_that_hang_do_not_keep_a_leader_from_renewing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pretend_api_server(tmp_path) as (server, kubeconfig):
        renewed = False

        async def lead(operator: entry.Operator, stop: asyncio.Event) -> None:
            nonlocal renewed
            server.hangs = True
            election = operator._candidacy
            cluster = KubernetesCluster(operator._client)
            reads = [
                asyncio.create_task(cluster.read(Kind.BATCHED_MODEL, "team", f"model-{number}"))
                for number in range(READS)
            ]
            await becomes(lambda: server.unanswered >= 100)
            before = server.renewals
            await becomes(lambda: server.renewals >= before + 2, seconds=6)
            renewed = election.leads()
            for task in reads:
                task.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

        monkeypatch.setattr(entry.Operator, "lead", lead)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        await entry._run(SETTINGS)
        assert renewed
        assert server.lease is not None
        assert not server.lease["spec"]["holderIdentity"]


async def test_a_list_that_hangs_keeps_reconciles_waiting_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(workers: Workers[Key]) -> None:
        """Begin, and end the operator with it."""

    monkeypatch.setattr(entry, "_FIRST_LISTS_SECONDS", 0.3)
    monkeypatch.setattr(Workers, "run", run)
    async with pretend_api_server(tmp_path) as (server, kubeconfig):
        server.hangs = True
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        async with asyncio.timeout(20):
            await entry._run(SETTINGS)
        assert server.unanswered >= 5
