"""What a person tries who may write BatchedModels only, to get what another may have.

Each is a manifest as it would have to be for the API server to take it: its administrator may
write it.
"""

from typing import Any, Final

from batchedmodel_kube.schema.kubernetes_types import VOLUME
from support.admission_specs import HELD, SERVICES, UPSTREAM, with_model, with_pod
from support.operator_team import SIMULATED

_HARMLESS_VOLUMES: Final = ("configMap",)
_HUB: Final = {"huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "any"}}}
_SECRET_KEY: Final = {"valueFrom": {"secretKeyRef": {"name": "any", "key": "a"}}}


def _init(**container: Any) -> dict[str, Any]:
    return with_pod(initContainers=[{"name": "init", "image": "registry.example/a:1", **container}])


def _volume(name: str, **source: Any) -> dict[str, Any]:
    return with_pod(volumes=[{"name": name, **source}])


def _projected(**source: Any) -> dict[str, Any]:
    return _volume("projected", projected={"sources": [source]})


PODS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    **HELD,
    **{
        f"a volume of kind {kind}": (_volume("v", **{kind: {}}), "spec.pod.volumes")
        for kind in VOLUME.fields
        if kind not in ("name", *_HARMLESS_VOLUMES)
    },
    "a projected Secret": (_projected(secret={"name": "any"}), "spec.pod.volumes"),
    "a projected token": (
        _projected(serviceAccountToken={"path": "t", "audience": "vault"}),
        "spec.pod.volumes",
    ),
    "a projected certificate": (
        _projected(podCertificate={"signerName": "a/b", "keyType": "ED25519"}),
        "spec.pod.volumes",
    ),
    "a Secret behind a ConfigMap": (
        _volume("both", configMap={"name": "c"}, secret={"secretName": "any"}),
        "spec.pod.volumes",
    ),
    "the node's runtime": (
        _volume("run", hostPath={"path": "/run/containerd/containerd.sock", "type": "Socket"}),
        "spec.pod.volumes",
    ),
    "the default account's token": (
        with_pod(serviceAccountName="default", automountServiceAccountToken=True),
        "spec.pod.serviceAccountName",
    ),
    "variables of a Secret beside those of a ConfigMap": (
        with_model(envFrom=[{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "any"}}]),
        "spec.model.envFrom",
    ),
    "variables of a Secret with a prefix": (
        with_model(envFrom=[{"prefix": "A_", "secretRef": {"name": "any", "optional": True}}]),
        "spec.model.envFrom",
    ),
    "any entry of a Secret as a hub's token": (
        {
            "model": {
                "handler": "hf",
                "image": "registry.example/mine:1",
                "source": {
                    "huggingFace": {
                        "repo": "a/b",
                        "tokenSecretRef": {"name": "any", "key": "password"},
                    }
                },
            }
        },
        "spec.model.source.huggingFace.tokenSecretRef",
    ),
    "an init container with a Secret": (
        _init(env=[{"name": "A", **_SECRET_KEY}]),
        "spec.pod.initContainers",
    ),
    "an init container with all of a Secret": (
        _init(envFrom=[{"secretRef": {"name": "any"}}]),
        "spec.pod.initContainers",
    ),
    "an init container that is root": (
        _init(securityContext={"privileged": True, "runAsUser": 0}),
        "spec.pod.initContainers",
    ),
    "an init container at a port of the node": (
        _init(ports=[{"containerPort": 80, "hostPort": 80}], restartPolicy="Always"),
        "spec.pod.initContainers",
    ),
    "another user": (with_model(securityContext={"runAsUser": 0}), "spec.model.securityContext"),
    "capabilities": (
        with_model(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        "spec.model.securityContext",
    ),
    "no seccomp": (
        with_model(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        "spec.model.securityContext",
    ),
    "the masks of proc": (
        with_model(securityContext={"procMount": "Unmasked"}),
        "spec.model.securityContext",
    ),
    "labels by which policies let others in": (
        with_pod(labels={"app.kubernetes.io/part-of": "payments"}),
        "spec.pod.labels",
    ),
    "annotations that inject": (
        with_pod(annotations={"vault.hashicorp.com/agent-inject": "true"}),
        "spec.pod.annotations",
    ),
    "the cluster's own priority": (
        with_pod(priorityClassName="system-node-critical"),
        "spec.pod.priorityClassName",
    ),
    "the control plane's nodes": (
        with_pod(
            tolerations=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            nodeSelector={"node-role.kubernetes.io/control-plane": ""},
        ),
        "spec.pod.tolerations",
    ),
    "a place beside another's pods": (
        with_pod(
            affinity={
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
                    ]
                }
            }
        ),
        "spec.pod.affinity",
    ),
    "all of it at once": (
        {
            "model": {**UPSTREAM["model"], "securityContext": {"privileged": True}},
            "pod": {"serviceAccountName": "strong", "automountServiceAccountToken": True},
            "service": {"type": "LoadBalancer"},
        },
        "spec.pod.serviceAccountName",
    ),
}
"""Manifests of pods that have more than what they run, and the field that gives it."""

