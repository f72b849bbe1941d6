"""Build hook: a wheel has what runs for each request compiled, if `HATCH_BUILD_HOOKS_ENABLE=true`.

Otherwise it is the sources alone, which do the same and are built at once. An editable installation
always is: an edit counts at once.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.append(str(Path(__file__).parent / "images"))

import compile_modules

_MYPYC = "mypy[mypyc]>=2.4"


class CompiledModules(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the extension modules to a wheel."""

    def dependencies(self) -> list[str]:
        """What the build needs beside hatchling: the types of the sidecar's libraries are read."""
        return [_MYPYC, *self.metadata.core.optional_dependencies["sidecar"]]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is packed. Raises `CompileError`."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="wheel-")
        made = Path(self._folder.name)
        compile_modules.compile_modules(made)
        for library in made.rglob("*.so"):
            build_data["force_include"][str(library)] = library.relative_to(made).as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is packed."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()
