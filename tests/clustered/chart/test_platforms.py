"""What platforms ask of any chart: a parent chart, one registry, their labels and annotations."""

import shutil
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cluster.errors import CommandFailed
from support.chart import CHART, Helm, Objects, container, environment, setting

_EVERYTHING: Final = (
    *("externalMetrics.register=true", "networkPolicy.install=true", "networkPolicy.egress=true"),
    *("networkPolicy.models={a}", "networkPolicy.fetchers={a}", "watchNamespaces={a}"),
    *("podMonitors.install=true", "prometheusRules.install=true", "dashboards.install=true"),
)
_PARTS: Final = ("operator", "autoscaler")


def _parent(folder: Path, *, condition: bool) -> Path:
    """A chart that has ours below it, as `helm dependency build` leaves it."""
    shutil.copytree(CHART, folder / "charts" / "batchedmodel")
    dependency = {"name": "batchedmodel", "version": "0.1.0", "repository": "file://../ours"}
    if condition:
        dependency["condition"] = "batchedmodel.enabled"
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0"}
    (folder / "Chart.yaml").write_text(yaml.safe_dump({**chart, "dependencies": [dependency]}))
    return folder


def test_a_parent_chart_switches_it_on_and_off(helm: Helm, tmp_path: Path) -> None:
    """The schema refused `enabled`, by which a parent's `condition` knows what to leave out."""
    parent = _parent(tmp_path, condition=True)
    for value, there in (("true", True), ("false", False)):
        made = helm.manifests("--set", f"batchedmodel.enabled={value}", chart=parent)
        assert bool(made) is there, value


def test_enabled_without_a_parents_condition_is_refused_where_it_would_do_nothing(
    helm: Helm, tmp_path: Path
) -> None:
    with pytest.raises(CommandFailed, match="condition: batchedmodel.enabled"):
        helm.render("enabled=false")
    parent = _parent(tmp_path, condition=False)
    with pytest.raises(CommandFailed, match="condition: batchedmodel.enabled"):
        helm.manifests("--set", "batchedmodel.enabled=false", chart=parent)


def _images(objects: Objects) -> set[str]:
    variables = environment(container(objects, "bm-batchedmodel-operator"))
    (helm_test,) = objects["Pod", "bm-batchedmodel-helm-test"]["spec"]["containers"]
    return {
        *(container(objects, f"bm-batchedmodel-{part}")["image"] for part in _PARTS),
        *(value for name, value in variables.items() if name.endswith("_IMAGE")),
        helm_test["image"],
    }


def test_one_registry_stands_for_that_of_every_image(helm: Helm, tmp_path: Path) -> None:
    values = (
        *("sidecar.image.repository=ghcr.io/team/sidecar", "modelServer.image.repository=team/ms"),
        f"modelServer.image.digest=sha256:{'0' * 64}",
    )
    registry = "mirror.example.com:5000/apps"
    expected = {
        f"{registry}/batchedmodel-operator:dev",
        f"{registry}/batchedmodel-autoscaler:dev",
        f"{registry}/team/sidecar:dev",
        f"{registry}/team/ms@sha256:{'0' * 64}",
    }
    assert _images(helm.render(f"global.imageRegistry={registry}", *values)) == expected
    # A parent gives it to all its charts, beside what is none of ours.
    below = [f"batchedmodel.{value}" for value in values]
    words = setting(["global.other=1", f"global.imageRegistry={registry}", *below])
    made = helm.manifests(*words, chart=_parent(tmp_path, condition=True))
    assert _images({(one["kind"], one["metadata"]["name"]): one for one in made}) == expected


def test_accounts_have_the_annotations_of_the_values(helm: Helm) -> None:
    key = "eks.amazonaws.com/role-arn"
    words = [
        f"{part}.serviceAccount.annotations.{key.replace('.', chr(92) + '.')}=role-of-{part}"
        for part in _PARTS
    ]
    objects = helm.render(*words)
    for part in _PARTS:
        account = objects["ServiceAccount", f"bm-batchedmodel-{part}"]
        assert account["metadata"]["annotations"] == {key: f"role-of-{part}"}
        usual = helm.render()["ServiceAccount", f"bm-batchedmodel-{part}"]
        assert "annotations" not in usual["metadata"]


