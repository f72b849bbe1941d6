"""What Helm makes of the chart and of wrong values, without a cluster."""

from typing import Any

import pytest
import yaml

from batchedmodel_autoscaler.metrics_api.documents import METRICS
from batchedmodel_autoscaler.settings import AutoscalerSettings
from batchedmodel_contract.processes.environment import from_environment
from batchedmodel_contract.processes.logs import LogFormat, LogLevel
from batchedmodel_kube.manifest.spec import PullPolicy
from batchedmodel_kube.manifest.workload import ScalingVia, UserIds
from batchedmodel_kube.names import (
    CLASS_PLURAL,
    EXTERNAL_METRICS_GROUP,
    GROUP,
    METRICS_GROUP,
    PLURAL,
)
from batchedmodel_operator.helm_test import HelmTestSettings
from batchedmodel_operator.settings import OperatorSettings
from cluster.errors import CommandFailed
from support.chart import CHART, Helm, container, environment

_DIGEST = "sha256:" + "0" * 64


def test_the_chart_passes_the_strict_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.lint()


def test_the_operator_gets_settings_that_it_understands(helm: Helm) -> None:
    found = container(helm.render("images.pullPolicy=Never"), "bm-batchedmodel-operator")
    settings = from_environment(OperatorSettings, environment(found))
    assert settings == OperatorSettings(
        sidecar_image="localhost/batchedmodel-sidecar:dev",
        model_server_image="localhost/batchedmodel-model-server:dev",
        namespace="models",
        lease_name="bm-batchedmodel-operator",
        image_pull_policy=PullPolicy.NEVER,
        admission_policy=True,
    )
    assert _ports(found) == {"probes": settings.probe_port}


def test_the_operators_of_a_release_share_a_lease_that_only_they_may_write(helm: Helm) -> None:
    objects = helm.render("operator.replicas=3")
    name = "bm-batchedmodel-operator"
    assert objects["Deployment", name]["spec"]["replicas"] == 3
    lease = environment(container(objects, name))["BATCHEDMODEL_LEASE_NAME"]
    (rule,) = objects["Role", name]["rules"]
    assert (rule["resources"], rule["resourceNames"]) == (["leases"], [lease])
    assert objects["Role", name]["metadata"]["namespace"] == "models"
    (subject,) = objects["RoleBinding", name]["subjects"]
    assert subject["name"] == name


def test_the_autoscaler_gets_settings_that_it_understands(helm: Helm) -> None:
    objects = helm.render("autoscaler.pollSeconds=5", "autoscaler.logLevel=debug")
    found = container(objects, "bm-batchedmodel-autoscaler")
    settings = from_environment(AutoscalerSettings, environment(found))
    assert settings == AutoscalerSettings(
        namespace="models",
        service_name="bm-batchedmodel-autoscaler",
        deployment_name="bm-batchedmodel-autoscaler",
        lease_name="bm-batchedmodel-autoscaler",
        poll_seconds=5,
        log_level=LogLevel.DEBUG,
    )
    assert _ports(found) == {"metrics-api": settings.port, "admin": settings.admin_port}
    service = objects["Service", settings.service_name]
    pods = objects["Deployment", settings.deployment_name]["spec"]["template"]["metadata"]
    assert service["spec"]["selector"].items() <= pods["labels"].items()


def test_an_images_own_tag_stands_above_the_common_one_and_a_digest_above_both(
    helm: Helm,
) -> None:
    objects = helm.render(
        "images.tag=1.0",
        "autoscaler.image.tag=1.1",
        "sidecar.image.tag=1.1",
        f"sidecar.image.digest={_DIGEST}",
    )
    operator = container(objects, "bm-batchedmodel-operator")
    assert operator["image"] == "localhost/batchedmodel-operator:1.0"
    told = environment(operator)
    assert told["BATCHEDMODEL_SIDECAR_IMAGE"] == f"localhost/batchedmodel-sidecar@{_DIGEST}"
    autoscaler = container(objects, "bm-batchedmodel-autoscaler")
    assert autoscaler["image"] == "localhost/batchedmodel-autoscaler:1.1"


