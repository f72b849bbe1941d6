"""The recipe for the Inference Extension's endpoint picker names what the sidecar exports."""

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import yaml

from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.names import DATA_PORT, NAME_LABEL
from support.chain import in_front_of
from support.engine_server import EngineServer
from support.generated import CHAT, request
from support.repository import ROOT

PAGE: Final = (ROOT / "docs/language-models.md").read_text()


def picker() -> dict[str, Any]:
    """The configuration that the page has."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    documents = [yaml.safe_load(block) for block in blocks]
    (found,) = [one for one in documents if one["kind"] == "EndpointPickerConfig"]
    return dict(found)


def specs() -> dict[str, str]:
    (extractor,) = [one for one in picker()["plugins"] if one["type"] == "core-metrics-extractor"]
    (engine,) = extractor["parameters"]["engineConfigs"]
    assert engine.pop("name") == extractor["parameters"]["defaultEngine"]
    return dict(engine)


def test_the_recipe_is_whole_and_names_the_ports_and_the_label_of_the_pods() -> None:
    assert set(specs()) == {"queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"}
    types = {one["type"] for one in picker()["plugins"]}
    for profile in picker()["schedulingProfiles"]:
        assert {one["pluginRef"] for one in profile["plugins"]} <= types
    assert f"--model-server-metrics-port={ADMIN_PORT}" in PAGE
    assert f"targetPorts: [{{number: {DATA_PORT}}}]" in PAGE
    assert f"the label `{NAME_LABEL}`" in PAGE
    assert set(re.findall(r"--[a-z-]+-metric=(\S+)", PAGE)) == set(specs().values())


async def test_the_sidecar_exports_each_metric_of_the_recipe_once_as_a_gauge(
    tmp_path: Path,
) -> None:
    async with EngineServer() as engine:
        chained = in_front_of(engine.url, tmp_path, upstream_protocol=ServerProtocol.OPENAI)
        async with chained as chain:
            await chain.ready()
            long = request("m", CHAT, "hello", 1000, stream=True)
            async with chain.session.post(chain.url(CHAT), json=long) as response:
                async with asyncio.timeout(10.0):
                    while specs()["kvUsageSpec"] not in await chain.metrics():  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                assert await chain.metric(specs()["runningRequestsSpec"]) == 1
                response.close()
            lines = (await chain.metrics()).splitlines()
            for name in specs().values():
                assert f"# TYPE {name} gauge" in lines
                # The picker takes one series of each, without adding any up.
                assert len([line for line in lines if re.match(rf"{name}[ {{]", line)]) == 1
