"""The fields that only Kubernetes uses, and the manifests that an API server judges as well."""

from typing import Any

import pytest

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_kube.manifest.cross_field_rule import Check
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.manifest import LARGEST_SPEC, read_manifest
from batchedmodel_kube.manifest.spec import Drain, Resources, Spec
from batchedmodel_kube.manifest.workload import (
    Accelerator,
    Autoscaling,
    Pod,
    ScalingMetric,
    Service,
    ServiceType,
)
from support.manifest_table import (
    RightManifest,
    WrongManifest,
    ordinary_pods,
    right_manifests,
    wrong_manifests,
)

RIGHT = right_manifests()
WRONG = wrong_manifests()
ORDINARY = ordinary_pods()


def spec(**sections: Any) -> Spec:
    return read_manifest(manifest(**sections)).spec


def manifest(**sections: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "minilm"},
        "spec": {"model": {"handler": "simulated"}, **sections},
    }


def complaints(given: object) -> list[str]:
    with pytest.raises(InvalidManifest) as caught:
        read_manifest(given)
    return [str(mistake) for mistake in caught.value.mistakes]


@pytest.mark.parametrize("right", RIGHT, ids=[right.id for right in RIGHT])
def test_a_right_manifest_is_read(right: RightManifest) -> None:
    read_manifest(right.manifest)


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.id for wrong in WRONG])
def test_a_wrong_manifest_gets_one_message(wrong: WrongManifest) -> None:
    assert complaints(wrong.manifest) == [f"{wrong.field}: {wrong.rule}"]


