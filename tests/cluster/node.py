"""kubelet, kube-proxy and the name service of the one node: their configuration and start."""

import json
from collections.abc import Mapping
from pathlib import Path

from cluster.access import Probe
from cluster.containerd import SOCKET
from cluster.controlplane import NODE_NAME, Credentials
from cluster.errors import CommandFailed
from cluster.leftovers import make_control_groups
from cluster.namespace import Namespace
from cluster.processes import Program, wait_until

_START_S = 90.0
_DOMAIN = "cluster.local"


def kubelet_configuration(namespace: Namespace, credentials: Credentials) -> object:
    folder = credentials.folder
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(credentials.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(folder / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(folder / "kubelet-server.key"),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{namespace.slot.cgroup}",
        "clusterDNS": [namespace.slot.first.node_address],
        "clusterDomain": _DOMAIN,
        "resolvConf": str(namespace.folder / "resolv.conf"),
        "podLogsDir": str(namespace.folder / "pod-logs"),
        "volumePluginDir": str(namespace.folder / "volume-plugins"),
        # The machine is shared and whatever it is: the node neither judges nor tidies it.
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {"nodefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "oomScoreAdj": 0,
        # A pretended accelerator counts as soon as the node's status is next written.
        "nodeStatusUpdateFrequency": "1s",
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
    }


def proxy_configuration(namespace: Namespace, credentials: Credentials) -> object:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(credentials.kubeconfig("proxy"))},
        "hostnameOverride": NODE_NAME,
        "mode": "iptables",
        "clusterCIDR": ",".join(one.pods for one in namespace.slot.networks),
        # These limits belong to the whole machine, so they stay as they are.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def name_service_configuration(credentials: Credentials) -> str:
    return f"""\
.:53 {{
    errors
    cache 2
    kubernetes {_DOMAIN} {{
        kubeconfig {credentials.kubeconfig("admin")}
        ttl 2
    }}
}}
"""


def start_node(
    namespace: Namespace, credentials: Credentials, binaries: Mapping[str, Path]
) -> dict[str, Program]:
    """Starts what makes these namespaces a node; containerd and the API server run already.

    Raises:
        StartFailed: a part of it ended, or the node did not get ready in time, with its log.
    """
    folder = namespace.folder
    make_control_groups(namespace.slot)
    (folder / "resolv.conf").write_text(f"nameserver {namespace.slot.first.node_address}\n")
    kubelet_file, proxy_file, dns_file = (
        folder / name for name in ("kubelet.json", "proxy.json", "Corefile")
    )
    kubelet_file.write_text(json.dumps(kubelet_configuration(namespace, credentials)))
    proxy_file.write_text(json.dumps(proxy_configuration(namespace, credentials)))
    dns_file.write_text(name_service_configuration(credentials))
    words: dict[str, list[str]] = {
        "kubelet": [
            f"--config={kubelet_file}",
            f"--kubeconfig={credentials.kubeconfig('kubelet')}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={','.join(one.node_address for one in namespace.slot.networks)}",
            f"--root-dir={folder / 'kubelet'}",
        ],
        "kube-proxy": [f"--config={proxy_file}"],
        "dns": ["-conf", str(dns_file)],
    }
    programs = {
        name: Program(namespace, name, [binaries[name], *arguments])
        for name, arguments in words.items()
    }
    for program in programs.values():
        program.start()
    probe = credentials.probe()
    wait_until(
        lambda: _is_ready(probe),
        what="the node is ready",
        programs=tuple(programs.values()),
        deadline_s=_START_S,
    )
    return programs


def _is_ready(probe: Probe) -> bool:
    try:
        status = (probe.read(f"/api/v1/nodes/{NODE_NAME}") or {"status": {}})["status"]
    except CommandFailed:
        return False
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions", ())
    )
