"""The Deployment: how many pods, how they are replaced, and which revision of them is wanted.

Batch settings must never roll pods, although two of them are told to a pod at its start. They stay
as they were when the template was made, which is kept (`kept_template`) and used for as long as
nothing else about the pods changes.
"""

from typing import Final

from batchedmodel_contract.kubernetes.names import REVISION_LABEL
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_operator.interfaces import Body
from batchedmodel_operator.kinds import RESOURCES, Kind
from batchedmodel_operator.reconcile import effective
from batchedmodel_operator.reconcile.state import Child, Model, digest
from batchedmodel_operator.render.common import Manifest, child, labels, selector
from batchedmodel_operator.render.containers import PinnedBatching
from batchedmodel_operator.render.fetch_container import fetched_repository
from batchedmodel_operator.render.pod import Images, pod_spec
from batchedmodel_operator.rollout.rollout import Mode

_PULL_SECONDS: Final = 600
"""How much longer than the model's start a rollout may take until it counts as stuck."""
_FETCH_SECONDS: Final = 3600
"""How much longer still where something runs before the model, such as what fetches its files."""
_FOLLOWS_BATCHING: Final = 0
"""Stands in a revision's digest for what may change without making another revision."""


def revision(model: Model, spec: Spec, images: Images) -> str:
    """Digest of everything that pods depend on; batch settings are not among it."""
    unpinned = PinnedBatching(
        max_batch_size=_FOLLOWS_BATCHING,
        # A limit that is written down is no consequence of the batch settings.
        drain_timeout_seconds=spec.drain.timeout_seconds or _FOLLOWS_BATCHING,
    )
    return digest(_template(model, spec, images, unpinned))


def pinned_batching(spec: Spec) -> PinnedBatching:
    """What a template that is made now tells pods of the batch settings."""
    return PinnedBatching(
        max_batch_size=spec.batching.max_batch_size,
        drain_timeout_seconds=effective.drain_timeout_seconds(spec),
    )


def pod_template(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> Manifest:
    """The pod template, labelled with its revision."""
    template = _template(model, spec, images, pinned)
    template["metadata"]["labels"][REVISION_LABEL] = revision(model, spec, images)
    return template


def deployment(
    model: Model, spec: Spec, template: Body, *, mode: Mode, replicas: int | None
) -> Manifest:
    """The Deployment. `replicas` None: an autoscaler holds them, so they must not be sent."""
    body: Manifest = {
        # Said, for what is left out stays as anybody sets it: a paused one rolls nothing out.
        "paused": False,
        "selector": {"matchLabels": selector(model)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": effective.rolling_update(spec, mode),
        },
        "minReadySeconds": spec.rollout.min_ready_seconds,
        "progressDeadlineSeconds": _progress_seconds(spec),
        "revisionHistoryLimit": spec.rollout.revision_history_limit,
        "template": dict(template),
    }
    if replicas is not None:
        body["replicas"] = replicas
    return child(model, Kind.DEPLOYMENT, spec=body)


def seed(model: Model, live: Child, replicas: int) -> Manifest:
    """What a second field manager applies, so that the first can let go of `spec.replicas`."""
    return {
        "apiVersion": RESOURCES[Kind.DEPLOYMENT].api_version,
        "kind": Kind.DEPLOYMENT.value,
        "metadata": {"name": live.name, "namespace": model.key.namespace},
        "spec": {"replicas": replicas},
    }


def _template(model: Model, spec: Spec, images: Images, pinned: PinnedBatching) -> Manifest:
    metadata: Manifest = {"labels": dict(spec.pod.labels) | labels(model)}
    if spec.pod.annotations:
        metadata["annotations"] = dict(spec.pod.annotations)
    return {"metadata": metadata, "spec": pod_spec(model, spec, images, pinned)}


def _progress_seconds(spec: Spec) -> int:
    before = fetched_repository(spec.model) is not None or bool(spec.pod.init_containers)
    fetch = _FETCH_SECONDS if before else 0
    ready = spec.rollout.min_ready_seconds
    return spec.startup.timeout_seconds + _PULL_SECONDS + fetch + ready
