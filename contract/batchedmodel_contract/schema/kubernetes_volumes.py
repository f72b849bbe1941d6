"""Kubernetes' type core/v1 Volume, as it is in 1.34: every kind of volume and all of its fields.

A test holds it to the API server's own description.
"""

from typing import Final

from batchedmodel_contract.schema.shapes import QUANTITIES, TEXT_MAP, ListOf, Shape, shape

FIELD_REF: Final = shape(text="apiVersion fieldPath")
RESOURCE_FIELD_REF: Final = shape(text="containerName resource", amount="divisor")
LABEL_SELECTOR: Final = shape(
    matchLabels=TEXT_MAP,
    matchExpressions=ListOf(each=shape(text="key operator", texts="values")),
)
_BY_NAME: Final = shape(text="name")
_ITEMS: Final = ListOf(each=shape(text="key path", whole="mode"))
_DOWNWARD_ITEMS: Final = ListOf(
    each=shape(
        text="path",
        whole="mode",
        fieldRef=FIELD_REF,
        resourceFieldRef=RESOURCE_FIELD_REF,
    )
)
_CLAIM: Final = shape(
    text="storageClassName volumeAttributesClassName volumeMode volumeName",
    texts="accessModes",
    dataSource=shape(text="apiGroup kind name"),
    dataSourceRef=shape(text="apiGroup kind name namespace"),
    resources=shape(limits=QUANTITIES, requests=QUANTITIES),
    selector=LABEL_SELECTOR,
)
_CLAIM_TEMPLATE: Final = shape(
    # Kubernetes refuses all other metadata here.
    metadata=shape(annotations=TEXT_MAP, labels=TEXT_MAP),
    spec=_CLAIM,
)
_PROJECTION: Final = shape(
    clusterTrustBundle=shape(
        text="name path signerName", truth="optional", labelSelector=LABEL_SELECTOR
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
