"""The digest of what an algorithm is played from: the same wherever it lies, and another after any change of it."""

import importlib
import sys

import pytest

from tasks.algorithm_source import source_digest
from tasks.algorithms.mappo import MAPPO
from tasks.algorithms.ppo import PPO

FILES = {
    "__init__.py": "",
    "kind.py": "import json\nfrom digested.helper import helped\n\n\nclass Kind:\n    act = helped\n",
    "helper.py": "from digested import deep\n\n\ndef helped():\n    return deep.VALUE\n",
    "deep.py": "VALUE = 1\n",
    "stranger.py": "VALUE = 1\n",
}


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """Of a class in a package with these files, in a folder of its own."""

    def made(folder: str, **changed: str) -> str:
        (package := tmp_path / folder / "digested").mkdir(parents=True)
        for name, text in FILES.items():
            (package / name).write_text(changed.get(name.removesuffix(".py"), text))
        for name in [name for name in sys.modules if name.partition(".")[0] == "digested"]:
            del sys.modules[name]
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / folder))
            importlib.import_module("digested.stranger")
            return source_digest(importlib.import_module("digested.kind").Kind)

    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == "digested"]:
        del sys.modules[name]


def test_the_place_counts_for_nothing(digest_of):
    """So members on several machines give the same; neither does what is imported and not used."""
    assert digest_of("here") == digest_of("there") == digest_of("elsewhere", stranger="VALUE = 2\n")


@pytest.mark.parametrize("name", ["kind", "helper", "deep"])
def test_every_text_that_is_used_counts(digest_of, name):
    """The class's own, what that takes names from, and what is used there."""
    assert digest_of("before") != digest_of("after", **{name: FILES[f"{name}.py"] + "# changed\n"})


def test_algorithms_differ():
    """Of algorithms that ship, too."""
    assert source_digest(PPO) != source_digest(MAPPO)
