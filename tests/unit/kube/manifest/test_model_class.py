"""A class's values hold where a manifest says nothing itself, and a mistake says whose it is."""

import copy
from collections.abc import Mapping
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.schema.reading import RecordOf, declarations
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.model_class import (
    ClassSpec,
    ModelClass,
    class_name_of,
    comes_from,
    merged,
    read_class,
)
from batchedmodel_kube.manifest.spec import Spec
from support.examples import examples

SIMULATED: Final[dict[str, Any]] = {"model": {"handler": "simulated"}}
GPU: Final[dict[str, Any]] = {
    "model": {"image": "registry.example/torch:1", "resources": {"limits": {"memory": "8Gi"}}},
    "accelerator": {"count": 2},
    "batching": {"maxBatchSize": 64, "lengthBuckets": [8, 64]},
    "pod": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "gpu"}]},
}


def manifest(spec: Mapping[str, Any] = SIMULATED, name: str = "gpu") -> dict[str, Any]:
    return {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModel",
        "metadata": {"name": "a"},
        "spec": {"className": name, **spec},
    }


def a_class(spec: object = GPU, name: str = "gpu") -> dict[str, Any]:
    return {
        "apiVersion": "batchedmodel.dev/v1alpha1",
        "kind": "BatchedModelClass",
        "metadata": {"name": name},
        "spec": spec,
    }


def complaints(spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    with pytest.raises(InvalidManifest) as caught:
        read_manifest(manifest(spec), read_class(a_class(defaults)))
    return str(caught.value).splitlines()


def test_a_model_has_the_values_of_its_class() -> None:
    spec = read_manifest(manifest(), read_class(a_class())).spec
    assert spec.model.image == "registry.example/torch:1"
    assert spec.model.handler == "simulated"
    assert spec.accelerator is not None
    assert spec.accelerator.count == 2
    assert spec.batching.max_batch_size == 64
    assert spec.pod.tolerations == [{"key": "gpu"}]
    # What neither says has its default.
    assert spec.batching.max_wait_milliseconds == 5


def test_what_the_manifest_says_wins_even_where_it_is_the_default() -> None:
    own = {
        **SIMULATED,
        "batching": {"maxBatchSize": 32, "lengthBuckets": []},
        "pod": {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "mine"}]},
    }
    spec = read_manifest(manifest(own), read_class(a_class())).spec
    assert spec.batching.max_batch_size == 32
    assert spec.batching.length_buckets == ()
    # Lists are taken whole, names are joined.
    assert spec.pod.tolerations == [{"key": "mine"}]
    assert spec.pod.node_selector == (("disk", "ssd"), ("zone", "a"))


def test_null_says_nothing() -> None:
    own = {**SIMULATED, "accelerator": None, "batching": {"maxBatchSize": None}}
    spec = read_manifest(manifest(own), read_class(a_class())).spec
    assert spec.accelerator is not None
    assert spec.batching.max_batch_size == 64


def test_a_class_that_is_not_there_is_a_mistake() -> None:
    other = read_class(a_class(name="other"))
    for found in (None, other):
        with pytest.raises(
            InvalidManifest, match=r"^spec\.className: \"gpu\" is a Batched.*not th"
        ):
            read_manifest(manifest(), found)


def test_a_class_without_a_manifest_that_names_it_changes_nothing() -> None:
    plain = {**manifest(), "spec": SIMULATED}
    assert read_manifest(plain, read_class(a_class())) == read_manifest(plain)


def test_a_mistake_of_the_class_is_named_with_it() -> None:
    wrong = {"batching": {"maxBatchSize": 0, "speed": 1}, "replicas": 3}
    with pytest.raises(InvalidManifest) as caught:
        read_class(a_class(wrong))
    fields = sorted(one.field for one in caught.value.mistakes)
    assert fields == [
        "BatchedModelClass gpu: spec.batching.maxBatchSize",
        "BatchedModelClass gpu: spec.batching.speed",
        "BatchedModelClass gpu: spec.replicas",
    ]


@pytest.mark.parametrize("wrong", [3, {}, {"metadata": {"name": "A"}}, a_class(None), a_class(7)])
def test_what_is_no_class_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidManifest):
        read_class(wrong)


