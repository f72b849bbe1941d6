"""The rules of a manifest that no single field can judge."""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from operator import gt, lt
from typing import Any, Final

from batchedmodel_contract.manifest.batching import Lateness
from batchedmodel_contract.manifest.source import FILE_HANDLER, has_one_place, is_file_handler
from batchedmodel_contract.manifest.tenants import TenantsBy
from batchedmodel_contract.manifest.upstream import ServerProtocol
from batchedmodel_contract.processes.sidecar_api import ADMIN_PORT
from batchedmodel_kube.manifest.adapters import AdapterItem
from batchedmodel_kube.manifest.cross_field_rule import (
    Check,
    Condition,
    among,
    forbidden,
    given,
    invalid,
    one_given,
    required,
    reserved,
    where,
)
from batchedmodel_kube.manifest.spec import Spec
from batchedmodel_kube.manifest.workload import RolloutStrategy, ScalingMetric
from batchedmodel_kube.names import (
    ADAPTERS_VOLUME_PREFIX,
    BATCHER_TEMPORARY_VOLUME,
    CONTAINERS,
    DATA_PORT,
    MANAGED_BY_LABEL,
    PRODUCT_MAKER,
    RESERVED_PREFIX,
    SIDECAR_VOLUMES,
    VOLUMES,
)
from batchedmodel_kube.schema.kubernetes_types import ABOVE_LIMITS, CEL_ABOVE_LIMITS, above_limits
from batchedmodel_kube.schema.paths import value_at
from batchedmodel_kube.schema.quantities import amount_of


def _some(field: str, one: str, test: Callable[[Any], bool], cel: str) -> Condition:
    """Whether one of a field's entries passes a test; `one` is what CEL calls it."""
    return where(lambda entries: any(map(test, entries)), f"{{0}}.exists({one}, {cel})", field)


def _has_reserved(field: str, *names: str) -> Condition:
    """Whether a mapping has a key that only the operator gives."""
    tests = [*(f"name == '{name}'" for name in names), f"name.startsWith('{RESERVED_PREFIX}')"]
    return _some(
        field,
        "name",
        lambda pair: pair[0] in names or pair[0].startswith(RESERVED_PREFIX),
        " || ".join(tests),
    )


def _has_named(field: str, names: Collection[str]) -> Condition:
    return _some(
        *(field, "entry"), lambda entry: entry["name"] in names, f"entry.name in {list(names)}"
    )


def _one_of(field: str, *names: str) -> Check:
    """A rule that a section that is there has exactly one of its fields."""
    fault = given(field) & ~one_given(*(f"{field}.{name}" for name in names))
    return invalid(field, fault, _exactly_one_of(names))


def _exactly_one_of(names: Sequence[str]) -> str:
    return f"needs exactly one of {', '.join(names[:-1])} and {names[-1]}"


def _asks_above_limits(resources: str) -> Check:
    above = where(
        lambda requests, limits: above_limits(dict(requests), dict(limits)),
        CEL_ABOVE_LIMITS,
        *(f"{resources}.requests", f"{resources}.limits"),
    )
    return invalid(f"{resources}.requests", above, ABOVE_LIMITS)


_CEL_NAMES_NO_VOLUME: Final = (
    f".exists(mount, !(mount.name in {list(VOLUMES)} || "
    f"mount.name.startsWith('{ADAPTERS_VOLUME_PREFIX}') || has(self.pod) && "
    "has(self.pod.volumes) && self.pod.volumes.exists(volume, volume.name == mount.name)))"
)


def _mounts_nothing(field: str, mounts_of: Callable[[Any], Iterable[Any]], cel: str) -> Check:
    """A rule that each mount has its volume; `cel` says of the field whether one has none."""

    def lacks(spec: Spec) -> bool:
        known = {*VOLUMES, *(volume["name"] for volume in value_at(spec, "pod.volumes") or ())}
        names = [mount["name"] for mount in mounts_of(value_at(spec, field))]
        return any(not one.startswith(ADAPTERS_VOLUME_PREFIX) for one in names if one not in known)

    fault = given(field) & Condition(holds=lacks, cel=cel)
    rule = "mounts a volume that neither spec.pod.volumes nor the operator has"
    return invalid(field, fault, rule)


def _mounts_of(container: Any) -> Iterable[Any]:
    return container.get("volumeMounts") or ()


