"""`docs/clusters.md` lists every object, port and flow that chart and operator render."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import pytest

from batchedmodel_operator import render
from batchedmodel_operator.kinds import CHILDREN
from support.chart import Helm, setting
from support.rendered import deployment_of, read_model
from support.repository import ROOT

_EVERYTHING: Final = (
    *("fullnameOverride=RELEASE", "externalMetrics.register=true", "networkPolicy.install=true"),
    *("networkPolicy.egress=true", "podMonitors.install=true"),
    *("prometheusRules.install=true", "dashboards.install=true"),
)
_LISTED: Final = (
    *("watchNamespaces={listed}", "networkPolicy.models={listed}"),
    "networkPolicy.fetchers={listed}",
)
_MADE_LATER: Final = {("Lease", "release"), ("Event", "model"), ("ControllerRevision", "model")}
"""What no manifest shows; a test of the rights knows of it."""
_MODEL: Final[Mapping[str, Any]] = {
    "autoscaling": {"maxReplicas": 2},
    "model": {"handler": "hf", "source": {"huggingFace": {"repo": "a/b"}}},
    "adapters": {"items": [{"name": "sql", "source": {"huggingFace": {"repo": "a/c"}}}]},
}
_UPSTREAM: Final[Mapping[str, Any]] = {"model": {"protocol": "V2", "image": "mine"}}
_SECTION: Final = "## Objects, ports and flows"

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def rendered(helm: Helm) -> list[Manifest]:
    """All objects of releases with everything, of all namespaces and of some."""
    return [
        one
        for values in (_EVERYTHING, (*_EVERYTHING, *_LISTED))
        for one in helm.manifests(*setting(values), namespace="NAMESPACE")
    ]


def test_every_object_is_in_the_table_and_no_other(rendered: list[Manifest]) -> None:
    places = {None: "cluster", "NAMESPACE": "release"}
    made = {
        (one["kind"], places.get(place, place), one["metadata"]["name"])
        for one in rendered
        for place in [one["metadata"].get("namespace")]
    }
    children = list(_children(_MODEL))
    assert {one["kind"] for one in children} == {kind.value for kind in CHILDREN}
    made |= {
        (one["kind"], "model", one["metadata"]["name"].replace("minilm", "NAME"))
        for one in children
    }
    listed = {
        (kind, where, name)
        for kinds, where, names, _ in _rows("Kind")
        for kind in kinds.split(", ")
        for name in _code(names)
        if (kind, where) not in _MADE_LATER
    }
    assert listed == made


def test_the_leases_of_the_table_are_those_that_the_roles_name(rendered: list[Manifest]) -> None:
    named = {
        name
        for one in rendered
        if one["kind"] == "Role"
        for rule in one["rules"]
        if "leases" in rule["resources"]
        for name in rule["resourceNames"]
    }
    (row,) = [row for row in _rows("Kind") if row[0] == "Lease"]
    assert set(_code(row[2])) == named


def test_every_port_of_a_container_or_a_service_is_where_a_flow_leads(
    rendered: list[Manifest],
) -> None:
    services = [one for one in [*rendered, *_children(_MODEL)] if one["kind"] == "Service"]
    opened = {
        (f"Service {one['metadata']['name'].replace('minilm', 'NAME')}", port["port"])
        for one in services
        for port in one["spec"]["ports"]
    }
    opened |= {
        (container["name"], port["containerPort"])
        for container in _containers(rendered)
        for port in container.get("ports", ())
    }
    assert opened == {
        (target.replace("`", ""), port)
        for _, target, ports, _, _ in _rows("From")
        for port in _numbers(ports)
        if target.startswith(("`", "Service"))
    }


def test_every_container_is_an_end_of_a_flow(rendered: list[Manifest]) -> None:
    ends = {name for row in _rows("From") for cell in row[:2] for name in _code(cell)}
    assert {one["name"] for one in _containers(rendered)} <= ends


def test_the_flows_of_kubelets_name_all_that_they_ask(rendered: list[Manifest]) -> None:
    asked = set()
    for container in _containers(rendered):
        ports = {one["name"]: one["containerPort"] for one in container.get("ports", ())}
        probes = [one for name, one in container.items() if name.endswith("Probe")]
        for probe in (*probes, *container.get("lifecycle", {}).values()):
            if "httpGet" in probe:
                port = probe["httpGet"]["port"]
                # A model's probes ask the sidecar beside it.
                whom = "batcher" if container["name"] == "model" else container["name"]
                asked.add((whom, ports.get(port, port), probe["httpGet"]["path"]))
    assert asked == {
        (whom, port, path)
        for source, target, ports, what, _ in _rows("From")
        if source == "kubelet"
        for whom in _code(target)
        for port in _numbers(ports)
        for path in re.findall(r"`(/[\w/]+)`", what)
    }


def test_what_a_policy_lets_pass_is_what_the_table_says(rendered: list[Manifest]) -> None:
    by_policy = {
        ("RELEASE-operator", "`operator`"): "`install`",
        ("RELEASE-autoscaler", "`autoscaler`"): "`install`",
        ("RELEASE-models", "`batcher`"): "`models`",
    }
    policies = {
        one["metadata"]["name"]: one["spec"] for one in rendered if one["kind"] == "NetworkPolicy"
    }
    out = {"RELEASE-egress": "`egress`", "RELEASE-fetchers": "`fetchers`"}
    assert policies.keys() == {*(name for name, _ in by_policy), *out}
    for name, value in out.items():
        opened = {port["port"] for rule in policies[name]["egress"] for port in rule["ports"]}
        rows = [row for row in _rows("From") if value in row[4]]
        assert opened == {port for row in rows for port in _numbers(row[2])}
    for (name, target), value in by_policy.items():
        opened = {port["port"] for rule in policies[name]["ingress"] for port in rule["ports"]}
        assert opened == {
            port
            for row in _rows("From")
            if row[1] == target and row[4].startswith(value)
            for port in _numbers(row[2])
        }


def _children(spec: Mapping[str, Any]) -> Iterator[Manifest]:
    model, read = read_model(dict(spec))
    assert read.autoscaling is not None
    yield render.config_map(model, read)
    yield render.service(model, read)
    yield deployment_of(dict(spec))
    yield render.autoscaler(model, read, read.autoscaling)
    yield render.disruption_budget(model, read)


def _containers(rendered: Iterable[Manifest]) -> Iterator[Manifest]:
    """Of all pods: the release's, and those of models of either kind."""
    pods = [one["spec"] for one in rendered if one["kind"] == "Pod"]
    deployments = [*rendered, deployment_of(dict(_MODEL)), deployment_of(dict(_UPSTREAM))]
    pods += [one["spec"]["template"]["spec"] for one in deployments if one["kind"] == "Deployment"]
    for pod in pods:
        yield from (*pod.get("initContainers", ()), *pod["containers"])


@cache
def _rows(first: str) -> list[list[str]]:
    """The cells of the table whose first column is called so."""
    page = (ROOT / "docs/clusters.md").read_text("utf-8").split(_SECTION)[1]
    lines = page.split(f"| {first} |")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _numbers(cell: str) -> list[int]:
    return [int(one) for one in re.findall(r"\b\d+\b", cell)]
