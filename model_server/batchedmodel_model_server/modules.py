"""Puts weights into a module of somebody's own, without making them twice.

For handlers: `self.net = load_module(Net, path / "net.safetensors", device)`. The module is built
without memory for its weights, which are then the mapped file itself: starting takes as long as the
pages take to arrive, and several processes on a machine share them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from batchedmodel_model_server.errors import CannotLoad

Module = TypeVar("Module")


def load_module(make: Callable[[], Module], weights: Path, device: str) -> Module:
    """The module that `make` gives, with the weights of a safetensors file, ready to answer.

    Raises `CannotLoad` when the file is none, or holds other tensors than the module has. Pickles
    are not read: they can run anything.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise CannotLoad(f"{weights} cannot be read as safetensors: {error}") from error
    with torch.device("meta"):
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
    ready: Module = net.requires_grad_(False).eval().to(device)
    return ready
