"""What a kubelet would report of pods that nobody runs."""

from typing import Any, Final

from batchedmodel_kube.names import BATCHER_CONTAINER, MODEL_CONTAINER

_STARTED: Final = "2026-01-01T00:00:00Z"


def ready_at(address: str, *, ready: bool = True) -> dict[str, Any]:
    """The status of a pod whose containers run, or whose model still loads."""
    holds = {"PodScheduled": True, "Initialized": True, "ContainersReady": ready, "Ready": ready}
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": kind, "status": str(it)} for kind, it in holds.items()],
        "initContainerStatuses": [container(BATCHER_CONTAINER)],
        "containerStatuses": [container(MODEL_CONTAINER, ready=ready)],
    }


def container(name: str, *, ready: bool = True, **more: Any) -> dict[str, Any]:
    """The status of a container."""
    return {
        "name": name,
        "started": ready,
        "ready": ready,
        "restartCount": 0,
        "image": "registry.example/image:1",
        "imageID": "",
        "state": {"running": {"startedAt": _STARTED}},
        **more,
    }