POD_CHECKS: Final[tuple[Check, ...]] = (
    _asks_above_limits("model.resources"),
    _asks_above_limits("sidecar.resources"),
    _mounts_nothing("model.volumeMounts", iter, f"self.model.volumeMounts{_CEL_NAMES_NO_VOLUME}"),
    _mounts_nothing(
        "pod.initContainers",
        lambda containers: chain(*map(_mounts_of, containers)),
        "self.pod.initContainers.exists(container, has(container.volumeMounts) && "
        f"container.volumeMounts{_CEL_NAMES_NO_VOLUME})",
    ),
    reserved(
        "pod.labels",
        _has_reserved("pod.labels", MANAGED_BY_LABEL),
        f"holds a label that the operator gives: {MANAGED_BY_LABEL} or {RESERVED_PREFIX}...",
    ),
    reserved(
        "pod.annotations",
        _has_reserved("pod.annotations"),
        f"holds an annotation that the operator gives: {RESERVED_PREFIX}...",
    ),
    reserved(
        "pod.volumes",
        _has_named("pod.volumes", VOLUMES)
        | _some(
            *("pod.volumes", "entry"),
            lambda volume: volume["name"].startswith(ADAPTERS_VOLUME_PREFIX),
            f"entry.name.startsWith('{ADAPTERS_VOLUME_PREFIX}')",
        ),
        f"holds a name that the operator's own volumes have: {', '.join(VOLUMES)} or "
        f"{ADAPTERS_VOLUME_PREFIX}...",
    ),
    reserved(
        "model.volumeMounts",
        # Its token for draining is there. The socket the model has anyway, settings are no secret.
        _has_named("model.volumeMounts", (BATCHER_TEMPORARY_VOLUME,)),
        f"mounts a volume that is the sidecar's alone: {BATCHER_TEMPORARY_VOLUME}",
    ),
    reserved(
        "pod.initContainers",
        _has_named("pod.initContainers", CONTAINERS),
        f"holds a name that the operator's own containers have: {', '.join(CONTAINERS)}",
    ),
    reserved(
        "pod.initContainers",
        _some(
            *("pod.initContainers", "container"),
            lambda one: any(mount["name"] in SIDECAR_VOLUMES for mount in _mounts_of(one)),
            "has(container.volumeMounts) && container.volumeMounts"
            f".exists(entry, entry.name in {list(SIDECAR_VOLUMES)})",
        ),
        f"mounts a volume that is the sidecar's: {', '.join(SIDECAR_VOLUMES)}",
    ),
)


def _names_secret_or_cache(item: AdapterItem) -> bool:
    """Whether an item names what a running pod cannot be given."""
    hub = item.source.hugging_face
    return hub is not None and bool(hub.token_secret_ref or hub.cache_claim_name)


_PLACES: Final = ("path", "volume", "pythonPackage", "huggingFace")
"""Where files come from; a source has one of them."""
_HANDLER: Final = given("model.handler")
_OWN: Final = given("model.protocol")
_OPENAI: Final = among("model.protocol", ServerProtocol.OPENAI)
_IN_A_FILE: Final = where(is_file_handler, f"{{0}}.contains('{FILE_HANDLER}')", "model.handler")
_BY_ADAPTER: Final = among("batching.tenants.by", TenantsBy.ADAPTER)
_FOR_A_HANDLER: Final = "is only for a handler"
_FOR_ONES_OWN: Final = "is only for a container of one's own (protocol)"
_NO_SURGE: Final = among("rollout.maxSurge", 0, "0%")
_NONE_MISSING: Final = among("rollout.maxUnavailable", 0, "0%")
_CACHE_OUTGROWS_THE_CONTAINER: Final = where(
    lambda memory, limits: _reaches(memory, dict(limits).get("memory")),
    "'memory' in {1} && quantity({0}).compareTo(quantity(string({1}['memory']))) >= 0",
    *("generation.kvCache.memory", "model.resources.limits"),
)
_IN_PLACE: Final = among("rollout.strategy", RolloutStrategy.IN_PLACE)


def _asked(kind: str) -> Condition:
    """Whether the model's resources name the accelerator; `kind` is requests or limits."""
    return where(
        lambda name, resources: name in dict(resources),
        "{0} in {1}",
        *("accelerator.resource", f"model.resources.{kind}"),
    )


def _asks_for_cpu(kind: str) -> Condition:
    return where(lambda found: "cpu" in dict(found), "'cpu' in {0}", f"model.resources.{kind}")


def _reaches(memory: str, limit: str | None) -> bool:
    return limit is not None and amount_of(memory) >= amount_of(limit)