def test_nobody_gets_rights_on_secrets_or_on_everything(helm: Helm) -> None:
    rules = [
        rule
        for (kind, _name), one in helm.render().items()
        if kind in ("ClusterRole", "Role")
        for rule in one["rules"]
    ]
    assert rules
    for rule in rules:
        named = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not named & {"*", "secrets", "escalate", "bind", "impersonate"}, rule


def test_the_hpa_may_read_the_metrics_that_are_served_and_no_others(helm: Helm) -> None:
    objects = helm.render("customMetrics.reader.serviceAccount=hpa")
    role = objects["ClusterRole", "bm-batchedmodel-autoscaler-reader"]
    resources = [f"{PLURAL}.{GROUP}/{metric}" for metric in METRICS]
    assert role["rules"] == [
        {"apiGroups": [METRICS_GROUP], "resources": resources, "verbs": ["get"]}
    ]
    binding = objects["ClusterRoleBinding", "bm-batchedmodel-autoscaler-reader"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "hpa", "namespace": "kube-system"}
    ]


def test_both_versions_of_the_metrics_api_are_registered_without_trusting_anybody(
    helm: Helm,
) -> None:
    found = [one["spec"] for (kind, _), one in helm.render().items() if kind == "APIService"]
    assert {(spec["group"], spec["version"]) for spec in found} == {
        (METRICS_GROUP, "v1beta1"),
        (METRICS_GROUP, "v1beta2"),
    }
    for spec in found:
        assert not spec.keys() & {"caBundle", "insecureSkipTLSVerify"}


def test_external_metrics_are_registered_instead_with_the_rights_for_them_only(helm: Helm) -> None:
    values = ("customMetrics.register=false", "externalMetrics.register=true")
    objects = helm.render(*values, "autoscaler.via=ExternalMetrics")
    (found,) = [one for one in objects.values() if one["kind"] == "APIService"]
    name = "v1beta1.external.metrics.k8s.io"
    assert found["metadata"]["name"] == name
    assert found["spec"]["group"] == EXTERNAL_METRICS_GROUP
    # The API server takes a path without a name at its end for a list.
    assert objects["ClusterRole", "bm-batchedmodel-autoscaler-reader"]["rules"] == [
        {"apiGroups": [EXTERNAL_METRICS_GROUP], "resources": [*METRICS], "verbs": ["list"]}
    ]
    rules = objects["ClusterRole", "bm-batchedmodel-autoscaler"]["rules"]
    (rule,) = [one for one in rules if "apiservices" in one["resources"]]
    assert rule["resourceNames"] == [name]
    told = environment(container(objects, "bm-batchedmodel-autoscaler"))
    settings = from_environment(AutoscalerSettings, told)
    assert (settings.custom_metrics, settings.external_metrics) == (False, True)
    told = environment(container(objects, "bm-batchedmodel-operator"))
    assert from_environment(OperatorSettings, told).via is ScalingVia.EXTERNAL_METRICS


def test_both_metrics_apis_may_be_registered(helm: Helm) -> None:
    objects = helm.render("externalMetrics.register=true", "watchNamespaces={team}")
    assert sorted(name for kind, name in objects if kind == "APIService") == [
        "v1beta1.custom.metrics.k8s.io",
        "v1beta1.external.metrics.k8s.io",
        "v1beta2.custom.metrics.k8s.io",
    ]
    reader = objects["Role", "bm-batchedmodel-autoscaler-reader"]
    groups = [rule["apiGroups"] for rule in reader["rules"]]
    assert groups == [[METRICS_GROUP], [EXTERNAL_METRICS_GROUP]]


def test_nothing_is_registered_where_the_metrics_api_is_somebody_elses(helm: Helm) -> None:
    objects = helm.render("customMetrics.register=false")
    assert not [one for one in objects.values() if one["kind"] == "APIService"]
    assert ("ClusterRole", "bm-batchedmodel-autoscaler-reader") not in objects
    rules = objects["ClusterRole", "bm-batchedmodel-autoscaler"]["rules"]
    assert not [one for one in rules if "apiservices" in one["resources"]]
    assert ("Deployment", "bm-batchedmodel-autoscaler") in objects


