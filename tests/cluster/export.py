"""Taking an image out of our storage in the OCI layout, without what the other side has already.

An image with torch has gigabytes of layers, of which a change of ours touches the last few
kilobytes. containerd takes an archive with layers missing when it holds them.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from cluster.commands import run
from cluster.images import Image, buildah
from cluster.settings import Settings

_FEW_BYTES = 32 * 2**20
_TIMEOUT_S = 1800.0


def export_image(
    settings: Settings, image: Image, folder: Path, *, present: Path | None = None
) -> None:
    """Writes an image into the empty folder `folder`.

    `present`: a folder of what need not be written, files named by their SHA-256.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    held = {file.name: file for file in present.glob("*")} if present is not None else {}
    missing = [size for name, size in _layers(settings, image) if name not in held]
    # buildah writes this layout itself, skipping what it finds in the folder; but the layers that
    # it does write it compresses, which no option of its version 1.28 prevents and which takes
    # minutes for large ones. So those go the longer way.
    if sum(missing) <= _FEW_BYTES:
        _export_few(settings, image, folder, blobs, list(held.values()))
    else:
        _export_all(settings, image, folder, blobs)
        for blob in blobs.iterdir():
            if blob.name in held:
                blob.unlink()


def _layers(settings: Settings, image: Image) -> list[tuple[str, int]]:
    """SHA-256 and size in bytes of each layer."""
    manifest = json.loads(
        run(buildah(settings, "inspect", "--type=image", "--format={{.Manifest}}", image.tag))
    )
    return [(_hexadecimal(layer["digest"]), layer["size"]) for layer in manifest["layers"]]


def _export_few(
    settings: Settings, image: Image, folder: Path, blobs: Path, held: Sequence[Path]
) -> None:
    for file in held:
        (blobs / file.name).symlink_to(file)
    run(
        buildah(settings, "push", image.tag, f"oci:{folder}:{image.tag}"),
        timeout_s=_TIMEOUT_S,
    )
    for blob in blobs.iterdir():
        if blob.is_symlink():
            blob.unlink()


def _export_all(settings: Settings, image: Image, folder: Path, blobs: Path) -> None:
    flat = folder / "flat"
    run(
        buildah(
            settings,
            *("push", "--disable-compression", "--format=oci", image.tag, f"dir:{flat}"),
        ),
        timeout_s=_TIMEOUT_S,
    )
    manifest = (flat / "manifest.json").read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()
    described = json.loads(manifest)
    for part in (described["config"], *described["layers"]):
        name = _hexadecimal(part["digest"])
        if not (blobs / name).exists():  # two layers can be the same
            (flat / name).rename(blobs / name)
    (flat / "manifest.json").rename(blobs / digest)
    for rest in flat.iterdir():
        rest.unlink()
    flat.rmdir()
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": f"sha256:{digest}",
        "size": len(manifest),
        "annotations": {"org.opencontainers.image.ref.name": image.tag},
    }
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _hexadecimal(digest: str) -> str:
    return digest.removeprefix("sha256:")