def _outlasting(field: str) -> Check:
    """A rule that a time is below that of a request."""
    fault = where(
        lambda wait, timeout: wait >= timeout * 1000,
        "{0} >= {1} * 1000",
        *(field, "batching.requestTimeoutSeconds"),
    )
    return invalid(
        field, fault, "is not below requestTimeoutSeconds ({batching.requestTimeoutSeconds} s)"
    )


def _target_of(field: str, *metrics: ScalingMetric) -> Check:
    """A rule that a target is given for its metrics only."""
    rule = f"is only for metric {' or '.join(metrics)}"
    return forbidden(f"autoscaling.{field}", ~among("autoscaling.metric", *metrics), rule)


CHECKS: Final[tuple[Check, ...]] = (
    invalid(
        "model",
        ~one_given("model.handler", "model.protocol"),
        "needs exactly one of handler and protocol",
    ),
    required("model.image", _OWN, "is required with protocol"),
    forbidden("model.port", _HANDLER, _FOR_ONES_OWN),
    invalid(
        "model.port",
        among("model.port", DATA_PORT, ADMIN_PORT),
        "is taken by the batching sidecar, with which the container shares its ports",
    ),
    *(forbidden(f"model.{name}", _OWN, _FOR_A_HANDLER) for name in ("source", "parameters")),
    forbidden(
        "model.replicatedOutputs",
        ~among("model.protocol", ServerProtocol.V2),
        "is only for protocol V2",
    ),
    *(
        forbidden(f"model.{name}", _HANDLER, _FOR_ONES_OWN)
        for name in ("passPaths", "command", "args")
    ),
    required("model.source", among("model.handler", "hf"), "is required with handler hf"),
    forbidden(
        "model.source", among("model.handler", "simulated"), "is not used by handler simulated"
    ),
    invalid(
        "model.trustRemoteCode",
        _IN_A_FILE & ~given("model.trustRemoteCode"),
        "must be true for a handler in a file, which is code among the model's files",
    ),
    required(
        "model.source",
        _IN_A_FILE,
        "is required with a handler in a file, which is looked for there",
    ),
    forbidden("model.trustRemoteCode", _OWN, _FOR_A_HANDLER),
    _one_of("model.source", *_PLACES),
    reserved(
        "model.resources",
        _asked("requests") | _asked("limits"),
        "names {accelerator.resource}, of which spec.accelerator says how many",
    ),
    forbidden(
        "accelerator.productLabels",
        ~where(
            lambda name: name.startswith(PRODUCT_MAKER),
            f"{{0}}.startsWith('{PRODUCT_MAKER}')",
            "accelerator.resource",
        ),
        f"is only for a resource of {PRODUCT_MAKER}..., whose nodes tell their product",
    ),
    invalid(
        "batching.maxQueueSize",
        where(lt, "{0} < {1}", "batching.maxQueueSize", "batching.maxBatchSize"),
        "is below maxBatchSize ({batching.maxBatchSize}): the queue must hold one batch",
    ),
    reserved(
        "batching.maxConcurrentBatches",
        _HANDLER & ~among("batching.maxConcurrentBatches", 1),
        "is above 1, which only a container of one's own (protocol) may have: a handler's "
        "batches run one after the other",
    ),
    _outlasting("batching.maxWaitMilliseconds"),
    _outlasting("batching.targetLatencyMilliseconds"),
    invalid(
        "batching.lateness",
        among("batching.lateness", Lateness.REFUSE)
        & ~given("batching.targetLatencyMilliseconds")
        & ~given("generation.targetFirstTokenMilliseconds"),
        "is Refuse, which needs targetLatencyMilliseconds or targetFirstTokenMilliseconds",
    ),
    invalid(
        "batching.tenants.weights",
        ~_BY_ADAPTER & one_given("batching.tenants.header", "batching.tenants.weights"),
        "goes with header: tenants that are not listed share one",
    ),
    forbidden(
        "batching.tenants.header", _BY_ADAPTER, "is only for tenants by Caller, not by Adapter"
    ),
    invalid(
        "batching.tenants.by",
        _BY_ADAPTER & ~given("adapters"),
        "is Adapter, which needs spec.adapters",
    ),
    invalid(
        "batching.tenants.header",
        given("batching.tenants.header") & ~given("batching.trustedProxies"),
        "needs trustedProxies, on whose connections alone it is believed",
    ),
    forbidden(
        "generation",
        among("model.protocol", ServerProtocol.V1, ServerProtocol.V2),
        "is only for a handler and for protocol OpenAI",
    ),
    forbidden(
        "generation.maxConcurrentRequests",
        _HANDLER,
        "is only for protocol OpenAI; how many texts a handler generates says maxSequences",
    ),
    *(
        forbidden(f"generation.{name}", _OPENAI, _FOR_A_HANDLER)
        for name in ("maxSequences", "maxTokensPerStep", "maxContextTokens", "kvCache")
    ),
    invalid(
        "generation.maxTokensPerStep",
        where(lt, "{0} < {1}", "generation.maxTokensPerStep", "generation.maxSequences"),
        "is below maxSequences ({generation.maxSequences}): a step has a token of each text",
    ),
    _one_of("generation.kvCache", "memory", "fraction"),
    invalid(
        "generation.kvCache.memory",
        ~given("accelerator") & _CACHE_OUTGROWS_THE_CONTAINER,
        "is not below model.resources.limits.memory, which the model itself needs as well",
    ),
    _outlasting("generation.targetFirstTokenMilliseconds"),
    _outlasting("generation.targetTokenMilliseconds"),
    forbidden("adapters", _OWN, _FOR_A_HANDLER),
    invalid(
        "adapters.items",
        _some(
            *("adapters.items", "item"),
            lambda item: not has_one_place(item.source),
            f"![{', '.join(f'has(item.source.{place})' for place in _PLACES)}]"
            ".exists_one(given, given)",
        ),
        f"holds a source that {_exactly_one_of(_PLACES)}",
    ),
    reserved(
        "adapters.items",
        _some(
            *("adapters.items", "item"),
            _names_secret_or_cache,
            "has(item.source.huggingFace) && (has(item.source.huggingFace.tokenSecretRef) || "
            "has(item.source.huggingFace.cacheClaimName))",
        ),
        "holds tokenSecretRef or cacheClaimName: adapters.tokenSecretRef is for all of them, and "
        "each pod fetches its own",
    ),
    invalid(
        "autoscaling.minReplicas",
        where(gt, "{0} > {1}", "autoscaling.minReplicas", "autoscaling.maxReplicas"),
        "is above maxReplicas ({autoscaling.maxReplicas})",
    ),
    forbidden(
        "autoscaling.via",
        among("autoscaling.metric", ScalingMetric.CPU),
        "is not for metric CPU, which the cluster's metrics server serves",
    ),
    _target_of("targetUtilizationPercent", ScalingMetric.LOAD, ScalingMetric.CPU),
    _target_of("targetQueueLength", ScalingMetric.QUEUE_LENGTH),
    _target_of("targetConcurrency", ScalingMetric.CONCURRENCY),
    _target_of("targetQueueTimeMilliseconds", ScalingMetric.QUEUE_TIME),
    invalid(
        "autoscaling.metric",
        # Kubernetes takes a limit for the request that is missing.
        among("autoscaling.metric", ScalingMetric.CPU)
        & ~(_asks_for_cpu("requests") | _asks_for_cpu("limits")),
        "is CPU, which is a share of model.resources.requests.cpu: give one",
    ),
    forbidden(
        "replicas",
        given("autoscaling"),
        # `kubectl scale` sets the field behind the back of a manifest that does not have it.
        "is not allowed beside autoscaling, which owns the number of pods "
        "(`replicas: null` removes it)",
    ),
    invalid(
        "drain.timeoutSeconds",
        where(lt, "{0} < {1}", "drain.timeoutSeconds", "batching.requestTimeoutSeconds"),
        "is below requestTimeoutSeconds ({batching.requestTimeoutSeconds}): "
        "a drain would lose requests",
    ),
    invalid(
        "rollout.maxUnavailable",
        _NO_SURGE & _NONE_MISSING,
        "is 0 as maxSurge is: no pod could be replaced",
    ),
    invalid(
        "rollout.maxSurge",
        among("rollout.strategy", RolloutStrategy.SURGE) & _NO_SURGE,
        "is 0, but strategy Surge puts new pods beside the old ones",
    ),
    invalid(
        "rollout.maxSurge",
        _IN_PLACE & given("rollout.maxSurge") & ~_NO_SURGE,
        "is not 0, but strategy InPlace takes old pods away first",
    ),
    invalid(
        "rollout.maxUnavailable",
        _IN_PLACE & _NONE_MISSING,
        "is 0, but strategy InPlace takes old pods away first",
    ),
    *POD_CHECKS,
)
"""In the order in which their messages are shown."""
