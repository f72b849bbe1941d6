"""What the chart makes only when the values ask for it, and what it leaves out."""

import json
import re
from typing import Any

import pytest
import yaml

from batchedmodel_autoscaler.settings import AutoscalerSettings
from batchedmodel_contract.processes.environment import from_environment
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.names import DATA_PORT, MANAGED_BY, MANAGED_BY_LABEL, NAME_LABEL
from batchedmodel_operator.helm_test import HelmTestSettings
from batchedmodel_operator.settings import OperatorSettings
from cluster.errors import CommandFailed
from support.chart import CHART, Helm, Objects, container, environment, setting

_NAMESPACES = "watchNamespaces={a,b}"
_MANY_NAMESPACES = f"watchNamespaces={{{','.join(f'team-{at}' for at in range(65))}}}"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
_OPERATOR, _AUTOSCALER = "bm-batchedmodel-operator", "bm-batchedmodel-autoscaler"


def test_both_processes_are_told_which_namespaces_to_watch(helm: Helm) -> None:
    objects = helm.render(_NAMESPACES)
    operator = from_environment(OperatorSettings, environment(container(objects, _OPERATOR)))
    autoscaler = from_environment(AutoscalerSettings, environment(container(objects, _AUTOSCALER)))
    assert operator.watch_namespaces == autoscaler.watch_namespaces == ("a", "b")


def test_where_namespaces_are_listed_rights_on_models_are_given_in_these_alone(helm: Helm) -> None:
    found = helm.manifests(*setting([_NAMESPACES]))
    given = {
        (one["metadata"]["name"], one["metadata"]["namespace"])
        for one in found
        if one["kind"] == "RoleBinding"
    }
    within = {f"{_OPERATOR}-models", f"{_AUTOSCALER}-models", f"{_AUTOSCALER}-reader"}
    assert given == {
        *((name, namespace) for name in within for namespace in ("a", "b")),
        # The Leases, the autoscaler's own Deployment, the API server's certificates, `helm test`.
        (_OPERATOR, "models"),
        (_AUTOSCALER, "models"),
        (f"{_AUTOSCALER}-models", "kube-system"),
        ("bm-batchedmodel-helm-test", "models"),
    }
    everywhere = helm.render()
    rules = everywhere["ClusterRole", _OPERATOR]["rules"]
    listed = helm.render(_NAMESPACES)
    assert listed["Role", f"{_OPERATOR}-models"]["rules"] == [
        rule
        for rule in rules
        if {"customresourcedefinitions", "batchedmodelclasses"}.isdisjoint(rule["resources"])
    ]
    rules = everywhere["ClusterRole", _AUTOSCALER]["rules"]
    assert listed["Role", f"{_AUTOSCALER}-models"]["rules"] == [
        rule for rule in rules if "resourceNames" not in rule
    ]


def test_where_namespaces_are_listed_the_metrics_api_and_classes_are_matters_of_the_cluster(
    helm: Helm,
) -> None:
    objects = helm.render(_NAMESPACES)
    bound = {name for kind, name in objects if kind == "ClusterRoleBinding"}
    assert bound == {_AUTOSCALER, f"{_OPERATOR}-classes"}
    rules = objects["ClusterRole", _AUTOSCALER]["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == {
        "apiservices",
        "namespaces",
    }
    assert all(rule["resourceNames"] for rule in rules)


def test_nothing_of_the_whole_cluster_is_left_where_everything_of_it_is_switched_off(
    helm: Helm,
) -> None:
    objects = helm.render(
        *(_NAMESPACES, "autoscaler.install=false"),
        *("crds.install=false", "userRoles.install=false", "admissionPolicy.install=false"),
        "operator.readClasses=false",
    )
    assert {one["metadata"].get("namespace") for one in objects.values()} <= {"a", "b", "models"}
    assert not {kind for kind, _ in objects if kind.startswith("Cluster") or kind == "APIService"}