@pytest.mark.parametrize("what", ORDINARY)
def test_what_an_ordinary_pod_has_is_read_and_kept_as_it_is_written(what: str) -> None:
    given = ORDINARY[what]
    found = read_manifest({**manifest(), "spec": given}).spec.pod
    for field in ("volumes", "affinity", "init_containers", "tolerations"):
        written = given.get("pod", {}).get(_camel(field))
        assert getattr(found, field) == written


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def test_a_spec_may_be_large_and_not_larger() -> None:
    half = LARGEST_SPEC // 2
    texts = {"A": "é" * (half // 2), "B": "x" * (half - 100)}
    assert spec(model={"handler": "simulated", "env": texts}).model.env
    larger = {"handler": "simulated", "env": {**texts, "C": "y" * 100}}
    assert complaints(manifest(model=larger)) == ["spec: has more than 65536 bytes as JSON"]


def named(check: Check) -> str:
    return f"{check.field}: {check.rule}"


def found_faults(wrong: WrongManifest) -> set[str]:
    """The checks whose sentence, figures apart, the wrong manifest gets."""
    return {
        named(check)
        for check in CHECKS
        if wrong.field == f"spec.{check.field}"
        and all(part in wrong.rule for part in check.rule.replace("}", "{").split("{")[::2])
    }


def test_the_table_has_a_manifest_for_every_rule_over_several_fields() -> None:
    assert {name for wrong in WRONG for name in found_faults(wrong)} == {*map(named, CHECKS)}


def test_no_two_rules_say_the_same_of_a_field() -> None:
    assert len({named(check) for check in CHECKS}) == len(CHECKS)


def test_nothing_of_kubernetes_is_needed() -> None:
    assert spec() == Spec(model=spec().model)
    assert spec().accelerator is None
    assert spec().autoscaling is None
    assert spec().drain == Drain(delay_seconds=5, timeout_seconds=None)
    assert spec().service == Service(type=ServiceType.CLUSTER_IP, port=80)


def test_an_accelerator_is_one_of_the_usual_kind_unless_said_otherwise() -> None:
    assert spec(accelerator={}).accelerator == Accelerator(resource="nvidia.com/gpu", count=1)
    assert spec(accelerator={"resource": "amd.com/gpu", "count": 2}).accelerator == Accelerator(
        resource="amd.com/gpu", count=2
    )


def test_autoscaling_is_read_with_its_behaviour_as_it_is_written() -> None:
    behavior: dict[str, object] = {"scaleDown": {"stabilizationWindowSeconds": 30}}
    given = {"maxReplicas": 4, "metric": "QueueLength", "behavior": behavior}
    assert spec(autoscaling=given).autoscaling == Autoscaling(
        min_replicas=1, max_replicas=4, metric=ScalingMetric.QUEUE_LENGTH, behavior=behavior
    )


def test_quantities_are_kept_as_texts_in_the_order_of_their_names() -> None:
    sidecar = {"resources": {"requests": {"memory": "1Gi", "cpu": 2}}}
    assert spec(sidecar=sidecar).sidecar.resources == Resources(
        requests=(("cpu", "2"), ("memory", "1Gi"))
    )


@pytest.mark.parametrize(
    ("quantity", "good"),
    [
        *[(text, True) for text in ("0", "1", "0.5", "500m", "1.5Gi", "1e3", "1E-3", "100n")],
        *[(text, False) for text in ("", "-1", "+1", ".5", "1.", "1 Gi", "1gi", "1KiB", "9" * 33)],
        *[(1, True), (0, True), (-1, False), (0.5, False), (True, False)],
    ],
)
def test_a_quantity_is_written_as_kubernetes_writes_it(quantity: object, good: bool) -> None:
    sidecar = {"resources": {"limits": {"cpu": quantity}}}
    if good:
        assert spec(sidecar=sidecar).sidecar.resources.limits == (("cpu", str(quantity)),)
    else:
        (message,) = complaints(manifest(sidecar=sidecar))
        assert message.startswith("spec.sidecar.resources.limits: {")
        assert message.endswith(
            "has at cpu a value that is not a quantity such as 500m or 2Gi (quote fractions)"
        )


def test_an_entry_of_null_is_absent_as_it_is_to_an_api_server() -> None:
    labels = {"team": None, "zone": "a"}
    assert spec(pod={"labels": labels}).pod.labels == (("zone", "a"),)


def test_a_resource_without_a_name_of_text_is_refused_and_does_no_harm() -> None:
    resources = {"limits": {7: "1", "cpu": "1"}}
    (message,) = complaints(manifest(sidecar={"resources": resources}))
    assert "has a name that is not a string" in message


def test_a_pod_is_placed_as_its_author_says() -> None:
    toleration = {"key": "dedicated", "operator": "Exists"}
    given = {
        "nodeSelector": {"zone": "a", "kind": "gpu"},
        "tolerations": [toleration],
        "imagePullSecrets": ["b", "a"],
    }
    assert spec(pod=given).pod == Pod(
        node_selector=(("kind", "gpu"), ("zone", "a")),
        tolerations=[toleration],
        image_pull_secrets=("b", "a"),
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"imagePullSecrets": "one"}, 'spec.pod.imagePullSecrets: "one" is not a list'),
        (
            {"imagePullSecrets": [""]},
            'spec.pod.imagePullSecrets: [""] has at [0] a value that is not a name of a Secret',
        ),
        (
            {"nodeSelector": {"a": "x" * 32_769}},
            f'spec.pod.nodeSelector: {{"a": "{"x" * 73}... has at a a value that is longer '
            "than 63 characters",
        ),
        ({"affinity": []}, "spec.pod.affinity: [] is not a core/v1 affinity"),
        (
            {"priorityClassName": ""},
            'spec.pod.priorityClassName: "" is not a name of a PriorityClass',
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_wrong_place_is_named(given: dict[str, Any], message: str) -> None:
    assert complaints(manifest(pod=given)) == [message]


def test_a_list_of_too_many_tolerations_is_refused() -> None:
    (message,) = complaints(manifest(pod={"tolerations": [{}] * 65}))
    assert message.endswith("has 65 entries, more than the 64 allowed")


def test_a_status_beside_the_spec_is_none_of_our_business() -> None:
    read_manifest({**manifest(), "status": {"replicas": 1}})


def test_every_broken_rule_is_named_in_one_go() -> None:
    given = manifest(
        replicas=1,
        batching={"maxQueueSize": 1},
        autoscaling={"minReplicas": 3, "maxReplicas": 2},
    )
    assert [message.partition(":")[0] for message in complaints(given)] == [
        "spec.batching.maxQueueSize",
        "spec.autoscaling.minReplicas",
        "spec.replicas",
    ]
