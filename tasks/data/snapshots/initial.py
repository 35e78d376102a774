"""Puts the parameters that a run keeps from another one into a fresh state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError
from penstock.storage.refs import initial_name
from penstock.storage.tensors import load_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.stores.protocol import Store
    from penstock.tasks.specs import State


_NONE: dict[str, torch.Tensor] = {}


def start_from(state: State, store: Store, digest: str) -> None:
    """Replace parameters, normalisers' moments and target networks of a fresh state in place; the rest stays.

    Args:
        state: on the CPU.
        store: the run's.
        digest: of the tensors that were stored when the run began.

    Raises:
        CorruptObjectError: the file was altered or removed, or does not fit the algorithm any more.
    """
    name = initial_name(digest)
    try:
        tensors, _ = load_tensors(store.view(name), name, digest)
    except ObjectNotFoundError as error:
        raise CorruptObjectError(
            f"'{name}' in {store.url} is missing, the parameters that the run starts with; restore it from a copy"
        ) from error
    with torch.no_grad():
        for path, array in tensors.items():
            kind, _, rest = path.partition("/")
            group, _, parameter = rest.partition("/")
            named: Mapping[str, torch.Tensor] = state.params.get(group, _NONE) if kind == "params" else state.targets
            held = named.get(parameter if kind == "params" else rest)
            value = torch.from_numpy(np.array(array))
            if held is None or (held.shape, held.dtype) != (value.shape, value.dtype):
                raise CorruptObjectError(
                    f"'{path}' in '{name}' does not fit the algorithm, which changed since the run began: resume it "
                    f"with the version that began it"
                )
            held.copy_(value)
