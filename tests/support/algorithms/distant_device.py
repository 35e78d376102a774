"""A device that counts what crosses to the host and back, for a machine that has none.

Its tensors are on torch's `meta` device as far as any code can see: not on the CPU, without an address, and mixed with
tensors of the host only where a GPU would allow it. Their values are kept in ordinary tensors behind them, so that
everything is computed, and every operation for which a GPU would have to exchange data with the host is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

if TYPE_CHECKING:
    from collections.abc import Sequence

DISTANT = torch.device("meta")
HERE = torch.device("cpu")
_WAITING = {
    "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2", "unique_dim",
    "unique_consecutive", "bincount",
}  # fmt: skip
"""Operations whose result the host has, or whose shape it must know."""
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class DistantTensor(torch.Tensor):
    """A tensor on the device; only a `DistantDevice` that is entered computes with it."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DISTANT,
        )

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    def data_ptr(self) -> int:
        """Return the address of the values, for kernels of the device."""
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} of a tensor on the device, outside of its `with`")


class Crossing(NamedTuple):
    """One exchange of data with the host."""

    number: int
    """The number of operations before it."""
    what: str


class DistantDevice(TorchDispatchMode):
    """Computes with the device's tensors while it is entered, in the thread that entered it."""

    def __init__(self) -> None:
        super().__init__()
        self.crossings: list[Crossing] = []
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        # Operations that are made of others arrive whole in inference mode.
        with self:
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        name = func._schema.name.removeprefix("aten::")
        leaves, form = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        distant = [leaf for leaf in tensors if isinstance(leaf, DistantTensor)]
        near = [leaf for leaf in tensors if not isinstance(leaf, DistantTensor)]
        if any(each.device == DISTANT for each in near):
            raise AssertionError(f"{name}: a tensor was made on the device from numbers of the host, by torch.tensor")
        wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        is_there = bool(distant) if wanted is None else wanted == DISTANT
        if distant or is_there:
            self.operations += 1
            self._count(name, args, distant, near, is_there=is_there)
        if wanted is not None:
            kwargs["device"] = HERE
            leaves, form = tree_flatten((args, kwargs))
        held = [leaf.held if isinstance(leaf, DistantTensor) else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(held, form)
        # Tensors of inference mode can't be the views that torch makes of this result.
        with torch.inference_mode(mode=False), torch.no_grad():
            return self._wrapped(func(*args, **kwargs), distant, near, is_there=is_there)

    @staticmethod
    def _wrapped(result: Any, distant: list[Any], near: list[Any], *, is_there: bool) -> Any:
        # What an operation writes in place, it returns.
        known = {id(each.held): each for each in distant} | {id(each): each for each in near}

        def out(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return known.get(id(value)) if id(value) in known else DistantTensor(value) if is_there else value

        return tree_map(out, result)

    def _count(self, name: str, args: Sequence[Any], distant: list[Any], near: list[Any], *, is_there: bool) -> None:
        if name == "_to_copy" and bool(distant) != is_there:
            self._cross(f"{name} to the {'device' if is_there else 'host'}")
        elif name == "copy_" and distant and near:
            self._cross(f"{name} to the {'device' if isinstance(args[0], DistantTensor) else 'host'}")
        elif name in _WAITING and distant:
            self._cross(f"{name} waits for the device")
        elif name in _INDEXING and distant:
            indices = [each for each in args[1] if each is not None]
            if any(each.dtype in {torch.bool, torch.uint8} for each in indices):
                self._cross(f"{name} by a mask waits for the device")
            elif any(each in near for each in indices if not isinstance(each, DistantTensor)):
                self._cross(f"{name} by indices of the host")
        elif distant and any(each.dim() for each in near):
            raise AssertionError(f"{name}: tensors of the host and of the device, which no GPU accepts")

    def _cross(self, what: str) -> None:
        self.crossings.append(Crossing(self.operations, what))
