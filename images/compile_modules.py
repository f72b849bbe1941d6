"""Compiles what runs for each request, by mypyc: as it is in the sidecar's image.

    python images/compile_modules.py FOLDER [--python PYTHON] [--kept | --if-kept]

FOLDER then holds the packages as they are, and beside each module that is named here a compiled
one, which Python prefers. It needs mypy, a C compiler and Python's headers; nothing of it is in an
image. Called by the sidecar's Dockerfile, and by whoever measures or tests what runs there. Both
forms do the same: the modules' own tests pass on either.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_CONTRACT: Final = "batchedmodel_contract"
_HTTP: Final = "batchedmodel_http"
_SCHEDULING: Final = "batchedmodel_scheduling"
_SIDECAR: Final = "batchedmodel_sidecar"
_SOURCES: Final = (
    f"contract/{_CONTRACT}",
    f"http/{_HTTP}",
    f"scheduling/{_SCHEDULING}",
    f"sidecar/{_SIDECAR}",
)
"""All whose types are read."""
_COMPILED: Final = {
    f"{_CONTRACT}/generation": ("frames",),
    f"{_CONTRACT}/inference": ("batch", "tensors"),
    f"{_CONTRACT}/link": ("batches", "connection"),
    _HTTP: ("connection", "eager_coroutine", "request_head", "response"),
    f"{_SCHEDULING}/batching": ("*",),
    f"{_SCHEDULING}/generation": ("*",),
    f"{_SCHEDULING}/lora": ("*",),
    f"{_SCHEDULING}/latency": ("*",),
    f"{_SCHEDULING}/queue": ("*",),
    _SIDECAR: ("calls", "lifecycle", "model"),
    f"{_SIDECAR}/lora": ("*",),
    f"{_SIDECAR}/backends/upstream": ("connection", "public_protocol"),
    f"{_SIDECAR}/backends/native": ("batches", "link"),
    f"{_SIDECAR}/batching": ("*",),
    f"{_SIDECAR}/body": ("byte_budget",),
    f"{_SIDECAR}/codec": ("codec", "rows"),
    f"{_SIDECAR}/generation": (*("events", "fields", "live_text", "text_queue", "upstream_texts"),),
    f"{_SIDECAR}/generation/native": (
        *("answers", "engine_text", "engines", "preparer", "requests", "texts"),
    ),
    f"{_SIDECAR}/http": (
        *("admission", "body_reader", "connections", "data_handler", "inference", "request"),
        "responses",
    ),
    f"{_SIDECAR}/protocols": (*("openai", "protocol", "rows", "scores", "v1", "v2"),),
    f"{_SIDECAR}/telemetry": ("generation_counts", "ledger"),
}
"""By folder, the modules that are compiled: what runs for each request or batch."""
_MOST_KEPT: Final = 8
"""Forms of the sources that were used last; each takes 13 MB."""
_LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "*.so")


class CompileError(Exception):
    """The modules could not be compiled; the message says what the compiler said."""


def compile_modules(target: Path, *, python: str = sys.executable) -> None:
    """Put the packages, compiled, into a folder that may hold others, or the same uncompiled.

    `python` is the interpreter whose libraries they import: their types are read there. It must be
    of the version that runs this.

    Raises:
        CompileError: it cannot be compiled.
    """
    with tempfile.TemporaryDirectory(prefix="compiled-") as name:
        folder = Path(name)
        for source in _SOURCES:
            shutil.copytree(ROOT / source, folder / Path(source).name, ignore=_LEFT_OUT)
        packages = [folder / Path(source).name for source in _SOURCES]
        files = [
            str(path.relative_to(folder)) for package in packages for path in _compiled_of(package)
        ]
        ended = subprocess.run(
            [sys.executable, "-m", "mypyc", "--python-executable", python, *files],
            cwd=folder,
            env={
                **os.environ,
                # Warnings of C that nobody wrote cost more than half of the compiler's time, its
                # own collector of garbage a quarter of the rest.
                "CFLAGS": f"{os.environ.get('CFLAGS', '')} -w --param ggc-min-expand=1000",
                "MYPYC_DEBUG_LEVEL": "0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise CompileError(f"the modules do not compile:\n{ended.stdout}")
        target.mkdir(parents=True, exist_ok=True)
        for package in (_CONTRACT, _HTTP, _SCHEDULING, _SIDECAR):
            shutil.copytree(folder / package, target / package, dirs_exist_ok=True)
        # What the modules share lies beside the package, under a name made of its content.
        for library in folder.glob("*.so"):
            shutil.copy2(library, target)


def compiled_modules(cache: Path) -> Path:
    """A folder for `PYTHONPATH` with the compiled packages, kept until eight others were used.

    Raises:
        CompileError: it cannot be compiled.
    """
    kept = kept_modules(cache)
    if kept is not None:  # and need not wait for who compiles another
        return kept
    folder = cache / f"compiled-{_digest()}"
    cache.mkdir(parents=True, exist_ok=True)
    # Others who want the same wait, instead of compiling it as well.
    with Path(cache, ".compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            sys.stderr.write("compiling what runs for each request, in three to six minutes\n")
            with tempfile.TemporaryDirectory(dir=cache, prefix=".compiled-") as name:
                partial = Path(name, "made")
                compile_modules(partial)
                partial.rename(folder)
        for broken_off in cache.glob(".compiled-*"):  # nobody else compiles now
            shutil.rmtree(broken_off, ignore_errors=True)
        used = sorted(cache.glob("compiled-*"), key=lambda kept: kept.stat().st_mtime)
        for forgotten in used[:-_MOST_KEPT]:
            shutil.rmtree(forgotten, ignore_errors=True)
    return folder


def kept_modules(cache: Path) -> Path | None:
    """The same folder, if these sources were compiled before."""
    folder = cache / f"compiled-{_digest()}"
    if not folder.exists():
        return None
    os.utime(folder)
    return folder


def compiled_sources() -> list[Path]:
    """The modules that are compiled, where their sources are."""
    return [path for source in _SOURCES for path in _compiled_of(ROOT / source)]


def _compiled_of(package: Path) -> list[Path]:
    return sorted(
        path
        for room, names in _COMPILED.items()
        if room.split("/")[0] == package.name
        for name in names
        for path in (package.parent / room).glob(f"{name}.py")
        if path.stem != "__init__"
    )


def has_compiler() -> bool:
    """Whether there are a C compiler and Python's headers."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which("gcc") is not None and header.exists()


