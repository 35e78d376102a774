"""Compile the header that both kinds of kernels are tested with, once for a process of tests."""

from pathlib import Path

import pytest

from penstock import native


@pytest.fixture(scope="session")
def drift(tmp_path_factory: pytest.TempPathFactory) -> native.Library:
    """The library of drift.hpp, compiled and loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return native.load(Path(__file__).parent / "drift.hpp", flags=["-O0"])
