"""Images for the test cluster, built on this machine without a registry.

Builds happen in a storage of our own in the cache folder, and in a mount and process namespace of
their own: a build that is killed leaves neither a mount nor a process. An image carries the hash
of all that went into it as a label, and one whose hash has not changed is not built again.
"""

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import binaries
from cluster.commands import locked, run, run_logged
from cluster.errors import ClusterError, CommandFailed
from cluster.packages import require_packages, require_root
from cluster.settings import Settings
from image_content import MissingFiles, read_content

log = logging.getLogger(__name__)

BASE = "localhost/debian:trixie-slim"
"""Stands for the image that Dockerfiles name as `ARG BASE=debian:trixie-slim`."""

PAUSE = "localhost/batchedmodel-test-pause:1"

_SUITE = "trixie"
_INCLUDED = ("ca-certificates", "python3", "python3-venv")
_BASE_RECIPE = "1"  # to be counted up when the base image is made in another way
_CONTENT_LABEL = "batchedmodel.test.content"
_ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in our storage."""

    tag: str
    id: str
    """SHA-256 of its configuration: the same for the same content."""


def base_image(settings: Settings) -> Image:
    """The base image: a minimal Debian with Python, from the machine's own Debian mirror.

    Made once, in about two minutes.

    Raises:
        Unavailable: not root, or packages are missing and cannot be installed.
        CommandFailed: it could not be made; with the end of the log.
    """
    content = _digest(_SUITE, *_INCLUDED, _BASE_RECIPE)
    return _made(settings, BASE, content, lambda folder: _bootstrap(settings, folder, content))


def pause_image(settings: Settings) -> Image:
    """The image of every pod's first container, which holds the pod's namespaces open."""
    program = binaries(settings, ["pause"])["pause"]
    content = _digest(program.parent.name)

    def build(folder: Path) -> None:
        shutil.copy2(program, folder / "pause")
        dockerfile = 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n'
        _bud(settings, PAUSE, content, dockerfile, folder, {})

    return _made(settings, PAUSE, content, build)


def build_image(
    settings: Settings,
    *,
    dockerfile: Path,
    context: Path,
    tag: str,
    build_args: Mapping[str, str] | None = None,
) -> Image:
    """Builds a Dockerfile on our base image, unless nothing that goes into it has changed.

    What goes into it is the Dockerfile, the build arguments, the base image, and the files that
    its COPY and ADD lines name. The build sees a copy of just these, so nothing can go in that
    was not counted.

    Raises:
        Unavailable, CommandFailed: as `base_image`.
        ClusterError: a COPY line names nothing.
    """
    base = base_image(settings)
    arguments = {"BASE": base.tag, **(build_args or {})}
    try:
        content = read_content(dockerfile=dockerfile, context=context, arguments=arguments)
    except MissingFiles as missing:
        raise ClusterError(str(missing)) from missing
    digest = content.digest(base.id)

    def build(folder: Path) -> None:
        content.lay_out(folder)
        _bud(settings, tag, digest, content.dockerfile, folder, arguments)

    return _made(settings, tag, digest, build)


def _made(settings: Settings, tag: str, content: str, build: Callable[[Path], None]) -> Image:
    """The image `tag` made of `content`: the one in the storage, or a new one by `build`."""
    require_packages()
    require_root()
    if (image := _stored(settings, tag, content)) is not None:
        return image
    with locked(settings.cache / "locks" / f"image-{_file_name(tag)}"):
        if (image := _stored(settings, tag, content)) is not None:
            return image
        log.info("making the image %s", tag)
        started = time.monotonic()
        folder = settings.cache / "images" / f"build-{_file_name(tag)}"
        shutil.rmtree(folder, ignore_errors=True)  # a build that was killed has left it
        folder.mkdir(parents=True)
        try:
            build(folder)
        finally:
            shutil.rmtree(folder)
        log.info("made %s in %.0f s", tag, time.monotonic() - started)
        image = _stored(settings, tag, content)
    if image is None:
        raise ClusterError(f"{tag} was built, but it is not in the storage")
    return image


def _stored(settings: Settings, tag: str, content: str) -> Image | None:
    try:
        label, identity = run(
            buildah(
                settings,
                *("inspect", "--type", "image", "--format"),
                f'{{{{index .OCIv1.Config.Labels "{_CONTENT_LABEL}"}}}} {{{{.FromImageID}}}}',
                tag,
            )
        ).split()
    except (CommandFailed, ValueError):  # no such image, or one without our label
        return None
    return Image(tag=tag, id=identity) if label == content else None


def _bootstrap(settings: Settings, folder: Path, content: str) -> None:
    root = folder / "root"
    run_logged(
        [
            *_ALONE,
            *("debootstrap", "--variant=minbase", f"--include={','.join(_INCLUDED)}"),
            *(_SUITE, str(root), *_debian_mirror()),
        ],
        log=settings.cache / "logs" / "image-base.log",
    )
    for cache in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / cache)
        (root / cache / "partial").mkdir(parents=True)
    run(["tar", "-C", root, "--numeric-owner", "-cf", folder / "root.tar", "."], timeout_s=300)
    shutil.rmtree(root)
    _bud(settings, BASE, content, 'FROM scratch\nADD root.tar /\nCMD ["bash"]\n', folder, {})


def _debian_mirror() -> list[str]:
    """The mirror that apt uses on this machine, which has all suites; none: the tool's default."""
    sites = run(
        [
            *("apt-get", "indextargets", "--format", "$(SITE)"),
            *("Created-By: Packages", "Label: Debian", "Component: main"),
        ]
    ).split()
    return sites[:1]


def _bud(
    settings: Settings,
    tag: str,
    content: str,
    dockerfile: str,
    context: Path,
    arguments: Mapping[str, str],
) -> None:
    file = context.with_name(f"{context.name}.Dockerfile")
    pip_settings = context.with_name(f"{context.name}.pip.conf")
    file.write_text(dockerfile)
    options = ["--layers", "--label", f"{_CONTENT_LABEL}={content}"]
    for name, value in arguments.items():
        options += ["--build-arg", f"{name}={value}"]
    if settings.pip_certificates is not None:
        # As a file and not as a variable: a variable would stay in the image.
        pip_settings.write_text(f"[global]\ncert = {settings.pip_certificates}\n")
        certificates = settings.pip_certificates.parent
        options += ["--volume", f"{certificates}:{certificates}:ro"]
        options += ["--volume", f"{pip_settings}:/etc/pip.conf:ro"]
    try:
        run_logged(
            buildah(settings, "bud", *options, "--file", file, "--tag", tag, context),
            log=settings.cache / "logs" / f"image-{_file_name(tag)}.log",
            environment={"BUILDAH_ISOLATION": "chroot"},
        )
    finally:
        file.unlink()
        pip_settings.unlink(missing_ok=True)


def buildah(settings: Settings, *words: str | Path) -> list[str | Path]:
    """The command that runs buildah on our storage, in namespaces that end with it."""
    storage = settings.cache / "images" / "storage"
    # The driver copies whole layers unless it is told to lay them over each other.
    driver = ("--storage-driver", "overlay")
    return [
        *_ALONE,
        *("buildah", "--root", storage, "--runroot", settings.cache / "images" / "run"),
        *driver,
        *words,
    ]


def _file_name(tag: str) -> str:
    return re.sub(r"\W+", "-", tag)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
