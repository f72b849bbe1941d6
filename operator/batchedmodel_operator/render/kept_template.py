"""Pod templates that are kept, one for each state of the manifest that matters to pods.

Another operator, or one told of other images, would render another template from the same manifest,
and so roll every pod of the cluster when it is installed. It applies what was kept instead, until
somebody edits the manifest or deletes what was kept.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.beyond_defaults import beyond_defaults, default_of
from batchedmodel_operator.reconcile.state import Model, digest
from batchedmodel_operator.render.common import Manifest, child

# Whatever is new in a manifest counts, unless it stands here: too much costs little.
_NO_MATTER_TO_PODS: Final = frozenset(
    {"suspend", "replicas", "batching", "autoscaling", "rollout", "service", "disruption"}
)


def revision_name(model: Model, spec: Spec) -> str:
    """The name under which the template of this state of the manifest is kept.

    Of the manifest only what differs from the defaults has a part in it, so that a field that comes
    into being with a later operator changes nothing for those who do not use it.
    """
    matters = {
        field.name: value
        for field in dataclasses.fields(spec)
        if field.name not in _NO_MATTER_TO_PODS
        and (value := getattr(spec, field.name)) != default_of(field)
    }
    return f"{model.key.name}-{digest([model.uid, beyond_defaults(matters)])}"


def revision_child(model: Model, name: str, number: int, template: Mapping[str, Any]) -> Manifest:
    """The object that keeps a template; `number` is larger for later ones."""
    manifest = child(
        model, Kind.CONTROLLER_REVISION, revision=number, data={"template": dict(template)}
    )
    manifest["metadata"]["name"] = name
    return manifest
