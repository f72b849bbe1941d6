"""The rules of a manifest that no single field can judge. What comes of them, `check` says."""

from collections.abc import Callable
from typing import Final

from batchedmodel_contract.kubernetes.names import ADMIN_PORT, DATA_PORT, PRODUCT_MAKER
from batchedmodel_contract.manifest.cross_field_rule import Check, Reason
from batchedmodel_contract.manifest.handler_names import FILE_HANDLER, is_file_handler
from batchedmodel_contract.manifest.pod_rules import POD_CHECKS
from batchedmodel_contract.manifest.rollout_rules import ROLLOUT_CHECKS
from batchedmodel_contract.manifest.spec import Lateness, Model, ServerProtocol, Spec
from batchedmodel_contract.manifest.workload import Autoscaling, ScalingMetric

_CEL_FILE_HANDLER: Final = f"self.model.handler.contains('{FILE_HANDLER}')"


def _given_sources(spec: Spec) -> int:
    source = spec.model.source
    if source is None:
        return 0
    given = (source.path, source.volume, source.python_package, source.hugging_face)
    return sum(one is not None for one in given)


def _asks_for_the_accelerator_twice(spec: Spec) -> bool:
    resources = spec.model.resources
    return spec.accelerator is not None and any(
        name == spec.accelerator.resource for name, _ in (*resources.requests, *resources.limits)
    )


def _only_for_a_handler(name: str, field: str, given: Callable[[Model], bool], cel: str) -> Check:
    """A rule against a field of `model`; `cel` says that it is given."""
    return Check(
        name=name,
        field=field,
        broken=lambda spec: spec.model.protocol is not None and given(spec.model),
        holds=f"!has(self.model.protocol) || !({cel})",
        rule="is only for a handler",
        reason=Reason.FORBIDDEN,
    )


def _only_for_ones_own(name: str, field: str, given: Callable[[Model], bool], cel: str) -> Check:
    """The other way round."""
    return Check(
        name=name,
        field=field,
        broken=lambda spec: spec.model.handler is not None and given(spec.model),
        holds=f"!has(self.model.handler) || !({cel})",
        rule="is only for a container of one's own (protocol)",
        reason=Reason.FORBIDDEN,
    )


def _only_for_metrics(
    name: str,
    field: str,
    metrics: tuple[ScalingMetric, ...],
    target: Callable[[Autoscaling], int | None],
) -> Check:
    """A rule against a target that the metric chosen does not have."""

    def broken(spec: Spec) -> bool:
        scaling = spec.autoscaling
        return scaling is not None and scaling.metric not in metrics and target(scaling) is not None

    chosen = " || ".join(f"self.autoscaling.metric == '{metric}'" for metric in metrics)
    return Check(
        name=name,
        field=f"autoscaling.{field}",
        broken=broken,
        holds=f"!has(self.autoscaling) || {chosen} || !has(self.autoscaling.{field})",
        rule=f"is only for metric {' or '.join(metrics)}",
        reason=Reason.FORBIDDEN,
    )


