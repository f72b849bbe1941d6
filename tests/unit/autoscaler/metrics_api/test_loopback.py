"""The metrics API over real TLS, fed by real HTTP from pretend sidecars on loopback."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from batchedmodel_autoscaler.cluster.objects import FrontProxy, ModelKey
from batchedmodel_autoscaler.cluster.resources import METRICS_VERSIONS
from batchedmodel_autoscaler.metrics_api.certificates import Identity, make_identity, server_context
from batchedmodel_autoscaler.metrics_api.server import MetricsApi
from batchedmodel_autoscaler.polling.poller import Poller
from batchedmodel_autoscaler.polling.sidecars import Sidecars
from batchedmodel_autoscaler.replicas.formula import Target
from batchedmodel_autoscaler.state.cluster_state import ClusterState
from batchedmodel_autoscaler.telemetry import Telemetry
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT, STATS
from batchedmodel_http.ports.listener import CannotListen, Listener
from batchedmodel_kube.admin_client import NoAnswer, Whom
from batchedmodel_kube.names import METRICS_GROUP
from cluster.certificates import Authority, Pair
from support.autoscaler_world import CALM, busy, fleet, pod

WHOM = Whom(model="minilm", pod="uid-1")

NAME = "batchedmodel-autoscaler.batchedmodel.svc"
BASE = "/apis/custom.metrics.k8s.io"
MODEL = "namespaces/team/batchedmodels.batchedmodel.dev/minilm"
USER = {"X-Remote-User": "system:kube-aggregator"}


@dataclass(frozen=True, kw_only=True)
class People:
    """Whose certificates there are."""

    trusted: Authority
    front: Pair
    stranger: Pair
    forger: Pair


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    folder = tmp_path_factory.mktemp("people")
    trusted, other = Authority(folder, "front-ca"), Authority(folder, "other-ca")
    return People(
        trusted=trusted,
        front=trusted.issue("front", common_name="aggregator"),
        stranger=trusted.issue("stranger", common_name="somebody"),
        forger=other.issue("forger", common_name="aggregator"),
    )


@dataclass
class Server:
    listener: Listener
    identity: Identity
    registry: CollectorRegistry
    people: People

    async def get(
        self,
        path: str,
        *,
        shows: Pair | None,
        headers: dict[str, str] = USER,
        verb: str = "GET",
    ) -> tuple[int, Any]:
        tls = ssl.create_default_context(cadata=self.identity.authority.decode())
        if shows is not None:
            tls.load_cert_chain(shows.certificate, shows.key)
        url = f"https://127.0.0.1:{self.listener.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(verb, url, ssl=tls, server_hostname=NAME, headers=headers) as response,
        ):
            body = await response.read()
            if response.content_type != "application/json":
                return response.status, body.decode()
            return response.status, json.loads(body)


@asynccontextmanager
async def serving(known: ClusterState, people: People) -> AsyncIterator[Server]:
    registry = CollectorRegistry()
    api = MetricsApi(known, Telemetry(registry), calendar=lambda: datetime.now(UTC))
    authority = people.trusted.certificate.read_text()
    api.front_proxy = FrontProxy(
        authority=authority, allowed_names=("aggregator",), user_headers=("X-Remote-User",)
    )
    identity = make_identity([NAME], datetime.now(tz=UTC))
    listener = Listener(api.application(), "127.0.0.1", 0)
    await listener.use(server_context(identity, authority))
    try:
        yield Server(listener=listener, identity=identity, registry=registry, people=people)
    finally:
        await listener.close()


def heard(rate: float) -> ClusterState:
    known = fleet([pod(1)])
    known.answered("uid-1", busy(rate, queue_length=5), time.monotonic())
    return known


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_the_api_server_gets_one_value_and_the_answer_is_counted(
    people: People, version: str
) -> None:
    async with serving(heard(2.0), people) as server:
        path = f"{BASE}/{version}/{MODEL}/batchedmodel_required_replicas"
        code, found = await server.get(path, shows=people.front)
        assert code == 200
        (item,) = found["items"]
        assert item["value"] == "3"
        code, found = await server.get(
            f"{BASE}/{version}/{MODEL}/batchedmodel_queue_length", shows=people.front
        )
        assert found["items"][0]["value"] == "5"
        counted = generate_latest(server.registry).decode()
        assert (
            'answers_total{metric="batchedmodel_required_replicas",reason="MoreWork"} 1.0'
            in counted
        )


@pytest.mark.parametrize("version", METRICS_VERSIONS[METRICS_GROUP])
async def test_whatever_discovery_lists_is_served(people: People, version: str) -> None:
    known = fleet([pod(1)])
    for second in (2, 0):
        waited, released = 100.0 - 3 * second, 40 - 2 * second
        told = replace(CALM, queue_length=5, outstanding=9)
        told = replace(told, waited_row_seconds=waited, released_rows=released)
        known.answered("uid-1", told, time.monotonic() - second)
    async with serving(known, people) as server:
        _, listed = await server.get(f"{BASE}/{version}", shows=people.front)
        values = {}
        for resource in listed["resources"]:
            metric = resource["name"].partition("/")[2]
            code, found = await server.get(f"{BASE}/{version}/{MODEL}/{metric}", shows=people.front)
            assert code == 200
            values[metric] = found["items"][0]["value"]
        assert values == {
            "batchedmodel_required_replicas": "0",
            "batchedmodel_queue_length": "5",
            "batchedmodel_concurrency": "9",
            "batchedmodel_queue_time_seconds": "1500m",
        }


async def test_an_external_metric_is_of_the_model_that_a_label_names_in_its_namespace(
    people: People,
) -> None:
    base = "/apis/external.metrics.k8s.io/v1beta1"
    async with serving(heard(2.0), people) as server:
        _, listed = await server.get(base, shows=people.front)
        values = {}
        for resource in listed["resources"]:
            path = f"{base}/namespaces/team/{resource['name']}?labelSelector=model%3Dminilm"
            code, found = await server.get(path, shows=people.front)
            if code == 200:
                values[resource["name"]] = found["items"][0]["value"]
        assert values["batchedmodel_required_replicas"] == "3"
        assert values["batchedmodel_queue_length"] == "5"
        metric = f"{base}/namespaces/team/batchedmodel_queue_length"
        for path, status in (
            (f"{metric}?labelSelector=model%3Dminilm".replace("team", "others"), 404),
            (f"{metric}?labelSelector=model%3Dother", 404),
            (f"{base}/namespaces/team/other?labelSelector=model%3Dminilm", 404),
            (metric, 400),
        ):
            assert (await server.get(path, shows=people.front))[0] == status


async def test_discovery(people: People) -> None:
    async with serving(heard(0.4), people) as server:

        async def kind(path: str, accept: str) -> tuple[int, str]:
            headers = USER | {"Accept": accept}
            code, found = await server.get(path, shows=people.front, headers=headers)
            return code, found["kind"]

        protobuf = "application/vnd.kubernetes.protobuf, application/json"
        aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        assert await kind(f"{BASE}/v1beta1", protobuf) == (200, "APIResourceList")
        assert await kind(f"{BASE}/v1beta2", protobuf) == (200, "APIResourceList")
        assert await kind(BASE, protobuf) == (200, "APIGroup")
        assert await kind("/apis", protobuf) == (200, "APIGroupList")
        assert await kind("/apis", aggregated) == (406, "Status")
        assert await kind("/openapi/v2", protobuf) == (404, "Status")
        assert await kind("/openapi/v3", protobuf) == (404, "Status")


@pytest.mark.parametrize(
    ("path", "verb", "code", "reason", "message"),
    [
        (f"{MODEL}/other", "GET", 404, "NotFound", '"other" is not known'),
        (
            f"{MODEL.replace('minilm', 'x')}/batchedmodel_queue_length",
            "GET", 404, "NotFound", '"x" not found',
        ),
        ("namespaces/team/pods/*/cpu", "GET", 404, "NotFound", "is not served here"),
        (f"{MODEL}/batchedmodel_queue_length", "POST", 405, "MethodNotAllowed", "only be read"),
        (
            f"{MODEL}/batchedmodel_queue_length?metricLabelSelector=a%3Db",
            "GET", 400, "BadRequest", "has no labels",
        ),
    ],
)  # fmt: skip
async def test_a_wrong_question_gets_a_status(
    people: People, path: str, verb: str, code: int, reason: str, message: str
) -> None:
    async with serving(heard(0.4), people) as server:
        got, found = await server.get(f"{BASE}/v1beta2/{path}", shows=people.front, verb=verb)
        assert (got, found["kind"], found["reason"]) == (code, "Status", reason)
        assert message in found["message"]


async def test_who_hears_nobody_answers_503(people: People) -> None:
    async with serving(fleet([pod(1)]), people) as server:
        path = f"{BASE}/v1beta2/{MODEL}/batchedmodel_required_replicas"
        code, found = await server.get(path, shows=people.front)
        assert (code, found["reason"]) == (503, "ServiceUnavailable")
        assert b'reason="MetricsUnavailable"} 1.0' in generate_latest(server.registry)


class _Panic(BaseException):
    pass


class _BrokenFleet(ClusterState):
    def target(self, key: ModelKey) -> Target:
        raise _Panic("a bug that one model meets")


async def test_whatever_fails_for_one_model_is_answered(people: People) -> None:
    async with serving(_BrokenFleet(2.0), people) as server:
        path = f"{BASE}/v1beta2/{MODEL}/batchedmodel_required_replicas"
        code, found = await server.get(path, shows=people.front)
        assert (code, found["kind"], found["reason"]) == (500, "Status", "InternalError")
        code, _ = await server.get(f"{BASE}/v1beta2", shows=people.front)
        assert code == 200


async def test_only_the_api_server_is_listened_to(people: People) -> None:
    async with serving(heard(0.4), people) as server:
        for shows in (None, people.stranger):
            code, found = await server.get(f"{BASE}/v1beta2", shows=shows)
            assert (code, found["reason"]) == (401, "Unauthorized")
        code, _ = await server.get(f"{BASE}/v1beta2", shows=people.front, headers={})
        assert code == 401
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await server.get(f"{BASE}/v1beta2", shows=people.forger)
        code, _ = await server.get("/livez", shows=people.front)
        assert code == 200


async def test_certificates_change_without_a_refused_connection(people: People) -> None:
    async with serving(heard(0.4), people) as server:
        authority = people.trusted.certificate.read_text()
        for _ in range(10):
            asking = [
                asyncio.create_task(server.get(f"{BASE}/v1beta2", shows=people.front))
                for _ in range(3)
            ]
            await asyncio.sleep(0)
            await server.listener.use(server_context(server.identity, authority))
            assert [code for code, _ in await asyncio.gather(*asking)] == [200] * 3
        other = make_identity([NAME], datetime.now(tz=UTC))
        await server.listener.use(server_context(other, authority))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await server.get(f"{BASE}/v1beta2", shows=people.front)


async def test_a_taken_port_is_named(people: People) -> None:
    async with serving(heard(0.4), people) as server:
        with pytest.raises(CannotListen, match=f"127.0.0.1:{server.listener.port}"):
            Listener(web.Application(), "127.0.0.1", server.listener.port)


# Sidecars.


@asynccontextmanager
async def sidecar(address: str, respond: Any) -> AsyncIterator[None]:
    application = web.Application()
    application.router.add_get(STATS, respond)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, address, ADMIN_PORT).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def test_stats_arrive_from_the_pods_and_become_an_answer(people: People) -> None:
    async def answer(request: web.Request) -> web.Response:
        told.set()
        return web.json_response(busy(2.0).to_mapping())

    told = asyncio.Event()
    known, sidecars = fleet([pod(1, address="127.0.65.1")]), Sidecars(10)
    telemetry = Telemetry(CollectorRegistry())
    poller = Poller(known, sidecars.stats, telemetry=telemetry)
    async with sidecar("127.0.65.1", answer), serving(known, people) as server:
        asking = asyncio.create_task(poller.run())
        poller.follow("uid-1")
        path = f"{BASE}/v1beta2/{MODEL}/batchedmodel_required_replicas"
        await asyncio.wait_for(told.wait(), 10)
        await asyncio.sleep(0.2)
        _, found = await server.get(path, shows=people.front)
        assert found["items"][0]["value"] == "3"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    sidecars.close()


async def test_whatever_is_no_stats_counts_as_silence() -> None:
    bodies = {
        "nonsense": web.Response(text="{"),
        "no stats": web.json_response({"instance": "x"}),
        "a list": web.json_response([1]),
        "an error": web.json_response(busy(1.0).to_mapping(), status=500),
        "a redirect": web.Response(status=302, headers={"Location": "http://127.0.65.9/"}),
        "too much": web.Response(body=b"[" * 200_000),
        "a negative amount": web.json_response(busy(-1.0).to_mapping()),
    }
    sidecars = Sidecars(10)
    for what, body in bodies.items():

        async def answer(request: web.Request, body: web.Response = body) -> web.Response:
            return body

        async with sidecar("127.0.65.2", answer):
            with pytest.raises(NoAnswer):
                pytest.fail(f"{what}: {await sidecars.stats('127.0.65.2', WHOM)}")
    with pytest.raises(NoAnswer, match="refused|[Cc]onnect"):
        await sidecars.stats("127.0.65.3", WHOM)
    sidecars.close()


@pytest.mark.slow
async def test_a_sidecar_that_hangs_is_given_up_after_a_second() -> None:
    given_up = asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        await given_up.wait()
        return web.Response()

    sidecars = Sidecars(10)
    async with sidecar("127.0.65.4", hang):
        started = time.monotonic()
        with pytest.raises(NoAnswer):
            await sidecars.stats("127.0.65.4", WHOM)
        assert 0.9 < time.monotonic() - started < 10  # a busy machine takes its time
        given_up.set()
        sidecars.close()


def test_the_key_is_in_no_file(tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    server_context(make_identity([NAME], datetime.now(tz=UTC)), "")
    assert set(tmp_path.iterdir()) == before


async def test_a_caller_from_before_the_authority_was_known_is_asked_for_its_certificate_then(
    people: People,
) -> None:
    async with serving(heard(2.0), people) as server:
        await server.listener.use(server_context(server.identity, ""))
        tls = ssl.create_default_context(cadata=server.identity.authority.decode())
        tls.load_cert_chain(people.front.certificate, people.front.key)
        url = f"https://127.0.0.1:{server.listener.port}{BASE}"
        async with aiohttp.ClientSession(headers=USER) as session:
            found = []
            for _ in range(2):
                async with session.get(url, ssl=tls, server_hostname=NAME) as response:
                    await response.read()
                    found.append(response.status)
                authority = people.trusted.certificate.read_text()
                await server.listener.use(server_context(server.identity, authority))
        assert found == [401, 200]