def test_common_labels_are_on_every_object_and_on_the_pods(helm: Helm) -> None:
    values = ("commonLabels.team=ml", "commonLabels.release=common")
    own = ("podMonitors.labels.release=prometheus", "operator.podLabels.team=ops")
    made = helm.manifests(*setting((*_EVERYTHING, *values, *own)))
    without = helm.manifests(*setting(_EVERYTHING))
    for one, plain in zip(made, without, strict=True):
        labels, name = one["metadata"]["labels"], (one["kind"], one["metadata"]["name"])
        assert labels["team"] == "ml", name
        assert plain["metadata"]["labels"].items() <= labels.items(), name
        # What is about one kind of object stands above what is about all.
        monitor = one["kind"] == "PodMonitor"
        assert labels["release"] == ("prometheus" if monitor else "common"), name
    pods: dict[str, Any] = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in made
        if one["kind"] == "Deployment"
    }
    assert pods["bm-batchedmodel-operator"]["team"] == "ops"
    assert pods["bm-batchedmodel-autoscaler"]["team"] == "ml"


def test_no_selector_changes_with_the_common_labels(helm: Helm) -> None:
    """A Deployment's can never change, so that an upgrade would fail."""
    for name in ("bm-batchedmodel-operator", "bm-batchedmodel-autoscaler"):
        changed = helm.render("commonLabels.team=ml")["Deployment", name]["spec"]["selector"]
        assert changed == helm.render()["Deployment", name]["spec"]["selector"]


@pytest.mark.parametrize(
    ("name", "assignment"),
    [
        ("commonLabels", r"commonLabels.app\.kubernetes\.io/instance=mine"),
        ("commonLabels", r"commonLabels.helm\.sh/chart=mine"),
        ("commonLabels", r"commonLabels.rbac\.authorization\.k8s\.io/aggregate-to-view=mine"),
        ("commonLabels.team", "commonLabels.team=a b"),
        ("enabled", "enabled=yes"),
        ("global.imageRegistry", "global.imageRegistry=https://mirror.example.com"),
        ("operator.serviceAccount", "operator.serviceAccount.create=true"),
        ("networkPolicy.models", "networkPolicy.models={*,a}"),
        ("proxy.httpsProxy", "proxy.httpsProxy=proxy:3128"),
    ],
)
def test_what_could_not_hold_is_refused_by_name(helm: Helm, name: str, assignment: str) -> None:
    assert name in helm.complaint(assignment)


def test_processes_are_told_of_the_proxy_and_of_whom_to_trust_behind_it(helm: Helm) -> None:
    values = ("proxy.httpsProxy=http://proxy:3128", r"proxy.noProxy=.svc\,10.96.0.0/12")
    usual, changed = (
        _pods(helm.render(*one))
        for one in ((), (*values, "proxy.trustedCA.configMap=bundle", "proxy.trustedCA.key=a.pem"))
    )
    assert len(usual) == len(changed) == 3
    for before, pod in zip(usual, changed, strict=True):
        ((old,), (found,)) = before["containers"], pod["containers"]
        told = environment(found)
        assert told.items() - environment(old).items() == {
            ("HTTPS_PROXY", "http://proxy:3128"),
            ("NO_PROXY", ".svc,10.96.0.0/12"),
            ("SSL_CERT_FILE", "/etc/batchedmodel/trusted-ca/a.pem"),
        }
        (volume,) = [one for one in pod["volumes"] if one["name"] == "trusted-ca"]
        items = [{"key": "a.pem", "path": "a.pem"}]
        assert volume["configMap"] == {"name": "bundle", "items": items}
        (mount,) = [one for one in found["volumeMounts"] if one["name"] == "trusted-ca"]
        assert mount["mountPath"] == "/etc/batchedmodel/trusted-ca"


def _pods(objects: Objects) -> list[dict[str, Any]]:
    deployments = [one for (kind, _), one in objects.items() if kind == "Deployment"]
    pod = objects["Pod", "bm-batchedmodel-helm-test"]["spec"]
    return [pod, *(one["spec"]["template"]["spec"] for one in deployments)]


def test_policies_are_in_front_of_all_models_that_are_looked_after(helm: Helm) -> None:
    """Each namespace had to be named in each list, beside `watchNamespaces`."""
    values = ("watchNamespaces={a,b}", "networkPolicy.models={*}", "networkPolicy.fetchers={*}")
    made = helm.manifests(*setting(values))
    assert [
        (one["metadata"]["name"], one["metadata"]["namespace"])
        for one in made
        if one["kind"] == "NetworkPolicy"
    ] == [
        *(("bm-batchedmodel-models", namespace) for namespace in ("a", "b")),
        *(("bm-batchedmodel-fetchers", namespace) for namespace in ("a", "b")),
    ]


def test_policies_of_all_namespaces_are_refused_where_no_cluster_says_which_there_are(
    helm: Helm,
) -> None:
    """Rendered offline, the chart would leave all models open in silence."""
    for name in ("models", "fetchers"):
        with pytest.raises(CommandFailed, match=f"networkPolicy.{name}.*watchNamespaces"):
            helm.render(f"networkPolicy.{name}={{*}}")
