"""The two things that tests ask for: a control plane alone, and a cluster that runs pods."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from cluster.access import Access
from cluster.binaries import CONTROL_PLANE, NODE, POLICIES, binaries
from cluster.containerd import Containerd
from cluster.controlplane import (
    AS_TESTS_NEED_IT,
    Credentials,
    Options,
    audit_log_of,
    credentials_of,
    make_credentials,
    start_control_plane,
)
from cluster.errors import Unavailable
from cluster.images import Image, pause_image
from cluster.namespace import Namespace, existing_namespace, open_namespace
from cluster.networks import Families
from cluster.node import start_node
from cluster.packages import require_packages, require_root
from cluster.policies import start_policies
from cluster.processes import Program, wait_until
from cluster.settings import Settings
from cluster.slots import Slot, claimed_image_store


class ControlPlane(Access):
    """An API server with the aggregation layer on, and all of Kubernetes' controllers.

    Where there is no node, pods stay Pending; tests that need more write their status themselves.
    """

    def __init__(
        self,
        *,
        namespace: Namespace,
        credentials: Credentials,
        paths: Mapping[str, Path],
        programs: Mapping[str, Program],
    ) -> None:
        super().__init__(
            kubeconfig=credentials.kubeconfig("admin"),
            programs=paths,
            scratch=namespace.folder / "home",
        )
        self.namespace = namespace
        self.probe = credentials.probe()
        self._programs = programs

    @property
    def host_address(self) -> str:
        """This machine as the cluster reaches it: where a test's own server should listen."""
        return self.namespace.slot.first.host_address

    @property
    def audit_log(self) -> Path:
        """The file with a line of JSON for each write, where the options ask for it."""
        return audit_log_of(self.namespace)

    def stop_program(self, name: str) -> None:
        """Stops one part, such as `kube-apiserver`, to see what the others do without it."""
        self._programs[name].stop()

    def start_program(self, name: str) -> None:
        """Starts a stopped part again and waits until the API server answers.

        Raises:
            StartFailed: it does not.
        """
        self._programs[name].start()
        wait_until(
            lambda: self.probe.answers("/readyz"),
            what="the API server is ready again",
            programs=(self._programs[name],),
            deadline_s=60,
        )


class ImageImporter(Protocol):
    """How images get to where a cluster's pods find them."""

    def import_image(self, image: Image) -> None: ...
    def import_archive(self, archive: Path, tag: str) -> None: ...
    def tag_image(self, tag: str, another: str) -> None: ...


class Cluster(Access):
    """A cluster that runs pods, ours or somebody's."""

    def __init__(
        self,
        *,
        kubeconfig: Path,
        paths: Mapping[str, Path],
        scratch: Path,
        importer: ImageImporter,
        control_plane: ControlPlane | None,
    ) -> None:
        """`control_plane`: None when it is not ours to stop and start."""
        super().__init__(kubeconfig=kubeconfig, programs=paths, scratch=scratch)
        self._importer = importer
        self.control_plane = control_plane

    def import_image(self, image: Image) -> None:
        """Makes sure that pods find an image under its tag, with `imagePullPolicy: Never`.

        Raises:
            Unavailable: it is somebody else's cluster, and the image is not in it.
        """
        self._importer.import_image(image)

    def import_archive(self, archive: Path, tag: str) -> None:
        """The same for an OCI or Docker archive that another tool made."""
        self._importer.import_archive(archive, tag)

    def tag_image(self, tag: str, another: str) -> None:
        """Lets pods find an image that was imported under another tag, too; raises as before."""
        self._importer.tag_image(tag, another)

    def pretend_accelerator(self, resource: str, count: int) -> None:
        """Lets the first node offer `count` of a resource such as `nvidia.com/gpu`.

        Scheduler and kubelet count them as if they were there. Returns once they do.
        """
        node = self.kubectl("get", "nodes", "--output=jsonpath={.items[0].metadata.name}")
        pointer = resource.replace("~", "~0").replace("/", "~1")
        patch = [{"op": "add", "path": f"/status/capacity/{pointer}", "value": str(count)}]
        self.kubectl(
            *("patch", "node", node, "--subresource=status", "--type=json"),
            *("--patch", json.dumps(patch)),
        )
        escaped = resource.replace(".", r"\.")
        self.kubectl(
            *("wait", f"node/{node}", "--timeout=60s"),
            f"--for=jsonpath={{.status.allocatable.{escaped}}}={count}",
            timeout_s=90,
        )