def test_the_definition_is_installed_as_it_is_and_kept(helm: Helm) -> None:
    objects = helm.render()
    for plural in (PLURAL, CLASS_PLURAL):
        source = yaml.safe_load((CHART.parents[1] / "crds" / f"{plural}.yaml").read_text())
        installed = objects["CustomResourceDefinition", f"{plural}.{GROUP}"]
        assert installed["spec"] == source["spec"]
        assert installed["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("values", [(), ("watchNamespaces={a,b}",)], ids=["all", "listed"])
def test_the_operator_and_viewers_may_read_classes_and_nobody_else_may_write_them(
    helm: Helm, values: tuple[str, ...]
) -> None:
    rules = {
        (kind, name): rule["verbs"]
        for (kind, name), one in helm.render(*values).items()
        for rule in one.get("rules") or ()
        if CLASS_PLURAL in rule.get("resources", ())
    }
    operator = "bm-batchedmodel-operator-classes" if values else "bm-batchedmodel-operator"
    assert rules == {
        ("ClusterRole", operator): ["list", "watch"],
        ("ClusterRole", "bm-batchedmodel-classes-view"): ["get", "list", "watch"],
    }


def test_the_definition_is_left_out_or_not_kept_when_the_values_say_so(helm: Helm) -> None:
    name = ("CustomResourceDefinition", f"{PLURAL}.{GROUP}")
    assert name not in helm.render("crds.install=false")
    assert "helm.sh/resource-policy" not in str(helm.render("crds.keep=false")[name]["metadata"])


@pytest.mark.parametrize(
    ("release", "beginning"),
    [
        ("bm", "bm-batchedmodel"),
        ("batchedmodel", "batchedmodel"),
        ("team.a", "team-a-batchedmodel"),
    ],
)
def test_names_follow_the_release(helm: Helm, release: str, beginning: str) -> None:
    assert ("Service", f"{beginning}-autoscaler") in helm.render(release=release)


def test_no_two_objects_of_the_longest_release_share_a_name(helm: Helm) -> None:
    objects = helm.render(release="r" * 53)
    assert len(objects) == len(helm.manifests(release="r" * 53))
    assert max(len(name) for kind, name in objects if kind == "Service") <= 63


def test_a_namespace_of_digits_stays_a_name(helm: Helm) -> None:
    for one in helm.render(namespace="123").values():
        assert one["metadata"].get("namespace", "123") in ("123", "kube-system")


def test_pods_are_placed_as_the_values_say(helm: Helm) -> None:
    objects = helm.render(
        "operator.nodeSelector.pool=system",
        "operator.tolerations[0].operator=Exists",
        "operator.priorityClassName=high",
        "operator.podLabels.team=a",
        "images.pullSecrets={key}",
    )
    template = objects["Deployment", "bm-batchedmodel-operator"]["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "a"
    pod = template["spec"]
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "key"}]


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("operator.replicas=0", "operator.replicas"),
        ("autoscaler.replicas=5", "autoscaler.replicas"),
        ("operatr.logLevel=info", "operatr"),
        ("autoscaler.logLevel=loud", "autoscaler.logLevel"),
        ("autoscaler.via=Prometheus", "autoscaler.via"),
        ("externalMetrics.reader.namespace=a", "externalMetrics"),
        ("autoscaler.pollSeconds=0", "autoscaler.pollSeconds"),
        ("autoscaler.pollSeconds=soon", "autoscaler.pollSeconds"),
        ("images.pullPolicy=Sometimes", "images.pullPolicy"),
        ("images.tag=", "images.tag"),
        ("operator.image.tag=a b", "operator.image.tag"),
        ("operator.image.digest=sha256:12", "operator.image.digest"),
        ("operator.image.repository=", "operator.image.repository"),
        ("crds.install=yes", "crds.install"),
        ("operator.resources.request.cpu=1", "request"),
        ("operator.tolerations[0].operator=Maybe", "operator.tolerations.0.operator"),
        ("customMetrics.reader.serviceAccount=", "customMetrics.reader.serviceAccount"),
        ("sidecar.resources.limits.cpu=1", "resources"),
        ("logging.format=xml", "logging.format"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, assignment: str, complaint: str) -> None:
    assert complaint in helm.complaint(assignment)