def _scales_on_a_cpu_that_is_not_asked_for(spec: Spec) -> bool:
    # Kubernetes takes a limit for the request that is missing.
    resources = spec.model.resources
    asked = {name for name, _ in (*resources.requests, *resources.limits)}
    scaling = spec.autoscaling
    return scaling is not None and scaling.metric is ScalingMetric.CPU and "cpu" not in asked


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="the server is not chosen",
        field="model",
        broken=lambda spec: (spec.model.handler is None) == (spec.model.protocol is None),
        holds="has(self.model.handler) != has(self.model.protocol)",
        rule="needs exactly one of handler and protocol",
    ),
    Check(
        name="a container of one's own lacks its image",
        field="model.image",
        broken=lambda spec: spec.model.protocol is not None and spec.model.image is None,
        holds="!has(self.model.protocol) || has(self.model.image)",
        rule="is required with protocol",
        reason=Reason.REQUIRED,
    ),
    _only_for_ones_own(
        "a handler has the port of a container of one's own",
        "model.port",
        lambda model: model.port is not None,
        "has(self.model.port)",
    ),
    Check(
        name="the port is the sidecar's",
        field="model.port",
        broken=lambda spec: spec.model.port in (DATA_PORT, ADMIN_PORT),
        holds=f"!has(self.model.port) || !(self.model.port in [{DATA_PORT}, {ADMIN_PORT}])",
        rule="is taken by the batching sidecar, with which the container shares its ports",
    ),
    _only_for_a_handler(
        "a container of one's own has a source",
        "model.source",
        lambda model: model.source is not None,
        "has(self.model.source)",
    ),
    _only_for_a_handler(
        "a container of one's own has parameters",
        "model.parameters",
        lambda model: model.parameters != (),
        "has(self.model.parameters) && size(self.model.parameters) != 0",
    ),
    Check(
        name="outputs are replicated that no server of one's own has",
        field="model.replicatedOutputs",
        broken=lambda spec: (
            spec.model.protocol is not ServerProtocol.V2 and spec.model.replicated_outputs != ()
        ),
        holds="!has(self.model.replicatedOutputs) || size(self.model.replicatedOutputs) == 0"
        " || (has(self.model.protocol) && self.model.protocol == 'V2')",
        rule="is only for protocol V2",
        reason=Reason.FORBIDDEN,
    ),
    _only_for_ones_own(
        "a handler has paths to pass on",
        "model.passPaths",
        lambda model: model.pass_paths != (),
        "has(self.model.passPaths) && size(self.model.passPaths) != 0",
    ),
    _only_for_ones_own(
        "a handler has a command",
        "model.command",
        lambda model: model.command != (),
        "has(self.model.command) && size(self.model.command) != 0",
    ),
    _only_for_ones_own(
        "a handler has arguments",
        "model.args",
        lambda model: model.args != (),
        "has(self.model.args) && size(self.model.args) != 0",
    ),
    Check(
        name="handler hf lacks its source",
        field="model.source",
        broken=lambda spec: spec.model.handler == "hf" and spec.model.source is None,
        holds="!has(self.model.handler) || self.model.handler != 'hf' || has(self.model.source)",
        rule="is required with handler hf",
        reason=Reason.REQUIRED,
    ),
    Check(
        name="handler simulated has a source",
        field="model.source",
        broken=lambda spec: spec.model.handler == "simulated" and spec.model.source is not None,
        holds="!has(self.model.handler) || self.model.handler != 'simulated'"
        " || !has(self.model.source)",
        rule="is not used by handler simulated",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="a handler in a file is not trusted",
        field="model.trust",
        broken=lambda spec: is_file_handler(spec.model.handler) and not spec.model.trust,
        holds=f"!has(self.model.handler) || !{_CEL_FILE_HANDLER} || self.model.trust",
        rule="must be true for a handler in a file, which is code among the model's files",
    ),
    Check(
        name="a handler in a file lacks its source",
        field="model.source",
        broken=lambda spec: is_file_handler(spec.model.handler) and spec.model.source is None,
        holds=f"!has(self.model.handler) || !{_CEL_FILE_HANDLER} || has(self.model.source)",
        rule="is required with a handler in a file, which is looked for there",
        reason=Reason.REQUIRED,
    ),
    _only_for_a_handler(
        "a container of one's own is trusted",
        "model.trust",
        lambda model: model.trust,
        "self.model.trust",
    ),
    Check(
        name="the source is not one",
        field="model.source",
        broken=lambda spec: spec.model.source is not None and _given_sources(spec) != 1,
        holds="!has(self.model.source) || [has(self.model.source.path),"
        " has(self.model.source.volume), has(self.model.source.pythonPackage),"
        " has(self.model.source.huggingFace)].exists_one(given, given)",
        rule="needs exactly one of path, volume, pythonPackage and huggingFace",
    ),
    Check(
        name="the accelerator is asked for twice",
        field="model.resources",
        broken=_asks_for_the_accelerator_twice,
        holds="!has(self.accelerator) || !has(self.model.resources)"
        " || ((!has(self.model.resources.requests)"
        " || !(self.accelerator.resource in self.model.resources.requests))"
        " && (!has(self.model.resources.limits)"
        " || !(self.accelerator.resource in self.model.resources.limits)))",
        rule="names {accelerator.resource}, of which spec.accelerator says how many",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="products are chosen by a label that nodes do not have",
        field="accelerator.productLabels",
        broken=lambda spec: (
            spec.accelerator is not None
            and spec.accelerator.product_labels != ()
            and not spec.accelerator.resource.startswith(PRODUCT_MAKER)
        ),
        holds="!has(self.accelerator) || !has(self.accelerator.productLabels)"
        " || size(self.accelerator.productLabels) == 0"
        f" || self.accelerator.resource.startsWith('{PRODUCT_MAKER}')",
        rule=f"is only for a resource of {PRODUCT_MAKER}..., whose nodes tell their product",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="the queue cannot hold a batch",
        field="batching.maxQueueSize",
        broken=lambda spec: (
            spec.batching.max_queue_size is not None
            and spec.batching.max_queue_size < spec.batching.max_batch_size
        ),
        holds="!has(self.batching.maxQueueSize)"
        " || self.batching.maxQueueSize >= self.batching.maxBatchSize",
        rule="is below maxBatchSize ({batching.maxBatchSize}): the queue must hold one batch",
    ),
    Check(
        name="a handler is to run batches side by side",
        field="batching.maxConcurrentBatches",
        broken=lambda spec: (
            spec.model.handler is not None and spec.batching.max_concurrent_batches > 1
        ),
        holds="!has(self.model.handler) || self.batching.maxConcurrentBatches == 1",
        rule="is above 1, which only a container of one's own (protocol) may have: a handler's "
        "batches run one after the other",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="the wait outlasts the request",
        field="batching.maxWaitMilliseconds",
        broken=lambda spec: (
            spec.batching.max_wait_milliseconds >= spec.batching.request_timeout_seconds * 1000
        ),
        holds="self.batching.maxWaitMilliseconds < self.batching.requestTimeoutSeconds * 1000",
        rule="is not below requestTimeoutSeconds ({batching.requestTimeoutSeconds} s)",
    ),
    Check(
        name="the target outlasts the request",
        field="batching.targetLatencyMilliseconds",
        broken=lambda spec: (
            spec.batching.target_latency_milliseconds is not None
            and spec.batching.target_latency_milliseconds
            >= spec.batching.request_timeout_seconds * 1000
        ),
        holds="!has(self.batching.targetLatencyMilliseconds)"
        " || self.batching.targetLatencyMilliseconds < self.batching.requestTimeoutSeconds * 1000",
        rule="is not below requestTimeoutSeconds ({batching.requestTimeoutSeconds} s)",
    ),
    Check(
        name="nothing says what is late",
        field="batching.lateness",
        broken=lambda spec: (
            spec.batching.lateness is Lateness.REFUSE
            and spec.batching.target_latency_milliseconds is None
        ),
        holds="self.batching.lateness != 'Refuse' || has(self.batching.targetLatencyMilliseconds)",
        rule="is Refuse, which needs targetLatencyMilliseconds",
    ),
    Check(
        name="tenants are named and not listed, or the other way round",
        field="batching.tenants.weights",
        broken=lambda spec: (
            spec.batching.tenants is not None
            and (spec.batching.tenants.header is None) != (spec.batching.tenants.weights == ())
        ),
        holds="!has(self.batching.tenants) || has(self.batching.tenants.header)"
        " == (has(self.batching.tenants.weights) && size(self.batching.tenants.weights) != 0)",
        rule="goes with header: tenants that are not listed share one",
    ),
    Check(
        name="nobody is believed to name tenants",
        field="batching.tenants.header",
        broken=lambda spec: (
            spec.batching.tenants is not None
            and spec.batching.tenants.header is not None
            and spec.batching.trusted_proxies == ()
        ),
        holds="!has(self.batching.tenants) || !has(self.batching.tenants.header)"
        " || (has(self.batching.trustedProxies) && size(self.batching.trustedProxies) != 0)",
        rule="needs trustedProxies, on whose connections alone it is believed",
    ),
    Check(
        name="the fewest pods exceed the most",
        field="autoscaling.minReplicas",
        broken=lambda spec: (
            spec.autoscaling is not None
            and spec.autoscaling.min_replicas > spec.autoscaling.max_replicas
        ),
        holds="!has(self.autoscaling)"
        " || self.autoscaling.minReplicas <= self.autoscaling.maxReplicas",
        rule="is above maxReplicas ({autoscaling.maxReplicas})",
    ),
    _only_for_metrics(
        "the target utilisation is for another metric",
        "targetUtilizationPercent",
        (ScalingMetric.LOAD, ScalingMetric.CPU),
        lambda scaling: scaling.target_utilization_percent,
    ),
    _only_for_metrics(
        "the target queue is for another metric",
        "targetQueueLength",
        (ScalingMetric.QUEUE_LENGTH,),
        lambda scaling: scaling.target_queue_length,
    ),
    _only_for_metrics(
        "the target of rows outstanding is for another metric",
        "targetOutstanding",
        (ScalingMetric.OUTSTANDING,),
        lambda scaling: scaling.target_outstanding,
    ),
    _only_for_metrics(
        "the target wait is for another metric",
        "targetQueueWaitMilliseconds",
        (ScalingMetric.QUEUE_WAIT,),
        lambda scaling: scaling.target_queue_wait_milliseconds,
    ),
    Check(
        name="nothing says what the cpu's use is a share of",
        field="autoscaling.metric",
        broken=_scales_on_a_cpu_that_is_not_asked_for,
        holds="!has(self.autoscaling) || self.autoscaling.metric != 'CPU'"
        " || (has(self.model.resources)"
        " && ((has(self.model.resources.requests) && 'cpu' in self.model.resources.requests)"
        " || (has(self.model.resources.limits) && 'cpu' in self.model.resources.limits)))",
        rule="is CPU, which is a share of model.resources.requests.cpu: give one",
    ),
    Check(
        name="the number of pods has two owners",
        field="replicas",
        broken=lambda spec: spec.autoscaling is not None and spec.replicas is not None,
        holds="!has(self.autoscaling) || !has(self.replicas)",
        # `kubectl scale` sets the field behind the back of a manifest that does not have it.
        rule="is not allowed beside autoscaling, which owns the number of pods "
        "(`replicas: null` removes it)",
        reason=Reason.FORBIDDEN,
    ),
    Check(
        name="the drain is shorter than a request",
        field="drain.timeoutSeconds",
        broken=lambda spec: (
            spec.drain.timeout_seconds is not None
            and spec.drain.timeout_seconds < spec.batching.request_timeout_seconds
        ),
        holds="!has(self.drain.timeoutSeconds)"
        " || self.drain.timeoutSeconds >= self.batching.requestTimeoutSeconds",
        rule="is below requestTimeoutSeconds ({batching.requestTimeoutSeconds}): "
        "a drain would lose requests",
    ),
    *ROLLOUT_CHECKS,
    *POD_CHECKS,
)
"""In the order in which their messages are shown."""