def test_without_an_autoscaler_there_is_nothing_of_it(helm: Helm) -> None:
    objects = helm.render(
        *("autoscaler.install=false", "networkPolicy.install=true", "podMonitors.install=true")
    )
    left = {
        (kind, name)
        for (kind, name), one in objects.items()
        # An annotation of pods is that one's own.
        if "autoscaler" in json.dumps(one).replace("cluster-autoscaler.kubernetes.io", "")
        and kind not in ("CustomResourceDefinition",)
    }
    of_operator = {("ClusterRole", _OPERATOR), ("ValidatingAdmissionPolicy", _OPERATOR)}
    assert left == of_operator, "which makes the models' HPAs"
    helm_test = environment(objects["Pod", "bm-batchedmodel-helm-test"]["spec"]["containers"][0])
    assert not from_environment(HelmTestSettings, helm_test).custom_metrics


@pytest.mark.parametrize("deployment", [_OPERATOR, _AUTOSCALER])
def test_one_of_several_replicas_may_be_evicted_at_a_time(helm: Helm, deployment: str) -> None:
    part = deployment.rpartition("-")[2]
    objects = helm.render()
    assert objects["Deployment", deployment]["spec"]["replicas"] == 2
    budget = objects["PodDisruptionBudget", deployment]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert _selects(objects, budget["selector"], deployment)
    for off in (f"{part}.replicas=1", f"{part}.podDisruptionBudget=false"):
        assert ("PodDisruptionBudget", deployment) not in helm.render(off)


@pytest.mark.parametrize("deployment", [_OPERATOR, _AUTOSCALER])
def test_pods_are_spread_over_nodes_unless_the_values_say_otherwise(
    helm: Helm, deployment: str
) -> None:
    part = deployment.rpartition("-")[2]
    objects = helm.render()
    pod = objects["Deployment", deployment]["spec"]["template"]["spec"]
    (constraint,) = pod["topologySpreadConstraints"]
    assert constraint["topologyKey"] == "kubernetes.io/hostname"
    assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert _selects(objects, constraint["labelSelector"], deployment)
    none = helm.manifests("--set-json", f"{part}.topologySpreadConstraints=[]")
    (pod,) = [
        one["spec"]["template"]["spec"]
        for one in none
        if one["metadata"]["name"] == deployment and one["kind"] == "Deployment"
    ]
    assert "topologySpreadConstraints" not in pod


def test_models_of_listed_namespaces_are_open_to_callers_and_to_those_who_measure(
    helm: Helm,
) -> None:
    values = ("networkPolicy.models={a,b}", "networkPolicy.scrapers={monitoring}")
    made = helm.manifests(*setting(values))
    found = [one for one in made if one["kind"] == "NetworkPolicy"]
    assert [one["metadata"]["namespace"] for one in found] == ["a", "b"]
    policy = found[0]["spec"]
    assert policy["podSelector"] == {"matchLabels": {MANAGED_BY_LABEL: MANAGED_BY}}
    callers, measuring = policy["ingress"]
    assert callers == {"ports": [{"protocol": "TCP", "port": DATA_PORT}]}
    assert measuring["ports"] == [{"protocol": "TCP", "port": ADMIN_PORT}]
    ours, scrapers = measuring["from"]
    assert ours["namespaceSelector"] == {"matchLabels": {_NAMESPACE_LABEL: "models"}}
    assert scrapers == {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: "monitoring"}}}
    objects = helm.render()
    for deployment in (_OPERATOR, _AUTOSCALER):
        assert _selects(objects, ours["podSelector"], deployment)
    on_nodes = helm.render(*values, "autoscaler.hostNetwork=true", "autoscaler.port=10443")
    open_to_all = on_nodes["NetworkPolicy", "bm-batchedmodel-models"]["spec"]["ingress"][1]
    assert "from" not in open_to_all, "whoever is on a node's network is no pod"


def test_who_calls_models_may_be_bound_to_namespaces(helm: Helm) -> None:
    values = ("networkPolicy.models={a}", "networkPolicy.callers={web,jobs}")
    policy = helm.render(*values)["NetworkPolicy", "bm-batchedmodel-models"]["spec"]
    callers = policy["ingress"][0]
    assert callers["ports"] == [{"protocol": "TCP", "port": DATA_PORT}]
    assert callers["from"] == [
        {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: name}}} for name in ("web", "jobs")
    ]


