"""What goes into an image, and whether that has changed: Dockerfile, arguments, copied files.

Pure but for reading files. Used by `build_images` and by the test cluster; knows neither builders
nor which images there are.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_LEFT_OUT = ("__pycache__", "*.pyc", "*.egg-info", ".git", ".venv", ".*_cache")


class MissingFiles(Exception):
    """A Dockerfile copies something that is not in its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All that one image is made of, apart from what it downloads."""

    dockerfile: str
    arguments: Mapping[str, str]
    files: Mapping[str, Path]
    """Copied files by their names in the context, sorted by name."""

    def digest(self, base: str) -> str:
        """32 hex digits that change with the content or with `base`, the base image's id."""
        parts = [self.dockerfile, base]
        parts += [f"{name}={value}" for name, value in sorted(self.arguments.items())]
        parts += [f"{name} {_fingerprint(path)}" for name, path in self.files.items()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def lay_out(self, folder: Path) -> None:
        """Copies the files into an empty folder: a context that holds what was counted, no more."""
        for name, path in self.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)


def read_content(*, dockerfile: Path, context: Path, arguments: Mapping[str, str]) -> Content:
    """The content of the image that `dockerfile` makes of the folder `context`.

    Raises:
        MissingFiles: a COPY or ADD line names nothing in the context.
    """
    text = dockerfile.read_text()
    chosen: set[Path] = set()
    for source in copied_paths(text):
        pattern = str(PurePosixPath(source.lstrip("/")))
        found = [context] if pattern == "." else list(context.glob(pattern))
        if not found:
            raise MissingFiles(f"{dockerfile} copies {source}, which is not in {context}")
        for path in found:
            chosen.update(_files_in(path))
    files = {str(path.relative_to(context)): path for path in sorted(chosen)}
    return Content(dockerfile=text, arguments=dict(arguments), files=files)


def copied_paths(dockerfile: str) -> tuple[str, ...]:
    """What COPY and ADD take from the context; understands their plain form, without variables."""
    sources: list[str] = []
    for line in dockerfile.replace("\\\n", " ").splitlines():
        instruction, *words = line.split() or [""]
        from_a_stage = any(word.startswith("--from=") for word in words)
        if instruction.upper() in ("COPY", "ADD") and not from_a_stage:
            *paths, _target = [word for word in words if not word.startswith("--")]
            sources += paths
    return tuple(sources)


def _files_in(path: Path) -> Iterator[Path]:
    if any(path.match(pattern) for pattern in _LEFT_OUT):
        return
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for inner in path.iterdir():
        yield from _files_in(inner)


def _fingerprint(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    executable = "x" if path.stat().st_mode & 0o100 else "-"
    with path.open("rb") as file:
        return executable + hashlib.file_digest(file, "sha256").hexdigest()
