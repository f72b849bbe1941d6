"""What the autoscaler is told when it starts."""

from dataclasses import dataclass

from batchedmodel_contract.manifest.spec import LogLevel
from batchedmodel_contract.processes.listening import EVERY_ADDRESS
from batchedmodel_contract.processes.logs import LogFormat
from batchedmodel_contract.schema.reading import setting
from batchedmodel_contract.schema.rules import Choice, Real, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    """The environment's variables, each with the prefix `BATCHEDMODEL_`."""

    namespace: str = setting(Text(), "Namespace it runs in.", required=True)
    service_name: str = setting(
        Text(),
        "Service that the APIServices name; its DNS name stands in the certificate.",
        required=True,
    )
    deployment_name: str = setting(
        Text(), "Its own Deployment: when that is deleted, the APIServices go too.", required=True
    )
    lease_name: str = setting(
        Text(),
        "Of all autoscalers with the same Lease one writes what was learnt.",
        default="batchedmodel-autoscaler",
    )
    watch_namespaces: tuple[str, ...] = setting(
        Names(at_most=64),
        "Namespaces whose BatchedModels it measures, as a JSON list; absent: all of them.",
        default=(),
    )
    custom_metrics: bool = setting(
        Truth(), "Whether it is registered as custom.metrics.k8s.io.", default=True
    )
    external_metrics: bool = setting(
        Truth(), "Whether it is registered as external.metrics.k8s.io.", default=False
    )
    host: str = setting(
        Text(), "Address to listen on; `::` is every address, IPv4 too.", default=EVERY_ADDRESS
    )
    port: int = setting(
        Whole(minimum=0, maximum=65535), "Port of the metrics API, TLS.", default=10250
    )
    admin_port: int = setting(
        Whole(minimum=0, maximum=65535),
        "Port for probes and its own metrics, plain HTTP.",
        default=8080,
    )
    poll_seconds: float = setting(
        Real(minimum=0.2, maximum=15),
        "Time between two questions to one sidecar; longer where there are very many.",
        default=2.0,
    )
    log_level: LogLevel = setting(Choice(of=LogLevel), "How much to log.", default=LogLevel.INFO)
    log_format: LogFormat = setting(
        Choice(of=LogFormat), "In which form to log.", default=LogFormat.TEXT
    )
