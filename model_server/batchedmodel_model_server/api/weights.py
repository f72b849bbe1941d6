"""Puts weights into a torch module without making them twice.

For handlers: `self.net = load_module(Net, path / "net.safetensors", device)`. The module is built
without memory for its weights, which are then the mapped file itself: a start takes as long as the
pages take to arrive, and several processes on a machine share them.

Mapped weights are whatever the file is. A file that is written over in place changes the answers,
and one that is cut short ends the process by SIGBUS, without a word. So only files that nobody
writes to any more stay mapped: those of a numbered version, of a commit and of a package.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.untrusted_files import check_file

Module = TypeVar("Module")
_PICKLES: Final = (".pt", ".pth")
_META: Final = "meta"
_files_stay: ContextVar[bool] = ContextVar("files_stay", default=True)


def load_module(
    make: Callable[[], Module], weights: Path, device: str, *, trusted: bool = False
) -> Module:
    """The module that `make` gives, with the weights of a safetensors file, ready to answer.

    Raises `CannotLoad` when the file is none, or holds other tensors than the module has. What
    `torch.save` wrote (.pt, .pth) is a pickle, which can run anything, and is read only if the
    handler passes that it is `trusted`.
    """
    import torch

    tensors = _tensors(weights, trusted=trusted)
    with weightless(), torch.device(_META):
        net = make()
    if not isinstance(net, torch.nn.Module):
        raise CannotLoad(f"load_module: {type(net).__name__} is not a torch.nn.Module")
    try:
        net.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise CannotLoad(f"{weights} does not fit {type(net).__name__}: {error}") from error
    named = (*net.named_parameters(), *net.named_buffers())
    unset = [name for name, tensor in named if tensor.is_meta]
    if unset:
        # Buffers that are no part of the state: without memory their values were never computed.
        raise CannotLoad(
            f"{type(net).__name__} computes {', '.join(unset)} when it is made; store them with "
            "the weights (persistent buffers), or load it without load_module"
        )
    ready: Module = on_device(net.requires_grad_(False).eval(), device)
    return ready


def _tensors(weights: Path, *, trusted: bool) -> dict[str, Any]:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if weights.suffix not in _PICKLES:
        check_file(weights)
        try:
            found: dict[str, Any] = load_file(weights)
        except (OSError, TypeError, SafetensorError) as error:
            raise CannotLoad(f"{weights} cannot be read as safetensors: {error}") from error
        return found
    if not trusted:
        raise CannotLoad(
            f"{weights} is a pickle, which is read only with spec.model.trustRemoteCode: true; "
            "safetensors need no trust"
        )
    try:
        loaded = torch.load(weights, map_location="cpu", mmap=True, weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CannotLoad(f"{weights} cannot be read by torch.load: {error}") from error
    if not isinstance(loaded, dict):
        raise CannotLoad(f"{weights} holds a {type(loaded).__name__}, not a state dict")
    return loaded


@contextmanager
def while_files(*, stay: bool) -> Iterator[None]:
    """Within it `on_device` copies weights unless their files `stay` as they are."""
    token = _files_stay.set(stay)
    try:
        yield
    finally:
        _files_stay.reset(token)


def on_device(net: Any, device: str) -> Any:
    """A torch module on the device, its weights in memory of its own if its files may change."""
    moved = net.to(device)
    if not _files_stay.get():
        # One by one, so that never more than one is there twice. Other devices map no files.
        for tensor in (*moved.parameters(), *moved.buffers()):
            if tensor.device.type == "cpu":
                tensor.data = tensor.data.clone()
    return moved


def weightless() -> AbstractContextManager[object]:
    """Within it torch makes modules on the meta device without importing sympy or its compiler.

    torch computes some operators on that device in Python, by symbolic shapes. The import takes
    longer than loading a small model (a second; docs/performance.md, "Start"). The operators that
    modules use when they are made are computed in a shorter way here, with the same result. All
    others, and other devices, take torch's own way.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    drawn = (torch.rand, torch.randn)
    # By these a module makes its tables of positions, which are small.
    small = (
        torch.arange,
        torch.div,
        torch.Tensor.div,
        torch.Tensor.__truediv__,
        torch.Tensor.__rtruediv__,
        torch.pow,
        torch.Tensor.pow,
        torch.Tensor.__pow__,
        torch.Tensor.__rpow__,
    )

    def is_meta(given: Any) -> bool:
        return isinstance(given, torch.Tensor) and bool(given.is_meta)

    def on_cpu(given: Any) -> Any:
        return torch.ones(given.shape, dtype=given.dtype) if is_meta(given) else given

    class Weightless(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self,
            func: Callable[..., Any],
            types: Sequence[type],
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            named = dict(kwargs or {})
            first: Any = args[0] if args else named.get("tensor")
            if is_meta(first) and getattr(func, "__module__", None) == torch.nn.init.__name__:
                return first
            device = named.get("device")
            onto_meta = device is not None and torch.device(device).type == _META
            if func in drawn and onto_meta:
                named.pop("generator", None)
                return torch.empty(*args, **named)
            if func in small and (onto_meta or any(map(is_meta, args))):
                if onto_meta:
                    named["device"] = "cpu"
                return func(*map(on_cpu, args), **named).to(_META)
            if func is torch.empty_like and is_meta(first) and set(named) == {"device"}:
                return torch.empty(first.shape, dtype=first.dtype, device=device)
            return func(*args, **named)

    return Weightless()
