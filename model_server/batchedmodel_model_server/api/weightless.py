"""Makes modules without memory for their weights, and without reckoning for nobody.

For whatever puts a checkpoint's weights into a module afterwards. Some operators on the meta device
torch computes in Python, by its symbolic shapes: sympy, or all of its compiler, would be imported
for numbers that nobody sees, which takes longer than loading a small model.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, TypeGuard

_META: Final = "meta"


def weightless() -> AbstractContextManager[object]:
    """Within it, some of what is on the meta device is made in a shorter way, with the same result.

    Whatever else is done there takes torch's own way, as does all on other devices.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    drawn = (torch.rand, torch.randn)
    # What tables of positions are made by when a module is; they are small.
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

    def is_meta(given: Any) -> TypeGuard[Any]:
        return isinstance(given, torch.Tensor) and given.is_meta

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

    made: AbstractContextManager[object] = Weightless()
    return made
