"""A search guided by coverage finds no JSON text, name, setting or greeting of a socket that a decoder mishandles."""

from __future__ import annotations

import pytest

from .json_targets import JSON_TARGETS
from .name_targets import NAME_TARGETS
from .search import TESTED_INPUTS, search
from .socket_targets import SOCKET_TARGETS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("target", [*JSON_TARGETS, *NAME_TARGETS, *SOCKET_TARGETS], ids=lambda target: target.name)
def test_a_search_finds_no_fault(target, tmp_path):
    """Inputs that lead to lines which no other has reached are changed further."""
    pytest.importorskip("atheris", reason="pip install 'penstock-rl[fuzzing]' installs what guides the search")
    found = search(target, tmp_path, inputs=TESTED_INPUTS)
    assert not found.faults, found
    assert found.branches > 0
