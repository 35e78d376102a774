"""A search guided by coverage finds no shard, tensor file or netlist that a decoder mishandles."""

from __future__ import annotations

import pytest

from .arrow_targets import ARROW_TARGETS
from .block_targets import BLOCK_TARGETS
from .search import TESTED_INPUTS, search
from .tensor_targets import TENSOR_TARGETS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("target", [*ARROW_TARGETS, *BLOCK_TARGETS, *TENSOR_TARGETS], ids=lambda target: target.name)
def test_a_search_finds_no_fault(target, tmp_path):
    """Inputs that lead to lines which no other has reached are changed further."""
    pytest.importorskip("atheris", reason="pip install 'penstock-rl[fuzzing]' installs what guides the search")
    found = search(target, tmp_path, inputs=TESTED_INPUTS)
    assert not found.faults, found
    assert found.branches > 0
