"""Names, labels and annotations by which the parts find each other in a cluster."""

from typing import Final

GROUP: Final = "batchedmodel.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "BatchedModel"
PLURAL: Final = "batchedmodels"
CLASS_KIND: Final = "BatchedModelClass"
CLASS_PLURAL: Final = "batchedmodelclasses"

NAME_LABEL: Final = f"{GROUP}/name"
"""On every child, its value the BatchedModel's name. The only selector of pods."""
REVISION_LABEL: Final = f"{GROUP}/revision"
"""On pods: the digest of everything in the manifest and the settings that pods depend on."""
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "batchedmodel-operator"
BATCHING_HASH_ANNOTATION: Final = f"{GROUP}/batching-hash"
"""On pods: the hash of their settings; a change makes the kubelet refresh the mount."""
ADAPTERS_ANNOTATION: Final = f"{GROUP}/adapters"
"""On pods: what their model server reads of adapters at its start."""

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
"""On nodes: what NVIDIA's feature discovery calls their devices."""
PRODUCT_MAKER: Final = "nvidia.com/"
"""The beginning of the names of resources whose nodes have that label."""

ADAPTERS_STATUS_FIELD: Final = "adapters"
"""Of a BatchedModel's status: its adapters, as its pods tell of them."""

RESERVED_PREFIX: Final = f"{GROUP}/"
"""Of labels and annotations that only the operator gives."""

SOCKET_VOLUME: Final = "socket"
SETTINGS_VOLUME: Final = "batching"
CACHE_VOLUME: Final = "cache"
TEMPORARY_VOLUME: Final = "temporary"
BATCHER_TEMPORARY_VOLUME: Final = "batcher-temporary"
MEMORY_VOLUME: Final = "memory"
FILES_VOLUME: Final = "model-files"
"""Holds the model's files; the model's container only reads it."""
ADAPTERS_VOLUME_PREFIX: Final = "adapter-files-"
"""Begins the names of the volumes that hold adapters."""
VOLUMES: Final = (
    *(SOCKET_VOLUME, SETTINGS_VOLUME, CACHE_VOLUME, TEMPORARY_VOLUME),
    *(BATCHER_TEMPORARY_VOLUME, MEMORY_VOLUME, FILES_VOLUME),
)
"""Volumes of a pod that only the operator makes."""
SIDECAR_VOLUMES: Final = (SOCKET_VOLUME, SETTINGS_VOLUME, BATCHER_TEMPORARY_VOLUME)
"""Those of them that the sidecar needs."""

BATCHER_CONTAINER: Final = "batcher"
MODEL_CONTAINER: Final = "model"
FETCH_CONTAINER: Final = "fetch-model"
CONTAINERS: Final = (BATCHER_CONTAINER, MODEL_CONTAINER, FETCH_CONTAINER)
"""Containers of a pod that only the operator makes."""
DATA_PORT: Final = 8000
POD_UID_VARIABLE: Final = "BATCHEDMODEL_POD_UID"
"""Of the sidecar's container: every answer of a sidecar that has it names the pod's uid."""
SETTINGS_PATH: Final = "/etc/batchedmodel"
SOCKET_FOLDER: Final = "/run/batchedmodel"
SOCKET_PATH: Final = f"{SOCKET_FOLDER}/model.sock"

METRICS_GROUP: Final = "custom.metrics.k8s.io"
EXTERNAL_METRICS_GROUP: Final = "external.metrics.k8s.io"
MODEL_METRIC_LABEL: Final = "model"
"""By which an external metric is one model's, as in the autoscaler's `/metrics`."""
REQUIRED_REPLICAS_METRIC: Final = "batchedmodel_required_replicas"
QUEUE_LENGTH_METRIC: Final = "batchedmodel_queue_length"
CONCURRENCY_METRIC: Final = "batchedmodel_concurrency"
QUEUE_TIME_METRIC: Final = "batchedmodel_queue_time_seconds"
BLIND: Final = "the model cannot be seen"
"""What an HPA is told, and repeats, when nothing is known by which to size a model."""
