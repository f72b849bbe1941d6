"""The Service in front of the sidecars."""

from batchedmodel_contract.kubernetes.names import DATA_PORT
from batchedmodel_contract.manifest.spec import Spec
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.state import Model
from batchedmodel_operator.render.common import Manifest, child, selector


def service(model: Model, spec: Spec) -> Manifest:
    """The data port only: the admin port stays within the cluster's own parts."""
    port = {
        "name": "http",
        "port": spec.service.port,
        "protocol": "TCP",
        # A number: not every Kubernetes resolves the name of an init container's port.
        "targetPort": DATA_PORT,
    }
    body = {"type": spec.service.type.value, "selector": selector(model), "ports": [port]}
    manifest = child(model, Kind.SERVICE, spec=body)
    if spec.service.annotations:
        manifest["metadata"]["annotations"] = dict(spec.service.annotations)
    return manifest