def _digest() -> str:
    # That of the compiler by its pin, as it need not be installed where the result is used.
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    compiler = [pin for pin in pins if pin.startswith("mypy==")]
    digest = hashlib.sha256(f"{sys.version} {compiler}".encode())
    digest.update(Path(__file__).read_bytes())
    for source in _SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def main(words: Sequence[str]) -> int:
    """Compile into a folder; 1 when it cannot be done."""
    parser = argparse.ArgumentParser(description="Compiles what runs for each request to C.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--python", default=sys.executable, help="whose libraries are imported")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument(
        "--kept",
        action="store_true",
        help="keep the result in FOLDER for as long as nothing changes, and print its path;"
        " without a compiler print nothing",
    )
    kept.add_argument(
        "--if-kept",
        action="store_true",
        help="print the path of what was kept there of these sources, if anything; never compile",
    )
    options = parser.parse_args(words)
    try:
        if options.if_kept:
            sys.stdout.write(str(kept_modules(options.folder) or ""))
        elif not options.kept:
            compile_modules(options.folder, python=options.python)
        elif has_compiler():
            sys.stdout.write(str(compiled_modules(options.folder)))
        else:
            sys.stderr.write("not compiled: there is no C compiler, or Python has no headers\n")
    except (CompileError, OSError) as error:
        sys.stderr.write(f"not compiled: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
