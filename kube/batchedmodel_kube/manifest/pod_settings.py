"""What a manifest becomes for its pods: variables of their processes, and the files they watch.

`processes.environment`, `manifest.batching` and `lora` of the contract read them in the pods.
"""

import hashlib
import json
from dataclasses import asdict, fields
from typing import Any, Final

from batchedmodel_contract.lora import ADAPTERS_FILE, AdapterSettings
from batchedmodel_contract.manifest.adapters import AdapterItem
from batchedmodel_contract.manifest.batching import FILE_NAME, SMALLEST_QUEUE, BatchSettings
from batchedmodel_contract.manifest.source import Source
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.environment import (
    PREFIX,
    AcceleratorNeed,
    FetchSettings,
    ModelServerSettings,
    SidecarSettings,
)
from batchedmodel_contract.schema.reading import declarations
from batchedmodel_contract.schema.shapes import MapOf
from batchedmodel_kube.manifest.adapters import Adapters
from batchedmodel_kube.manifest.batching import Tenants
from batchedmodel_kube.manifest.generation import Generation, KeyValueCache
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.schema.quantities import bytes_of

_QUEUED_BATCHES: Final = 16
"""Batches for which a queue has room where the manifest does not say how many rows it holds."""


def sidecar_settings(name: str, spec: Spec, *, settings_folder: str) -> SidecarSettings:
    """What the manifest of this name tells the sidecar, wherever it runs."""
    model, adapters = spec.model, spec.adapters
    return SidecarSettings(
        model_name=name,
        upstream_protocol=model.protocol or ServerProtocol.V2,
        replicated_outputs=model.replicated_outputs,
        pass_paths=model.pass_paths,
        idempotent=model.idempotent,
        settings_folder=settings_folder,
        adapter_header="" if adapters is None else adapters.header,
        adapter_slots=0 if adapters is None else adapters.slots,
    )


def model_server_settings(
    name: str, spec: Spec, *, model_socket: str, settings_folder: str, cache_folder: str
) -> ModelServerSettings:
    """What the manifest of this name, which has a handler, tells our model server."""
    model, generation = spec.model, spec.generation or Generation()
    cache = generation.kv_cache or KeyValueCache()
    source = None if model.source is None else model.source.for_model_server()
    assert model.handler is not None, "a server of one's own has no such settings: our bug"
    return ModelServerSettings(
        model_name=name,
        model_socket=model_socket,
        handler=model.handler,
        source=source_to_json(source),
        parameters=model.parameters,
        trust=model.trust_remote_code,
        max_batch_size=spec.batching.max_batch_size,
        idempotent=model.idempotent,
        accelerator=AcceleratorNeed.NONE if spec.accelerator is None else AcceleratorNeed.WANTED,
        kv_cache_bytes=bytes_of(cache.memory) or 0,
        kv_cache_fraction=cache.fraction or 0.0,
        max_context_tokens=generation.max_context_tokens or 0,
        adapters_folder="" if spec.adapters is None else settings_folder,
        cache_folder=cache_folder,
    )


def to_environment(
    settings: SidecarSettings | ModelServerSettings | FetchSettings,
) -> dict[str, str]:
    """The variables that `from_environment` reads back to equal settings."""
    variables: dict[str, str] = {}
    for field, declared in declarations(type(settings)):
        value: Any = getattr(settings, field.name)
        if value in ("", ()):
            continue
        is_map = isinstance(declared.rule, MapOf)
        text = value if isinstance(value, str) else json.dumps(dict(value) if is_map else value)
        variables[PREFIX + field.name.upper()] = text
    return variables


def source_to_json(source: Source | None) -> str:
    """A source as one variable; empty when there is none."""
    if source is None:
        return ""
    hub = source.hugging_face
    given = {
        "path": source.path,
        "pythonPackage": source.python_package,
        "huggingFace": hub and {"repo": hub.repo, "revision": hub.revision},
    }
    return json.dumps({name: value for name, value in given.items() if value is not None})


def settings_files(spec: Spec, items: tuple[AdapterItem, ...]) -> dict[str, str]:
    """The texts of the files by their names; `items`: the adapters, with sources as pods have them.

    In the order in which to write them: who has the batch settings, which name what the file of
    adapters holds, has that file too.
    """
    texts = {}
    if spec.adapters is not None:
        texts[ADAPTERS_FILE] = adapters_to_json(adapter_settings(spec.adapters, items))
    return texts | {FILE_NAME: batch_settings(spec).to_json()}


def batch_settings(spec: Spec) -> BatchSettings:
    """The effective settings of a manifest: `spec.batching` and `spec.generation`."""
    batching, generation = spec.batching, spec.generation or Generation()
    tenants = batching.tenants or Tenants()
    queue = batching.max_queue_size
    if queue is None:
        queue = max(SMALLEST_QUEUE, _QUEUED_BATCHES * batching.max_batch_size)
    return BatchSettings(
        policy=batching.policy,
        max_batch_size=batching.max_batch_size,
        max_batch_tokens=batching.max_batch_tokens,
        max_concurrent_batches=batching.max_concurrent_batches,
        max_wait_seconds=batching.max_wait_milliseconds / 1000,
        target_seconds=_seconds(batching.target_latency_milliseconds),
        lateness=batching.lateness,
        objective=batching.objective,
        trust_priority=batching.trust_priority,
        max_queue_size=queue,
        request_timeout_seconds=float(batching.request_timeout_seconds),
        length_buckets=batching.length_buckets,
        tenant_by=tenants.by,
        tenant_header=tenants.header,
        tenant_weights=tenants.weights,
        tenant_max_share=tenants.max_share,
        trusted_proxies=batching.trusted_proxies,
        max_concurrent_requests=generation.max_concurrent_requests,
        max_sequences=generation.max_sequences,
        max_tokens_per_step=generation.max_tokens_per_step,
        target_first_token_seconds=_seconds(generation.target_first_token_milliseconds),
        target_token_seconds=_seconds(generation.target_token_milliseconds),
        adapters=_digest(spec.adapters),
    )


def adapter_settings(adapters: Adapters, items: tuple[AdapterItem, ...]) -> AdapterSettings:
    """The settings of the model server's adapters."""
    return AdapterSettings(
        slots=adapters.slots,
        max_rank=adapters.max_rank,
        cpu_memory_bytes=bytes_of(adapters.cpu_memory),
        items=items,
        folder=adapters.folder,
        header=adapters.header,
    )


def adapters_to_json(settings: AdapterSettings) -> str:
    """The text of the file of adapters; equal settings give equal text.

    Sources name folders in place of volumes, and no secrets.
    """
    items = [
        {"name": item.name, "source": json.loads(source_to_json(item.source))}
        for item in settings.items
    ]
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    told = {name: value for name, value in values.items() if value is not None}
    return json.dumps(told | {"items": items}, sort_keys=True)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _digest(adapters: Adapters | None) -> str:
    if adapters is None:
        return ""
    text = json.dumps(asdict(adapters), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