def test_no_pod_names_a_user_where_the_cluster_gives_them(helm: Helm) -> None:
    objects = helm.render("security.ids=FromCluster")
    pods = [one["spec"]["template"]["spec"] for key, one in objects.items() if "Deployment" in key]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    operator = container(objects, "bm-batchedmodel-operator")
    assert from_environment(OperatorSettings, environment(operator)).ids is UserIds.FROM_CLUSTER


def test_one_value_says_how_all_processes_log(helm: Helm) -> None:
    for told, form in (((), LogFormat.TEXT), (("logging.format=json",), LogFormat.JSON)):
        objects = helm.render(*told)
        operator = container(objects, "bm-batchedmodel-operator")
        autoscaler = container(objects, "bm-batchedmodel-autoscaler")
        assert from_environment(OperatorSettings, environment(operator)).log_format is form
        assert from_environment(AutoscalerSettings, environment(autoscaler)).log_format is form
        (helm_test,) = objects["Pod", "bm-batchedmodel-helm-test"]["spec"]["containers"]
        assert from_environment(HelmTestSettings, environment(helm_test)).log_format is form


def test_the_metrics_api_may_be_on_the_nodes_network_at_other_ports(helm: Helm) -> None:
    name = "bm-batchedmodel-autoscaler"
    usual = helm.render()["Deployment", name]["spec"]["template"]["spec"]
    assert "hostNetwork" not in usual
    objects = helm.render(
        "autoscaler.hostNetwork=true",
        "autoscaler.port=10443",
        "autoscaler.adminPort=18080",
        "networkPolicy.install=true",
    )
    deployment = objects["Deployment", name]["spec"]
    # On as many nodes as replicas a new pod finds its ports taken until an old one has gone.
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    pod = deployment["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    found = container(objects, name)
    settings = from_environment(AutoscalerSettings, environment(found))
    assert (settings.port, settings.admin_port) == (10443, 18080)
    assert _ports(found) == {"metrics-api": 10443, "admin": 18080}
    (rule,) = objects["NetworkPolicy", name]["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [10443, 18080]


@pytest.mark.parametrize(
    ("assignments", "complaint"),
    [
        (["autoscaler.hostNetwork=true"], "kubelets have 10250 on nodes"),
        (
            ["autoscaler.hostNetwork=true", "autoscaler.port=10443", "autoscaler.adminPort=10250"],
            "kubelets have 10250 on nodes",
        ),
        (["autoscaler.port=8080"], "autoscaler.port and autoscaler.adminPort are both 8080"),
    ],
    ids=["port of the kubelet", "admin port of the kubelet", "one port for both"],
)
def test_ports_that_somebody_else_has_are_refused_with_the_values_that_mend_it(
    helm: Helm, assignments: list[str], complaint: str
) -> None:
    with pytest.raises(CommandFailed, match=complaint):
        helm.render(*assignments)
    # Without an autoscaler nobody wants them.
    assert helm.render(*assignments, "autoscaler.install=false")


def test_an_older_kubernetes_is_refused(helm: Helm) -> None:
    with pytest.raises(CommandFailed, match="1.30.0-0"):
        helm.manifests("--kube-version", "1.28.9")


def _ports(container: dict[str, Any]) -> dict[str, int]:
    return {one["name"]: one["containerPort"] for one in container["ports"]}


@pytest.mark.parametrize("part", ["operator", "autoscaler"])
def test_pods_of_the_release_may_be_moved_and_leave_their_last_words(helm: Helm, part: str) -> None:
    name, key = (
        f"bm-batchedmodel-{part}",
        "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes",
    )
    objects = helm.render()
    template = objects["Deployment", name]["spec"]["template"]
    local = [one["name"] for one in template["spec"]["volumes"] if "emptyDir" in one]
    assert template["metadata"]["annotations"] == {key: ",".join(local)}
    assert container(objects, name)["terminationMessagePolicy"] == "FallbackToLogsOnError"
    (spread,) = template["spec"]["topologySpreadConstraints"]
    assert spread["matchLabelKeys"] == ["pod-template-hash"]
    own = helm.render(f"{part}.podAnnotations.team=a")["Deployment", name]["spec"]["template"]
    assert own["metadata"]["annotations"] == {key: ",".join(local), "team": "a"}