def test_a_mistake_that_only_both_make_says_from_whom_the_field_is() -> None:
    (said,) = complaints({**SIMULATED, "batching": {"maxQueueSize": 40}}, GPU)
    assert said == (
        "spec.batching.maxQueueSize: 40 is below maxBatchSize (64): the queue must hold one batch "
        "(with what BatchedModelClass gpu says)"
    )
    own = {**SIMULATED, "batching": {"maxBatchSize": 100}}
    (said,) = complaints(own, {"batching": {"maxQueueSize": 40}})
    assert said.startswith("spec.batching.maxQueueSize: 40 is below maxBatchSize (100)")
    assert said.endswith("(from BatchedModelClass gpu)")


def test_a_rule_may_be_kept_by_what_the_class_says() -> None:
    served = {"model": {"protocol": "V2"}}
    assert complaints(served, {})[0].startswith("spec.model.image: is required with protocol")
    assert read_manifest(manifest(served), read_class(a_class())).spec.model.image


def test_both_together_are_bounded_as_one_is() -> None:
    texts = {f"n{at}": "x" * 1000 for at in range(40)}
    defaults = {"pod": {"annotations": texts}}
    own = {**SIMULATED, "service": {"annotations": texts}}
    (said,) = complaints(own, defaults)
    assert said.startswith("spec: has more than 65536 bytes as JSON")


@pytest.mark.parametrize("odd", [None, 3, {}, {"spec": 3}, manifest(name="A B")])
def test_what_names_no_class_names_none(odd: object) -> None:
    assert class_name_of(odd) is None


def test_a_class_has_only_fields_that_a_model_has() -> None:
    def names(of: type[Any]) -> set[str]:
        return {one.name for _, one in declarations(of)}

    assert names(ClassSpec) - {"allowedNamespaces"} < names(Spec)
    (model,) = (one for _, one in declarations(ClassSpec) if one.name == "model")
    (whole,) = (one for _, one in declarations(Spec) if one.name == "model")
    assert isinstance(model.rule, RecordOf)
    assert isinstance(whole.rule, RecordOf)
    assert names(model.rule.of) < names(whole.rule.of)


LENDING: Final[Mapping[str, dict[str, Any]]] = {
    "an account": {"serviceAccountName": "strong"},
    "its token": {"automountServiceAccountToken": True},
    "a pull Secret": {"imagePullSecrets": ["registry"]},
    "a Secret": {"volumes": [{"name": "a", "secret": {"secretName": "any"}}]},
    "a claim": {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "any"}}]},
    "a clone of a claim": {
        "volumes": [
            {
                "name": "a",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "db"}}
                    }
                },
            }
        ]
    },
    "a projected token": {
        "volumes": [
            {"name": "a", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
        ]
    },
    "a driver's Secret": {
        "volumes": [{"name": "a", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}}]
    },
    "variables of a Secret": {
        "initContainers": [{"name": "i", "image": "a:1", "envFrom": [{"secretRef": {"name": "s"}}]}]
    },
    "a variable of a Secret": {
        "initContainers": [
            {
                "name": "i",
                "image": "a:1",
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            }
        ]
    },
}
HARMLESS: Final[Mapping[str, dict[str, Any]]] = {
    "nothing": {},
    "no token": {"automountServiceAccountToken": False, "imagePullSecrets": []},
    "nodes": {"nodeSelector": {"secret": "rooms"}, "priorityClassName": "serving"},
    "volumes": {
        "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}]
    },
    "a container": {"initContainers": [{"name": "i", "image": "a:1"}]},
}


def refusal(namespace: str, model_class: Mapping[str, Any]) -> str:
    """What the reader says of a manifest in that namespace that names the class; empty: nothing."""
    named = manifest()
    named["metadata"]["namespace"] = namespace
    try:
        read_manifest(named, read_class(a_class(model_class)))
    except InvalidManifest as error:
        return str(error)
    return ""