OPENED: Final = SERVICES

STRONG: Final[dict[str, Any]] = {
    **with_model(command=["serve"], envFrom=[{"secretRef": {"name": "any"}}]),
    "pod": {"serviceAccountName": "strong", "automountServiceAccountToken": True},
}
FETCHING: Final[dict[str, Any]] = {
    "model": {"handler": "hf", "source": _HUB},
    "adapters": {
        "tokenSecretRef": {"name": "any"},
        "items": [{"name": "a", "source": {"huggingFace": {"repo": "a/b"}}}],
    },
}
CLAIMING: Final[dict[str, Any]] = {
    **SIMULATED,
    "adapters": {"items": [{"name": "a", "source": {"volume": {"claimName": "data"}}}]},
}


def _edited(spec: dict[str, Any], section: str, **fields: Any) -> dict[str, Any]:
    return {**spec, section: {**spec.get(section, {}), **fields}}


EDITS: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "another image": (STRONG, _edited(STRONG, "model", image="registry.example/mine:1")),
    "another command": (STRONG, _edited(STRONG, "model", command=["mine"])),
    "other arguments": (STRONG, _edited(STRONG, "model", args=["--mine"])),
    "other variables": (STRONG, _edited(STRONG, "model", env={"LD_PRELOAD": "/mine.so"})),
    "other mounts": (
        STRONG,
        _edited(STRONG, "model", volumeMounts=[{"name": "temporary", "mountPath": "/usr"}]),
    ),
    "another class": (STRONG, {**STRONG, "className": "mine"}),
    "another node": (STRONG, _edited(STRONG, "pod", nodeSelector={"mine": "yes"})),
    "another account": (STRONG, _edited(STRONG, "pod", serviceAccountName="stronger")),
    "other users": (STRONG, {**STRONG, "security": {"ids": "FromCluster"}}),
    "another sidecar's words": (STRONG, {**STRONG, "sidecar": {"logLevel": "debug"}}),
    "another hub for the token": (
        FETCHING,
        _edited(FETCHING, "model", env={"HF_ENDPOINT": "https://mine.example"}),
    ),
    "another repository by the token": (
        FETCHING,
        _edited(
            FETCHING,
            "adapters",
            items=[{"name": "mine", "source": {"huggingFace": {"repo": "mine/b"}}}],
        ),
    ),
    "another folder of the claim": (
        CLAIMING,
        _edited(
            CLAIMING,
            "adapters",
            items=[{"name": "a", "source": {"volume": {"claimName": "data", "subPath": "b"}}}],
        ),
    ),
    "an image that reads the claim": (
        CLAIMING,
        _edited(CLAIMING, "model", image="registry.example/mine:1"),
    ),
}
"""Models of others, and what becomes of them."""