@contextmanager
def running_control_plane(
    settings: Settings, *, scheduler: bool = False, options: Options = AS_TESTS_NEED_IT
) -> Iterator[ControlPlane]:
    """A control plane that lives as long as the block.

    Raises:
        Unavailable: this machine cannot; the message says why.
        StartFailed: a part of it did not start, with its log.
    """
    require_root()
    paths = binaries(settings, (*CONTROL_PLANE, *(["kube-scheduler"] if scheduler else [])))
    with open_namespace(settings, families=options.families) as namespace:
        credentials = make_credentials(namespace)
        programs = start_control_plane(
            namespace, credentials, paths, scheduler=scheduler, options=options
        )
        yield ControlPlane(
            namespace=namespace, credentials=credentials, paths=paths, programs=programs
        )


@contextmanager
def running_cluster(
    settings: Settings, *, families: Families = Families.IPV4, policies: bool = False
) -> Iterator[Cluster]:
    """A cluster of one node that lives as long as the block.

    `families`: of its addresses. `policies`: whether its NetworkPolicies are enforced.

    Raises:
        Unavailable: this machine cannot; the message says why.
        StartFailed: a part of it did not start, with its log.
    """
    require_packages()
    require_root()
    paths = binaries(settings, (*CONTROL_PLANE, *NODE, *(POLICIES if policies else ())))
    pause = pause_image(settings)
    with claimed_image_store() as store, open_namespace(settings, families=families) as namespace:
        credentials = make_credentials(namespace)
        containerd = Containerd(settings, namespace)
        containerd.start(store=settings.image_store(store), sandbox_image=pause.tag)
        containerd.import_image(pause)
        programs = start_control_plane(namespace, credentials, paths, scheduler=True)
        programs |= start_node(namespace, credentials, paths)
        if policies:
            programs |= start_policies(namespace, credentials, paths)
        programs["containerd"] = containerd.program
        try:
            yield _own_cluster(settings, namespace, paths, programs)
        finally:
            # The images are for the next cluster too, so containerd may close its files. All
            # others go with the namespaces.
            programs["kubelet"].stop(grace_s=2)
            containerd.program.stop()


def attached_cluster(settings: Settings, slot: Slot) -> Cluster | None:
    """The cluster that another process runs in `slot`; its programs are that one's to stop."""
    namespace = existing_namespace(settings, slot)
    if namespace is None:
        return None
    return _own_cluster(settings, namespace, binaries(settings, CONTROL_PLANE), {})


def existing_cluster(settings: Settings, kubeconfig: Path) -> Cluster:
    """Somebody's cluster, taken as it is."""
    paths = binaries(settings, ("kubectl", "helm"))
    scratch = settings.cache / "home"
    access = Access(kubeconfig=kubeconfig, programs=paths, scratch=scratch)
    return Cluster(
        kubeconfig=kubeconfig,
        paths=paths,
        scratch=scratch,
        importer=_AlreadyThere(access),
        control_plane=None,
    )


def _own_cluster(
    settings: Settings,
    namespace: Namespace,
    paths: Mapping[str, Path],
    programs: Mapping[str, Program],
) -> Cluster:
    credentials = credentials_of(namespace)
    return Cluster(
        kubeconfig=credentials.kubeconfig("admin"),
        paths=paths,
        scratch=namespace.folder / "home",
        importer=Containerd(settings, namespace),
        control_plane=ControlPlane(
            namespace=namespace, credentials=credentials, paths=paths, programs=programs
        ),
    )


class _AlreadyThere:
    """Imports nothing: a cluster that is not ours must have its images already."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def import_image(self, image: Image) -> None:
        self._require(image.tag)

    def import_archive(self, archive: Path, tag: str) -> None:
        self._require(tag)

    def tag_image(self, tag: str, another: str) -> None:
        self._require(another)

    def _require(self, tag: str) -> None:
        names = self._access.kubectl(
            "get", "nodes", "--output=jsonpath={.items[*].status.images[*].names[*]}"
        )
        if tag not in names.split():
            raise Unavailable(f"the image {tag} is on no node of the cluster that was given")
