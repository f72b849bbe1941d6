"""The ConfigMap with the batch settings, which running sidecars follow."""

from batchedmodel_contract.manifest.batching import FILE_NAME, BatchSettings
from batchedmodel_operator.kinds import Kind
from batchedmodel_operator.reconcile.state import Model
from batchedmodel_operator.render.common import Manifest, child


def config_map(model: Model, settings: BatchSettings) -> Manifest:
    """One file; in a pod it appears in the folder that the sidecar watches."""
    return child(model, Kind.CONFIG_MAP, data={FILE_NAME: settings.to_json()})
