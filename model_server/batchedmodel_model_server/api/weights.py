"""Puts weights into a module of somebody's own, without making them twice.

For handlers: `self.net = load_module(Net, path / "net.safetensors", device)`. The module is built
without memory for its weights, which are then the mapped file itself: starting takes as long as the
pages take to arrive, and several processes on a machine share them. Files that may be written over
while they are served are read instead.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from batchedmodel_model_server.api.mapped_weights import on_device
from batchedmodel_model_server.api.weightless import weightless
from batchedmodel_model_server.errors import CannotLoad
from batchedmodel_model_server.sources.weight_files import check_file

Module = TypeVar("Module")
_PICKLES: Final = (".pt", ".pth")


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
    with weightless(), torch.device("meta"):
        net = make()
    if not isinstance(net, torch.nn.Module):
        raise CannotLoad(f"load_module: {type(net).__name__} is not a torch.nn.Module")
    try:
        net.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise CannotLoad(f"{weights} does not fit {type(net).__name__}: {error}") from error
    unset = [
        name
        for name, tensor in (*net.named_parameters(), *net.named_buffers())
        if tensor.device.type == "meta"
    ]
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
            f"{weights} is a pickle, which is read only with spec.model.trust: true; safetensors "
            "need no trust"
        )
    try:
        loaded = torch.load(weights, map_location="cpu", mmap=True, weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CannotLoad(f"{weights} cannot be read by torch.load: {error}") from error
    if not isinstance(loaded, dict):
        raise CannotLoad(f"{weights} holds a {type(loaded).__name__}, not a state dict")
    return loaded
