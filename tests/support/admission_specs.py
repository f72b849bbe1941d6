"""Specs of BatchedModels by what admission asks of their author: nothing, or a right besides."""

from typing import Any

from support.operator_team import SIMULATED

UPSTREAM = {"model": {"protocol": "V2", "image": "registry.example/triton:1", "port": 9001}}


def with_pod(**pod: Any) -> dict[str, Any]:
    return {**SIMULATED, "pod": pod}


def with_model(**model: Any) -> dict[str, Any]:
    return {"model": {**UPSTREAM["model"], **model}}


def with_service(**service: Any) -> dict[str, Any]:
    return {**SIMULATED, "service": service}


SERVICES: dict[str, tuple[dict[str, Any], str]] = {
    "a balancer": (with_service(type="LoadBalancer"), "spec.service.type"),
    "a port of every node": (with_service(type="NodePort"), "spec.service.type"),
    "a name in the DNS": (
        with_service(annotations={"external-dns.alpha.kubernetes.io/hostname": "pay.example"}),
        "spec.service.annotations",
    ),
}
FREE = {
    "a handler": SIMULATED,
    "a container": with_model(
        command=["serve"], env={"A": "b"}, resources={"limits": {"cpu": "1"}}
    ),
    "a ConfigMap": with_pod(volumes=[{"name": "config", "configMap": {"name": "config"}}]),
    "variables of a ConfigMap": with_model(
        envFrom=[{"prefix": "A_", "configMapRef": {"name": "config"}}]
    ),
    "a node": with_pod(nodeSelector={"disk": "ssd"}, affinity={"nodeAffinity": {}}),
    "another port": with_service(port=8080),
    "what defaults say": {
        **SIMULATED,
        "service": {"type": "ClusterIP", "annotations": {}},
        "security": {"profile": "Restricted"},
        "pod": {"automountServiceAccountToken": False, "volumes": [], "labels": {}},
    },
}
HELD: dict[str, tuple[dict[str, Any], str]] = {
    "a node's folder": (
        with_pod(volumes=[{"name": "host", "hostPath": {"path": "/"}}]),
        "spec.pod.volumes",
    ),
    "a Secret's files": (
        with_pod(volumes=[{"name": "secret", "secret": {"secretName": "any"}}]),
        "spec.pod.volumes",
    ),
    "a token": (
        with_pod(
            volumes=[
                {"name": "good", "configMap": {"name": "c"}},
                {
                    "name": "token",
                    "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]},
                },
            ]
        ),
        "spec.pod.volumes",
    ),
    "a claim": (
        with_pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]),
        "spec.pod.volumes",
    ),
    "a claim with the model's files": (
        {"model": {"handler": "hf", "source": {"volume": {"claimName": "data"}}}},
        "spec.model.source.volume",
    ),
    "a claim for what a hub has": (
        {
            "model": {
                "handler": "hf",
                "source": {"huggingFace": {"repo": "a/b", "cacheClaimName": "data"}},
            }
        },
        "spec.model.source.huggingFace.cacheClaimName",
    ),
    "a claim with adapters": (
        {
            **SIMULATED,
            "adapters": {"items": [{"name": "a", "source": {"volume": {"claimName": "data"}}}]},
        },
        "spec.adapters.items",
    ),
    "variables of a Secret": (
        with_model(envFrom=[{"secretRef": {"name": "any"}}]),
        "spec.model.envFrom",
    ),
    "a Secret for a hub": (
        {
            "model": {
                "handler": "hf",
                "source": {"huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "any"}}},
            }
        },
        "spec.model.source.huggingFace.tokenSecretRef",
    ),
    "a Secret for a hub of adapters": (
        {
            "model": {
                "handler": "hf",
                "image": "registry.example/any:1",
                "source": {"path": "/models/any"},
            },
            "adapters": {"items": [], "tokenSecretRef": {"name": "any"}},
        },
        "spec.adapters.tokenSecretRef",
    ),
    "a privileged model": (
        with_model(securityContext={"privileged": True}),
        "spec.model.securityContext",
    ),
    "root": ({**SIMULATED, "security": {"profile": "Baseline"}}, "spec.security.profile"),
    "an init container": (
        with_pod(initContainers=[{"name": "init", "image": "registry.example/any:1"}]),
        "spec.pod.initContainers",
    ),
    "another sidecar": (
        {**SIMULATED, "sidecar": {"image": "registry.example/any:1"}},
        "spec.sidecar.image",
    ),
    "a service account": (with_pod(serviceAccountName="strong"), "spec.pod.serviceAccountName"),
    "its token": (
        with_pod(automountServiceAccountToken=True),
        "spec.pod.automountServiceAccountToken",
    ),
    "pull Secrets": (with_pod(imagePullSecrets=["any"]), "spec.pod.imagePullSecrets"),
    "labels that other Services select": (with_pod(labels={"app": "pay"}), "spec.pod.labels"),
    "annotations": (with_pod(annotations={"iam.example/role": "admin"}), "spec.pod.annotations"),
    "others' places": (with_pod(priorityClassName="top"), "spec.pod.priorityClassName"),
    "another runtime": (with_pod(runtimeClassName="bare"), "spec.pod.runtimeClassName"),
    "another scheduler": (with_pod(schedulerName="mine"), "spec.pod.schedulerName"),
    "nodes for itself": (
        with_pod(
            affinity={
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "labelSelector": {},
                            "namespaceSelector": {},
                            "topologyKey": "kubernetes.io/hostname",
                        }
                    ]
                }
            }
        ),
        "spec.pod.affinity",
    ),
    "others' nodes": (with_pod(tolerations=[{"operator": "Exists"}]), "spec.pod.tolerations"),
}
