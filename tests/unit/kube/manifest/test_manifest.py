"""Reading a manifest: right ones with their defaults, wrong ones with every mistake named."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings

from batchedmodel_contract.invalid_input import InvalidManifest
from batchedmodel_contract.manifest.batching import Lateness, PolicyName
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_kube.manifest.batching import Batching
from batchedmodel_kube.manifest.cross_field_rule import Check
from batchedmodel_kube.manifest.cross_field_rules import CHECKS
from batchedmodel_kube.manifest.manifest import read_manifest
from batchedmodel_kube.manifest.source import HuggingFace, Source
from batchedmodel_kube.manifest.spec import Model, Spec
from support.examples import examples
from support.strategies import json_values

MINILM: dict[str, Any] = {
    "apiVersion": "batchedmodel.dev/v1alpha1",
    "kind": "BatchedModel",
    "metadata": {"name": "minilm"},
    "spec": {"model": {"handler": "hf", "source": {"path": "models/minilm"}}},
}
OWN_CONTAINER = {"protocol": "V2", "image": "registry.example/own:1"}


def manifest(path: str = "", value: object = None) -> dict[str, Any]:
    """The example with one field replaced; a value of None removes it."""
    changed = copy.deepcopy(MINILM)
    if path:
        *parents, last = path.split(".")
        holder = changed
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[last] = value
        if value is None:
            del holder[last]
    return changed


def complaints(given: object) -> list[str]:
    with pytest.raises(InvalidManifest) as caught:
        read_manifest(given)
    return str(caught.value).splitlines()


def mistakes_in(given: object) -> list[str]:
    """Every mistake; empty when the manifest is right. Any other exception is the test's."""
    try:
        read_manifest(given)
    except InvalidManifest as refused:
        return [str(mistake) for mistake in refused.mistakes]
    return []


def test_a_short_manifest_gets_the_defaults() -> None:
    model = read_manifest(MINILM)
    assert model.name == "minilm"
    assert model.spec == Spec(model=Model(handler="hf", source=Source(path="models/minilm")))
    assert model.spec.batching == Batching(
        policy=PolicyName.DEADLINE,
        max_batch_size=32,
        max_batch_tokens=None,
        max_wait_milliseconds=5,
        target_latency_milliseconds=None,
        lateness=Lateness.SERVE,
        trust_priority=False,
        max_queue_size=None,
        request_timeout_seconds=30,
        length_buckets=(),
    )


def test_a_full_manifest_is_read_field_by_field() -> None:
    given = manifest(
        "spec",
        {
            "model": {
                "handler": "my_models.rerank:Reranker",
                "source": {"huggingFace": {"repo": "owner/model", "revision": "0123abc"}},
                "image": "registry.example/model-server:1",
                "parameters": {"b": "2", "a": "1"},
            },
            "batching": {
                "policy": "Window",
                "maxBatchSize": 64,
                "maxBatchTokens": 16384,
                "maxWaitMilliseconds": 10,
                "targetLatencyMilliseconds": 100,
                "lateness": "Refuse",
                "trustPriority": True,
                "maxQueueSize": 64,
                "requestTimeoutSeconds": 5,
                "lengthBuckets": [32, 128],
            },
        },
    )
    assert read_manifest(given).spec == Spec(
        model=Model(
            handler="my_models.rerank:Reranker",
            source=Source(hugging_face=HuggingFace(repo="owner/model", revision="0123abc")),
            image="registry.example/model-server:1",
            parameters=(("a", "1"), ("b", "2")),
        ),
        batching=Batching(
            policy=PolicyName.WINDOW,
            max_batch_size=64,
            max_batch_tokens=16384,
            max_wait_milliseconds=10,
            target_latency_milliseconds=100,
            lateness=Lateness.REFUSE,
            trust_priority=True,
            max_queue_size=64,
            request_timeout_seconds=5,
            length_buckets=(32, 128),
        ),
    )


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"handler": "hf", "source": {"path": "here"}}, id="a folder"),
        pytest.param({"handler": "hf", "source": {"pythonPackage": "a.b_c"}}, id="a package"),
        pytest.param({"handler": "hf", "source": {"huggingFace": {"repo": "m"}}}, id="a hub"),
        pytest.param({"handler": "simulated", "parameters": {"a": "0.005"}}, id="simulated"),
        pytest.param({"handler": "pkg.mod:Class"}, id="a class without source"),
        pytest.param(OWN_CONTAINER, id="a container of one's own"),
        pytest.param({**OWN_CONTAINER, "port": 9000}, id="a container on a port of its own"),
    ],
)
def test_each_kind_of_model_is_accepted(model: dict[str, Any]) -> None:
    read_manifest(manifest("spec.model", model))


