"""Stores a learner's state as one safetensors file.

Names are `params/<group>/<name>`, `optimizer/<group>/<name>`, `targets/<name>`, and `window/<name>` if rows are drawn
by priorities.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import Ref, checkpoint_name
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.specs import ParameterGroup, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.storage.stores.protocol import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a checkpoint."""

    state: State
    reader: Mapping[str, object]
    """Position of the input: commit, epoch, seed, cursor."""
    window: dict[str, NDArray[Any]]
    """The result of `RoundWindow.export`; empty unless a window is prioritised."""


def write_checkpoint(
    store: Store,
    stage: int,
    state: State,
    reader: Mapping[str, object],
    window: Mapping[str, NDArray[Any]] | None = None,
) -> Ref:
    """Store everything that the next stage needs, durably.

    Args:
        store: the run's.
        stage: the stage that the checkpoint concludes.
        state: the algorithm's.
        reader: position of the input pipeline (commit, epoch, seed, cursor).
        window: the result of `RoundWindow.export`.
    """
    named = {f"targets/{name}": value for name, value in state.targets.items()}
    for group, params in state.params.items():
        named |= {f"params/{group}/{name}": value for name, value in params.items()}
        named |= {f"optimizer/{group}/{name}": value for name, value in state.optimizer.get(group, {}).items()}
    arrays = {name: value.detach().cpu().numpy() for name, value in named.items()}
    arrays |= {f"window/{name}": array for name, array in (window or {}).items()}
    # The order of a group's names is the order of its vector, on which sums of gradients depend; files sort names.
    order = {group: list(values) for group, values in state.params.items()}
    device = next(iter(state.params.values())).flat.device.type
    data = save_tensors(arrays, {"stage": stage, "reader": reader, "order": order, "device": device})
    ref = Ref(name=checkpoint_name(stage, digest(data)), digest=digest(data), nbytes=len(data))
    store.write(ref.name, [memoryview(data)], durable=True)
    return ref


def load_checkpoint(store: Store, ref: Ref, device: torch.device) -> Checkpoint:
    """Load and verify a checkpoint.

    Raises:
        CorruptObjectError: the file was altered or cut short, or is not a checkpoint.
    """
    tensors, meta = load_tensors(store.view(ref.name), ref.name, ref.digest)
    try:
        checkpoint = _checkpoint(tensors, meta, device)
        made_on = meta["device"]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptObjectError(
            f"'{ref.name}' is not a checkpoint that Penstock wrote: {error!r}. Restore it from a copy, or remove the "
            f"newest commit to resume from the one before"
        ) from error
    if made_on != device.type:
        logger.warning("checkpoint=%s was made on %s, bytes may differ on %s", ref.name, made_on, device.type)
    return checkpoint


def _checkpoint(tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], device: torch.device) -> Checkpoint:
    """Return the state that the tensors of a file make; a KeyError and others if they make none."""
    found: dict[str, dict[str, dict[str, torch.Tensor]]] = {"params": {}, "optimizer": {}}
    targets: dict[str, torch.Tensor] = {}
    window: dict[str, NDArray[Any]] = {}
    for path, array in tensors.items():
        kind, _, rest = path.partition("/")
        if kind == "window":
            window[rest] = np.array(array)
            continue
        # A copy: the optimizer writes in place, and the mapped file's pages can then be freed.
        value = torch.from_numpy(np.array(array)).to(device)
        if kind == "targets":
            targets[rest] = value
        else:
            group, _, name = rest.partition("/")
            found[kind].setdefault(group, {})[name] = value
    order = meta["order"]
    params = {group: ParameterGroup({name: found["params"][group][name] for name in order[group]}) for group in order}
    state = State(params=params, optimizer=found["optimizer"], targets=targets)
    return Checkpoint(state=state, reader=meta["reader"], window=window)
