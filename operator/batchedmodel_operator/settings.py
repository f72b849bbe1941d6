"""The operator's settings, which it reads when it starts."""

from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.processes.logs import LogFormat, LogLevel
from batchedmodel_contract.schema.reading import setting
from batchedmodel_contract.schema.rules import Choice, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import Names
from batchedmodel_kube.manifest.spec import PullPolicy
from batchedmodel_kube.manifest.workload import ScalingVia, UpgradeMode, UserIds

_IMAGE: Final = Text(pattern=r"\S+", form="an image reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The settings of one process; read with the contract's `from_environment`."""

    sidecar_image: str = setting(_IMAGE, required=True)
    """Image of the batching sidecar."""
    model_server_image: str = setting(_IMAGE, required=True)
    """Image of the model server, for handlers whose manifest names none."""
    namespace: str = setting(Text(), required=True)
    """Namespace it runs in, where its Lease is."""
    lease_name: str = setting(Text(), default="batchedmodel-operator")
    """Lease of the operators that stand in for each other; its holder works."""
    watch_namespaces: tuple[str, ...] = setting(Names(at_most=64), default=())
    """Namespaces whose BatchedModels it looks after, as a JSON list; absent: all of them."""
    image_pull_policy: PullPolicy = setting(
        Choice(of=PullPolicy), default=PullPolicy.IF_NOT_PRESENT
    )
    """When nodes fetch the images of the pods."""
    ids: UserIds = setting(Choice(of=UserIds), default=UserIds.FIXED)
    """As whom pods run whose manifests do not say so: as user 65532, or as the cluster says."""
    via: ScalingVia = setting(Choice(of=ScalingVia), default=ScalingVia.CUSTOM_METRICS)
    """From which API HPAs read whose manifests do not say so."""
    upgrade: UpgradeMode = setting(Choice(of=UpgradeMode), default=UpgradeMode.PINNED)
    """Whether pods whose manifests do not say so get its images when it takes an earlier one's
    place."""
    upgrades_at_once: int = setting(Whole(minimum=1, maximum=100), default=1)
    """Models whose pods are replaced at the same time for that, or for an edit of a class."""
    admission_policy: bool = setting(Truth(), default=False)
    """Whether an admission policy bounds its account to objects of BatchedModels; it warns where
    none does."""
    probe_port: int = setting(Whole(minimum=1, maximum=65535), default=8080)
    """Port of probes and metrics."""
    log_level: LogLevel = setting(Choice(of=LogLevel), default=LogLevel.INFO)
    """How much to log."""
    log_format: LogFormat = setting(Choice(of=LogFormat), default=LogFormat.TEXT)
    """In which form to log; new pods of models do the same."""
