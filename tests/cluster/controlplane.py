"""etcd, the API server, the controllers and the scheduler: their credentials, flags and start."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster.access import Probe, write_kubeconfig
from cluster.certificates import Authority, Pair, write_signing_key
from cluster.namespace import Namespace
from cluster.networks import Families
from cluster.processes import Program, wait_until
from cluster.slots import Slot

NODE_NAME = "node-1"
_ETCD = "http://127.0.0.1:2379"
_PORT = 6443
_START_S = 90.0


_USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", None),
    "scheduler": ("system:kube-scheduler", None),
    "kubelet": (f"system:node:{NODE_NAME}", "system:nodes"),
    "proxy": ("system:kube-proxy", None),
}
"""Common name and organisation, which the API server takes for user and group."""


_KUBERNETES_OWN = ["system:serviceaccounts:kube-system", "system:nodes"]
_WRITES = {
    "level": "Metadata",
    "verbs": ["create", "update", "patch", "delete", "deletecollection"],
}
_READS = [
    {"level": "None", "userGroups": _KUBERNETES_OWN},
    {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """In what a control plane may differ from that of the tests."""

    autoscaler_sync: str = "2s"
    """Between two looks of the HPA: 15 s by default, for which tests would have to wait."""
    audit: bool = False
    """Whether the API server writes down every write."""
    audit_reads: bool = False
    """Whether it writes down what service accounts read, too, Kubernetes' own left aside."""
    families: Families = Families.IPV4
    """Of all addresses."""
    requests_per_second: int | None = 500
    """Of the scheduler and of each controller; None: Kubernetes' own default. At its 20, tests with
    many pods wait for minutes."""


AS_TESTS_NEED_IT: Final = Options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The files that the programs of one cluster recognise each other by."""

    folder: Path
    server: str
    """The API server's address, good inside and outside."""

    @property
    def authority(self) -> Path:
        return self.folder / "cluster-ca.crt"

    def pair(self, name: str) -> Pair:
        return Pair(
            certificate=self.folder / f"{name}.crt",
            key=self.folder / f"{name}.key",
        )

    def kubeconfig(self, user: str) -> Path:
        """`user`: `admin`, `controller-manager`, `scheduler`, `kubelet` or `proxy`."""
        return self.folder / f"{user}.kubeconfig"

    def probe(self) -> Probe:
        return Probe(server=self.server, authority=self.authority, user=self.pair("admin"))


def credentials_of(namespace: Namespace) -> Credentials:
    """Where the credentials of the cluster in `namespace` are, or will be."""
    slot = namespace.slot
    return Credentials(
        folder=namespace.folder / "credentials",
        server=f"https://{slot.first.node_in_urls}:{_PORT}",
    )


def make_credentials(namespace: Namespace) -> Credentials:
    """Makes all keys, certificates and kubeconfigs of a new cluster."""
    credentials = credentials_of(namespace)
    folder, slot = credentials.folder, namespace.slot
    folder.mkdir()
    authority = Authority(folder, "cluster-ca")
    # Its own authority: whoever it vouches for may claim to be any user at all.
    aggregation = Authority(folder, "aggregation-ca")
    aggregation.issue("aggregation-client", common_name="aggregator")
    authority.issue(
        "apiserver",
        common_name="kube-apiserver",
        dns_names=(
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ),
        addresses=(
            *(one.node_address for one in slot.networks),
            *(one.api_service_address for one in slot.networks),
            "127.0.0.1",
        ),
    )
    authority.issue(
        "kubelet-server",
        common_name=NODE_NAME,
        addresses=(*(one.node_address for one in slot.networks), "127.0.0.1"),
    )
    write_signing_key(folder / "service-account.key", folder / "service-account.pub")
    for user, (common_name, organisation) in _USERS.items():
        pair = authority.issue(user, common_name=common_name, organisation=organisation)
        write_kubeconfig(
            credentials.kubeconfig(user),
            server=credentials.server,
            authority=authority.certificate,
            user=pair,
        )
    return credentials


def _flags(**values: str | int | Path) -> list[str]:
    """Command-line flags from keywords: `bind_address="::"` becomes `--bind-address=::`."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def etcd_flags(folder: Path) -> list[str]:
    # Not synced to the disk: its data do not outlive the run.
    return _flags(
        unsafe_no_fsync="true",
        name="test",
        data_dir=folder,
        listen_client_urls=_ETCD,
        advertise_client_urls=_ETCD,
        listen_peer_urls="http://127.0.0.1:2380",
        initial_advertise_peer_urls="http://127.0.0.1:2380",
        initial_cluster="test=http://127.0.0.1:2380",
        log_level="warn",
    )


def audit_flags(namespace: Namespace, *, reads: bool) -> list[str]:
    """Every write, by whom and to what; `reads` of service accounts too; no contents."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        # A watch is written down when it ends.
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [_WRITES, *(_READS if reads else ()), {"level": "None"}],
    }
    path = namespace.folder / "audit-policy.json"
    path.write_text(json.dumps(policy))
    return _flags(
        audit_policy_file=path,
        audit_log_path=audit_log_of(namespace),
        # In megabytes. A file that is put aside at the usual hundred is lost for who reads it on.
        audit_log_maxsize=4096,
    )


