"""Makes modules without memory for their weights, and without what such weights need not cost.

For whatever puts a checkpoint's weights into a module afterwards. Some operators on the meta device
torch computes in Python, by its symbolic shapes: sympy, or all of its compiler, would be imported
for numbers that nobody sees, which takes longer than loading a small model. Imports torch, so it is
imported late.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Weightless(TorchFunctionMode):  # type: ignore[misc]
    """Within it, what is on the meta device is not filled, and made by the shortest way.

    Whatever else is done there, and all other devices, are as usual.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As torch calls it, for every function of its own."""
        named = dict(kwargs or {})
        first = args[0] if args else named.get("tensor")
        if func is torch.arange and _is_meta(named.get("device")):
            return func(*args, **{**named, "device": "cpu"}).to("meta")
        if isinstance(first, torch.Tensor) and first.is_meta:
            if getattr(func, "__module__", None) == torch.nn.init.__name__:
                return first
            if func is torch.empty_like and first.is_contiguous() and set(named) == {"device"}:
                return torch.empty(first.shape, dtype=first.dtype, device=named["device"])
        return func(*args, **named)


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"
