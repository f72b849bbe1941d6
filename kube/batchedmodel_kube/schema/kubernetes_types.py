"""Kubernetes' types for containers, volumes, placement and scaling that a manifest may hold.

As they are in 1.34: a test holds them to the API server's own description.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchedmodel_contract.schema.rules import Text, Whole
from batchedmodel_contract.schema.shapes import TEXT_MAP, ListOf
from batchedmodel_kube.schema.quantities import amount_of
from batchedmodel_kube.schema.shapes import QUANTITIES, WHOLE, Law, NamedEntries, Shape, shape

_FIELD_REF: Final = shape(text="apiVersion fieldPath")
_RESOURCE_FIELD_REF: Final = shape(text="containerName resource", amount="divisor")
_LABEL_SELECTOR: Final = shape(
    matchLabels=TEXT_MAP, matchExpressions=ListOf(each=shape(text="key operator", texts="values"))
)
_BY_NAME: Final = shape(text="name")
_ITEMS: Final = ListOf(each=shape(text="key path", whole="mode"))
_DOWNWARD_ITEMS: Final = ListOf(
    each=shape(text="path", whole="mode", fieldRef=_FIELD_REF, resourceFieldRef=_RESOURCE_FIELD_REF)
)
_CLAIM: Final = shape(
    text="storageClassName volumeAttributesClassName volumeMode volumeName",
    texts="accessModes",
    dataSource=shape(text="apiGroup kind name"),
    dataSourceRef=shape(text="apiGroup kind name namespace"),
    resources=shape(limits=QUANTITIES, requests=QUANTITIES),
    selector=_LABEL_SELECTOR,
)
_CLAIM_TEMPLATE: Final = shape(
    # Kubernetes refuses all other metadata here.
    metadata=shape(annotations=TEXT_MAP, labels=TEXT_MAP),
    spec=_CLAIM,
)
_PROJECTION: Final = shape(
    clusterTrustBundle=shape(
        text="name path signerName", truth="optional", labelSelector=_LABEL_SELECTOR
    ),
    configMap=shape(text="name", truth="optional", items=_ITEMS),
    downwardAPI=shape(items=_DOWNWARD_ITEMS),
    podCertificate=shape(
        text="certificateChainPath credentialBundlePath keyPath keyType signerName",
        whole="maxExpirationSeconds",
    ),
    secret=shape(text="name", truth="optional", items=_ITEMS),
    serviceAccountToken=shape(text="audience path", whole="expirationSeconds"),
)
VOLUME: Final[Shape] = shape(
    text="name",
    awsElasticBlockStore=shape(text="fsType volumeID", truth="readOnly", whole="partition"),
    azureDisk=shape(text="cachingMode diskName diskURI fsType kind", truth="readOnly"),
    azureFile=shape(text="secretName shareName", truth="readOnly"),
    cephfs=shape(
        text="path secretFile user", texts="monitors", truth="readOnly", secretRef=_BY_NAME
    ),
    cinder=shape(text="fsType volumeID", truth="readOnly", secretRef=_BY_NAME),
    configMap=shape(text="name", truth="optional", whole="defaultMode", items=_ITEMS),
    csi=shape(
        text="driver fsType",
        truth="readOnly",
        nodePublishSecretRef=_BY_NAME,
        volumeAttributes=TEXT_MAP,
    ),
    downwardAPI=shape(whole="defaultMode", items=_DOWNWARD_ITEMS),
    emptyDir=shape(text="medium", amount="sizeLimit"),
    ephemeral=shape(volumeClaimTemplate=_CLAIM_TEMPLATE),
    fc=shape(text="fsType", texts="targetWWNs wwids", truth="readOnly", whole="lun"),
    flexVolume=shape(text="driver fsType", truth="readOnly", options=TEXT_MAP, secretRef=_BY_NAME),
    flocker=shape(text="datasetName datasetUUID"),
    gcePersistentDisk=shape(text="fsType pdName", truth="readOnly", whole="partition"),
    gitRepo=shape(text="directory repository revision"),
    glusterfs=shape(text="endpoints path", truth="readOnly"),
    hostPath=shape(text="path type"),
    image=shape(text="pullPolicy reference"),
    iscsi=shape(
        text="fsType initiatorName iqn iscsiInterface targetPortal",
        texts="portals",
        truth="chapAuthDiscovery chapAuthSession readOnly",
        whole="lun",
        secretRef=_BY_NAME,
    ),
    nfs=shape(text="path server", truth="readOnly"),
    persistentVolumeClaim=shape(text="claimName", truth="readOnly"),
    photonPersistentDisk=shape(text="fsType pdID"),
    portworxVolume=shape(text="fsType volumeID", truth="readOnly"),
    projected=shape(whole="defaultMode", sources=ListOf(each=_PROJECTION)),
    quobyte=shape(text="group registry tenant user volume", truth="readOnly"),
    rbd=shape(
        text="fsType image keyring pool user",
        texts="monitors",
        truth="readOnly",
        secretRef=_BY_NAME,
    ),
    scaleIO=shape(
        text="fsType gateway protectionDomain storageMode storagePool system volumeName",
        truth="readOnly sslEnabled",
        secretRef=_BY_NAME,
    ),
    secret=shape(text="secretName", truth="optional", whole="defaultMode", items=_ITEMS),
    storageos=shape(text="fsType volumeName volumeNamespace", truth="readOnly", secretRef=_BY_NAME),
    vsphereVolume=shape(text="fsType storagePolicyID storagePolicyName volumePath"),
)

_FROM_OBJECT: Final = shape(text="name", truth="optional")
_FROM_KEY: Final = shape(text="key name", truth="optional")
ENV_FROM: Final[Shape] = shape(text="prefix", configMapRef=_FROM_OBJECT, secretRef=_FROM_OBJECT)
VOLUME_MOUNT: Final[Shape] = shape(
    needs="mountPath",
    mountPath=Text(form="a path", at_most=4096),
    text="mountPropagation name recursiveReadOnly subPath subPathExpr",
    truth="readOnly",
)
_ID: Final = Whole(minimum=0, maximum=2**31 - 1)
SECURITY_CONTEXT: Final[Shape] = shape(
    "a container's core/v1 security context",
    text="procMount",
    truth="allowPrivilegeEscalation privileged readOnlyRootFilesystem runAsNonRoot",
    runAsGroup=_ID,
    runAsUser=_ID,
    appArmorProfile=shape(text="localhostProfile type"),
    capabilities=shape(texts="add drop"),
    seLinuxOptions=shape(text="level role type user"),
    seccompProfile=shape(text="localhostProfile type"),
    windowsOptions=shape(
        text="gmsaCredentialSpec gmsaCredentialSpecName runAsUserName", truth="hostProcess"
    ),
)

_ENV: Final = shape(
    text="name value",
    valueFrom=shape(
        configMapKeyRef=_FROM_KEY,
        fieldRef=_FIELD_REF,
        fileKeyRef=shape(text="key path volumeName", truth="optional"),
        resourceFieldRef=_RESOURCE_FIELD_REF,
        secretKeyRef=_FROM_KEY,
    ),
)
_EXEC: Final = shape(texts="command")
_HTTP_GET: Final = shape(
    text="host path scheme", amount="port", httpHeaders=ListOf(each=shape(text="name value"))
)
_TCP_SOCKET: Final = shape(text="host", amount="port")
_PROBE: Final = shape(
    whole="failureThreshold initialDelaySeconds periodSeconds successThreshold "
    "terminationGracePeriodSeconds timeoutSeconds",
    exec=_EXEC,
    grpc=shape(text="service", whole="port"),
    httpGet=_HTTP_GET,
    tcpSocket=_TCP_SOCKET,
)
_HOOK: Final = shape(
    exec=_EXEC, httpGet=_HTTP_GET, sleep=shape(whole="seconds"), tcpSocket=_TCP_SOCKET
)
_RESTART_RULE: Final = shape(
    text="action", exitCodes=shape(text="operator", values=ListOf(each=WHOLE, at_most=256))
)
ABOVE_LIMITS: Final = "asks for more of a resource than limits allow"
CEL_ABOVE_LIMITS: Final = (
    "{0}.exists(name, name in {1} && "
    "quantity(string({0}[name])).compareTo(quantity(string({1}[name]))) > 0)"
)
"""Of requests ``{0}`` and limits ``{1}``."""


def above_limits(requests: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
    """Whether more of a resource is asked for than is allowed, in quantities by resource."""
    return any(
        amount_of(str(amount)) > amount_of(str(limits[name]))
        for name, amount in requests.items()
        if amount is not None and limits.get(name) is not None
    )


_WITHIN_LIMITS: Final = Law(
    holds=lambda given: not above_limits(given.get("requests", {}), given.get("limits", {})),
    cel="!has(self.requests) || !has(self.limits) || !"
    + CEL_ABOVE_LIMITS.format("self.requests", "self.limits"),
    fault=ABOVE_LIMITS,
)
CONTAINER: Final[Shape] = shape(
    needs="image",
    image=Text(pattern=r"\S+", form="an image reference"),
    text="imagePullPolicy name restartPolicy terminationMessagePath "
    "terminationMessagePolicy workingDir",
    texts="args command",
    truth="stdin stdinOnce tty",
    env=ListOf(each=_ENV, at_most=256),
    envFrom=ListOf(each=ENV_FROM),
    lifecycle=shape(text="stopSignal", postStart=_HOOK, preStop=_HOOK),
    livenessProbe=_PROBE,
    ports=ListOf(each=shape(text="hostIP name protocol", whole="containerPort hostPort")),
    readinessProbe=_PROBE,
    resizePolicy=ListOf(each=shape(text="resourceName restartPolicy")),
    resources=shape(
        law=_WITHIN_LIMITS,
        claims=ListOf(each=shape(text="name request")),
        limits=QUANTITIES,
        requests=QUANTITIES,
    ),
    restartPolicyRules=ListOf(each=_RESTART_RULE),
    securityContext=SECURITY_CONTEXT,
    startupProbe=_PROBE,
    volumeDevices=ListOf(each=shape(text="devicePath name")),
    volumeMounts=NamedEntries(
        each=VOLUME_MOUNT, form="a list of core/v1 volume mounts", key="mountPath"
    ),
)

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _tolerates(given: Mapping[str, Any]) -> bool:
    operator, effect = given.get("operator") or "Equal", given.get("effect")
    if operator == "Exists":
        right = not given.get("value")
    else:
        right = operator in ("Equal", "Lt", "Gt") and bool(given.get("key"))
    lasting = "tolerationSeconds" not in given or effect == "NoExecute"
    return right and lasting and (not effect or effect in _EFFECTS)


TOLERATION: Final[Shape] = shape(
    law=Law(
        holds=_tolerates,
        cel="(has(self.operator) && self.operator == 'Exists' "
        "? !has(self.value) || self.value == '' : has(self.key) && self.key != '' "
        "&& (!has(self.operator) || self.operator in ['', 'Equal', 'Lt', 'Gt'])) "
        f"&& (!has(self.effect) || self.effect in {['', *_EFFECTS]}) && "
        "(!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute')",
        fault="is no toleration: operator is Exists, without a value, or Equal, Lt or Gt, with a "
        "key; effect is NoSchedule, PreferNoSchedule or NoExecute; tolerationSeconds goes with "
        "NoExecute",
    ),
    text="effect key operator value",
    whole="tolerationSeconds",
)
TOPOLOGY_SPREAD_CONSTRAINT: Final[Shape] = shape(
    needs="maxSkew topologyKey whenUnsatisfiable",
    maxSkew=Whole(minimum=1),
    text="nodeAffinityPolicy nodeTaintsPolicy topologyKey",
    texts="matchLabelKeys",
    whenUnsatisfiable=Text(
        pattern="DoNotSchedule|ScheduleAnyway", form="DoNotSchedule or ScheduleAnyway"
    ),
    whole="minDomains",
    labelSelector=_LABEL_SELECTOR,
)
_NODE_REQUIREMENTS: Final = ListOf(each=shape(text="key operator", texts="values"))
_NODE_TERM: Final = shape(matchExpressions=_NODE_REQUIREMENTS, matchFields=_NODE_REQUIREMENTS)
_POD_TERM: Final = shape(
    text="topologyKey",
    texts="matchLabelKeys mismatchLabelKeys namespaces",
    labelSelector=_LABEL_SELECTOR,
    namespaceSelector=_LABEL_SELECTOR,
)
_POD_AFFINITY: Final = shape(
    preferredDuringSchedulingIgnoredDuringExecution=ListOf(
        each=shape(whole="weight", podAffinityTerm=_POD_TERM)
    ),
    requiredDuringSchedulingIgnoredDuringExecution=ListOf(each=_POD_TERM),
)
AFFINITY: Final[Shape] = shape(
    "a core/v1 affinity",
    nodeAffinity=shape(
        preferredDuringSchedulingIgnoredDuringExecution=ListOf(
            each=shape(whole="weight", preference=_NODE_TERM)
        ),
        requiredDuringSchedulingIgnoredDuringExecution=shape(
            nodeSelectorTerms=ListOf(each=_NODE_TERM)
        ),
    ),
    podAffinity=_POD_AFFINITY,
    podAntiAffinity=_POD_AFFINITY,
)

_SCALING_RULES: Final = shape(
    text="selectPolicy",
    amount="tolerance",
    whole="stabilizationWindowSeconds",
    policies=ListOf(each=shape(text="type", whole="periodSeconds value")),
)
BEHAVIOR: Final[Shape] = shape(
    "an autoscaling/v2 behavior", scaleDown=_SCALING_RULES, scaleUp=_SCALING_RULES
)
