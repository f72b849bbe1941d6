"""The container runtime of a node, with its own images and its own everything."""

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster.commands import last_lines, run
from cluster.errors import CommandFailed
from cluster.export import archive_command, export_rest
from cluster.images import Image
from cluster.namespace import Namespace
from cluster.processes import Program, wait_until
from cluster.settings import Settings
from cluster.slots import Slot

SOCKET = "/run/containerd/containerd.sock"
_CONTENT_LABEL = "batchedmodel.test.image"
_START_S = 30.0


class Containerd:
    """containerd inside the cluster's namespaces.

    Its images lie in the cache and serve the next cluster too; all else that it keeps goes with the
    namespaces.
    """

    def __init__(self, settings: Settings, namespace: Namespace) -> None:
        self._settings = settings
        self._namespace = namespace
        self._configuration = namespace.folder / "containerd.toml"
        self._store = namespace.folder / "images"
        self.program = Program(
            namespace, "containerd", ["containerd", "--config", self._configuration]
        )

    def start(self, *, store: Path, sandbox_image: str) -> None:
        """Starts it on the images in `store`, with no containers whatever the last run left there.

        Raises:
            StartFailed: it ended or did not answer in time, with its log.
        """
        store.mkdir(parents=True, exist_ok=True)
        self._store.symlink_to(store)
        plugins = self._namespace.folder / "cni"
        plugins.mkdir()
        (plugins / "10-pods.conflist").write_text(json.dumps(_network(self._namespace.slot)))
        self._configuration.write_text(_configuration_text(store, plugins, sandbox_image))
        self._start()
        if forgotten := self._ctr("containers", "list", "--quiet").split():
            # The interface that kubelet uses has read them already, hence a second start.
            self._ctr("containers", "delete", *forgotten)
            self.program.stop()
            self._start()

    def _start(self) -> None:
        self.program.start()
        wait_until(
            self._answers,
            what="containerd answers",
            programs=(self.program,),
            deadline_s=_START_S,
        )

    def _answers(self) -> bool:
        try:
            self._ctr("version")
        except CommandFailed:
            return False
        return True

    def import_image(self, image: Image) -> None:
        """Takes an image over from our storage unless the same content is there already."""
        if self._has(image.tag, image.id):
            return
        with tempfile.TemporaryDirectory(dir=self._namespace.folder) as folder:
            present = self._store / "io.containerd.content.v1.content" / "blobs" / "sha256"
            if export_rest(self._settings, image, Path(folder), present=present):
                self._import(["tar", "-C", folder, "-cf", "-", "."])
            else:
                self._import(archive_command(self._settings, image))
        self._remember(image.tag, image.id)

    def import_archive(self, archive: Path, tag: str) -> None:
        """Takes over the image `tag` from an OCI or Docker archive that somebody else made."""
        with archive.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        if self._has(tag, content):
            return
        self._import(["cat", str(archive)])
        self._remember(tag, content)

    def tag_image(self, tag: str, another: str) -> None:
        """Gives the image `tag` another name as well."""
        self._ctr("images", "tag", "--force", tag, another)

    def _import(self, source: Sequence[str | Path]) -> None:
        command = self._namespace.entered(
            ["ctr", "--address", SOCKET, "--namespace", "k8s.io", "images", "import", "-"]
        )
        with subprocess.Popen(source, stdout=subprocess.PIPE) as writer:
            reader = subprocess.run(
                command,
                stdin=writer.stdout,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=1800,
                check=False,
            )
        if reader.returncode != 0 or writer.returncode != 0:
            raise CommandFailed(f"{' '.join(command)}:\n{last_lines(reader.stdout)}")

    def _has(self, tag: str, content: str) -> bool:
        listed = self._ctr("images", "list", f"name=={tag}")
        return f"{_CONTENT_LABEL}={content}" in listed

    def _remember(self, tag: str, content: str) -> None:
        self._ctr("images", "label", tag, f"{_CONTENT_LABEL}={content}")

    def _ctr(self, *words: str) -> str:
        return run(
            self._namespace.entered(["ctr", "--address", SOCKET, "--namespace", "k8s.io", *words])
        )


def _configuration_text(store: Path, plugins: Path, sandbox_image: str) -> str:
    return f"""\
version = 2
root = "{store}"
state = "/run/containerd"
# The last one would make a folder under /opt.
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
  "io.containerd.internal.v1.opt",
]

[grpc]
address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{sandbox_image}"
# Without CAP_SYS_RESOURCE, lowering a container's score is refused.
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{plugins}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def _network(slot: Slot) -> object:
    return {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "ipMasq": True,
                "hairpinMode": True,  # a pod may reach itself through its Service
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": one.pods}] for one in slot.networks],
                    "routes": [{"dst": f"{one.everywhere}/0"} for one in slot.networks],
                    "dataDir": "/run/cni",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
