"""A real Kubernetes on one machine, for tests and for a person who wants to look.

`running_control_plane` gives an API server with its controllers and no node, in a few seconds;
`running_cluster` adds a node that runs pods. Both build what they need from pinned sources once,
keep it in the cache folder, and live in namespaces of their own: the kernel removes them with the
process that started them, however that one ends.

Nothing in here knows what BatchedModel is.
"""

from cluster.controlplane import Options
from cluster.errors import ClusterError, CommandFailed, StartFailed, Unavailable
from cluster.kubernetes import Cluster, ControlPlane, running_cluster, running_control_plane
from cluster.settings import Settings

__all__ = [
    "Cluster",
    "ClusterError",
    "CommandFailed",
    "ControlPlane",
    "Options",
    "Settings",
    "StartFailed",
    "Unavailable",
    "running_cluster",
    "running_control_plane",
]
