"""What a person can set from outside, and the folders that follow from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where things are kept and what is taken from outside."""

    cache: Path
    """Folder for everything that is worth keeping from one run to the next."""

    assets: Path | None
    """Folder with ready-made `kube-apiserver`, `etcd` and `kubectl` (`KUBEBUILDER_ASSETS`)."""

    kubeconfig: Path | None
    """An existing cluster to use instead of one of our own (`BATCHEDMODEL_KUBECONFIG`)."""

    slot: int | None
    """The place of a cluster of ours that another process runs (`BATCHEDMODEL_TEST_SLOT`)."""

    pip_certificates: Path | None
    """Certificate bundle that pip must trust while images are built (`PIP_CERT`)."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        def path(name: str) -> Path | None:
            value = environment.get(name)
            return Path(value).expanduser().absolute() if value else None

        slot = environment.get("BATCHEDMODEL_TEST_SLOT")
        home = path("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root")) / ".cache"
        return cls(
            cache=home / "batchedmodel" / "cluster",
            assets=path("KUBEBUILDER_ASSETS"),
            kubeconfig=path("BATCHEDMODEL_KUBECONFIG"),
            slot=int(slot) if slot else None,
            pip_certificates=path("PIP_CERT"),
        )

    def run_folder(self, slot: int) -> Path:
        """State of the cluster in `slot`; removed when it stops."""
        return self.cache / "run" / str(slot)

    def log_folder(self, slot: int) -> Path:
        """Logs of the last cluster in `slot`; kept after it stops, for whoever asks why."""
        return self.cache / "logs" / str(slot)

    def image_store(self, number: int) -> Path:
        """One of containerd's image stores; kept, so that no image is imported twice."""
        return self.cache / "containerd" / str(number)
