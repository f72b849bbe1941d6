"""Taking an image out of our storage: all of it as a stream, or what the other side lacks as files.

An image with torch has gigabytes of layers, of which a change of ours touches the last few
kilobytes. containerd takes an archive with layers missing when it holds them.
"""

import json
from pathlib import Path

from cluster.commands import run
from cluster.images import Image, buildah
from cluster.settings import Settings

_FEW_BYTES = 32 * 2**20
_TIMEOUT_S = 1800.0


def archive_command(settings: Settings, image: Image) -> list[str | Path]:
    """The command that writes an image to its standard output, as an archive that Docker reads.

    It is compressed by nobody and lies on no disk in between.
    """
    archive = f"docker-archive:/dev/stdout:{image.tag}"
    return buildah(settings, "push", "--quiet", "--disable-compression", image.tag, archive)


def export_rest(settings: Settings, image: Image, folder: Path, *, present: Path) -> bool:
    """Writes what the other side lacks of an image into the empty folder `folder`, in OCI's layout.

    `present`: a folder of what it has, files named by their SHA-256. False, and nothing is
    written, where it lacks so much that compressing it takes longer than sending all.
    """
    held = {file.name: file for file in present.glob("*")}
    missing = [size for name, size in _layers(settings, image) if name not in held]
    # What buildah 1.28 writes in this layout it compresses, which no option prevents.
    if sum(missing) > _FEW_BYTES:
        return False
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    # It skips what it finds in the folder.
    for file in held.values():
        (blobs / file.name).symlink_to(file)
    run(
        buildah(settings, "push", image.tag, f"oci:{folder}:{image.tag}"),
        timeout_s=_TIMEOUT_S,
    )
    for blob in blobs.iterdir():
        if blob.is_symlink():
            blob.unlink()
    return True


def _layers(settings: Settings, image: Image) -> list[tuple[str, int]]:
    """SHA-256 and size in bytes of each layer."""
    manifest = json.loads(
        run(buildah(settings, "inspect", "--type=image", "--format={{.Manifest}}", image.tag))
    )
    return [
        (layer["digest"].removeprefix("sha256:"), layer["size"]) for layer in manifest["layers"]
    ]
