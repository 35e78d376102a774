"""Members that played different versions of an algorithm are named, and their stage is not committed."""

import pytest

from penstock.storage.errors import ConfigError
from penstock.tasks.driver.results import check_sources


def test_one_text_for_all_members():
    """The same source everywhere passes; one that differs is refused, with who had what."""
    check_sources(3, {"actor-0": "aa", "actor-1": "aa", "learner-0": "aa"})
    with pytest.raises(ConfigError, match=r"stage 3 .*\(actor-0, learner-0: aa; actor-1: bb\)"):
        check_sources(3, {"actor-0": "aa", "actor-1": "bb", "learner-0": "aa"})
