"""A million steps leave no memory behind, nor do pools that are dropped."""

import subprocess
import sys
from pathlib import Path

import pytest

SLACK_BYTES = 2 * 2**20
"""A quarter of what the smallest array of a step, 8 kB of rewards, would leave if each were kept: 8 MB."""


@pytest.mark.parametrize("what", ["NextStep", "SameStep", "pools"])
def test_memory_does_not_grow(what: str):
    """1000 environments step 1000 times, or 60 pools of them come and go, in a process of their own.

    Batches are kept and dropped, with infos that hold final observations and statistics in about every step.
    """
    script = Path(__file__).parent / "memory_growth.py"
    ran = subprocess.run([sys.executable, str(script), what], capture_output=True, text=True, check=True, timeout=150)
    assert int(ran.stdout) < SLACK_BYTES
