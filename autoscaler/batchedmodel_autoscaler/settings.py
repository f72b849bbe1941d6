"""What the autoscaler is told when it starts."""

from dataclasses import dataclass

from batchedmodel_contract.processes.listening import EVERY_ADDRESS
from batchedmodel_contract.processes.logs import LogFormat, LogLevel
from batchedmodel_contract.schema.reading import setting
from batchedmodel_contract.schema.rules import Choice, Real, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    """The environment's variables, each with the prefix `BATCHEDMODEL_`."""

    namespace: str = setting(Text(), required=True)
    """Namespace it runs in."""
    service_name: str = setting(Text(), required=True)
    """Service that the APIServices name; its DNS name stands in the certificate."""
    deployment_name: str = setting(Text(), required=True)
    """Its own Deployment: when that is deleted, the APIServices go too."""
    lease_name: str = setting(Text(), default="batchedmodel-autoscaler")
    """Of all autoscalers with the same Lease one writes what was learnt."""
    watch_namespaces: tuple[str, ...] = setting(Names(at_most=64), default=())
    """Namespaces whose BatchedModels it measures, as a JSON list; absent: all of them."""
    custom_metrics: bool = setting(Truth(), default=True)
    """Whether it is registered as custom.metrics.k8s.io."""
    external_metrics: bool = setting(Truth(), default=False)
    """Whether it is registered as external.metrics.k8s.io."""
    host: str = setting(Text(), default=EVERY_ADDRESS)
    """Address to listen on; `::` is every address, IPv4 too."""
    port: int = setting(Whole(minimum=0, maximum=65535), default=10250)
    """Port of the metrics API, TLS."""
    admin_port: int = setting(Whole(minimum=0, maximum=65535), default=8080)
    """Port for probes and its own metrics, plain HTTP."""
    poll_seconds: float = setting(Real(minimum=0.2, maximum=15), default=2.0)
    """Time between two questions to one sidecar; longer where there are very many."""
    log_level: LogLevel = setting(Choice(of=LogLevel), default=LogLevel.INFO)
    """How much to log."""
    log_format: LogFormat = setting(Choice(of=LogFormat), default=LogFormat.TEXT)
    """In which form to log."""
