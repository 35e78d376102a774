"""The level of the learner's kernels: chosen by the processor, or by name."""

import os
import subprocess
import sys

import pytest

from penstock.native.kernel_level import LEVELS, UnknownLevelError, level, use_level


def asked(value: str) -> subprocess.CompletedProcess[str]:
    """Ask a new process for its level, with PENSTOCK_KERNELS set."""
    code = "from penstock.native.kernel_level import level; print(level())"
    environment = {**os.environ, "PENSTOCK_KERNELS": value}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_the_fastest_level_of_the_processor_is_the_default():
    """Every processor has `base`; an empty variable stands for none."""
    assert LEVELS[:2] == ("torch", "base")
    assert asked("").stdout.strip() == LEVELS[-1]


@pytest.mark.parametrize("name", LEVELS)
def test_a_level_is_chosen_by_name(name):
    """By the variable for a process, by the context for a while."""
    assert asked(name).stdout.strip() == name
    before = level()
    with use_level(name):
        assert level() == name
    assert level() == before


def test_an_unknown_level_is_refused_with_those_that_there_are():
    """A misspelt name must not mean the default: the bytes of a run depend on it."""
    assert "PENSTOCK_KERNELS is 'avx1024', expected one of torch, base" in asked("avx1024").stderr
    with (
        pytest.raises(UnknownLevelError, match="the level is 'avx1024', expected one of torch, base"),
        use_level("avx1024"),
    ):
        pass