def audit_log_of(namespace: Namespace) -> Path:
    """Where the API server writes down what was written, where it does."""
    return namespace.logs / "audit.log"


def apiserver_flags(slot: Slot, credentials: Credentials) -> list[str]:
    folder = credentials.folder
    return _flags(
        etcd_servers=_ETCD,
        # Pods reach it by the Service address, so it listens on all of the namespace's addresses.
        bind_address=slot.networks[-1].everywhere,
        advertise_address=slot.first.node_address,
        secure_port=_PORT,
        service_cluster_ip_range=",".join(one.services for one in slot.networks),
        allow_privileged="true",
        authorization_mode="Node,RBAC",
        client_ca_file=credentials.authority,
        tls_cert_file=folder / "apiserver.crt",
        tls_private_key_file=folder / "apiserver.key",
        # Policies that change objects, as other clusters' own admission does.
        feature_gates="MutatingAdmissionPolicy=true",
        runtime_config="admissionregistration.k8s.io/v1beta1=true",
        service_account_issuer="https://kubernetes.default.svc",
        service_account_key_file=folder / "service-account.pub",
        service_account_signing_key_file=folder / "service-account.key",
        kubelet_certificate_authority=credentials.authority,
        kubelet_client_certificate=folder / "admin.crt",
        kubelet_client_key=folder / "admin.key",
        # Otherwise logs and exec look the node's name up in the DNS.
        kubelet_preferred_address_types="InternalIP",
        # The seven below switch the aggregation layer on. Straight to endpoints, it works without
        # kube-proxy too, and a test's own process on this machine can be an aggregated API.
        requestheader_client_ca_file=folder / "aggregation-ca.crt",
        requestheader_allowed_names="aggregator",
        requestheader_username_headers="X-Remote-User",
        requestheader_group_headers="X-Remote-Group",
        requestheader_extra_headers_prefix="X-Remote-Extra-",
        proxy_client_cert_file=folder / "aggregation-client.crt",
        proxy_client_key_file=folder / "aggregation-client.key",
        enable_aggregator_routing="true",
    )


def controller_manager_flags(credentials: Credentials, options: Options) -> list[str]:
    return _client_flags(credentials, "controller-manager", options) + _flags(
        root_ca_file=credentials.authority,
        service_account_private_key_file=credentials.folder / "service-account.key",
        use_service_account_credentials="true",
        horizontal_pod_autoscaler_sync_period=options.autoscaler_sync,
    )


def _client_flags(credentials: Credentials, user: str, options: Options) -> list[str]:
    kubeconfig, rate = credentials.kubeconfig(user), options.requests_per_second
    pace = {} if rate is None else {"kube_api_qps": rate, "kube_api_burst": 2 * rate}
    return _flags(
        **pace,
        kubeconfig=kubeconfig,
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        leader_elect="false",
    )


def start_control_plane(
    namespace: Namespace,
    credentials: Credentials,
    binaries: Mapping[str, Path],
    *,
    scheduler: bool,
    options: Options = AS_TESTS_NEED_IT,
) -> dict[str, Program]:
    """Starts the control plane and waits until it works.

    Raises:
        StartFailed: a part of it ended or did not get ready in time, with its log.
    """
    words = {
        "etcd": etcd_flags(namespace.folder / "etcd"),
        "kube-apiserver": [
            *apiserver_flags(namespace.slot, credentials),
            *(audit_flags(namespace, reads=options.audit_reads) if options.audit else ()),
        ],
        "kube-controller-manager": controller_manager_flags(credentials, options),
    }
    if scheduler:
        words["kube-scheduler"] = _client_flags(credentials, "scheduler", options)
    programs = {
        name: Program(namespace, name, [binaries[name], *arguments])
        for name, arguments in words.items()
    }
    probe = credentials.probe()
    etcd, apiserver, *clients = programs.values()
    etcd.start()
    apiserver.start()
    wait_until(
        lambda: probe.answers("/readyz"),
        what="the API server is ready",
        programs=(etcd, apiserver),
        deadline_s=_START_S,
    )
    for client in clients:
        client.start()
    # The first thing that shows that the controllers work; pods cannot be made before.
    wait_until(
        lambda: probe.answers("/api/v1/namespaces/default/serviceaccounts/default"),
        what="the controllers work",
        programs=tuple(programs.values()),
        deadline_s=_START_S,
    )
    return programs
