"""The digest of an algorithm's source: independent of the folder, and changed by any change of the text."""

import importlib
import sys

import pytest

from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.algorithms.source_digest import source_digest

FILES = {
    "__init__.py": "",
    "kind.py": "import json\nfrom digested.helper import helped\n\n\nclass Kind:\n    act = helped\n",
    "helper.py": "from digested import deep\n\n\ndef helped():\n    return deep.VALUE\n",
    "deep.py": "VALUE = 1\n",
    "stranger.py": "VALUE = 1\n",
}


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """Digests a class in a package with these files, each time in a new folder."""

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


def test_the_digest_does_not_depend_on_the_folder(digest_of):
    """So members on several machines give the same; neither does what is imported and not used."""
    assert digest_of("here") == digest_of("there") == digest_of("elsewhere", stranger="VALUE = 2\n")


@pytest.mark.parametrize("name", ["kind", "helper", "deep"])
def test_the_digest_depends_on_every_used_module(digest_of, name):
    """The class's module counts, the modules that it imports names from, and theirs."""
    assert digest_of("before") != digest_of("after", **{name: FILES[f"{name}.py"] + "# changed\n"})


def test_algorithms_differ():
    """Shipped algorithms have different digests, too."""
    assert source_digest(PPO) != source_digest(MAPPO)
