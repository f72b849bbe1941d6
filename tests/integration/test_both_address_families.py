"""A sidecar as a pod has it, asked at its IPv4 and at its IPv6 address."""

import json
import socket
from pathlib import Path

import pytest

from batchedmodel_autoscaler.polling.sidecars import Sidecars
from batchedmodel_contract.processes.listening import EVERY_ADDRESS
from batchedmodel_contract.processes.sidecar_api import LIVE
from batchedmodel_kube.admin_client import Whom
from batchedmodel_operator.cluster.sidecars import SidecarAdmin
from support.chain import running_chain

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this kernel has no IPv6")


async def test_probes_callers_operator_and_autoscaler_reach_a_pod_at_addresses_of_both_families(
    tmp_path: Path,
) -> None:
    async with running_chain(
        tmp_path, handler="none", start_model=False, host=EVERY_ADDRESS, pod_uid="uid-1"
    ) as chain:
        whom = Whom(model=chain.name, pod="uid-1")
        autoscaler, operator = Sidecars(2, port=chain.admin_port), SidecarAdmin(chain.admin_port)
        for address, host in (("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")):
            async with chain.session.get(f"http://{host}:{chain.admin_port}{LIVE}") as answer:
                assert answer.status == 200
            # Nothing is loaded: an answer that says so is one of the data port.
            async with chain.session.get(f"http://{host}:{chain.port}/v2/models/m") as answer:
                assert answer.status == 503
                assert json.loads(await answer.read())["error"]
            assert await operator.state(address, whom)
            assert (await autoscaler.stats(address, whom)).model_ready is False
        autoscaler.close()
