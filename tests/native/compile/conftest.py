"""Fixtures of tests that compile environments."""

import pytest


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory):
    """A cache of the module's own: nothing is found there from before, nothing is left in a person's."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("PENSTOCK_CACHE_DIR", str(folder))
        yield folder