@pytest.mark.parametrize("what", LENDING)
def test_what_is_a_namespaces_a_class_lends_only_where_it_says_so(what: str) -> None:
    """Each class with a service account or a pull Secret was everybody's."""
    lending = {"pod": LENDING[what]}
    said = 'spec.className: "gpu" is a BatchedModelClass whose allowedNamespaces do not name team-a'
    others: list[dict[str, list[str]]] = [{"allowedNamespaces": one} for one in ([], ["team-b"])]
    for allowed in ({}, *others):
        assert refusal("team-a", lending | allowed).startswith(said)
    for names in (["team-b", "team-a"], ["*"]):
        assert refusal("team-a", lending | {"allowedNamespaces": names}) == ""


@pytest.mark.parametrize("what", HARMLESS)
def test_any_other_class_is_everybodys_unless_it_says_otherwise(what: str) -> None:
    assert refusal("team-a", {"pod": HARMLESS[what]}) == ""
    assert "team-a" in refusal("team-a", {"pod": HARMLESS[what], "allowedNamespaces": ["team-b"]})


def test_a_namespace_that_none_is_called_is_a_mistake_of_the_class() -> None:
    with pytest.raises(
        InvalidManifest, match=r"allowedNamespaces: .* is not a namespace, or \* for all"
    ):
        read_class(a_class({"allowedNamespaces": ["Team A"]}))


VALUES: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "model.image": st.sampled_from(["a:1", "b:2"]),
    "batching.maxBatchSize": st.integers(1, 64),
    "batching.lengthBuckets": st.sampled_from([[], [8], [16, 32]]),
    "accelerator.count": st.integers(1, 4),
    "sidecar.logLevel": st.sampled_from(["info", "debug"]),
    "security.profile": st.sampled_from(["Restricted", "Baseline"]),
    "pod.tolerations": st.sampled_from([[], [{"key": "a"}]]),
    "pod.affinity": st.just({"nodeAffinity": {}}),
    "pod.nodeSelector": st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3),
    "model.resources.limits": st.dictionaries(
        st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "2"]), max_size=2
    ),
}
JOINED: Final = ("pod.nodeSelector", "model.resources.limits")


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Some fields that a class may have, each given or not."""
    found: dict[str, Any] = {}
    for path in draw(st.sets(st.sampled_from(sorted(VALUES)))):
        *sections, last = path.split(".")
        holder = found
        for name in sections:
            holder = holder.setdefault(name, {})
        holder[last] = draw(VALUES[path])
    return found


def at(spec: Any, path: str) -> Any:
    for name in path.split("."):
        spec = spec.get(name) if isinstance(spec, Mapping) else None
    return spec


@given(specs())
@settings(max_examples=examples(100))
def test_an_empty_class_changes_nothing(own: dict[str, Any]) -> None:
    assert merged(own, {}) == own
    assert merged({}, own) == own
    assert merged(own, own) == own


@given(specs(), specs())
@settings(max_examples=examples(300))
def test_every_field_is_the_manifests_own_or_else_the_classs(
    own: dict[str, Any], defaults: dict[str, Any]
) -> None:
    before = copy.deepcopy((own, defaults))
    found = merged(own, defaults)
    assert (own, defaults) == before
    for path in VALUES:
        said, default = at(own, path), at(defaults, path)
        if path in JOINED and said is not None and default is not None:
            assert at(found, path) == {**default, **said}
        else:
            assert at(found, path) == (default if said is None else said)
        of_class = said is None and default is not None
        assert comes_from(f"spec.{path}", own, defaults) == of_class
    # Once merged, the class has nothing more to say.
    assert merged(found, defaults) == found


@given(specs(), specs())
@settings(max_examples=examples(100))
def test_what_is_merged_can_be_read_as_one_manifest(
    own: dict[str, Any], defaults: dict[str, Any]
) -> None:
    own["model"] = {**own.get("model", {}), "handler": "simulated"}
    model_class = ModelClass(name="gpu", given=defaults)
    named = read_manifest(manifest(own), model_class).spec
    whole = {**manifest(), "spec": {**merged(own, defaults)}}
    assert named.class_name == "gpu"
    alone = read_manifest(whole).spec
    assert (named.model, named.batching, named.pod) == (alone.model, alone.batching, alone.pod)
    assert (named.accelerator, named.security) == (alone.accelerator, alone.security)
