"""What enforces NetworkPolicies on the node, where a test asks for it: a part of kube-router."""

from collections.abc import Mapping
from pathlib import Path

from cluster.controlplane import NODE_NAME, Credentials
from cluster.errors import CommandFailed, Unavailable
from cluster.namespace import Namespace
from cluster.processes import Program, wait_until

_START_S = 90.0
_TABLES = {4: "iptables-save", 6: "ip6tables-save"}
_BRIDGED = "/proc/sys/net/bridge/bridge-nf-call-{}"
"""Whether what crosses a bridge meets the kernel's rules."""


def start_policies(
    namespace: Namespace, credentials: Credentials, binaries: Mapping[str, Path]
) -> dict[str, Program]:
    """Starts what enforces NetworkPolicies on the node.

    Raises:
        Unavailable: what goes from pod to pod never meets the kernel's rules.
        StartFailed: it ended, or has made no rules in time, with its log.
    """
    slot = namespace.slot
    for rules in ("iptables", "ip6tables"):
        try:
            # Pods of one node are neighbours on a bridge.
            namespace.run("sh", "-c", f"echo 1 > {_BRIDGED.format(rules)}")
        except CommandFailed as error:
            raise Unavailable("to enforce policies takes a kernel with br_netfilter") from error
    program = Program(
        namespace,
        "policies",
        [
            binaries["policies"],
            f"--kubeconfig={credentials.kubeconfig('admin')}",
            f"--hostname-override={NODE_NAME}",
            f"--service-cluster-ip-range={','.join(one.services for one in slot.networks)}",
            *(
                f"--enable-ipv{version}={str(version in slot.families.value).lower()}"
                for version in (4, 6)
            ),
        ],
    )
    program.start()
    wait_until(
        lambda: all("KUBE-NWPLCY-DEFAULT" in rules for rules in _rules_of(namespace)),
        what="policies are enforced",
        programs=(program,),
        deadline_s=_START_S,
    )
    return {"policies": program}


def _rules_of(namespace: Namespace) -> list[str]:
    return [namespace.run(_TABLES[one], "--table=filter") for one in namespace.slot.families.value]