def test_what_leaves_is_opened_for_all_pods_of_the_release(helm: Helm) -> None:
    values = ("networkPolicy.egress=true", "networkPolicy.apiServerPorts={443,16443}")
    objects = helm.render(*values)
    policy = objects["NetworkPolicy", "bm-batchedmodel-egress"]["spec"]
    assert policy["policyTypes"] == ["Egress"]
    selector = policy["podSelector"]["matchLabels"]
    for deployment in (_OPERATOR, _AUTOSCALER):
        labels = objects["Deployment", deployment]["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
    helm_test = objects["Pod", "bm-batchedmodel-helm-test"]["metadata"]["labels"]
    assert selector.items() <= helm_test.items()
    servers, models = policy["egress"]
    assert [one["port"] for one in servers["ports"]] == [443, 16443]
    assert "to" not in servers, "API servers are no pods"
    assert models["ports"] == [{"protocol": "TCP", "port": ADMIN_PORT}]
    assert models["to"] == [
        {
            "namespaceSelector": {},
            "podSelector": {"matchLabels": {MANAGED_BY_LABEL: MANAGED_BY}},
        }
    ]


def test_models_of_listed_namespaces_may_ask_for_names_and_hubs(helm: Helm) -> None:
    made = helm.manifests(*setting(["networkPolicy.fetchers={a,b}"]))
    found = [one for one in made if one["kind"] == "NetworkPolicy"]
    assert [one["metadata"]["namespace"] for one in found] == ["a", "b"]
    policy = found[0]["spec"]
    assert policy["podSelector"] == {"matchLabels": {MANAGED_BY_LABEL: MANAGED_BY}}
    assert policy["policyTypes"] == ["Egress"]
    (rule,) = policy["egress"]
    ports = {(one["protocol"], one["port"]) for one in rule["ports"]}
    assert ports == {("UDP", 53), ("TCP", 53), ("TCP", 443)}


def test_network_policies_open_the_ports_that_the_pods_listen_on(helm: Helm) -> None:
    assert not [kind for kind, _ in helm.render() if kind == "NetworkPolicy"]
    objects = helm.render("networkPolicy.install=true")
    for deployment in (_OPERATOR, _AUTOSCALER):
        policy = objects["NetworkPolicy", deployment]["spec"]
        assert policy["policyTypes"] == ["Ingress"]
        assert _selects(objects, {"matchLabels": policy["podSelector"]["matchLabels"]}, deployment)
        (rule,) = policy["ingress"]
        listened = {one["containerPort"] for one in container(objects, deployment)["ports"]}
        assert {one["port"] for one in rule["ports"]} == listened
        assert "from" not in rule, "API servers and kubelets are no pods"


def test_pod_monitors_name_ports_that_are_there(helm: Helm) -> None:
    assert not [kind for kind, _ in helm.render() if kind == "PodMonitor"]
    objects = helm.render("podMonitors.install=true", "podMonitors.labels.release=prometheus")
    for deployment in (_OPERATOR, _AUTOSCALER):
        monitor = objects["PodMonitor", deployment]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["models"]}
        assert _selects(objects, monitor["spec"]["selector"], deployment)
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in [one["name"] for one in container(objects, deployment)["ports"]]
        assert endpoint["path"] == "/metrics"
        # The autoscaler's series of models have a namespace of their own, which must stay.
        assert endpoint.get("honorLabels", False) == (deployment == _AUTOSCALER)