def test_a_hub_revision_is_main_unless_given() -> None:
    model = {"handler": "hf", "source": {"huggingFace": {"repo": "owner/model"}}}
    source = read_manifest(manifest("spec.model", model)).spec.model.source
    assert source == Source(hugging_face=HuggingFace(repo="owner/model", revision="main"))


def test_a_protocol_is_read_as_an_enum() -> None:
    model = read_manifest(manifest("spec.model", OWN_CONTAINER)).spec.model
    assert model.protocol is ServerProtocol.V2
    assert model.port is None


def test_an_explicit_null_reads_as_absent() -> None:
    given = manifest("spec.batching", {"maxQueueSize": None, "maxBatchSize": None})
    assert read_manifest(given).spec.batching == Batching()
    given["spec"]["batching"] = None
    assert read_manifest(given).spec.batching == Batching()


NAME_RULE = "is not a name of 1 to 48 lower-case letters, digits and '-' that starts with a letter"
HANDLER_RULE = "is not hf, simulated or a class such as my_package.module:Class"

WRONG: list[tuple[str, object, str]] = [
    # The head.
    ("apiVersion", None, "apiVersion: is required and must be batchedmodel.dev/v1alpha1"),
    ("apiVersion", "v1", 'apiVersion: "v1" is not batchedmodel.dev/v1alpha1'),
    ("kind", None, "kind: is required and must be BatchedModel"),
    ("kind", "Deployment", 'kind: "Deployment" is not BatchedModel'),
    ("metadata", None, "metadata.name: is required"),
    ("metadata", "minilm", "metadata.name: is required"),
    ("metadata.name", None, "metadata.name: is required"),
    ("metadata.name", "MiniLM", f'metadata.name: "MiniLM" {NAME_RULE}'),
    ("metadata.name", "6layers", f'metadata.name: "6layers" {NAME_RULE}'),
    ("metadata.name", "ends-", f'metadata.name: "ends-" {NAME_RULE}'),
    ("metadata.name", "x" * 49, f'metadata.name: "{"x" * 49}" {NAME_RULE}'),
    ("metadata.name", "a\n", f'metadata.name: "a\\n" {NAME_RULE}'),
    ("metadata.name", 7, f"metadata.name: 7 {NAME_RULE}"),
    ("spec", None, "spec: is required"),
    ("spec", [], "spec: [] is not a mapping"),
    # The model.
    ("spec.model", None, "spec.model: is required"),
    ("spec.model", "hf", 'spec.model: "hf" is not a mapping'),
    ("spec.model.handler", "HF", f'spec.model.handler: "HF" {HANDLER_RULE}'),
    ("spec.model.handler", "a.b", f'spec.model.handler: "a.b" {HANDLER_RULE}'),
    ("spec.model.handler", 3, "spec.model.handler: 3 is not a string (quote numbers)"),
    ("spec.model.image", "", 'spec.model.image: "" is not an image reference'),
    ("spec.model.image", "a b", 'spec.model.image: "a b" is not an image reference'),
    (
        "spec.model.image",
        "x" * 513,
        f'spec.model.image: "{"x" * 79}... is longer than 512 characters',
    ),
    ("spec.model.port", 80, "spec.model.port: 80 is below the minimum 1024"),
    ("spec.model.port", 65536, "spec.model.port: 65536 is above the maximum 65535"),
    ("spec.model.protocol", "V3", 'spec.model.protocol: "V3" is not one of V2, V1, OpenAI'),
    ("spec.model.idempotent", "no", 'spec.model.idempotent: "no" is not true or false'),
    ("spec.model.parameters", ["a"], 'spec.model.parameters: ["a"] is not a mapping'),
    (
        "spec.model.parameters",
        {"layers": 3},
        'spec.model.parameters: {"layers": 3} has at layers a value that is not a string '
        "(quote numbers)",
    ),
    ("spec.model.source", "models", 'spec.model.source: "models" is not a mapping'),
    ("spec.model.source.path", "", 'spec.model.source.path: "" is not a text that is not empty'),
    (
        "spec.model.source",
        {"pythonPackage": "no-dashes"},
        'spec.model.source.pythonPackage: "no-dashes" is not an importable name such as '
        "my_models.minilm",
    ),
    (
        "spec.model.source",
        {"huggingFace": {}},
        "spec.model.source.huggingFace.repo: is required",
    ),
    (
        "spec.model.source",
        {"huggingFace": {"repo": "a/b/c"}},
        'spec.model.source.huggingFace.repo: "a/b/c" is not a repository name such as '
        "sentence-transformers/all-MiniLM-L6-v2",
    ),
    (
        "spec.model.source",
        {"huggingFace": {"repo": "a/b", "revision": "no spaces"}},
        'spec.model.source.huggingFace.revision: "no spaces" is not a branch, tag or commit',
    ),
    # The batching.
    ("spec.batching", 32, "spec.batching: 32 is not a mapping"),
    (
        "spec.batching.policy",
        "greedy",
        'spec.batching.policy: "greedy" is not one of Deadline, Greedy, Window',
    ),
    ("spec.batching.policy", 1, "spec.batching.policy: 1 is not one of Deadline, Greedy, Window"),
    (
        "spec.batching.targetLatencyMilliseconds",
        600_001,
        "spec.batching.targetLatencyMilliseconds: 600001 is above the maximum 600000",
    ),
    (
        "spec.batching.lateness",
        "refuse",
        'spec.batching.lateness: "refuse" is not one of Serve, Refuse',
    ),
    (
        "spec.batching.trustPriority",
        "yes",
        'spec.batching.trustPriority: "yes" is not true or false',
    ),
    ("spec.batching.maxBatchTokens", 0, "spec.batching.maxBatchTokens: 0 is below the minimum 1"),
    ("spec.batching.maxBatchSize", 0, "spec.batching.maxBatchSize: 0 is below the minimum 1"),
    (
        "spec.batching.maxBatchSize",
        4097,
        "spec.batching.maxBatchSize: 4097 is above the maximum 4096",
    ),
    ("spec.batching.maxBatchSize", "32", 'spec.batching.maxBatchSize: "32" is not an integer'),
    ("spec.batching.maxBatchSize", 32.0, "spec.batching.maxBatchSize: 32.0 is not an integer"),
    ("spec.batching.maxBatchSize", True, "spec.batching.maxBatchSize: true is not an integer"),
    (
        "spec.batching.maxWaitMilliseconds",
        -1,
        "spec.batching.maxWaitMilliseconds: -1 is below the minimum 0",
    ),
    (
        "spec.batching.requestTimeoutSeconds",
        3601,
        "spec.batching.requestTimeoutSeconds: 3601 is above the maximum 3600",
    ),
    ("spec.batching.lengthBuckets", 64, "spec.batching.lengthBuckets: 64 is not a list"),
    (
        "spec.batching.lengthBuckets",
        [64, 32],
        "spec.batching.lengthBuckets: [64, 32] is not in ascending order without repeats",
    ),
    (
        "spec.batching.lengthBuckets",
        [64, 64],
        "spec.batching.lengthBuckets: [64, 64] is not in ascending order without repeats",
    ),
    (
        "spec.batching.lengthBuckets",
        [32, 0],
        "spec.batching.lengthBuckets: [32, 0] has at [1] a value that is below the minimum 1",
    ),
    (
        "spec.batching.lengthBuckets",
        [True],
        "spec.batching.lengthBuckets: [true] has at [0] a value that is not an integer",
    ),
    (
        "spec.batching.lengthBuckets",
        list(range(1, 66)),
        "spec.batching.lengthBuckets: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, "
        "18, 19, 20, 21, 22, ... has 65 entries, more than the 64 allowed",
    ),
    # Unknown fields.
    (
        "spec.batching.maxBatchsize",
        8,
        "spec.batching.maxBatchsize: is not a known field; did you mean maxBatchSize?",
    ),
    (
        "spec.zzz",
        1,
        "spec.zzz: is not a known field; known here: className, suspend, replicas, model, "
        "batching, generation, adapters, accelerator, autoscaling, sidecar, startup, drain, "
        "rollout, service, disruption, security, pod",
    ),
    (
        "spec.model.source.huggingface",
        {"repo": "m"},
        "spec.model.source.huggingface: is not a known field; did you mean huggingFace?",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [pytest.param(*case, id=f"{case[0]}={str(case[1])[:24]}") for case in WRONG],
)
def test_a_wrong_field_gets_its_own_message(path: str, value: object, message: str) -> None:
    assert complaints(manifest(path, value)) == [message]


@pytest.mark.parametrize("given", [None, [], "text", 7], ids=str)
def test_what_is_not_a_mapping_is_no_manifest(given: object) -> None:
    assert len(complaints(given)) == 1
    assert complaints(given)[0].endswith("is not a mapping")


def test_all_mistakes_are_named_in_one_go() -> None:
    given = {
        "kind": "Pod",
        "metadata": {},
        "spec": {
            "model": {"handler": "", "sorce": {}},
            "batching": {"maxBatchSize": 0, "maxQueueSize": "many"},
        },
    }
    assert complaints(given) == [
        "apiVersion: is required and must be batchedmodel.dev/v1alpha1",
        'kind: "Pod" is not BatchedModel',
        "metadata.name: is required",
        "spec.model.sorce: is not a known field; did you mean source?",
        f'spec.model.handler: "" {HANDLER_RULE}',
        "spec.batching.maxBatchSize: 0 is below the minimum 1",
        'spec.batching.maxQueueSize: "many" is not an integer',
    ]


def test_a_wrong_head_and_a_wrong_combination_are_named_together() -> None:
    given = manifest("spec.batching", {"maxBatchSize": 64, "maxQueueSize": 32})
    del given["kind"]
    assert complaints(given) == [
        "kind: is required and must be BatchedModel",
        "spec.batching.maxQueueSize: 32 is below maxBatchSize (64): the queue must hold one batch",
    ]


def test_a_wrong_combination_is_named_once_every_field_is_right_by_itself() -> None:
    combined = {"maxBatchSize": 64, "maxQueueSize": 32}
    wrong = manifest("spec.batching", {**combined, "maxWaitMilliseconds": -1})
    assert complaints(wrong) == ["spec.batching.maxWaitMilliseconds: -1 is below the minimum 0"]
    assert complaints(manifest("spec.batching", combined))[0].startswith(
        "spec.batching.maxQueueSize: 32 is below maxBatchSize"
    )


@pytest.mark.parametrize("check", CHECKS, ids=[f"{check.field}: {check.rule}" for check in CHECKS])
def test_no_rule_over_several_fields_is_broken_by_a_right_spec(check: Check) -> None:
    assert list(check.mistakes(read_manifest(MINILM).spec)) == []


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(json_values())
def test_any_value_as_a_spec_is_read_or_refused_by_name(value: object) -> None:
    assert all(text.startswith("spec") for text in mistakes_in({**MINILM, "spec": value}))


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(json_values(max_leaves=6), json_values(max_leaves=6), json_values(max_leaves=6))
def test_any_value_in_any_field_is_read_or_refused_by_name(
    first: object, second: object, third: object
) -> None:
    batching = {"policy": first, "maxBatchSize": second, "lengthBuckets": third}
    model = {"handler": first, "source": second, "parameters": third, "port": first}
    spec = {"model": model, "batching": batching}
    assert all(text.startswith("spec.") for text in mistakes_in({**MINILM, "spec": spec}))
