"""Imports transformers' model classes without the parts of torch that this server never uses.

Wherever it defines a model, transformers marks functions for torch's compiler and asks whether a
tensor is one of several machines. Importing what is behind both, and sympy with them, takes as long
as all the rest of transformers; nothing here compiles, and a model is on one device. So while the
classes are imported, another module stands in for the compiler, and transformers is told once that
this torch has no `torch.distributed`, as some builds have none.

Whoever needs more of the compiler than the marks, then or later, gets all of it; only the marks
that transformers set meanwhile are missing. Called by whatever uses transformers' models, before
anything else of transformers is imported.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

COMPILER: Final = "torch._dynamo"
_CLASSES: Final = (
    "transformers",
    "transformers.masking_utils",
    "transformers.modeling_utils",
    "transformers.models.auto",
)
_TRACING: Final = f"{COMPILER}._trace_wrapped_higher_order_op"


@contextmanager
def without_compiler() -> Iterator[None]:
    """Within it the compiler's marks do nothing, unless it has been imported before."""
    if COMPILER in sys.modules:
        yield
        return
    stand_ins = _StandIns()
    try:
        yield
    finally:
        stand_ins.leave()


class _StandIns(MetaPathFinder):
    """The modules in the compiler's place, until somebody needs another part of it."""

    def __init__(self) -> None:
        marks = dict.fromkeys(("disable", "allow_in_graph", "assume_constant_result"), _unmarked)
        self._modules = {
            COMPILER: _StandIn(COMPILER, marks, self.real),
            _TRACING: _StandIn(_TRACING, {"TransformGetItemToIndex": self._tracing}, self.real),
        }
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """Whoever imports the compiler from now on gets the real one."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    def real(self, name: str) -> ModuleType:
        """The module itself, which does not let itself be replaced again."""
        self.leave()
        return importlib.import_module(name)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """For other modules within the compiler, which its stand-in cannot find."""
        if not name.startswith(f"{COMPILER}."):
            return None
        # It may have come with the compiler, and must not be made twice.
        return ModuleSpec(name, _Made(self.real(name)))

    def _tracing(self, *args: Any, **kwargs: Any) -> Any:
        return self.real(_TRACING).TransformGetItemToIndex(*args, **kwargs)


class _StandIn(ModuleType):
    """Has a few names of a module; for any other the real one takes its place."""

    def __init__(
        self, name: str, known: dict[str, Callable[..., Any]], real: Callable[[str], ModuleType]
    ) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        vars(self).update(known)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Asked of every module by whoever goes through all of them.
            raise AttributeError(name)
        return getattr(self._real(self.__name__), name)


class _Made(Loader):
    """Gives a module that exists."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The one that exists."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It has been run; only its origin was written over."""
        module.__spec__ = self._spec


def _unmarked(function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The function as it is; also for a mark that is given its function in a second call."""
    return _unmarked if function is None else function


def import_transformers() -> ModuleType:
    """transformers, with its model classes; what has been imported before stays as it is."""
    with without_compiler():
        _on_one_machine()
        for name in _CLASSES:
            importlib.import_module(name)
    return sys.modules["transformers"]


def _on_one_machine() -> None:
    import torch
    from transformers.utils.import_utils import is_torch_distributed_available

    real = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        # It remembers the answer, so that all parts of transformers hear the same.
        is_torch_distributed_available()
    finally:
        torch.distributed.is_available = real
