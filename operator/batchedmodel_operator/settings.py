"""The operator's settings, which it reads when it starts."""

from dataclasses import dataclass
from typing import Final

from batchedmodel_contract.manifest.spec import LogLevel, PullPolicy
from batchedmodel_contract.manifest.workload import ScalingVia, UpgradeMode, UserIds
from batchedmodel_contract.processes.logs import LogFormat
from batchedmodel_contract.schema.reading import setting
from batchedmodel_contract.schema.rules import Choice, Text, Truth, Whole
from batchedmodel_contract.schema.shapes import Names

_IMAGE: Final = Text(pattern=r"\S+", form="an image reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """The settings of one process; read with the contract's `from_environment`."""

    sidecar_image: str = setting(_IMAGE, "Image of the batching sidecar.", required=True)
    model_server_image: str = setting(
        _IMAGE, "Image of the model server, for handlers whose manifest names none.", required=True
    )
    namespace: str = setting(Text(), "Namespace it runs in, where its Lease is.", required=True)
    lease_name: str = setting(
        Text(),
        "Lease of the operators that stand in for each other; its holder works.",
        default="batchedmodel-operator",
    )
    watch_namespaces: tuple[str, ...] = setting(
        Names(at_most=64),
        "Namespaces whose BatchedModels it looks after, as a JSON list; absent: all of them.",
        default=(),
    )
    image_pull_policy: PullPolicy = setting(
        Choice(of=PullPolicy),
        "When nodes fetch the images of the pods.",
        default=PullPolicy.IF_NOT_PRESENT,
    )
    ids: UserIds = setting(
        Choice(of=UserIds),
        "As whom pods run whose manifests do not say so: as user 65532, or as the cluster says.",
        default=UserIds.FIXED,
    )
    via: ScalingVia = setting(
        Choice(of=ScalingVia),
        "From which API HPAs read whose manifests do not say so.",
        default=ScalingVia.CUSTOM_METRICS,
    )
    upgrade: UpgradeMode = setting(
        Choice(of=UpgradeMode),
        "Whether pods whose manifests do not say so get its images when it takes an earlier one's "
        "place.",
        default=UpgradeMode.PINNED,
    )
    upgrades_at_once: int = setting(
        Whole(minimum=1, maximum=100),
        "Models whose pods are replaced at the same time for that, or for an edit of a class.",
        default=1,
    )
    admission_policy: bool = setting(
        Truth(),
        "Whether an admission policy bounds its account to objects of BatchedModels; it warns "
        "where none does.",
        default=False,
    )
    probe_port: int = setting(
        Whole(minimum=1, maximum=65535), "Port of probes and metrics.", default=8080
    )
    log_level: LogLevel = setting(Choice(of=LogLevel), "How much to log.", default=LogLevel.INFO)
    log_format: LogFormat = setting(
        Choice(of=LogFormat),
        "In which form to log; new pods of models do the same.",
        default=LogFormat.TEXT,
    )