def test_models_are_monitored_by_their_label_wherever_they_are_watched(helm: Helm) -> None:
    spec = helm.render("podMonitors.install=true")["PodMonitor", "bm-batchedmodel-models"]["spec"]
    assert spec["namespaceSelector"] == {"any": True}
    (expression,) = spec["selector"]["matchExpressions"]
    assert expression == {"key": NAME_LABEL, "operator": "Exists"}
    (endpoint,) = spec["podMetricsEndpoints"]
    label = f"__meta_kubernetes_pod_label_{re.sub('[^a-z]', '_', NAME_LABEL)}"
    assert endpoint["relabelings"] == [{"sourceLabels": [label], "targetLabel": "model"}]
    listed = helm.render("podMonitors.install=true", _NAMESPACES)
    spec = listed["PodMonitor", "bm-batchedmodel-models"]["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_rules_and_dashboards_are_the_charts_files_byte_for_byte(helm: Helm) -> None:
    assert not [kind for kind, _ in helm.render() if kind in ("PrometheusRule", "ConfigMap")]
    objects = helm.render(
        *("prometheusRules.install=true", "prometheusRules.labels.release=prometheus"),
        *("dashboards.install=true", "dashboards.labels.team=models"),
    )
    rule = objects["PrometheusRule", "bm-batchedmodel"]
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    for name in ("model", "models"):
        dashboard = objects["ConfigMap", f"bm-batchedmodel-dashboard-{name}"]
        assert dashboard["metadata"]["labels"].items() >= {
            "grafana_dashboard": "1", "team": "models",
        }.items()  # fmt: skip
        (text,) = dashboard["data"].values()
        source = (CHART / "files" / "dashboards" / f"{name}.json").read_text()
        assert json.loads(text) == json.loads(source)


def test_what_helm_test_makes_is_made_for_it_alone_and_goes_with_it(helm: Helm) -> None:
    made = [
        one for one in helm.manifests() if "helm.sh/hook" in one["metadata"].get("annotations", {})
    ]
    assert [one["kind"] for one in made] == ["ServiceAccount", "Role", "RoleBinding", "Pod"]
    for one in made:
        annotations = one["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        policy = annotations["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded"
    (rule,) = made[1]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["leases"], ["get"])


def test_a_chart_that_is_upgraded_with_the_values_of_an_earlier_one_is_refused_by_name(
    helm: Helm,
) -> None:
    """As `--reuse-values` does, which knows no defaults of values that have come since."""
    with pytest.raises(CommandFailed, match="userRoles"):
        helm.manifests(*setting(["userRoles=null"]))


def test_the_example_that_catalogues_show_is_a_good_manifest() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (example,) = yaml.safe_load(chart["annotations"]["artifacthub.io/crdsExamples"])
    assert read_manifest(example).name == "simulated"
    definitions = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    for definition in definitions:
        file = CHART / "files" / f"{definition['name'].partition('.')[0]}.yaml"
        crd = yaml.safe_load(file.read_text())
        assert definition["name"] == crd["metadata"]["name"]
        assert [definition["version"]] == [one["name"] for one in crd["spec"]["versions"]]
    assert {one["kind"] for one in definitions} == {"BatchedModel", "BatchedModelClass"}


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("watchNamespaces={A}", "watchNamespaces.0"),
        ("watchNamespaces={a,a}", "watchNamespaces"),
        (_MANY_NAMESPACES, "watchNamespaces"),
        ("networkPolicy.models={Team_A}", "networkPolicy.models.0"),
        ("networkPolicy.models={a,a}", "networkPolicy.models"),
        ("networkPolicy.scrapers={prometheus.monitoring}", "networkPolicy.scrapers.0"),
        ("networkPolicy.scrapers={a,a}", "networkPolicy.scrapers"),
        ("podMonitors.interval=soon", "podMonitors.interval"),
        ("operator.topologySpreadConstraints[0].maxSkew=1", "topologyKey"),
        ("operator.topologySpreadConstraints[0].whenUnsatisfiable=Perhaps", "whenUnsatisfiable"),
        ("networkPolicy.enabled=true", "enabled"),
        ("operator.logLevel=null", "logLevel"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, assignment: str, complaint: str) -> None:
    assert complaint in helm.complaint(assignment)


def _selects(objects: Objects, selector: dict[str, Any], deployment: str) -> bool:
    labels = objects["Deployment", deployment]["spec"]["template"]["metadata"]["labels"]
    return bool(selector["matchLabels"]) and selector["matchLabels"].items() <= labels.items()
