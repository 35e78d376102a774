"""Tests of what needs a GPU: `make gpu` runs them. Each is skipped where torch finds no CUDA device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from penstock.tasks.runtime.device import prepare_device

from ..tasks.conftest import make_context

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["make_context"]


@pytest.fixture(autouse=True)
def computes_on_a_gpu() -> Iterator[None]:
    """Prepare the first GPU as a learner does; skip without one."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no CUDA device")
    prepare_device("cuda:0", 1)
    yield
    torch.use_deterministic_algorithms(mode=False)
