"""What the containers of a pod ask for: what the manifest says, and measured amounts beside it.

Without any, a pod would be the first that a node under pressure evicts. docs/operations.md has the
measurements.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_kube.manifest.spec import Resources, Spec

DISK: Final = "ephemeral-storage"
_MEBIBYTE: Final = 1024 * 1024
_SIDECAR_MEBIBYTES: Final = 96
"""70 idle, 84 with 2,000 small requests in its queue, and afterwards."""
_ROW_BYTES: Final = 6 * 1024
"""A small request that waits, with room for what it becomes."""
_BODIES_MEBIBYTES: Final = 256
"""All bodies that a sidecar holds; more are refused."""
_STEP_MEBIBYTES: Final = 16
_SIDECAR_CPU: Final = "100m"
_OF_HANDLERS: Final[Mapping[str, str]] = {"cpu": "250m", "memory": "768Mi"}
"""torch and transformers alone take 522 MiB. Weights are the author's to say."""
_OF_THE_SIMULATED: Final[Mapping[str, str]] = {"cpu": "50m", "memory": "96Mi"}
_OF_ANY_CONTAINER: Final = frozenset({"cpu", "memory", DISK})
_OF_OTHERS: Final[Mapping[str, str]] = {"cpu": "100m", "memory": "256Mi"}
"""Servers of one's own, of which nothing is known."""


def sidecar_resources(spec: Spec, max_queue_size: int) -> dict[str, Any]:
    """The sidecar's `resources`: the more rows may wait, the more memory, up to that of bodies."""
    waiting = min(-(-max_queue_size * _ROW_BYTES // _MEBIBYTE), _BODIES_MEBIBYTES)
    mebibytes = -(-(_SIDECAR_MEBIBYTES + waiting) // _STEP_MEBIBYTES) * _STEP_MEBIBYTES
    usual = {"cpu": _SIDECAR_CPU, "memory": f"{mebibytes}Mi"}
    return resources(with_requests(spec.sidecar.resources, usual))


def model_resources(spec: Spec) -> dict[str, Any]:
    """The model container's `resources`, its accelerator among the limits."""
    limits, accelerator = {}, spec.accelerator
    if accelerator is not None:
        limits[accelerator.resource] = str(accelerator.count)
    return resources(with_requests(spec.model.resources, _usual(spec)), **limits)


def fetch_resources(spec: Spec) -> dict[str, Any]:
    """Those of the container that fetches a model's files before.

    No more than the model's container has, so that the pod as a whole asks for no more; no less, as
    a quota counts each container. And no device, which would be held while nothing computes on it.
    """
    requests, limits = (
        tuple((name, amount) for name, amount in amounts if name in _OF_ANY_CONTAINER)
        for amounts in (spec.model.resources.requests, spec.model.resources.limits)
    )
    given = Resources(requests=requests, limits=limits)
    return resources(with_requests(given, _usual(spec)))


def _usual(spec: Spec) -> Mapping[str, str]:
    match spec.model.handler:
        case None:
            return _OF_OTHERS
        case "simulated":
            return _OF_THE_SIMULATED
        case _:
            return _OF_HANDLERS


def with_requests(given: Resources, usual: Mapping[str, str]) -> Resources:
    """The resources with the usual requests for what the manifest says nothing of.

    A limit is a request as well, and may be below the usual one.
    """
    said = dict(given.requests).keys() | dict(given.limits).keys()
    more = tuple((name, amount) for name, amount in usual.items() if name not in said)
    return Resources(requests=(*given.requests, *more), limits=given.limits)


def resources(wanted: Resources, **limits: str) -> dict[str, Any]:
    """A container's `resources`; `limits` come on top of those of the manifest."""
    given = {"requests": dict(wanted.requests), "limits": {**dict(wanted.limits), **limits}}
    return {name: amounts for name, amounts in given.items() if amounts}
