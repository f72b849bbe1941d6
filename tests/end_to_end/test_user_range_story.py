"""A cluster that gives each namespace its range of users, as OpenShift's restricted-v2 does.

Two policies do what its admission does: one gives pods that name no user the first of the range,
the other refuses pods that name one outside of it.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
import pytest

from cluster.errors import CommandFailed
from support.kube import Kube
from support.steady_load import echo_body
from support.story_models import simulated

pytestmark = pytest.mark.timeout(900, func_only=True)

FIRST: Final = 1_000_650_000
LABEL: Final = "users-from-range"
_PODS: Final = {
    "resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    ]
}
_GIVEN: Final = "has(object.spec.securityContext) && has(object.spec.securityContext.{0})"
_RANGE: Final = f"{{0}} >= {FIRST} && {{0}} < {FIRST + 10_000}"


def _policies() -> list[dict[str, Any]]:
    head = {"metadata": {"name": LABEL}}
    group = "admissionregistration.k8s.io"
    selected = {"namespaceSelector": {"matchLabels": {LABEL: "yes"}}}
    fields = ", ".join(
        f"{name}: {_GIVEN.format(name)} ? object.spec.securityContext.{name} : {FIRST}"
        for name in ("runAsUser", "fsGroup")
    )
    context = f"Object.spec.securityContext{{{fields}}}"
    change = f"Object{{spec: Object.spec{{securityContext: {context}}}}}"
    user = "c.securityContext.runAsUser"
    own = f"!has(c.securityContext) || !has({user}) || ({_RANGE.format(user)})"
    every = f"object.spec.containers.all(c, {own})"
    first = f"!has(object.spec.initContainers) || object.spec.initContainers.all(c, {own})"
    of_pod = [
        f"!({_GIVEN.format(name)}) || ({_RANGE.format(f'object.spec.securityContext.{name}')})"
        for name in ("runAsUser", "fsGroup")
    ]
    rules = [{"expression": one} for one in (every, first, *of_pod)]
    mutating = {
        "matchConstraints": _PODS,
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": change}}
        ],
    }
    validating = {"matchConstraints": _PODS, "failurePolicy": "Fail", "validations": rules}
    bound = {"policyName": LABEL, "matchResources": selected}
    return [
        {"apiVersion": f"{group}/v1beta1", "kind": "MutatingAdmissionPolicy", "spec": mutating}
        | head,
        {"apiVersion": f"{group}/v1beta1", "kind": "MutatingAdmissionPolicyBinding", "spec": bound}
        | head,
        {"apiVersion": f"{group}/v1", "kind": "ValidatingAdmissionPolicy", "spec": validating}
        | head,
        {
            "apiVersion": f"{group}/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {**bound, "validationActions": ["Deny"]},
        }
        | head,
    ]


@pytest.fixture
def ranged(kube: Kube) -> Iterator[Kube]:
    """A namespace whose pods run as users of a range that no manifest knows."""
    policies = _policies()
    if kube.cluster.control_plane is None:
        pytest.skip("a cluster that is not ours may know no policies that change objects")
    for one in policies:
        kube.apply(one)
    kube.cluster.kubectl("label", "namespace", kube.namespace, f"{LABEL}=yes")
    yield kube
    for one in policies:
        kube.cluster.kubectl("delete", one["kind"], LABEL)


async def test_pods_run_as_whichever_user_the_cluster_gives_them(ranged: Kube) -> None:
    kube = ranged
    fixed = simulated("fixed")
    await kube.eventually("the policies hold", lambda: _refuses(kube), within=60)
    kube.apply(fixed)
    await kube.eventually(
        "it is said that its pods are refused", lambda: _says(kube, "fixed", "denied"), within=60
    )
    assert kube.pods("fixed") == []

    kube.patch("fixed", {"spec": {"security": {"ids": "FromCluster"}}})
    await kube.serves("fixed")
    [pod] = kube.ready_pods("fixed")
    for container in ("batcher", "model"):
        where = (pod["metadata"]["name"], f"--container={container}")
        assert kube.kubectl("exec", *where, "--", "id", "-u").strip() == str(FIRST)
    url = kube.service_url("fixed") + "/v2/models/fixed/infer"
    async with aiohttp.ClientSession() as session, session.post(url, json=echo_body(7)) as answer:
        assert answer.status == 200, await answer.text()


def _refuses(kube: Kube) -> bool:
    """Whether a pod with a user of its own is refused; policies hold a moment after they came."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "own", "namespace": kube.namespace},
        "spec": {
            "securityContext": {"runAsUser": 65532},
            "containers": [{"name": "own", "image": "localhost/none:1"}],
        },
    }

    try:
        kube.kubectl("create", "--dry-run=server", "--filename=-", stdin=json.dumps(pod))
    except CommandFailed as error:
        return "denied" in str(error)
    return False


def _says(kube: Kube, name: str, words: str) -> bool:
    ready = kube.condition(name, "Ready")
    return ready.get("status") == "False" and words in ready["message"]
