"""Kubernetes' types for containers, placement and scaling that a manifest may hold, as in 1.34.

A test holds them to the API server's own description.
"""

from typing import Final

from batchedmodel_contract.schema.kubernetes_volumes import (
    FIELD_REF,
    LABEL_SELECTOR,
    RESOURCE_FIELD_REF,
)
from batchedmodel_contract.schema.shapes import (
    QUANTITIES,
    WHOLE,
    ListOf,
    NamedEntries,
    Shape,
    shape,
)

_FROM_OBJECT: Final = shape(text="name", truth="optional")
_FROM_KEY: Final = shape(text="key name", truth="optional")
ENV_FROM: Final[Shape] = shape(text="prefix", configMapRef=_FROM_OBJECT, secretRef=_FROM_OBJECT)
VOLUME_MOUNT: Final[Shape] = shape(
    text="mountPath mountPropagation name recursiveReadOnly subPath subPathExpr", truth="readOnly"
)
SECURITY_CONTEXT: Final[Shape] = shape(
    "a container's core/v1 security context",
    text="procMount",
    truth="allowPrivilegeEscalation privileged readOnlyRootFilesystem runAsNonRoot",
    whole="runAsGroup runAsUser",
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
        fieldRef=FIELD_REF,
        fileKeyRef=shape(text="key path volumeName", truth="optional"),
        resourceFieldRef=RESOURCE_FIELD_REF,
        secretKeyRef=_FROM_KEY,
    ),
)
_EXEC: Final = shape(texts="command")
_HTTP_GET: Final = shape(
    text="host path scheme",
    amount="port",
    httpHeaders=ListOf(each=shape(text="name value")),
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
CONTAINER: Final[Shape] = shape(
    text="image imagePullPolicy name restartPolicy terminationMessagePath "
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
        claims=ListOf(each=shape(text="name request")),
        limits=QUANTITIES,
        requests=QUANTITIES,
    ),
    restartPolicyRules=ListOf(each=_RESTART_RULE),
    securityContext=SECURITY_CONTEXT,
    startupProbe=_PROBE,
    volumeDevices=ListOf(each=shape(text="devicePath name")),
    volumeMounts=NamedEntries(
        each=VOLUME_MOUNT, form="a list of core/v1 volume mounts", unique=False
    ),
)

TOLERATION: Final[Shape] = shape(text="effect key operator value", whole="tolerationSeconds")
TOPOLOGY_SPREAD_CONSTRAINT: Final[Shape] = shape(
    text="nodeAffinityPolicy nodeTaintsPolicy topologyKey whenUnsatisfiable",
    texts="matchLabelKeys",
    whole="maxSkew minDomains",
    labelSelector=LABEL_SELECTOR,
)
_NODE_REQUIREMENTS: Final = ListOf(each=shape(text="key operator", texts="values"))
_NODE_TERM: Final = shape(matchExpressions=_NODE_REQUIREMENTS, matchFields=_NODE_REQUIREMENTS)
_POD_TERM: Final = shape(
    text="topologyKey",
    texts="matchLabelKeys mismatchLabelKeys namespaces",
    labelSelector=LABEL_SELECTOR,
    namespaceSelector=LABEL_SELECTOR,
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
